"""Which runs are listed, and which of their records have to be read for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.run.run_directory import RESULT
from dslaunch.run.run_record import FILE

if TYPE_CHECKING:
    from dslaunch.run.run_record import RunRecord
    from dslaunch.run.run_state import State
    from dslaunch.run.status import RunStatus

Pick = Callable[[list[Path]], list[Path]]
"""Chooses run directories by their names and times, before their records are read."""
SPARE = 16
"""Records that are read beyond those that are listed: runs within SLURM jobs are not listed."""


def every_record(directories: list[Path]) -> list[Path]:
    """Return all directories."""
    return directories


def without_end(directories: list[Path]) -> list[Path]:
    """Return those of runs whose end is not recorded."""
    return [path for path in directories if not (path / RESULT).exists()]


def newest(count: int) -> Pick:
    """Return a choice of the runs that were started last."""

    def pick(directories: list[Path]) -> list[Path]:
        by_start = sorted(directories, key=_started, reverse=True)
        return by_start[: count + SPARE]

    return pick


def started_since(when: float) -> Pick:
    """Return a choice of the runs that were started, or restarted, since a time."""
    return lambda directories: [path for path in directories if _started(path) >= when]


def _started(directory: Path) -> float:
    """Return when a record was written: at the start of each attempt."""
    try:
        return (directory / FILE).stat().st_mtime
    except OSError:
        return 0.0


class RunSelection(Struct, frozen=True):
    """The runs to list: those that meet all conditions that are set."""

    ended: bool = False
    """Whether ended ones are listed too."""
    script: str | None = None
    """A pattern for the script, or for its name without directories (fnmatch)."""
    cluster: str | None = None
    """A pattern for the name of the cluster."""
    since: float | None = None
    """When it was started at the earliest, in seconds since the epoch."""
    states: frozenset[State] = frozenset()
    """Empty: all."""
    count: int | None = None
    """How many of them are listed: the newest."""

    @property
    def pick(self) -> Pick:
        """Return which records have to be read."""
        if not self.ended:
            return without_end
        if self.since is not None:
            return started_since(self.since)
        if self.count is not None and not (self.script or self.cluster or self.states):
            return newest(self.count)
        return every_record

    def has_record(self, record: RunRecord) -> bool:
        """Return whether a run is listed, as far as its record tells."""
        if self.since is not None and record.started < self.since:
            return False
        if self.cluster is not None and not fnmatchcase(record.cluster, self.cluster):
            return False
        if self.script is None:
            return True
        names = (record.program, PurePath(record.program).name)
        return any(fnmatchcase(name, self.script) for name in names)

    def of(self, statuses: Iterable[RunStatus]) -> list[RunStatus]:
        """Return the runs that are listed, the newest first."""
        found = [status for status in statuses if self._has(status)]
        found.sort(key=lambda status: status.record.started, reverse=True)
        return found[: self.count]

    def _has(self, status: RunStatus) -> bool:
        if not self.has_record(status.record) or not (self.ended or status.may_continue):
            return False
        return not self.states or status.state in self.states


EVERY_RUN = RunSelection(ended=True)
