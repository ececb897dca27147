"""The texts of a job's verdict, of how it stands and of what is noticed while it is followed.
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dslaunch.run.exit_text import describe, signal_name
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.slurm.job_status import JobPhase, JobStatus, pending_reason
from dslaunch.slurm.output_evidence import Cut
from dslaunch.slurm.verdict import IO_ERROR, NEVER, Account, Ending, JobVerdict, worst

# ---------------------------------------------------------------- how it ended


def message(verdict: JobVerdict) -> str:
    """Return the verdict in one line: which job, how it ended, where, in which start."""
    start = f", in start {verdict.start}" if verdict.start > 1 else ""
    return f"job {verdict.name} {ended(verdict)}{start}"


def ended(verdict: JobVerdict) -> str:
    """Return how the job ended, without its name: `was preempted by another job`."""
    if verdict.code is Ending.FAILED:
        return _failed(verdict)
    if verdict.code is Ending.OUT_OF_MEMORY:
        return _out_of_memory(verdict)
    return _ENDINGS[verdict.code].format(
        on_node=f" on {verdict.node}" if verdict.node else "",
        of_nodes=f" of {verdict.nodes}" if verdict.nodes else "",
        down=f": {verdict.node} is down" if verdict.node else "",
        signal=signal_name(verdict.signal) if verdict.signal else "a signal",
        path=verdict.path or "of the job",
        by=_account(verdict.by),
        state=verdict.state,
    )


_ENDINGS: Mapping[Ending, str] = {
    Ending.SUCCEEDED: "succeeded",
    Ending.SIGNALED: "failed: its batch script was killed by {signal}",
    Ending.CANCELED: "was canceled",
    Ending.CANCELED_BY_ROOT: "was canceled by root: an administrator, or SLURM itself",
    Ending.CANCELED_BY_USER: "was canceled by {by}",
    Ending.TIME_LIMIT: "reached its time limit",
    Ending.DEADLINE: "was canceled at its deadline",
    Ending.NODE_FAILED: "lost a node{of_nodes}{down}",
    Ending.PREEMPTED: "was preempted by another job",
    Ending.BOOT_FAILED: "was not started: a node did not boot",
    Ending.PROLOG_FAILED: "was not started: the prolog of the site failed{on_node}",
    Ending.OUTPUT_NOT_OPENED: "was not started: output file {path} could not be opened{on_node}",
    Ending.STEP_OUTPUT_FAILED: (
        "failed: the output of a job step could not be opened or connected{on_node}"
    ),
    Ending.LAUNCH_FAILED: "failed: SLURM could not launch it{on_node}",
    Ending.REVOKED: "was moved to another cluster",
    Ending.NEVER_STARTED: "was never started: its dependency can never be satisfied",
    Ending.GONE: "is no longer known to SLURM",
    Ending.OTHER: "ended in state {state}",
}
_HINTS = {
    Ending.TIME_LIMIT: (
        "raise `slurm.time`, or save a checkpoint before the limit: `slurm.signal` and "
        "`slurm.requeue`"
    ),
    Ending.OUT_OF_MEMORY: (
        "request more memory with `slurm.mem`, or whole nodes with `slurm.exclusive: true`"
    ),
    Ending.NODE_FAILED: (
        "`slurm.requeue` restarts the job after a node failure; `slurm.exclude` excludes the node"
    ),
    Ending.PREEMPTED: "`slurm.requeue` restarts the job after a preemption",
    Ending.PROLOG_FAILED: (
        "SLURM has drained the node; tell the administrators and submit again; `slurm.exclude` "
        "excludes the node"
    ),
    Ending.OUTPUT_NOT_OPENED: (
        "check on that node that the directory of `slurm.output` exists and is writable, and that "
        "its file system has free space"
    ),
    Ending.STEP_OUTPUT_FAILED: (
        f"srun's exit code {128 + IO_ERROR} is 128 + {IO_ERROR}, slurmd's ESLURMD_IO_ERROR: check "
        "--output and --error of the step, and that the nodes can connect to srun's ports "
        "(SrunPortRange)"
    ),
    Ending.GONE: "SLURM forgets jobs minutes after they end; see the output of the job",
}


CUT_TEXTS: Mapping[Cut, str] = {
    Cut.TIME_LIMIT: "reached its time limit",
    Cut.PREEMPTED: "was preempted by another job",
    Cut.NODE_FAILED: "lost a node",
    Cut.REQUEUED: "was requeued",
    Cut.CANCELED: "was canceled",
}
"""Why SLURM ended a start of a job."""


def outcome_of(verdicts: Sequence[JobVerdict]) -> Outcome:
    """Return the outcome of a run: that of its worst job, with the verdicts of all as data."""
    counts = worst(verdicts)
    tasks = tuple(verdict.as_data() for verdict in verdicts)
    failed = Outcome(
        status="failed",
        exit_code=counts.exit_code,
        reason=EndReason(EndCode.SLURM_JOB, job=message(counts)),
        hint=_HINTS.get(counts.code),
        jobs=tasks,
        nodes_checked=False,
    )
    if counts.code is Ending.SUCCEEDED:
        return replace(failed, status="ok")
    if counts.interrupted:
        return replace(failed, status="interrupted")
    if counts.root is not None:
        return replace(
            counts.root,
            reason=replace(counts.root.reason, job=message(counts)),
            exit_code=failed.exit_code,
            jobs=tasks,
            nodes_checked=False,
        )
    return failed


def _failed(verdict: JobVerdict) -> str:
    if verdict.root is not None:
        return "failed"
    return f"failed: {describe(verdict.exit_code, None)}"


def _out_of_memory(verdict: JobVerdict) -> str:
    what = f"step {verdict.step}" if verdict.step else "the job"
    if verdict.ranks:
        many = len(verdict.ranks) > 1
        what = f"rank{'s' if many else ''} {','.join(map(str, verdict.ranks))}"
    where = f" on {verdict.node}" if verdict.node else ""
    if not where and not verdict.ranks:
        return "exceeded its memory limit"
    size = ""
    if verdict.used is not None and verdict.limit is not None:
        size = f" ({_mebibytes(verdict.used)} of {_mebibytes(verdict.limit)} MiB)"
    return f"exceeded its memory limit: {what}{where}{size}"


def _mebibytes(size: int) -> int:
    return round(size / (1 << 20))


def _account(by: Account | None) -> str:
    if by is None:
        return "another user"
    return f"user {by.name} ({by.uid})" if by.name else f"user {by.uid}"


# ---------------------------------------------------------------- how it stands

PENDING_TEXTS: Mapping[str, str] = {
    "Resources": "the nodes that it needs are allocated; it is next",
    "Priority": "jobs with a higher priority are first",
    "Dependency": "it waits for the jobs of its dependency",
    NEVER: "its dependency can never be satisfied, so it will never start",
    "BeginTime": "its begin time is not reached, or it was just requeued",
    "JobHeldUser": "it is held; `scontrol release` releases it",
    "JobHeldAdmin": "it is held by an administrator, who must release it",
    "ReqNodeNotAvail": "required nodes are down, drained or reserved",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it exceeds the partition's limit of nodes",
    "PartitionTimeLimit": "it exceeds the partition's time limit; request less time",
    "PartitionConfig": "the partition cannot satisfy the request",
    "NodeDown": "a required node is down",
    "BadConstraints": "no node satisfies the request",
    "InvalidAccount": "the account is invalid",
    "InvalidQOS": "the QOS is invalid",
    "Reservation": "it waits for its reservation",
    "JobArrayTaskLimit": "the maximum number of tasks of the array is running",
    "Licenses": "it waits for licenses",
    "launch failed requeued held": (
        "a node could not start it (perhaps a failed prolog), and SLURM holds it; tell the "
        "administrators about the node, then `scontrol release`"
    ),
    "JobLaunchFailure": "it could not be started on a node",
    "RaisedSignal": "it was killed by a signal",
}
"""SLURM's reasons of pending jobs (squeue(1), "JOB REASON CODES")."""
_LIMIT = re.compile(r"QOS|Assoc|Max")


def pending_text(reason: str) -> str:
    """Return why a job is pending; an unknown reason as SLURM has it."""
    code = pending_reason(reason)
    if code in PENDING_TEXTS:
        return f"{PENDING_TEXTS[code]} ({reason})"
    if _LIMIT.match(code):
        return f"it exceeds a limit of the account or QOS ({reason})"
    return reason


def status_reason(job: JobStatus) -> str:
    """Return why a job is pending, or how it ended; empty for other jobs."""
    if job.verdict is not None:
        return ended(job.verdict)
    return pending_text(job.reason) if job.phase is JobPhase.PENDING else ""


def status_text(job: JobStatus) -> str:
    """Return how a job stands: `job 12 is running on n[1-2], start 2`."""
    reason = status_reason(job)
    if job.phase is JobPhase.ENDED:
        return f"job {job.name} {reason}"
    if job.phase is JobPhase.PENDING:
        return f"job {job.name} is pending: {reason}" if reason else f"job {job.name} is pending"
    state = job.state if job.phase is JobPhase.OTHER else job.phase.value
    nodes = f" on {job.nodes}" if job.nodes else ""
    restarted = job.phase is JobPhase.RUNNING and job.start > 1
    start = f", start {job.start}" if restarted else ""
    return f"job {job.name} is {state}{nodes}{start}"
