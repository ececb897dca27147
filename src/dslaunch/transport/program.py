"""How a program of ours gets onto a node: one shell line that finds a Python, and the text it runs.

The text goes through standard input, so nothing is written to the node's disk and nothing but
the short line shows in its process list.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from dslaunch.launch.command import quote
from dslaunch.launch.interpreter import interpreter

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node

NO_PYTHON = 127
"""The line's exit code where no Python is found."""
_LOADER = """\
import sys, types
if sys.version_info < (3, 8):
    sys.exit("dslaunch needs Python 3.8 or newer on a node, this is " + sys.version.split()[0])
for name in ("dslaunch", "dslaunch.node"):
    sys.modules[name] = types.ModuleType(name)
for name, text in {sources!r}:
    module = sys.modules["dslaunch.node." + name] = types.ModuleType("dslaunch.node." + name)
    exec(compile(text, "dslaunch/node/" + name + ".py", "exec"), module.__dict__)
module.main({arguments!r})
"""
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
    """What the line reads: a length, and the program. It consists of modules of `dslaunch.node`, in
    the order in which they import each other; the last one's `main` is called with `arguments`."""
    loader = _LOADER.format(sources=_sources(modules), arguments=arguments).encode()
    return b"%d\n%s" % (len(loader), loader)


@cache
def _sources(modules: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    node = resources.files("dslaunch") / "node"
    return tuple((name, (node / f"{name}.py").read_text("utf-8")) for name in modules)
