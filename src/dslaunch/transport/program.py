"""How a program of ours gets onto a node: one shell line that finds a Python, and the text it runs.

The text goes through standard input, so nothing is written to the node's disk and nothing but
the short line shows in its process list.
"""

from __future__ import annotations

import marshal
import sys
import threading
import zlib
from functools import cache
from importlib.util import MAGIC_NUMBER, find_spec
from types import CodeType
from typing import TYPE_CHECKING, Any, cast

from dslaunch.launch.command import quote
from dslaunch.launch.interpreter import interpreter
from dslaunch.transport import login

if TYPE_CHECKING:
    from importlib.abc import SourceLoader

    from dslaunch.cluster.model import Node

MARK = "DSLAUNCH_PROGRAM"
"""The variable that our own programs on nodes carry in their environment, and ranks do not; see
`node/processes.py`."""
NO_PYTHON = 127
"""The line's exit code where no Python is found."""
_LOADER = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("dslaunch needs Python 3.8 or newer on a node, this is " + sys.version.split()[0])
import gc, importlib.util, marshal, zlib
gc.disable()
texts, codes = [sys.stdin.buffer.read(size) for size in {sizes!r}]
same = importlib.util.MAGIC_NUMBER == {magic!r} and sys.implementation.name == {kind!r}
class SentModules:
    modules = marshal.loads(zlib.decompress(codes if same else texts))
    def find_spec(name, path=None, target=None):
        if name in SentModules.modules:
            package = name in {packages!r}
            return importlib.util.spec_from_loader(name, SentModules, is_package=package)
    def create_module(spec):
        return None
    def exec_module(module):
        code = SentModules.modules[module.__name__]
        file = module.__name__.replace(".", "/") + ".py"
        exec(code if same else compile(code, file, "exec"), module.__dict__)
sys.meta_path.insert(0, SentModules)
from dslaunch.node.{last} import main
gc.enable()
main({arguments!r})
"""
"""A node whose Python has our bytecode takes code that is compiled already: to compile costs a node
more than all questions of a preflight. What a module imports only where it is used is not even run
until then. The garbage collector would walk all that is being imported, again and again."""
_PACKAGES = ("dslaunch", "dslaunch.node")
_ANY_PYTHON = 2
"""The format of `marshal` that all versions read, for what is no code."""
_READ = (
    "import sys;r=sys.stdin.buffer;n=r.readline().strip();"
    f"n.isdigit() or sys.exit({login.NO_TEXT});exec(r.read(int(n)))"
)
"""Where a start-up file has read the beginning, the first line is no length."""


def line(node: Node) -> str:
    """The shell line: it prints login.STARTED, then runs the job's interpreter, or any `python3`.

    `-I -S` leaves out the user's site-packages and variables: the program needs none, and starts
    in half the time.
    """
    choices = dict.fromkeys((quote(interpreter(node)), "python3"))
    return (
        f"echo {login.STARTED.decode().strip()}; {MARK}=1; export {MARK}; "
        f"for p in {' '.join(choices)}; do "
        f'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -c {quote(_READ)}; done; '
        f"echo no python3 >&2; exit {NO_PYTHON}"
    )


def text(modules: tuple[str, ...], arguments: dict[str, Any]) -> bytes:
    """What the line reads: a length, a loader, and the program. It consists of modules of
    `dslaunch.node`, which find each other; the last one's `main` is called with `arguments`."""
    with _once:  # nodes are connected to by many threads at a time
        parts = _parts(modules)
    loader = _LOADER.format(
        sizes=tuple(map(len, parts)),
        packages=_PACKAGES,
        magic=MAGIC_NUMBER,
        kind=sys.implementation.name,
        last=modules[-1],
        arguments=arguments,
    ).encode()
    return b"%d\n%s%s%s" % (len(loader), loader, *parts)


_once = threading.Lock()


@cache
def _parts(modules: tuple[str, ...]) -> tuple[bytes, bytes]:
    """The modules by name, as source and as this Python's bytecode."""
    # what `import dslaunch` offers on this machine is nothing for a node
    texts = dict.fromkeys(_PACKAGES, b"")
    codes = {name: compile("", name, mode="exec") for name in _PACKAGES}
    for name in (f"dslaunch.node.{name}" for name in modules):
        spec = find_spec(name)
        assert spec is not None
        loader = cast("SourceLoader", spec.loader)
        texts[name] = loader.get_data(loader.get_filename(name))
        code = loader.get_code(name)
        assert code is not None
        codes[name] = _renamed(code, name.replace(".", "/") + ".py")
    return _packed(marshal.dumps(texts, _ANY_PYTHON)), _packed(marshal.dumps(codes))


def _renamed(code: CodeType, file: str) -> CodeType:
    """The same code as from another file: where this machine keeps ours is nothing for a node.

    That takes a tenth of the time to compile it again.
    """
    constants = (_renamed(c, file) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=file, co_consts=tuple(constants))


def _packed(data: bytes) -> bytes:
    """To press harder takes longer than to send the rest."""
    return zlib.compress(data, 1)
