"""How a program of ours gets onto a node: one shell line that finds a Python, and the text it runs.

The text goes through standard input, so nothing is written to the node's disk and nothing but
the short line shows in its process list.
"""

from __future__ import annotations

import marshal
import sys
import zlib
from functools import cache
from importlib import resources
from importlib.abc import InspectLoader
from importlib.util import MAGIC_NUMBER, find_spec
from typing import TYPE_CHECKING, Any

from dslaunch.launch.command import quote
from dslaunch.launch.interpreter import interpreter

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node

NO_PYTHON = 127
"""The line's exit code where no Python is found."""
_LOADER = """\
import sys, zlib, marshal, _frozen_importlib_external as bytecode
if sys.version_info < (3, 8):
    sys.exit("dslaunch needs Python 3.8 or newer on a node, this is " + sys.version.split()[0])
texts, codes = [sys.stdin.buffer.read(size) for size in {sizes!r}]
same = bytecode.MAGIC_NUMBER == {magic!r} and sys.implementation.name == {kind!r}
kind = type(sys)
for name in ("dslaunch", "dslaunch.node"):
    sys.modules[name] = kind(name)
for name, code in marshal.loads(zlib.decompress(codes if same else texts)):
    module = sys.modules["dslaunch.node." + name] = kind("dslaunch.node." + name)
    exec(code if same else compile(code, "dslaunch/node/" + name + ".py", "exec"), module.__dict__)
module.main({arguments!r})
"""
"""A node whose Python has our bytecode takes code that is compiled already: to compile costs a node
more than all questions of a preflight."""
_ANY_PYTHON = 2
"""The format of `marshal` that all versions read, for what is no code."""
_READ = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"


def line(node: Node) -> str:
    """The shell line: with the job's interpreter, else any `python3`.

    `-I -S` leaves out the user's site-packages and variables: the program needs none, and starts
    in half the time.
    """
    choices = dict.fromkeys((quote(interpreter(node)), "python3"))
    return (
        f"for p in {' '.join(choices)}; do "
        f'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -c {quote(_READ)}; done; '
        f"echo no python3 >&2; exit {NO_PYTHON}"
    )


def text(modules: tuple[str, ...], arguments: dict[str, Any]) -> bytes:
    """What the line reads: a length, a loader, and the program. It consists of modules of
    `dslaunch.node`, in the order in which they import each other; the last one's `main` is called
    with `arguments`."""
    parts = _texts(modules), _codes(modules)
    loader = _LOADER.format(
        sizes=tuple(map(len, parts)),
        magic=MAGIC_NUMBER,
        kind=sys.implementation.name,
        arguments=arguments,
    ).encode()
    return b"%d\n%s%s%s" % (len(loader), loader, *parts)


@cache
def _texts(modules: tuple[str, ...]) -> bytes:
    node = resources.files("dslaunch") / "node"
    texts = [(name, (node / f"{name}.py").read_text("utf-8")) for name in modules]
    return zlib.compress(marshal.dumps(texts, _ANY_PYTHON))


@cache
def _codes(modules: tuple[str, ...]) -> bytes:
    codes = []
    for name in modules:
        spec = find_spec(f"dslaunch.node.{name}")
        assert spec is not None and isinstance(spec.loader, InspectLoader)
        codes.append((name, spec.loader.get_code(spec.name)))
    return zlib.compress(marshal.dumps(codes))
