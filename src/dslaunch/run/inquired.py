"""What an attempt asks its nodes before its start, and the quick checks, which begin at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.run.ds_config import config_errors, refuse
from dslaunch.run.gate import Gate
from dslaunch.run.prepare import config_files, inquiry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.job import Job
    from dslaunch.lint import Remark
    from dslaunch.run.evidence import Inquiry
    from dslaunch.run.request import RunRequest
    from dslaunch.run.session import Session
    from dslaunch.transport.future import Future


class Inquired(Struct, frozen=True):
    """What is known of a job before its nodes have answered."""

    job: Job
    question: Inquiry
    in_code: tuple[Path, ...]
    """The DeepSpeed configs that the job's code names and that are on this machine."""
    config_errors: tuple[Remark, ...]
    """Errors of the DeepSpeed config files that do not prevent the start."""
    gate: Gate | None
    """Asks each node when its agent has greeted; None: nothing is checked."""


def inquire(
    request: RunRequest,
    allocation: Allocation,
    job: Job,
    begun: Mapping[str, Future[Session]],
) -> Inquired:
    """Check what is on this machine, and begin to ask the nodes. Raises PlanError."""
    question = inquiry(request.cluster, allocation, job, request.cwd)
    in_code = config_files(question, request.cwd)
    errors = _config_errors(request, allocation, job, in_code)
    return Inquired(
        job=job,
        question=question,
        in_code=in_code,
        config_errors=errors,
        gate=Gate(question, job, begun, request.cwd) if request.preflight else None,
    )


def _config_errors(
    request: RunRequest, allocation: Allocation, job: Job, in_code: Sequence[Path]
) -> tuple[Remark, ...]:
    """Return the errors of the job's DeepSpeed configs, for the ranks of the real run.

    Raises PlanError, unless it is forced; those of a rehearsal are among its findings, with all
    that the start itself shows.
    """
    full = None if request.rehearsal is None else request.rehearsal.full
    errors = config_errors(job, request.cwd, full or allocation, in_code)
    if not request.force and request.rehearsal is None:
        refuse(errors)
    return errors
