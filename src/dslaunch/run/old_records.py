"""Remove the records of old runs, on request only."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator

from msgspec import Struct

from dslaunch.errors import DslaunchError
from dslaunch.run.local_runs import LocalRun
from dslaunch.run.run_directory import is_held


class Recorded(Struct, frozen=True):
    """A run's directory on this machine."""

    run: LocalRun
    written: float
    """When anything in it was last written, in seconds since the epoch."""
    size: int
    """Bytes of all its files."""


def last_written(runs: Iterable[LocalRun], before: float) -> Iterator[Recorded]:
    """Yield the runs without a write since `before`, in seconds since the epoch."""
    for run in runs:
        found = _measured(run)
        if found.written < before:
            yield found


def _measured(run: LocalRun) -> Recorded:
    statuses = []
    for path in (run.directory, *run.directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # it is being written, or removed
            statuses.append((path.is_file(), path.lstat()))
    written = max((status.st_mtime for _, status in statuses), default=0.0)
    return Recorded(run, written, sum(status.st_size for file, status in statuses if file))


def remove_record(recorded: Recorded) -> None:
    """Remove a run's directory. Raises DslaunchError if its launcher is running, or on failure."""
    directory = recorded.run.directory
    if is_held(directory):
        raise DslaunchError(f"{directory}: its launcher is running")
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise DslaunchError(f"{directory}: cannot be removed: {error.strerror}") from None
