"""Node names in what SLURM's commands and a job's output say. Pure."""

from __future__ import annotations

from dslaunch.cluster.names import host_fault
from dslaunch.cluster.nodeset import expand


def node_names(folded: str) -> tuple[str, ...]:
    """Return the nodes of a folded list; none for text that is no such list, or that was cut.

    Whoever can write to a job's output can write a list there. The names become those of logs and
    words of commands, so that one that is no host's name makes the whole list invalid.
    """
    try:
        names = expand(folded)
    except ValueError:
        return ()
    return () if any(map(host_fault, names)) else names
