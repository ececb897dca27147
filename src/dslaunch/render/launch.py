"""The input and the output of rendering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.launch.decisions import Decision, DecisionCode
from dslaunch.launch.plan import World, node_environment
from dslaunch.registry import LAUNCHERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from dslaunch.cluster.model import Allocation, Pairs, Placement
    from dslaunch.launch.job import Job
    from dslaunch.launch.launchers import Launcher
    from dslaunch.launch.plan import Decided
    from dslaunch.notes import Note


class Launch(Struct, frozen=True):
    """A job on an allocation with its decisions: the input of a plan."""

    cluster: str
    """Its name."""
    allocation: Allocation
    job: Job
    decided: Decided

    @property
    def world(self) -> World:
        """Return the input of launchers about the whole run."""
        return World(self.allocation, self.decided.rendezvous, self.job.min_nodes)

    @property
    def launcher(self) -> Launcher:
        """Return the job's launcher. Raises UsageError for an unknown name."""
        return LAUNCHERS.get(self.job.launcher)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Return the nodes in rank order."""
        return self.allocation.placements

    def environment(self, placement: Placement) -> Pairs:
        """Return the variables of a node, without those that its launcher adds."""
        return node_environment(placement, self.job, self.decided.rendezvous)


class Rendered(Struct, frozen=True):
    """A rendered text, with notes about what it cannot express."""

    text: str
    notes: tuple[Note | str, ...] = ()
    """For users, on standard error. A plugin's format may return plain text."""
    assumes: Collection[DecisionCode] = frozenset(DecisionCode)
    """The decisions on which the text depends if they are assumptions; by default on all."""
    decisions: tuple[Decision, ...] = ()
    """What the text assumes about the nodes; filled in for all formats."""


def ranks_of(first: int, count: int) -> str:
    """Return the ranks of a node as text: `rank 3`, `ranks 0-7`."""
    return f"rank {first}" if count == 1 else f"ranks {first}-{first + count - 1}"
