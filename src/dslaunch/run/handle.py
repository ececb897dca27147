"""The interface to a run that was started before, over SSH or as a SLURM job."""

from __future__ import annotations

import getpass
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dslaunch.cluster.nodeset import fold, fold_numbers
from dslaunch.errors import ErrorCode, Interrupted, UsageError
from dslaunch.plural import counted
from dslaunch.run.interrupts import Until, never
from dslaunch.run.log_selection import EVERY_LINE, LogSelection, selection_of
from dslaunch.run.shown_lines import shown_lines
from dslaunch.run.view import Callbacks, ignore

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.errors import NodeFailure
    from dslaunch.run.events import Event, Line
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.progress import Progress
    from dslaunch.run.rank_signals import Signaled
    from dslaunch.run.run_record import RunRecord
    from dslaunch.run.status import Reports, RunStatus
    from dslaunch.run.usage_monitor import UsageSource
    from dslaunch.run.view import View

Notify = Callable[[str], object]
"""Called with a message for the user, at once."""


def this_user() -> str:
    """Return `USER@HOST` as the user who stops a run."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class Sources(Struct, frozen=True):
    """Whose output a run may have."""

    hosts: frozenset[str] | None = None
    """None: unknown."""
    ranks: int | None = None
    """How many ranks, counted from 0; None: unknown."""
    times: bool = True
    """Whether the lines have the times at which they were written."""


class Attached(Struct, frozen=True):
    """How a followed run ended."""

    outcome: Outcome | None
    """None: it is still running."""
    before: bool = False
    """Whether it had already ended."""
    directory: Path | None = None
    """The directory with the recorded outcome."""


class Stopped(Struct, frozen=True):
    """The result of stopping a run."""

    job: str | None = None
    """The number of the SLURM job that was canceled."""
    ended: tuple[str, ...] = ()
    """Nodes that confirmed the cleanup."""
    unconfirmed: tuple[str, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    """Of nodes that could not be reached."""


class RankStacks(Struct, frozen=True):
    """The stacks of every rank."""

    stacks: Mapping[str, Any]
    """Host -> rank -> stacks."""
    unresponsive: tuple[str, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    """Of nodes that could not be reached."""


class RunHandle(ABC):
    """A run that was started before: over SSH (`run.ssh_run`), or as a SLURM job
    (`slurm.slurm_run`).

    No method prints, catches a signal or changes what the process does; all may be called in any
    thread.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the run."""

    @property
    @abstractmethod
    def hosts(self) -> tuple[str, ...]:
        """Return its nodes, in rank order."""

    @property
    @abstractmethod
    def record(self) -> RunRecord | None:
        """Return this machine's record; None: the run was started from another machine."""

    @abstractmethod
    def status(self) -> RunStatus:
        """Return its state; asks its nodes or SLURM. Raises DslaunchError."""

    @abstractmethod
    def stop(self, grace: float | None = None, caller: str | None = None) -> Stopped:
        """Stop it: TERM, and KILL after `grace` seconds (None: the default).

        `caller`: `USER@HOST`, which is shown to its owner; None: this user on this machine. Raises
        DslaunchError.
        """

    @abstractmethod
    def stacks(self, timeout: float = 15.0) -> RankStacks:
        """Return what every rank is doing. A node may take `timeout` seconds.

        Raises DslaunchError.
        """

    @abstractmethod
    def usage_source(self, hosts: Collection[str] = ()) -> AbstractContextManager[UsageSource]:
        """Connect to its nodes, or to these, to measure what they use while it is running.

        Raises DslaunchError if none can be reached, UsageError for a job array as a whole.
        """

    @abstractmethod
    def signal(
        self, name: str, *, ranks: Collection[int] | None = None, force: bool = False
    ) -> Signaled:
        """Send a signal such as `USR1` to the processes of its ranks, or of some of them.

        Raises UsageError for a signal that is not sent to ranks; DslaunchError, and nothing is
        sent, if a chosen rank is not running, or has no handler for USR1, USR2 or HUP, which would
        end it. With `force` such ranks are sent the signal too.
        """

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_line: Callable[[Line], object] = ignore,
        on_event: Callable[[Event], object] = ignore,
        on_notice: Notify = ignore,
    ) -> Outcome:
        """Follow the run to its end, and return how it ended.

        The functions are called with what arrives meanwhile. Raises TimeoutError after `timeout`
        seconds, and the run continues; DslaunchError if its end is unknown.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout

        def late() -> bool:
            return time.monotonic() >= deadline

        try:
            outcome = self.attach(Callbacks(on_line, on_event), on_notice, until=late).outcome
        except Interrupted:  # its nodes were not yet connected
            outcome = None
        if outcome is None:
            raise TimeoutError(f"run {self.name} has not ended within {timeout} s")
        return outcome

    def logs(
        self,
        *,
        ranks: Collection[int] | None = None,
        hosts: Collection[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        matching: str | None = None,
        tail: int | None = None,
        follow: bool = False,
        on_notice: Notify = ignore,
    ) -> Iterator[Line]:
        """Yield the lines that ranks have written; with `follow` also those to come, until the end.

        All conditions that are given must be met. `since` and `until`: seconds since the epoch;
        `matching`: a regular expression; `tail`: only the last lines of these, and later ones.
        `on_notice` is called with what may make them incomplete, such as an unreachable node.
        Raises DslaunchError, and UsageError for ranks or nodes that the run does not have.
        """
        selection = selection_of(
            ranks=ranks, hosts=hosts, since=since, until=until, matching=matching, tail=tail
        )
        self.check(selection)

        def show(view: View, enough: Until) -> None:
            self.show_logs(view, on_notice, selection, follow=follow, until=enough)

        return shown_lines(show)

    def check(self, selection: LogSelection) -> None:
        """Raise UsageError for ranks or nodes that the run does not have, and for times where its
        lines have none."""
        if selection.ranks is None and selection.hosts is None and not selection.needs_times:
            return
        known = self.sources()
        if selection.needs_times and not known.times:
            raise UsageError.coded(ErrorCode.NO_LINE_TIMES, run=self.name)
        hosts = selection.hosts or frozenset()
        if known.hosts is not None and not hosts <= known.hosts:
            raise UsageError.coded(
                ErrorCode.NODES_NOT_IN_RUN,
                hosts=fold(hosts - known.hosts),
                run=self.name,
                existing=fold(known.hosts),
            )
        existing = range(known.ranks or 0)
        missing = [rank for rank in selection.ranks or () if rank not in existing]
        if known.ranks is not None and missing:
            raise UsageError.coded(
                ErrorCode.RANKS_NOT_IN_RUN,
                ranks=fold_numbers(missing),
                run=self.name,
                count=counted(known.ranks, "rank"),
                existing=fold_numbers(existing),
            )

    def progress(self) -> Progress | None:
        """Return what its last output on this machine says about the training; None: nothing, or
        its output is not here."""
        return None

    @abstractmethod
    def sources(self) -> Sources:
        """Return whose output it may have."""

    @abstractmethod
    def cluster_to_ask(self) -> Cluster | None:
        """Return the cluster whose nodes know its state; None: they need not be asked.

        Raises UsageError where the cluster is unknown.
        """

    @abstractmethod
    def summary(self, reports: Reports) -> RunStatus:
        """Return its state for a list of runs, by the nodes' reports of all runs."""

    @abstractmethod
    def show_logs(
        self,
        view: View,
        tell: Notify,
        selection: LogSelection = EVERY_LINE,
        *,
        follow: bool,
        until: Until = never,
    ) -> None:
        """Show the selected output of its ranks; with `follow` also new output, until it ends or
        `until` returns True. Raises DslaunchError, and Interrupted if `until` returns True before
        its nodes are connected."""

    @abstractmethod
    def attach(
        self,
        view: View,
        tell: Notify,
        selection: LogSelection = EVERY_LINE,
        *,
        until: Until = never,
    ) -> Attached:
        """Follow it until it ends or `until` returns True. The view gets the events since its
        start, then the selected output.

        Raises DslaunchError, and Interrupted if `until` returns True before its nodes are
        connected.
        """
