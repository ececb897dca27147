"""The program of an agent: its modules, its arguments and its timeouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch import log
from dslaunch.transport import program

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Connection

_MAIN = "guardian"
NO_AGENT, STOPPED = 3, 4
"""Exit codes if the agent to join is not running, or was suspended (and is resumed now); see
`node/guardian.py`."""
_log = log.Log(__name__)


class AgentStart(Struct, frozen=True):
    """The arguments of an agent; timeouts in seconds."""

    run: str
    host: str
    heartbeat: float = 15.0
    """Time without a heartbeat of the launcher after which the agent drops its connection."""
    reconnect: float = 20.0
    """Time in which the launcher may reconnect before the agent ends the run."""
    waits: bool = False
    """Whether the launcher may reconnect also before the ranks have started."""


def prepare() -> None:
    """Pack the agent's modules, which takes as long as to log in to a node."""
    program.prepare(_MAIN)


def start(
    connection: Connection,
    node: Node,
    agent: AgentStart,
    *,
    join: bool = False,
    hold: bool = False,
) -> program.Started:
    """Start an agent over a connection, or with `join` connect to the running one; with `hold` for
    the launcher of its run."""
    _log.debug("starting-agent", node=node.host, run=agent.run, join=join)
    return program.start(connection, node, boot_text(agent, join=join, hold=hold))


def boot_text(agent: AgentStart, *, join: bool = False, hold: bool = False) -> tuple[bytes, ...]:
    """Return the pieces of what the shell line of `transport.program` reads.

    It starts the agent, or with `join` connects to the running one; with `hold` for the launcher
    of its run.
    """
    timeouts = {"heartbeat": agent.heartbeat, "reconnect": agent.reconnect}
    arguments = {
        "run": agent.run,
        "host": agent.host,
        "timeouts": timeouts,
        "waits": agent.waits,
        "join": join,
        "hold": hold,
    }
    return program.text(_MAIN, arguments)
