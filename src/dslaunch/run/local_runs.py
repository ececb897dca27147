"""Read the records of runs that were started from this machine."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from dslaunch.cluster.model import Cluster
from dslaunch.errors import UsageError
from dslaunch.json_text import json_text
from dslaunch.plural import counted
from dslaunch.recorded import reader
from dslaunch.run.outcome import Outcome
from dslaunch.run.run_directory import (
    CLUSTER,
    RESULT,
    is_held,
    open_recorded,
    runs_directory,
    write_private,
)
from dslaunch.run.run_record import RecordError, RunRecord, read_record
from dslaunch.run.run_selection import Pick, every_record

LATEST = "latest"
_BACK = re.compile(rf"{LATEST}(?:~(?P<back>[0-9]{{1,6}}))?")
Value = TypeVar("Value")


class LocalRun(Struct, frozen=True):
    """A run that was started from this machine."""

    run: str
    directory: Path
    record: RunRecord
    living: bool
    """Whether its launcher is running."""
    result: Outcome | None
    """None: its end was not recorded."""

    @property
    def ended(self) -> float | None:
        """When its end was recorded, in seconds since the epoch; None: it was not."""
        try:
            return (self.directory / RESULT).stat().st_mtime
        except OSError:
            return None

    def cluster(self) -> Cluster:
        """Return the cluster as it was when the run began. Raises UsageError."""
        path = self.directory / CLUSTER
        try:
            with open_recorded(path) as file:
                return reader(Cluster)(file.read())
        except (OSError, ValueError):
            raise UsageError(
                f"{self.run}: cannot read its cluster: {path} is damaged or was written by another "
                "version of dslaunch",
                hint="pass the cluster file",
            ) from None


class LocalRuns(Struct, frozen=True):
    """The records in the state directory."""

    runs: tuple[LocalRun, ...]
    """By the time of their start, the newest last."""
    unreadable: tuple[RecordError, ...]
    """Of records that are damaged, or of another version."""

    def exactly(self, name: str) -> LocalRun | None:
        """Return the run of exactly that name, also one within a SLURM job; None without one.

        Raises RecordError if its record cannot be used.
        """
        for error in self.unreadable:
            if error.run == name:
                raise error
        return next((run for run in self.runs if run.run == name), None)

    def find(self, name: str) -> LocalRun | None:
        """Return the run of that name or unique prefix, or the latest; None without one.

        `latest~1` is the run before the latest, `latest~2` the one before that. Raises UsageError
        if several match, and for a run before the first.
        """
        runs = self.started
        back = runs_back(name)
        if back is None:
            return one_of({run.run: run for run in runs}, name)
        if not runs:
            raise UsageError("no run was started from this machine")
        if back >= len(runs):
            raise UsageError(
                f"{name}: only {counted(len(runs), 'run')} recorded on this machine",
                hint="list all runs with `dslaunch ps --all`",
            )
        return runs[-1 - back]

    def named(self, name: str) -> LocalRun:
        """Return the run that a name means, also by a job's number. Raises UsageError."""
        jobs = [run for run in self.started if run.record.slurm and run.record.slurm.job == name]
        found = self.exactly(name) or next(reversed(jobs), None) or self.find(name)
        if found is None:
            raise UsageError(
                f"run {name!r} not found in this machine's records",
                hint="list all runs with `dslaunch ps --all`",
            )
        return found

    @property
    def started(self) -> tuple[LocalRun, ...]:
        """Return the runs without those inside a SLURM job that is one of them: commands act on
        the job as a whole."""
        jobs = [run.record.slurm for run in self.runs if run.record.slurm is not None]
        tokens = {job.token for job in jobs} - {""}
        return tuple(run for run in self.runs if run.record.submission not in tokens)


def runs_back(name: str) -> int | None:
    """Return how many runs before the latest a name such as `latest~1` means; None: it is the name
    of a run."""
    found = _BACK.fullmatch(name)
    return int(found["back"] or 0) if found else None


def local_runs(environ: Mapping[str, str], pick: Pick = every_record) -> LocalRuns:
    """Read all records, or those that `pick` chooses.

    Raises UsageError if another user can write the state directory.
    """
    try:
        directories = sorted(path for path in runs_directory(environ).iterdir() if _is_own(path))
    except OSError:
        return LocalRuns((), ())
    found = _read(pick(directories))
    if any(run.record.submission for run in found.runs):
        # whether the SLURM job is listed in which they were started, only its own record tells
        return _read(directories)
    return found


def _read(directories: Iterable[Path]) -> LocalRuns:
    runs: list[LocalRun] = []
    unreadable: list[RecordError] = []
    for directory in directories:
        try:
            record = read_record(directory)
        except RecordError as error:
            unreadable.append(error)
            continue
        if record is not None:
            runs.append(_local(directory, record))
    # not by the directory's time, which every note in a record changes
    runs.sort(key=lambda run: run.record.started)
    return LocalRuns(tuple(runs), tuple(unreadable))


def _is_own(path: Path) -> bool:
    """Return whether this user owns a record: with earlier versions the group could add some."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _local(directory: Path, record: RunRecord) -> LocalRun:
    # the lock is checked first: the launcher writes the result before it releases the lock
    living = is_held(directory)
    return LocalRun(
        run=directory.name,
        directory=directory,
        record=record,
        living=living,
        result=recorded_outcome(directory),
    )


@cache
def _outcomes() -> Callable[[bytes], Outcome]:
    return reader(Outcome)


def read_outcome(text: bytes) -> Outcome:
    """Return an outcome from JSON. Raises ValueError."""
    return _outcomes()(text)


def recorded_outcome(directory: Path) -> Outcome | None:
    """Return how a run ended; None: its end was not recorded, or the record is damaged."""
    try:
        with open_recorded(directory / RESULT) as file:
            return read_outcome(file.read())
    except (OSError, ValueError):
        return None


def note_outcome(directory: Path, outcome: Outcome, ended: float | None = None) -> None:
    """Write how a run ended unless that is recorded. Errors such as a full disk are ignored.

    `ended` becomes the time of the file, in Unix seconds; None: now.
    """
    path = directory / RESULT
    with contextlib.suppress(OSError):
        if path.exists():
            return
        write_private(path, json_text(outcome.as_data(), indent=2) + "\n")
        if ended is not None:
            os.utime(path, (ended, ended))


def one_of(runs: Mapping[str, Value], name: str) -> Value | None:
    """Return the run of that name or unique prefix; None without one.

    Raises UsageError if several match.
    """
    if name in runs:
        return runs[name]
    alike = [run for run in runs if run.startswith(name)]
    if len(alike) > 1:
        raise UsageError(f"several runs begin with {name!r}: {', '.join(alike)}")
    return runs[alike[0]] if alike else None
