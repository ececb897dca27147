"""What this machine has recorded of one run, as one value: to explain it and to compare it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dslaunch.errors import UsageError
from dslaunch.recorded import InvalidValue, checked, parsed
from dslaunch.run.local_runs import LocalRun
from dslaunch.run.outcome import Outcome
from dslaunch.run.recorded_values import Count
from dslaunch.run.run_directory import CLUSTER, numbered, read_begin
from dslaunch.run.run_inputs import RunInputs, read_inputs
from dslaunch.run.run_record import RunRecord

LARGEST_PLAN = 256 << 20
"""Bytes that are read of a plan; one of 4,096 ranks takes about 10 MB."""
LARGEST_TEXT = 1 << 20
"""Bytes that are read of a batch script or a cluster."""
SCRIPT = "job.sbatch"


class PlannedVariable(Struct, frozen=True):
    """A variable that the node expands."""

    name: str


class PlannedCommand(Struct, frozen=True):
    """A command as argument vector; a word with variables in its parts."""

    argv: tuple[str | tuple[str | PlannedVariable, ...], ...]

    @property
    def words(self) -> list[str]:
        """Return the words as text; a variable in them as `$NAME`."""
        return [word if isinstance(word, str) else _joined(word) for word in self.argv]


def _joined(parts: Sequence[str | PlannedVariable]) -> str:
    return "".join(part if isinstance(part, str) else f"${part.name}" for part in parts)


class PlannedProcess(Struct, frozen=True):
    """One process of a node."""

    command: PlannedCommand
    env: tuple[tuple[str, str], ...] = ()
    rank: Count | None = None


class PlannedNode(Struct, frozen=True):
    """What one node does."""

    host: str
    slots: tuple[Count, ...]
    first_rank: Count
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    processes: tuple[PlannedProcess, ...] = ()


class PlannedDecision(Struct, frozen=True, kw_only=True):
    """One decision with its reason, as it was shown."""

    code: str
    values: dict[str, Any] = field(default_factory=dict)
    assumed: bool = False
    what: str
    value: str
    why: str


class RecordedPlan(Struct, frozen=True):
    """The plan of an attempt."""

    nodes: tuple[PlannedNode, ...]
    decisions: tuple[PlannedDecision, ...] = ()


class RecordedRun(Struct, frozen=True):
    """The records of a run, of its latest attempt. What is None was not recorded, or is damaged."""

    run: str
    record: RunRecord
    directory: Path | None = None
    outcome: Outcome | None = None
    inputs: RunInputs | None = None
    plan: RecordedPlan | None = None
    cluster: dict[str, Any] | None = None
    """The cluster as JSON data, with all defaults."""
    script: str | None = None
    """The batch script of a SLURM job."""


def recorded_run(local: LocalRun) -> RecordedRun:
    """Return what is recorded of a run."""
    directory, attempt = local.directory, local.record.attempt
    return RecordedRun(
        run=local.run,
        record=local.record,
        directory=directory,
        outcome=local.result,
        inputs=read_inputs(directory / numbered("inputs", attempt)),
        plan=_read_plan(directory / numbered("plan", attempt)),
        cluster=_read_cluster(directory / CLUSTER),
        script=_read_text(directory / SCRIPT),
    )


def _read_plan(path: Path) -> RecordedPlan | None:
    try:
        return checked(RecordedPlan, parsed(read_begin(path, LARGEST_PLAN)))
    except (OSError, InvalidValue):
        return None


def _read_cluster(path: Path) -> dict[str, Any] | None:
    try:
        data = parsed(read_begin(path, LARGEST_PLAN))
    except (OSError, InvalidValue):
        return None
    return data if isinstance(data, dict) else None


def _read_text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return read_begin(path, LARGEST_TEXT).decode("utf-8", "replace")
    return None


# ---------------------------------------------------------------- which run


def good_run_before(runs: Sequence[LocalRun], run: LocalRun) -> LocalRun:
    """Return the last run of the same program before this one that succeeded; `runs` are in the
    order of their starts. Raises UsageError."""
    for other in reversed(runs):
        is_earlier = other.record.started < run.record.started
        is_good = other.result is not None and other.result.status == "ok"
        if is_earlier and is_good and other.record.program == run.record.program:
            return other
    raise UsageError(
        f"{run.run}: no earlier run of {run.record.program} has succeeded",
        hint="name the run to compare with: dslaunch diff RUN RUN",
    )
