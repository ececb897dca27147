"""What a job has written of itself beside its output, validated.

- `OUTPUT.verdict.json`, by the shell (`render/job_verdict.py`), also where the node has no Python
  or the run was killed; so it holds little.
- `OUTPUT.run.json`, by the run in a supervised job: the root cause, last lines and stacks.

The directory may be shared with others, and the job's own programs could have written the files:
each must be a small file that no other user can have written, about this very job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from dslaunch.protocol.values import Count, Sent, Several, Table, parse
from dslaunch.render.job_verdict import LINES_KEPT, SUFFIX
from dslaunch.render.supervised import RESULT_SUFFIX
from dslaunch.run.local import read_outcome
from dslaunch.run.outcome import Outcome
from dslaunch.run.run_directory import read_private
from dslaunch.slurm.observed import SLURM, Cut, Starts
from dslaunch.slurm.output import Layout
from dslaunch.slurm.states import GONE, JobInfo, whole_number

LARGEST = 64 * 1024
LARGEST_RESULT = 4 << 20
"""Bytes; the stacks of a thousand ranks are about 1 MiB."""
CLOCKS_DIFFER = 300
"""Seconds by which a node's clock may be behind the controller's."""

Number = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
NumberOrNone = Annotated[str, Field(pattern=r"^[0-9]{0,18}$")]
Name = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$", max_length=300)]
Nodes = Annotated[
    str, Field(pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*)?$", max_length=LARGEST)
]


class Written(Sent):
    """What a job has written of itself."""

    version: Literal[1]
    job: Number
    array: NumberOrNone
    task: NumberOrNone
    start: Annotated[int, Field(ge=1, le=10**9)]
    began: Count
    """Unix seconds."""
    ended: Count | None
    """None: it has not ended, or was ended so that it could not write this."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None
    nodes: Nodes
    batch_host: Nodes
    versions: Table[Name]
    evidence: Annotated[Several[Name], Field(max_length=LINES_KEPT)]
    """Lines of srun and slurmstepd, the first of the start first."""


class _OfJob(Sent):
    """Of which job and start a result is."""

    slurm_job: str
    slurm_start: int
    """Counted from 1."""


_WRITTEN: TypeAdapter[Written] = TypeAdapter(Written)
_OF_JOB: TypeAdapter[_OfJob] = TypeAdapter(_OfJob)
Value = TypeVar("Value")


def _read(path: str, most: int, parsed: Callable[[bytes], Value]) -> Value | None:
    """Return what a file holds that this user alone can have written; None: there is none, such as
    where the job's storage is not here, or it is too large or damaged."""
    try:
        return parsed(read_private(Path(path), most))
    except (OSError, ValueError, RecursionError):
        return None


# ---------------------------------------------------------------- the shell's file


def read_written(output: str, *, job: str, submitted: int | None) -> Written | None:
    """Return what a job has written beside its output; None: nothing that can be believed, also
    what is about another job, or of before the submission."""
    path = f"{output}{SUFFIX}"
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
"""The exit code that the script has when SLURM ends it."""


def _state(written: Written) -> str:
    """The state in which SLURM had the job, as far as its exit code and evidence tell."""
    if not written.exit_code:
        return "COMPLETED"
    starts = Starts(Layout(groups=(), direct=False))
    for line in written.evidence:
        starts.feed(SLURM, None, line)
    if written.exit_code == TERMINATED and starts.cut is not None:
        return _STATES[starts.cut]
    return "FAILED"


def completed(info: JobInfo, written: Written | None) -> JobInfo:
    """Return what is known of a job, with what it wrote itself where SLURM does not know more."""
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
    """What a result says of the job that its run was in; nothing outside of a job."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return {}
    restarts = whole_number(environ.get("SLURM_RESTART_COUNT", "")) or 0
    return _OfJob(slurm_job=job, slurm_start=restarts + 1).model_dump()


def read_result(output: str, *, job: str, start: int) -> Outcome | None:
    """Return the result of the run in a job that has that output, at its last start, which is
    `start`; None: nothing that can be believed, also what is of another job or an earlier start."""
    path = f"{output}{RESULT_SUFFIX}"
    found = _read(
        path, LARGEST_RESULT, lambda text: (_OF_JOB.validate_json(text), read_outcome(text))
    )
    if found is None:
        return None
    whose, result = found
    return result if whose.slurm_job == job and whose.slurm_start >= start else None


def with_cause(told: Outcome, result: Outcome | None) -> Outcome:
    """What SLURM tells of a job's end, with the root cause that its run found.

    Where SLURM ended the job, as at its time limit, or the codes differ, the result is of another
    start or of what followed: SLURM's word holds.
    """
    if result is None or told.status != "failed" or result.status != "failed":
        return told
    if told.exit_code != result.exit_code:
        return told
    return replace(result, reason=replace(result.reason, job=told.reason.job))
