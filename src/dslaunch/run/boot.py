"""What the agent is made of, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from dslaunch.transport import program

MODULES = (
    *("paths", "frames", "processes", "keeping", "files", "interfaces", "network", "pieces"),
    *("shards", "probe", "postmortem", "streams", "journal", "client", "bridge", "wire", "links"),
    *("activity", "doing", "stacks", "redact", "ranks", "agent", "guardian"),
)
"""The last one has the `main`."""
NO_AGENT = 3
"""Exit code when an agent was to be joined that is not there."""


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
    """What the shell line of `transport.program` reads.

    It starts the agent, or with `join` finds the one that is there.
    """
    times = {"silence": agent.silence, "reconnect": agent.reconnect}
    arguments = {"run": agent.run, "host": agent.host, "times": times, "join": join}
    return program.text(MODULES, arguments)
