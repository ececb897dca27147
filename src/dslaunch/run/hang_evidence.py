"""What nodes know of a hang besides their ranks: the kernel's log of GPUs, and NCCL's own report.

A launcher that watches the run asks for it. The nodes of a detached run answer the same questions
before they end their ranks, and keep the answers (`node/rank_progress.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dslaunch.preflight import kernel_log
from dslaunch.protocol.queries import NCCL_RAS, RUN, Answers, Questions
from dslaunch.run.asked import Asked
from dslaunch.run.gpu_errors import logged_gpu_errors
from dslaunch.run.hang_verdict import GpuError
from dslaunch.run.session import Session

QUESTIONS: Questions = {RUN: kernel_log.LOG.argument, NCCL_RAS: None}


class HangEvidence(Struct, frozen=True):
    """What all nodes have answered."""

    gpu_errors: tuple[GpuError, ...] = ()
    """Since the start of the run."""
    nccl_reports: tuple[str, ...] = ()
    """Each one is about all ranks of the job."""


def ask_for_evidence(sessions: Sequence[Session]) -> Asked[Answers]:
    """Ask all nodes."""
    return Asked((session, session.ask(QUESTIONS)) for session in sessions)


def evidence_of(answers: Mapping[str, Answers], seconds: float) -> HangEvidence:
    """Return what the answers of some nodes show. `seconds`: since the start of the run."""
    reports = [each.get(NCCL_RAS) for each in answers.values()]
    errors = [
        error
        for host, each in answers.items()
        for error in logged_gpu_errors(host, each.get(RUN), seconds)
    ]
    return HangEvidence(tuple(errors), tuple(report for report in reports if report))
