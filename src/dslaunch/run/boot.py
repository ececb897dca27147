"""How the agent gets onto a node: one shell line that finds a Python, and the text that it runs.

The text goes through standard input, so nothing is written to the node's disk and nothing but
the short line shows in its process list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from dslaunch.launch.command import quote
from dslaunch.launch.interpreter import interpreter

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node

MODULES = (
    *("frames", "processes", "keeping", "files", "probe", "postmortem", "streams"),
    *("journal", "client"),
    *(
        "bridge",
        "wire",
        "links",
        "activity",
        "doing",
        "stacks",
        "redact",
        "ranks",
        "agent",
        "guardian",
    ),
)
"""In the order in which they import each other."""
NO_PYTHON = 127
NO_AGENT = 3
"""Exit code when an agent was to be joined that is not there."""
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


def boot_line(node: Node) -> str:
    """The shell line that starts the agent: with the job's interpreter, else any `python3`.

    `-I -S` leaves out the user's site-packages and variables: the agent needs none, and starts
    in half the time.
    """
    choices = dict.fromkeys((quote(interpreter(node)), "python3"))
    return (
        f"for p in {' '.join(choices)}; do "
        f'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -S -c {quote(_READ)}; done; '
        f"echo no python3 >&2; exit {NO_PYTHON}"
    )


@dataclass(frozen=True, slots=True)
class Agent:
    """Which agent is meant, and how patient it is, in seconds."""

    run: str
    host: str
    silence: float = 15.0
    """Without a sign of the launcher until it counts as gone."""
    reconnect: float = 20.0
    """In which a launcher that is gone may come back before the run is ended."""


def boot_text(agent: Agent, *, join: bool = False) -> bytes:
    """What the boot line reads: a length, and the program.

    It starts the agent, or with `join` finds the one that is there.
    """
    times = {"silence": agent.silence, "reconnect": agent.reconnect}
    arguments = {"run": agent.run, "host": agent.host, "times": times, "join": join}
    text = _LOADER.format(sources=_sources(), arguments=arguments).encode()
    return b"%d\n%s" % (len(text), text)


@cache
def _sources() -> tuple[tuple[str, str], ...]:
    node = resources.files("dslaunch") / "node"
    return tuple((name, (node / f"{name}.py").read_text("utf-8")) for name in MODULES)
