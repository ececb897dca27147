"""The words of a verdict: one place where its codes become text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dslaunch.run.outcome import Outcome
from dslaunch.run.outcome_text import describe, signal_name
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.slurm.output_evidence import Cut
from dslaunch.slurm.verdict import IO_ERROR, Account, Ending, JobVerdict, worst


def message(verdict: JobVerdict) -> str:
    """Return the verdict in one line: which job, how it ended, where, at which start."""
    again = f", at start {verdict.start}" if verdict.start > 1 else ""
    return f"job {verdict.name} {ended(verdict)}{again}"


def ended(verdict: JobVerdict) -> str:
    """Return how the job ended, without its name: `was preempted by another job`."""
    if verdict.code is Ending.FAILED:
        return _failed(verdict)
    if verdict.code is Ending.OUT_OF_MEMORY:
        return _out_of_memory(verdict)
    return _WORDS[verdict.code].format(
        on_node=f" on {verdict.node}" if verdict.node else "",
        of_nodes=f" of {verdict.nodes}" if verdict.nodes else "",
        down=f": {verdict.node} is down" if verdict.node else "",
        signal=signal_name(verdict.signal) if verdict.signal else "a signal",
        path=verdict.path or "of the job",
        by=_account(verdict.by),
        state=verdict.state,
    )


_WORDS: Mapping[Ending, str] = {
    Ending.SUCCEEDED: "succeeded",
    Ending.SIGNALED: "failed: its batch script was killed by {signal}",
    Ending.CANCELED: "was canceled",
    Ending.CANCELED_BY_ROOT: "was canceled by root, an administrator or SLURM itself",
    Ending.CANCELED_BY_USER: "was canceled by {by}",
    Ending.TIME_LIMIT: "reached its time limit",
    Ending.DEADLINE: "was ended at its deadline",
    Ending.NODE_FAILED: "lost a node{of_nodes}{down}",
    Ending.PREEMPTED: "was preempted by another job",
    Ending.BOOT_FAILED: "did not start: a node did not boot",
    Ending.PROLOG_FAILED: "was not started: the site's prolog failed{on_node}",
    Ending.OUTPUT_NOT_OPENED: ("was not started: output file {path} could not be opened{on_node}"),
    Ending.STEP_OUTPUT_FAILED: (
        "failed: the output of a job step could not be opened or connected{on_node}"
    ),
    Ending.LAUNCH_FAILED: "failed: SLURM could not launch it{on_node}",
    Ending.REVOKED: "was moved to another cluster",
    Ending.NEVER_STARTED: "never started: the job that it depends on failed",
    Ending.GONE: "is no longer known to SLURM",
    Ending.OTHER: "ended as {state}",
}
_HINTS = {
    Ending.TIME_LIMIT: (
        "raise `slurm.time`, or let it save before: `slurm.signal` and `slurm.requeue`"
    ),
    Ending.OUT_OF_MEMORY: (
        "request more with `slurm.mem`, or whole nodes with `slurm.exclusive: true`"
    ),
    Ending.NODE_FAILED: (
        "`slurm.requeue` starts it again by itself; `slurm.exclude` leaves the node out"
    ),
    Ending.PREEMPTED: "`slurm.requeue` starts it again by itself",
    Ending.PROLOG_FAILED: (
        "SLURM has drained the node; tell the administrators, and submit again, with "
        "`slurm.exclude` if it is used again"
    ),
    Ending.OUTPUT_NOT_OPENED: (
        "the directory of `slurm.output` must exist and be writable on that node, and its file "
        "system not be full"
    ),
    Ending.STEP_OUTPUT_FAILED: (
        f"exit code {128 + IO_ERROR} of srun is 128 + {IO_ERROR}, slurmd's ESLURMD_IO_ERROR: check "
        "--output and --error of the step, and that nodes reach each other on srun's ports "
        "(SrunPortRange)"
    ),
    Ending.GONE: "SLURM forgets jobs some minutes after their end; see the output of the job",
}


CUT_WORDS: Mapping[Cut, str] = {
    Cut.TIME_LIMIT: "reached its time limit",
    Cut.PREEMPTED: "was preempted by another job",
    Cut.NODE_FAILED: "lost a node",
    Cut.REQUEUED: "was requeued",
    Cut.CANCELED: "was canceled",
}
"""Why SLURM ended a start."""


def outcome_of(verdicts: Sequence[JobVerdict]) -> Outcome:
    """Return the outcome of a run: that of its worst job, with the verdicts of all as data."""
    counts = worst(verdicts)
    tasks = tuple(verdict.as_dict() for verdict in verdicts)
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
    what = f"step {verdict.step}" if verdict.step else "it"
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
