"""What the agent is made of, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from dslaunch.transport import program

MODULES = (
    "frames",
    "paths",
    "cgroup",
    "peer",
    "processes",
    "private",
    "directories",
    "run_files",
    "beneath",
    "files",
    "interfaces",
    "network",
    "transfer",
    "torchfile",
    "shards",
    "accelerators",
    "trial",
    "questions",
    "survey",
    "probe",
    "postmortem",
    "streams",
    "journal",
    "client",
    "bridge",
    "member_link",
    "links",
    "activity",
    "procfs",
    "stacks",
    "spellings",
    "redact",
    "ranks",
    "agent",
    "guardian",
)
"""The last one has the `main`."""
NO_AGENT, STOPPED = 3, 4
"""Exit codes when an agent was to be joined that is not there, or was stopped (and is awake now);
see `node/guardian.py`."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Which agent is meant, and how patient it is, in seconds."""

    run: str
    host: str
    silence: float = 15.0
    """Without a sign of the launcher until it counts as gone."""
    reconnect: float = 20.0
    """In which a launcher that is gone may come back before the run is ended."""


def boot_text(agent: Agent, *, join: bool = False, hold: bool = False) -> bytes:
    """What the shell line of `transport.program` reads.

    It starts the agent, or with `join` finds the one that is there; with `hold` for the launcher
    of its run.
    """
    times = {"silence": agent.silence, "reconnect": agent.reconnect}
    arguments = {"run": agent.run, "host": agent.host, "times": times, "join": join}
    arguments["hold"] = hold
    return program.text(MODULES, arguments)
