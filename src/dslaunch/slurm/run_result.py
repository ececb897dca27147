"""How the run in a supervised job ended, as it wrote beside the job's output.

It has what the shell's file (`job_verdict.py`) cannot have: the root cause, last lines and stacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from dslaunch.render.supervised import RESULT_SUFFIX
from dslaunch.run.outcome import Outcome
from dslaunch.run.record import read_private
from dslaunch.slurm.states import whole_number

LARGEST = 4 << 20
"""Bytes that are read; the stacks of a thousand ranks are about 1 MiB."""


@dataclass(frozen=True, slots=True)
class _OfJob:
    """Of which job and start a result is."""

    slurm_job: str
    slurm_start: int
    """Counted from 1."""


_OF_JOB: TypeAdapter[_OfJob] = TypeAdapter(_OfJob)


def of_job(environ: Mapping[str, str]) -> dict[str, str | int]:
    """What a result says of the job that its run was in; nothing outside of a job."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return {}
    restarts = whole_number(environ.get("SLURM_RESTART_COUNT", "")) or 0
    return asdict(_OfJob(slurm_job=job, slurm_start=restarts + 1))


@cache
def _reader() -> TypeAdapter[Outcome]:
    from dslaunch.protocol.messages import Evidence
    from dslaunch.run import events

    namespace = {"Event": events.Event, "Evidence": Evidence}
    adapter = TypeAdapter(Outcome)
    adapter.rebuild(force=True, _types_namespace=namespace)
    return adapter


def read_result(output: str, *, job: str, start: int) -> Outcome | None:
    """The result of the run in a job that has that output, at its last start, which is `start`.

    None: there is no file that this user alone can have written, such as where the job's storage
    is not here; it is damaged, or of another job or an earlier start.
    """
    try:
        text = read_private(Path(f"{output}{RESULT_SUFFIX}"), LARGEST)
        whose = _OF_JOB.validate_json(text)
        result = _reader().validate_json(text)
    except (OSError, ValueError):
        return None
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
