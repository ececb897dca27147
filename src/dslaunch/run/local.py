"""The runs that were started from this machine, as its state directory has them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from dslaunch.cluster.model import Cluster
from dslaunch.errors import UsageError
from dslaunch.run.outcome import Outcome
from dslaunch.run.run_directory import CLUSTER, RESULT, is_held, runs_directory
from dslaunch.run.run_record import RecordError, RunRecord, read_record

LATEST = "latest"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that was started from this machine."""

    run: str
    directory: Path
    record: RunRecord
    living: bool
    """Whether its launcher is running."""
    result: Outcome | None
    """None: its end was not seen."""

    def cluster(self) -> Cluster:
        """Return the cluster as it was when the run began. Raises UsageError."""
        path = self.directory / CLUSTER
        try:
            return TypeAdapter(Cluster).validate_json(path.read_text("utf-8"))
        except (OSError, ValueError):
            raise UsageError(
                f"{self.run}: its record of the cluster cannot be read: {path} is damaged, or of "
                "another version of dslaunch",
                hint="name the cluster file",
            ) from None


@dataclass(frozen=True, slots=True)
class LocalRuns:
    """What the state directory has."""

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
        """Return the run of that name, or that alone begins so, or the latest; None without one.

        Raises UsageError if several begin so.
        """
        runs = self.started
        if name != LATEST:
            return one_of({run.run: run for run in runs}, name)
        if not runs:
            raise UsageError("no run was started from this machine")
        return runs[-1]

    @property
    def started(self) -> tuple[LocalRun, ...]:
        """The runs without those within a SLURM job that is one of them: the job is what was
        started, and is looked after as a whole."""
        jobs = [run.record.slurm for run in self.runs if run.record.slurm is not None]
        tokens = {job.token for job in jobs} - {""}
        return tuple(run for run in self.runs if run.record.submission not in tokens)


def local_runs(environ: Mapping[str, str]) -> LocalRuns:
    """Read all records of this machine. Raises UsageError for a state directory of others."""
    try:
        directories = sorted(path for path in runs_directory(environ).iterdir() if _is_own(path))
    except OSError:
        return LocalRuns((), ())
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
    """Whether a record is of this user: earlier versions let the group write beside it."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _local(directory: Path, record: RunRecord) -> LocalRun:
    # whether it is held comes first: the launcher writes the result before it lets go
    living = is_held(directory)
    return LocalRun(directory.name, directory, record, living, recorded_outcome(directory))


@cache
def _outcomes() -> TypeAdapter[Outcome]:
    return TypeAdapter(Outcome)


def read_outcome(text: bytes) -> Outcome:
    """Return the outcome that was written as JSON. Raises ValueError."""
    return _outcomes().validate_json(text)


def recorded_outcome(directory: Path) -> Outcome | None:
    """Return how a run ended; None: its end was not seen, or the record of it is damaged."""
    try:
        return read_outcome((directory / RESULT).read_bytes())
    except (OSError, ValueError):
        return None


def one_of(runs: Mapping[str, Value], name: str) -> Value | None:
    """Return the run of that name, or the only one that begins so; None without one.

    Raises UsageError if several begin so.
    """
    if name in runs:
        return runs[name]
    alike = [run for run in runs if run.startswith(name)]
    if len(alike) > 1:
        raise UsageError(f"several runs begin with {name!r}: {', '.join(alike)}")
    return runs[alike[0]] if alike else None
