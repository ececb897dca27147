"""What can be done with a run that was started before, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.errors import NodeFailure
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.run_record import RunRecord
    from dslaunch.run.status import Reports, RunStatus
    from dslaunch.run.watch import View

Tell = Callable[[str], None]
"""Told to a person at once."""


@dataclass(frozen=True, slots=True)
class Attached:
    """How a run ended that was followed."""

    outcome: Outcome | None
    """None: it continues."""
    before: bool = False
    """Whether it had ended before."""
    directory: Path | None = None
    """Where the end was written down."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """What was ended."""

    job: str | None = None
    """The number of the SLURM job that was canceled."""
    ended: tuple[str, ...] = ()
    """Nodes that confirmed the end."""
    unconfirmed: tuple[str, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    """Of nodes that could not be reached."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What every rank is doing."""

    stacks: Mapping[str, Any]
    """Host -> rank -> stacks."""
    unresponsive: tuple[str, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    """Of nodes that could not be reached."""


class RunHandle(Protocol):
    """A run: over SSH (`run.ssh_run`), or a SLURM job (`slurm.slurm_run`)."""

    @property
    def name(self) -> str:
        """The name of the run."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its nodes, as they were selected."""

    @property
    def record(self) -> RunRecord | None:
        """This machine's record; None: the run was started from another machine."""

    def cluster_to_ask(self) -> Cluster | None:
        """Return the cluster whose nodes know how it stands; None: they need not be asked.

        Raises UsageError where that is not known any more.
        """

    def summary(self, reports: Reports) -> RunStatus:
        """Return how it stands, for a list of runs, by what nodes have reported of all runs."""

    def status(self) -> RunStatus:
        """Return how it stands: whoever knows it is asked. Raises DslaunchError."""

    def logs(self, view: View, tell: Tell, *, follow: bool) -> None:
        """Show what its ranks wrote; with `follow` also what comes, until it ends or Ctrl-C."""

    def attach(self, view: View, tell: Tell) -> Attached:
        """Follow it to its end. Ctrl-C leaves it alone. Raises DslaunchError."""

    def stop(self, grace: float | None, caller: str) -> Stopped:
        """End it; None: as long after asking the ranks as is usual. Raises DslaunchError."""

    def stacks(self, timeout: float) -> Gathered:
        """Ask what every rank is doing. Raises DslaunchError."""
