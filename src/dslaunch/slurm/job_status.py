"""The status of a job that is pending, running or ended, by SLURM's state alone. Pure.

Its text is made in `verdict_text.py`.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from dslaunch.slurm.output_evidence import OutputEvidence
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict import EndDetails, JobVerdict, decide

NO_USER = -1
"""The state does not show who canceled a job."""


def pending_reason(reason: str) -> str:
    """Return SLURM's code in a reason of squeue or scontrol: `ReqNodeNotAvail` of
    `ReqNodeNotAvail, UnavailableNodes:n[1-2]`."""
    # scontrol has underscores where squeue has blanks
    plain = re.split(r"[,(]", reason)[0].strip().replace("launch_failed_", "launch failed ")
    return plain.replace("requeued_held", "requeued held")


class JobPhase(StrEnum):
    """In which part of its life a job is."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    OTHER = "other"
    """Another state of SLURM, such as SUSPENDED."""
    ENDED = "ended"


class JobStatus(Struct, frozen=True):
    """The status of a job, a task or a component, as far as SLURM's state shows it."""

    phase: JobPhase
    name: str
    """`12`, or `12_3` of an array."""
    state: str
    """SLURM's name of the state."""
    reason: str = ""
    """SLURM's reason why it is pending."""
    nodes: str = ""
    """On which it runs, folded."""
    start: int = 1
    """Counted from 1: a requeue makes another one."""
    verdict: JobVerdict | None = None
    """How it ended."""


def status_of(info: JobInfo) -> JobStatus:
    """Return the status of a job."""
    name = info.array_task or info.job
    if info.waiting:
        return JobStatus(JobPhase.PENDING, name, info.state, reason=info.reason)
    if info.over:
        verdict = decide(
            info, observed=OutputEvidence(), root=None, after=EndDetails(), own_uid=NO_USER
        )
        return JobStatus(JobPhase.ENDED, name, info.state, verdict=verdict)
    phase = JobPhase.RUNNING if info.state == "RUNNING" else JobPhase.OTHER
    if "COMPLETING" in info.flags or info.state == "COMPLETING":
        phase = JobPhase.COMPLETING
    return JobStatus(phase, name, info.state, nodes=info.nodes, start=info.restarts + 1)
