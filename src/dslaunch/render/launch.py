"""What is rendered, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dslaunch.launch.plan import World, node_environment
from dslaunch.registry import LAUNCHERS

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Pairs, Placement
    from dslaunch.launch.decisions import Decision
    from dslaunch.launch.job import Job
    from dslaunch.launch.launchers import Launcher
    from dslaunch.launch.plan import Decided


@dataclass(frozen=True, slots=True)
class Launch:
    """A job on an allocation, with what was decided or assumed: what a plan is made from."""

    cluster: str
    """Its name."""
    allocation: Allocation
    job: Job
    decided: Decided

    @property
    def world(self) -> World:
        """What a launcher must know of the whole run."""
        return World(self.allocation, self.decided.rendezvous, self.job.min_nodes)

    @property
    def launcher(self) -> Launcher:
        """The job's launcher. Raises UsageError if there is none of its name."""
        return LAUNCHERS.get(self.job.launcher)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The nodes in rank order."""
        return self.allocation.placements

    def environment(self, placement: Placement) -> Pairs:
        """The variables of a node, less what its launcher adds."""
        return node_environment(placement, self.job, self.decided.rendezvous)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text to use as it is, and what its reader must know that it cannot say."""

    text: str
    notes: tuple[str, ...] = ()
    """For people, on standard error."""
    decisions: tuple[Decision, ...] = ()
    """What the text assumes."""


def ranks_of(first: int, count: int) -> str:
    """Name a node's ranks: `rank 3`, `ranks 0-7`."""
    return f"rank {first}" if count == 1 else f"ranks {first}-{first + count - 1}"
