"""Start a program of ours on a node: one shell line that finds a Python, and the text it runs.

The text is sent through standard input: nothing is written to the node's disk, and its process list
shows only the short line.
"""

from __future__ import annotations

import marshal
import re
import sys
import threading
import time
import zlib
from functools import cache
from importlib.util import MAGIC_NUMBER, find_spec
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dslaunch.launch.command import quote
from dslaunch.launch.interpreter import interpreter
from dslaunch.transport import login_shell
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import SourceLoader

    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Channel, Connection

MARK = "DSLAUNCH_PROGRAM"
"""The variable that our own programs on nodes carry in their environment, and ranks do not; see
`node/processes.py`."""
_PACKAGES = ("dslaunch", "dslaunch.node")
_BEGINNING = """\
import sys
if sys.version_info < (3, 8):
    sys.stderr.write("Python 3.8 or newer is needed, this is " + sys.version.split()[0])
    sys.exit({old})
at_start = frozenset(sys.modules)
import marshal
from _frozen_importlib_external import MAGIC_NUMBER
same = MAGIC_NUMBER == {magic!r} and sys.implementation.name == {kind!r}
text, code, packed_texts, packed_codes = [sys.stdin.buffer.read(size) for size in {sizes!r}]
exec(marshal.loads(code) if same else text)
from dslaunch.node.{main} import main
gc.enable()
"""
"""The beginning of a program, whose modules follow it. A node whose Python has our bytecode takes
code that is compiled already: to compile costs a node more than all questions of a preflight. What
a module imports only where it is used is sent as text alone, and compiled there: few runs need it,
and all would send it. `at_start`: the modules that Python has imported itself; see
`node/same_python.py`. The call of `main` follows."""
_LOADER = f"""\
import gc, zlib
from _frozen_importlib import ModuleSpec
gc.disable()
class SentModules:
    at_start = at_start
    codes = marshal.loads(zlib.decompress(packed_codes)) if same else {{}}
    texts = marshal.loads(packed_texts)
    def text(name):
        return zlib.decompress(SentModules.texts[name])
    def find_spec(name, path=None, target=None):
        if name in SentModules.texts:
            return ModuleSpec(name, SentModules, is_package=name in {_PACKAGES!r})
    def create_module(spec):
        return None
    def exec_module(module):
        name = module.__name__
        if name in SentModules.codes:
            code = marshal.loads(SentModules.codes[name])
        else:
            code = compile(SentModules.text(name), name.replace(".", "/") + ".py", "exec")
        exec(code, module.__dict__)
    def get_source(name):
        return SentModules.text(name).decode()
sys.meta_path.insert(0, SentModules)
"""
"""The garbage collector would walk all that is being imported, again and again. `importlib.util`
would take as long to import as all modules of a preflight (see node/paths.py), and `importlib`
itself imports `warnings`: what is needed of it is taken from modules that CPython and PyPy have
imported."""
_IMPORT = re.compile(
    r"^(?P<indent> *)from (?:dslaunch\.node\b\.?|\.)(?P<module>\w*) import "
    r"(?P<names>\([^)]*\)|[^(#\n]*)",
    re.MULTILINE,
)
"""An import of modules of `dslaunch.node`, in the two forms that the formatter writes; in hooks, a
relative one."""
_ANY_PYTHON = 2
"""The format of `marshal` that all versions read, for what is no code."""
_READ = (
    "import sys;r=sys.stdin.buffer;n=r.readline().strip();"
    f"n.isdigit() or sys.exit({login_shell.NO_TEXT});exec(r.read(int(n)))"
)
"""Where a start-up file has read the beginning, the first line is no length."""


def line(node: Node) -> str:
    """Return the shell line: it prints STARTED, then runs the job's interpreter or `python3`.

    `-I -S` leaves out the user's site-packages and variables: the program needs none, and starts
    in half the time.
    """
    choices = dict.fromkeys((quote(interpreter(node)), "python3"))
    return (
        f"echo {login_shell.STARTED.decode().strip()}; {MARK}=1; export {MARK}; "
        f"for p in {' '.join(choices)}; do "
        f'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -c {quote(_READ)}; done; '
        f"exit {login_shell.NO_PYTHON}"
    )


class Started(NamedTuple):
    """A program that was started on a node, to which nothing listens yet."""

    channel: Future[Channel]
    """Done: it has the channel to the program, or the OSError of a connection over which none can
    be started."""
    written: int
    """Bytes of its text."""
    began: float
    """When it was started, on the monotonic clock: before anything that it says."""


def start(connection: Connection, node: Node, text: Sequence[bytes]) -> Started:
    """Start a program with this text on a node."""
    began = time.monotonic()
    channel: Future[Channel] = Future()
    fulfill(channel, lambda: connection.start(line(node), text))
    return Started(channel, written=sum(map(len, text)), began=began)


def prepare(main: str) -> None:
    """Pack the modules of a program, which is done once, before a connection needs them."""
    with _once:
        packed_modules(main)


def text(main: str, arguments: dict[str, Any]) -> tuple[bytes, ...]:
    """Return the pieces of what the line reads: a length and the beginning, and the program.

    The program is a module of `dslaunch.node`, whose `main` is called with `arguments`, and the
    modules that it imports: the same objects for all nodes.
    """
    with _once:  # nodes are connected to by many threads at a time
        parts = packed_modules(main)
        beginning = _beginning(main) + f"main({arguments!r})\n".encode()
    return (b"%d\n%s" % (len(beginning), beginning), *parts)


@cache
def _beginning(main: str) -> bytes:
    """Return the part of the beginning that is the same for all nodes."""
    return _BEGINNING.format(
        sizes=tuple(map(len, packed_modules(main))),
        magic=MAGIC_NUMBER,
        kind=sys.implementation.name,
        old=login_shell.OLD_PYTHON,
        main=main,
    ).encode()


_once = threading.Lock()


def needed_modules(main: str, *, at_once: bool = False) -> dict[str, bytes]:
    """Return the sources of a module of `dslaunch.node` and of all that it imports from there.

    Imports inside functions count too, unless only those `at_once` are meant, which a start needs.
    They are found by their form: to parse the sources of an agent takes 50 times as long (77 ms) as
    to search them.
    """
    sources: dict[str, bytes] = {}
    waiting = [main]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            module = _module(name)
            sources[name] = module.source
            waiting += module.first if at_once else [*module.first, *module.later]
    return sources


class _Module(NamedTuple):
    """A module of `dslaunch.node`, and those that it imports."""

    source: bytes
    first: list[str]
    """Imported with it."""
    later: list[str]
    """Imported by its functions."""


@cache
def _module(name: str) -> _Module:
    loader = _loader(name)
    source = loader.get_data(loader.get_filename(_full(name)))
    module = _Module(source, first=[], later=[])
    for statement in _IMPORT.finditer(source.decode()):
        into = module.later if statement["indent"] else module.first
        if statement["module"]:
            into.append(statement["module"])
        else:
            into += re.findall(r"\w+", statement["names"])
    return module


def _full(name: str) -> str:
    return f"dslaunch.node.{name}"


def _loader(name: str) -> SourceLoader:
    spec = find_spec(_full(name))
    assert spec is not None
    return cast("SourceLoader", spec.loader)


@cache
def packed_modules(main: str) -> tuple[bytes, ...]:
    """Return what imports the modules of a program, as source and as this Python's bytecode; and
    the modules by name, packed: all as source, of which a node unpacks what it needs, and those
    that it starts with as bytecode."""
    # what `import dslaunch` offers on this machine is nothing for a node
    texts = dict.fromkeys(_PACKAGES, b"")
    texts |= {_full(name): source for name, source in needed_modules(main).items()}
    codes = {name: marshal.dumps(compile("", name, mode="exec")) for name in _PACKAGES}
    codes |= {_full(name): _bytecode(name) for name in needed_modules(main, at_once=True)}
    packed_texts = {name: _packed(source) for name, source in texts.items()}
    return (
        _LOADER.encode(),
        marshal.dumps(compile(_LOADER, "dslaunch/loader.py", mode="exec")),
        marshal.dumps(packed_texts, _ANY_PYTHON),
        _packed(marshal.dumps(codes)),
    )


def _bytecode(name: str) -> bytes:
    code = _loader(name).get_code(_full(name))
    assert code is not None
    return marshal.dumps(_renamed(code, _full(name).replace(".", "/") + ".py"))


def _renamed(code: CodeType, file: str) -> CodeType:
    """Return the same code as if from another file: a node gets no paths of this machine.

    This takes a tenth of the time of compiling it again.
    """
    constants = (_renamed(c, file) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=file, co_consts=tuple(constants))


def _packed(data: bytes) -> bytes:
    """Compress fast: a higher level takes longer than sending the rest."""
    return zlib.compress(data, 1)
