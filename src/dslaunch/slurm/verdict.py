"""How a job ended: a verdict with a code and typed parameters. Pure.

Its text is made in `verdict_text.py`; nothing else depends on texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dslaunch.run.outcome import Outcome
from dslaunch.run.run_state import State
from dslaunch.slurm.output_evidence import LaunchError, MemoryExceeded, OutputEvidence
from dslaunch.slurm.states import JobInfo

NEVER = "DependencyNeverSatisfied"
"""SLURM's reason of a job whose dependency can never be satisfied, pending or canceled for it
(sbatch(1), `--kill-on-invalid-dep`)."""

# ---------------------------------------------------------------- how it stands


def state_of(jobs: Sequence[JobInfo]) -> State:
    """Return the state of a run: running if any of its jobs is."""
    if any(not info.over and not info.waiting for info in jobs):
        return State.RUNNING
    if any(info.waiting for info in jobs):
        return State.WAITING
    endings = {_BY_STATE.get(info.state, Ending.OTHER) for info in jobs}
    if endings == {Ending.SUCCEEDED}:
        return State.SUCCEEDED
    if Ending.GONE in endings:
        return State.UNKNOWN
    return State.STOPPED if Ending.CANCELED in endings else State.FAILED


# ---------------------------------------------------------------- how it ended


class Ending(StrEnum):
    """How a job ended. The values are codes in `--json` and in records, and do not change."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Its script failed with an exit code, usually that of a rank."""
    SIGNALED = "signaled"
    """Its script was killed by a signal."""
    CANCELED = "canceled"
    """By its own user, or by an unknown user."""
    CANCELED_BY_ROOT = "canceled-by-root"
    CANCELED_BY_USER = "canceled-by-user"
    """By another user, for example an operator or a coordinator of its account."""
    TIME_LIMIT = "time-limit"
    DEADLINE = "deadline"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_FAILED = "node-failed"
    PREEMPTED = "preempted"
    BOOT_FAILED = "boot-failed"
    PROLOG_FAILED = "prolog-failed"
    OUTPUT_NOT_OPENED = "output-not-opened"
    """slurmstepd could not open the output file of the batch script, so nothing was started."""
    STEP_OUTPUT_FAILED = "step-output-failed"
    """slurmstepd could not open the output file of a step, or could not connect it to srun."""
    LAUNCH_FAILED = "launch-failed"
    REVOKED = "revoked"
    NEVER_STARTED = "never-started"
    """Its dependency can never be satisfied."""
    GONE = "gone"
    """SLURM no longer knows it, and nothing else shows how it ended."""
    OTHER = "other"
    """A state that this version does not know."""


_BY_STATE: Mapping[str, Ending] = {
    "COMPLETED": Ending.SUCCEEDED,
    "FAILED": Ending.FAILED,
    "CANCELLED": Ending.CANCELED,
    "TIMEOUT": Ending.TIME_LIMIT,
    "OUT_OF_MEMORY": Ending.OUT_OF_MEMORY,
    "NODE_FAIL": Ending.NODE_FAILED,
    "PREEMPTED": Ending.PREEMPTED,
    "BOOT_FAIL": Ending.BOOT_FAILED,
    "DEADLINE": Ending.DEADLINE,
    "REVOKED": Ending.REVOKED,
    "GONE": Ending.GONE,
}
_EXIT_CODES: Mapping[Ending, int] = {
    Ending.SUCCEEDED: 0,
    Ending.CANCELED: 130,
    Ending.CANCELED_BY_ROOT: 130,
    Ending.CANCELED_BY_USER: 130,
    Ending.TIME_LIMIT: 124,
    Ending.DEADLINE: 124,
    Ending.OUT_OF_MEMORY: 137,
    Ending.NODE_FAILED: 5,
    Ending.BOOT_FAILED: 5,
    Ending.PROLOG_FAILED: 5,
    Ending.PREEMPTED: 143,
}
"""124 as of timeout(1), 137 as of the kernel's KILL, 143 as of TERM, 5 as `dslaunch run` has it for
a node. Endings that are not listed have the job's own exit code, or 1."""
_INTERRUPTED = (Ending.CANCELED, Ending.CANCELED_BY_ROOT, Ending.CANCELED_BY_USER)

IO_ERROR = 53
"""The low bits of slurmd's ESLURMD_IO_ERROR (4021, slurm_errno.h) as a wait status, which look like
signal 53. No such signal was sent; srun exits with 128 + 53."""
PROLOG_ERROR = 54
"""The same for ESLURMD_PROLOG_FAILED (4022)."""
LAUNCH_FAILURE = "JobLaunchFailure"
"""slurmctld's reason for every job whose script was killed by a signal (slurmctld/job_mgr.c)."""
PROLOG_REASON = "Prolog error"
"""slurmctld's reason when it drains a node whose prolog failed (slurmctld/node_mgr.c, 22.05)."""


class Account(Struct, frozen=True):
    """A user of the site."""

    uid: int
    name: str = ""
    """Empty: unknown on this machine."""


class EndDetails(Struct, frozen=True):
    """What SLURM knows about the end of a job besides its state; each may be unknown."""

    canceled_by: Account | None = None
    """By the accounting: `CANCELLED by 0`."""
    down: str = ""
    """Nodes of the job that are down, folded."""
    prolog: str = ""
    """Nodes of the job that were drained for their prolog, folded."""
    memory: MemoryExceeded | None = None
    """The step that is out of memory by the accounting, and the node where it used most."""


class JobVerdict(Struct, frozen=True):
    """How one job, or one task of an array, ended, and why."""

    code: Ending
    job: str
    exit_code: int
    task: str = ""
    """`12_3`; empty: not a task of an array."""
    start: int = 1
    """In which start it ended, counted from 1: a requeue makes another one."""
    nodes: str = ""
    """The nodes of the job, folded."""
    node: str = ""
    """The node that failed, exceeded its memory limit, or whose prolog failed."""
    ranks: tuple[int, ...] = ()
    """The ranks that exceeded the memory limit."""
    step: str = ""
    used: int | None = None
    limit: int | None = None
    """Bytes of memory."""
    signal: int | None = None
    path: str = ""
    """The output that could not be opened."""
    by: Account | None = None
    state: str = ""
    """SLURM's state."""
    reason: str = ""
    """SLURM's reason."""
    root: Outcome | None = None
    """The root cause, if a rank failed."""

    @property
    def name(self) -> str:
        """`12`, or `12_3` of an array."""
        return self.task or self.job

    @property
    def interrupted(self) -> bool:
        """Whether a user canceled it."""
        return self.code in _INTERRUPTED

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        plain = to_builtins(replace(self, root=None))
        found = {name: value for name, value in plain.items() if value not in ("", None, [])}
        if self.root is not None and self.root.cause is not None:
            found["root_cause"] = self.root.cause.as_data()
        return found | {"code": self.code.value, "exit_code": self.exit_code}


def decide(
    info: JobInfo,
    *,
    observed: OutputEvidence,
    root: Outcome | None,
    after: EndDetails,
    own_uid: int,
) -> JobVerdict:
    """Return how a job ended. `observed` and `root` are about the last start in the output."""
    start = max(info.restarts + 1, observed.start or 1)
    if observed.start is not None and observed.start < start:
        observed, root = OutputEvidence(), None  # the last start has no output
    code = _ending(info, observed=observed, root=root, after=after, own_uid=own_uid)
    verdict = JobVerdict(
        code=code,
        job=info.job,
        exit_code=_exit_code(code, info),
        task=info.array_task,
        start=start,
        nodes=info.nodes,
        signal=info.signal if code is Ending.SIGNALED else None,
        state=info.state,
        reason=info.reason,
    )
    if code is Ending.OUT_OF_MEMORY:
        return _with_memory(verdict, observed, after)
    if code is Ending.NODE_FAILED:
        return replace(verdict, node=after.down)
    if code is Ending.PROLOG_FAILED:
        return replace(verdict, node=after.prolog or _launch_node(observed))
    if code is Ending.OUTPUT_NOT_OPENED:
        return replace(verdict, node=info.batch_host or info.nodes, path=info.output)
    if code in (Ending.STEP_OUTPUT_FAILED, Ending.LAUNCH_FAILED):
        return replace(verdict, node=_launch_node(observed))
    if code in (Ending.CANCELED_BY_ROOT, Ending.CANCELED_BY_USER):
        return replace(verdict, by=after.canceled_by)
    if code is Ending.FAILED and root is not None and root.cause is not None:
        # srun exits with the highest code, which is that of the ranks that it killed itself
        return replace(verdict, root=root, exit_code=root.exit_code)
    return verdict


def _ending(
    info: JobInfo,
    *,
    observed: OutputEvidence,
    root: Outcome | None,
    after: EndDetails,
    own_uid: int,
) -> Ending:
    if info.reason == NEVER:
        return Ending.NEVER_STARTED
    if info.state == "FAILED":
        return _failure(info, observed, root)
    if info.state == "CANCELLED":
        return _cancellation(after, own_uid)
    if info.state == "COMPLETED" and observed.launch:
        # SLURM 22.05: srun exits with 0 although it could not launch its only task
        return _launch_ending(observed)
    return _BY_STATE.get(info.state, Ending.OTHER)


def _failure(info: JobInfo, observed: OutputEvidence, root: Outcome | None) -> Ending:
    failed_rank = root is not None and root.cause is not None
    if info.signal == IO_ERROR:
        return Ending.OUTPUT_NOT_OPENED
    if info.signal == PROLOG_ERROR:
        return Ending.PROLOG_FAILED
    if observed.memory:
        return Ending.OUT_OF_MEMORY
    if observed.launch and not failed_rank:
        return _launch_ending(observed)
    if info.code == 128 + IO_ERROR and not failed_rank:
        return Ending.STEP_OUTPUT_FAILED
    if info.signal:
        return Ending.SIGNALED
    if info.reason == LAUNCH_FAILURE:
        return Ending.LAUNCH_FAILED
    return Ending.FAILED


def _launch_ending(observed: OutputEvidence) -> Ending:
    first = observed.launch[0].error
    endings = {
        LaunchError.PROLOG: Ending.PROLOG_FAILED,
        LaunchError.OUTPUT: Ending.STEP_OUTPUT_FAILED,
    }
    return endings.get(first, Ending.LAUNCH_FAILED)


def _cancellation(after: EndDetails, own_uid: int) -> Ending:
    """Return who canceled a job. If a prolog fails, SLURM cancels as root a job that must not be
    requeued."""
    if after.prolog:
        return Ending.PROLOG_FAILED
    by = after.canceled_by
    if by is None or by.uid == own_uid:
        return Ending.CANCELED
    return Ending.CANCELED_BY_ROOT if by.uid == 0 else Ending.CANCELED_BY_USER


def _exit_code(code: Ending, info: JobInfo) -> int:
    if code in _EXIT_CODES:
        return _EXIT_CODES[code]
    if code in (Ending.FAILED, Ending.STEP_OUTPUT_FAILED) and info.code:
        return info.code
    if code is Ending.SIGNALED and info.signal:
        return 128 + info.signal
    return 1


def _launch_node(observed: OutputEvidence) -> str:
    return next((failed.host for failed in observed.launch if failed.host), "")


def _with_memory(verdict: JobVerdict, observed: OutputEvidence, after: EndDetails) -> JobVerdict:
    """Add the memory that was exceeded. The output is preferred: it names the first step that did,
    accounting the one that used most."""
    evidence = [found for found in (*observed.memory, after.memory) if found is not None]
    found = next((one for one in evidence if one.host), None)
    if found is None:
        return verdict
    same = [one for one in evidence if one.host == found.host]
    return replace(
        verdict,
        node=found.host,
        ranks=next((one.ranks for one in same if one.ranks), ()),
        step=found.step,
        used=found.used,
        limit=found.limit,
    )


def worst(verdicts: Sequence[JobVerdict]) -> JobVerdict:
    """Return the verdict that counts for the run: an array fails if any of its tasks does."""

    def badness(verdict: JobVerdict) -> tuple[int, int]:
        unknown = verdict.code in (Ending.GONE, Ending.OTHER)
        known_failure = not unknown and verdict.code is not Ending.SUCCEEDED
        rank = 2 if known_failure and not verdict.interrupted else 1
        return (0 if verdict.code is Ending.SUCCEEDED else rank, verdict.exit_code)

    return max(verdicts, key=badness)
