"""Names and states of nodes in the output of SLURM's commands and of jobs. Pure."""

from __future__ import annotations

import re

from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import expand

NOT_RESPONDING = "NOT_RESPONDING"
UNUSABLE = (
    "DOWN",
    "DRAIN",
    "FAIL",
    "MAINT",
    NOT_RESPONDING,
    "UNKNOWN",
    "INVAL",
    "FUTURE",
)
"""Prefixes of the states in which SLURM starts no jobs on a node (sinfo(1), "NODE STATE CODES"). A
node that is powered down is powered up for a job."""
_SUFFIXES = {"*": NOT_RESPONDING, "$": "MAINT", "@": "REBOOT"}


def node_names(folded: str) -> tuple[str, ...]:
    """Return the nodes of a folded list; none for text that is no such list, or that was cut.

    Anyone who can write to a job's output can write a list there. The names are used in logs and
    commands, so a list with an invalid host name is invalid as a whole.
    """
    try:
        names = expand(folded)
    except ValueError:
        return ()
    return () if any(map(host_fault, names)) else names


def node_states(text: str) -> frozenset[str]:
    """Return the states of a node, of which sinfo and scontrol print several as `IDLE+DRAIN` or
    `down*`."""
    words = {word for word in re.split(r"\W+", text.upper()) if word}
    return frozenset(words | {state for mark, state in _SUFFIXES.items() if mark in text})


def is_down(states: frozenset[str]) -> bool:
    """Return whether a node of these states is down or does not respond."""
    return bool(states & {"DOWN", NOT_RESPONDING})


def is_usable(states: frozenset[str]) -> bool:
    """Return whether SLURM starts jobs on a node of these states."""
    return not any(state.startswith(UNUSABLE) for state in states)
