"""Files that a job has written beside its output, validated.

- `OUTPUT.verdict.json`, by the shell (`render/script_functions.py`), also if the node has no Python
  or the run was killed.
- `OUTPUT.run.json`, by the run in a supervised job: the root cause, last lines and stacks.

Other users may write to the directory, and the job's own programs can write the files: each must be
a small file that only this user can have written, about this job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from msgspec.structs import replace
from pydantic import Field, TypeAdapter

from dslaunch.protocol.values import Count, Sent, Several, Table, parse
from dslaunch.render.script_functions import LINES_KEPT, VERDICT_SUFFIX
from dslaunch.render.supervised import RESULT_SUFFIX
from dslaunch.run.local_runs import read_outcome
from dslaunch.run.outcome import Outcome
from dslaunch.run.run_directory import read_private
from dslaunch.slurm.output import Layout
from dslaunch.slurm.output_evidence import SLURM, Cut, Starts
from dslaunch.slurm.states import GONE, JobInfo, whole_number

LARGEST = 64 * 1024
LARGEST_RESULT = 4 << 20
"""Bytes; the stacks of a thousand ranks are about 1 MiB."""
CLOCKS_DIFFER = 300
"""Seconds by which the clock of a node may be behind that of the controller."""

Number = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
NumberOrNone = Annotated[str, Field(pattern=r"^[0-9]{0,18}$")]
Name = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$", max_length=300)]
Nodes = Annotated[
    str, Field(pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*)?$", max_length=LARGEST)
]


class Written(Sent):
    """The contents of a job's verdict file."""

    version: Literal[1]
    job: Number
    array: NumberOrNone
    task: NumberOrNone
    start: Annotated[int, Field(ge=1, le=10**9)]
    began: Count
    """Unix seconds."""
    ended: Count | None
    """None: it has not ended, or was killed before it could write it."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None
    nodes: Nodes
    batch_host: Nodes
    versions: Table[Name]
    evidence: Annotated[Several[Name], Field(max_length=LINES_KEPT)]
    """Lines of srun and slurmstepd in the last start, in order."""


class _OfJob(Sent):
    """The job and start of a result."""

    slurm_job: str
    slurm_start: int
    """Counted from 1."""


_WRITTEN: TypeAdapter[Written] = TypeAdapter(Written)
_OF_JOB: TypeAdapter[_OfJob] = TypeAdapter(_OfJob)
Value = TypeVar("Value")


def _read(path: str, most: int, parsed: Callable[[bytes], Value]) -> Value | None:
    """Return the contents of a file that only this user can have written; None: it is missing, as
    without shared storage, or too large, or damaged."""
    try:
        return parsed(read_private(Path(path), most))
    except (OSError, ValueError, RecursionError):
        return None


# ---------------------------------------------------------------- the shell's file


def read_written(output: str, *, job: str, submitted: int | None) -> Written | None:
    """Return what a job has written beside its output; None: nothing valid, also if it is about
    another job, or from before the submission."""
    path = f"{output}{VERDICT_SUFFIX}"
    written = _read(path, LARGEST, lambda text: parse(_WRITTEN, json.loads(text)))
    if written is None:
        return None
    same = job in (written.job, written.array)
    after = submitted is None or written.began >= submitted - CLOCKS_DIFFER
    return written if same and after else None


_STATES = {
    Cut.TIME_LIMIT: "TIMEOUT",
    Cut.PREEMPTED: "PREEMPTED",
    Cut.NODE_FAILED: "NODE_FAIL",
    Cut.REQUEUED: "CANCELLED",
    Cut.CANCELED: "CANCELLED",
}
TERMINATED = 143
"""The exit code of the script when SLURM terminates it."""


def _state(written: Written) -> str:
    """Return the SLURM state of the job, as far as its exit code and evidence show it."""
    if not written.exit_code:
        return "COMPLETED"
    starts = Starts(Layout(groups=(), direct=False))
    for line in written.evidence:
        starts.feed(SLURM, None, line)
    if written.exit_code == TERMINATED and starts.cut is not None:
        return _STATES[starts.cut]
    return "FAILED"


def completed(info: JobInfo, written: Written | None) -> JobInfo:
    """Return the record of a job, completed by its own file if SLURM does not know it."""
    if written is None or written.exit_code is None:
        return info
    if info.state == GONE:
        return replace(
            info,
            job=written.job,
            state=_state(written),
            code=written.exit_code,
            nodes=written.nodes,
            batch_host=written.batch_host,
            restarts=written.start - 1,
            array=written.array,
            task=written.task,
        )
    # sacct prints 9 for an exit code of 137 (sacct/print.c, PRINT_EXITCODE, SLURM 22.05)
    if info.state == "FAILED" and info.code is not None and info.code + 128 == written.exit_code:
        return replace(info, code=written.exit_code)
    return info


# ---------------------------------------------------------------- the run's file


def of_job(environ: Mapping[str, str]) -> dict[str, str | int]:
    """Return the job of a run for its result; empty outside a job."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return {}
    restarts = whole_number(environ.get("SLURM_RESTART_COUNT", "")) or 0
    return _OfJob(slurm_job=job, slurm_start=restarts + 1).model_dump()


def read_result(output: str, *, job: str, start: int) -> Outcome | None:
    """Return the result of the run in a job with that output, in its last start, which is `start`;
    None: nothing valid, also if it is about another job or an earlier start."""
    path = f"{output}{RESULT_SUFFIX}"
    found = _read(
        path, LARGEST_RESULT, lambda text: (_OF_JOB.validate_json(text), read_outcome(text))
    )
    if found is None:
        return None
    whose, result = found
    return result if whose.slurm_job == job and whose.slurm_start >= start else None


def with_cause(outcome: Outcome, result: Outcome | None) -> Outcome:
    """Return the outcome by SLURM, with the root cause that the run found.

    If SLURM ended the job, as at its time limit, or the exit codes differ, the result is about
    another start or a consequence: SLURM's outcome is used.
    """
    if result is None or outcome.status != "failed" or result.status != "failed":
        return outcome
    if outcome.exit_code != result.exit_code:
        return outcome
    return replace(result, reason=replace(result.reason, job=outcome.reason.job))
