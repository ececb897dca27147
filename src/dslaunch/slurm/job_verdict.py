"""The verdict that a job has written beside its output (`render/job_verdict.py`), validated.

The directory may be shared with others, and the job's own programs could have written the file: it
must be a small file that no other user can have written, about this very job.

A supervised job has a second file, of the run in it (`run_result.py`): this one is written by the
shell, also where the node has no Python and where the run was killed, and so can hold little.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from dslaunch.protocol.values import Count, InvalidAnswer, Sent, Several, Table, parse
from dslaunch.render.job_verdict import LINES_KEPT, SUFFIX
from dslaunch.run.record import read_private
from dslaunch.slurm.observed import SLURM, Cut, Starts
from dslaunch.slurm.output import Layout
from dslaunch.slurm.states import GONE, JobInfo

LARGEST = 64 * 1024
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


_WRITTEN: TypeAdapter[Written] = TypeAdapter(Written)


def read_written(output: str, *, job: str, submitted: int | None) -> Written | None:
    """Return what a job has written beside its output.

    None: there is no such file, or it is not to be believed: of another user, writable by others,
    too large, invalid, about another job, or of before the submission.
    """
    try:
        text = read_private(Path(f"{output}{SUFFIX}"), LARGEST)
        written = parse(_WRITTEN, json.loads(text))
    except (OSError, ValueError, RecursionError, InvalidAnswer):
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
