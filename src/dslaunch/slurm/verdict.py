"""Why a job waits, and how it ended: a verdict with a code and typed parameters. Pure.

Its text is made in `verdict_text.py`; nothing else depends on words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from dslaunch.run.outcome import Outcome
from dslaunch.run.run_state import State
from dslaunch.slurm.output_evidence import LaunchError, MemoryExceeded, OutputEvidence
from dslaunch.slurm.states import JobInfo

# ---------------------------------------------------------------- why it waits

NEVER = "DependencyNeverSatisfied"
"""The reason of a job that waits in vain, or was ended for that (sbatch(1),
`--kill-on-invalid-dep`)."""
_REASONS: Mapping[str, str] = {
    "Resources": "the nodes it needs are busy; it is next",
    "Priority": "other jobs come first",
    "Dependency": "it waits for the jobs that it depends on",
    NEVER: "the job that it depends on ended otherwise; it will never start",
    "BeginTime": "its time to begin has not come, or it was requeued a moment ago",
    "JobHeldUser": "it is held: `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it, and alone can release it",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs now",
    "PartitionNodeLimit": "the partition does not give so many nodes",
    "PartitionTimeLimit": "the partition does not give so much time; ask for less",
    "PartitionConfig": "the partition cannot give what is asked for",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what is asked for",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the quality of service is not valid",
    "Reservation": "it waits for its reservation",
    "JobArrayTaskLimit": "so many tasks of the array as are allowed run already",
    "Licenses": "it waits for licenses",
    "launch failed requeued held": (
        "a node could not start it (its prolog may have failed), and SLURM holds it: ask the "
        "administrators about that node, then `scontrol release`"
    ),
    "JobLaunchFailure": "it could not be started on a node",
    "RaisedSignal": "a signal ended it",
}


def why_waiting(reason: str) -> str:
    """A reason of squeue in words; the unknown as SLURM has it."""
    # scontrol has underscores where squeue has blanks
    plain = re.split(r"[,(]", reason)[0].strip().replace("launch_failed_", "launch failed ")
    plain = plain.replace("requeued_held", "requeued held")
    if plain in _REASONS:
        return f"{_REASONS[plain]} ({reason})"
    if re.match(r"QOS|Assoc|Max", plain):
        return f"a limit of the account or quality of service is reached ({reason})"
    return reason


# ---------------------------------------------------------------- how it stands


def state_of(jobs: Sequence[JobInfo]) -> State:
    """Return the state of a run by those of its jobs: a task that runs counts for the whole."""
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
    """How a job ended. The values are codes of `--json` and of records: they do not change."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Its script exited with a code, mostly that of a rank."""
    SIGNALED = "signaled"
    """A signal ended its script."""
    CANCELED = "canceled"
    """By its own user, or nobody knows by whom."""
    CANCELED_BY_ROOT = "canceled-by-root"
    CANCELED_BY_USER = "canceled-by-user"
    """By another user, such as an operator or a coordinator of its account."""
    TIME_LIMIT = "time-limit"
    DEADLINE = "deadline"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_FAILED = "node-failed"
    PREEMPTED = "preempted"
    BOOT_FAILED = "boot-failed"
    PROLOG_FAILED = "prolog-failed"
    OUTPUT_NOT_OPENED = "output-not-opened"
    """slurmstepd could not open the batch script's output: nothing has run."""
    STEP_OUTPUT_FAILED = "step-output-failed"
    """The same of a step's output, or of its connection to srun."""
    LAUNCH_FAILED = "launch-failed"
    REVOKED = "revoked"
    NEVER_STARTED = "never-started"
    """What it depends on ended otherwise."""
    GONE = "gone"
    """SLURM knows it no more, and nothing else tells how it ended."""
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
a node. Those that are not here have the job's own code, or 1."""
_INTERRUPTED = (Ending.CANCELED, Ending.CANCELED_BY_ROOT, Ending.CANCELED_BY_USER)

IO_ERROR = 53
"""What is left of slurmd's ESLURMD_IO_ERROR (4021, slurm_errno.h) where a wait status is expected:
it reads as signal 53. No signal of that number was sent; srun exits with 128 + 53 for it."""
PROLOG_ERROR = 54
"""Likewise of ESLURMD_PROLOG_FAILED (4022)."""
LAUNCH_FAILURE = "JobLaunchFailure"
"""slurmctld gives this reason to every job whose script a signal ended (slurmctld/job_mgr.c)."""
PROLOG_REASON = "Prolog error"
"""Why slurmctld drains a node whose prolog failed (slurmctld/node_mgr.c, SLURM 22.05)."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the site."""

    uid: int
    name: str = ""
    """Empty: no such user is known on this machine."""


@dataclass(frozen=True, slots=True)
class EndDetails:
    """What SLURM tells about the end of a job besides its state; all of it may be unknown."""

    canceled_by: Account | None = None
    """As accounting has it: `CANCELLED by 0`."""
    down: str = ""
    """Nodes of the job that are down, folded."""
    prolog: str = ""
    """Nodes of the job that were drained for their prolog, folded."""
    memory: MemoryExceeded | None = None
    """The step that accounting has as out of memory, and where it used most."""


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """How one job, or one task of an array, ended, and why."""

    code: Ending
    job: str
    exit_code: int
    task: str = ""
    """`12_3`; empty: it is no task of an array."""
    start: int = 1
    """At which start it ended, counted from 1: a requeue makes another one."""
    nodes: str = ""
    """On which it ran, folded."""
    node: str = ""
    """The one that it is about: that was lost, that exceeded its memory, whose prolog failed."""
    ranks: tuple[int, ...] = ()
    """Those that exceeded the memory."""
    step: str = ""
    used: int | None = None
    limit: int | None = None
    """Bytes of memory."""
    signal: int | None = None
    path: str = ""
    """The output that could not be opened."""
    by: Account | None = None
    state: str = ""
    """SLURM's word for it."""
    reason: str = ""
    """SLURM's word for why."""
    root: Outcome | None = None
    """The rank that failed first, where it is a rank's failure."""

    @property
    def name(self) -> str:
        """`12`, or `12_3` of an array."""
        return self.task or self.job

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it."""
        return self.code in _INTERRUPTED

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, for JSON."""
        plain = asdict(replace(self, root=None))
        found = {name: value for name, value in plain.items() if value not in ("", None, ())}
        if self.root is not None and self.root.cause is not None:
            found["root_cause"] = self.root.cause.as_dict()
        return found | {"code": self.code.value, "exit_code": self.exit_code}


def decide(
    info: JobInfo,
    *,
    observed: OutputEvidence,
    root: Outcome | None,
    after: EndDetails,
    own_uid: int,
) -> JobVerdict:
    """Return how a job ended. `observed` and `root` are of the last start that is in the output."""
    start = max(info.restarts + 1, observed.start or 1)
    if observed.start is not None and observed.start < start:
        observed, root = OutputEvidence(), None  # the last start has written nothing
    code = _ending(info, observed, root, after, own_uid)
    verdict = JobVerdict(
        code=code,
        job=info.job,
        exit_code=_exit_code(code, info),
        task=f"{info.array}_{info.task}" if info.array else "",
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
        # srun ends with the highest code, which is that of the ranks it ended itself
        return replace(verdict, root=root, exit_code=root.exit_code)
    return verdict


def _ending(
    info: JobInfo, observed: OutputEvidence, root: Outcome | None, after: EndDetails, own_uid: int
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
    """A job that may not be requeued is canceled by SLURM, as root, when a prolog fails."""
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
    """The output is preferred: it names the first, accounting the one that used most."""
    told = [found for found in (*observed.memory, after.memory) if found is not None]
    found = next((one for one in told if one.host), None)
    if found is None:
        return verdict
    same = [one for one in told if one.host == found.host]
    return replace(
        verdict,
        node=found.host,
        ranks=next((one.ranks for one in same if one.ranks), ()),
        step=found.step,
        used=found.used,
        limit=found.limit,
    )


def worst(verdicts: Sequence[JobVerdict]) -> JobVerdict:
    """Return the one that counts for the whole: an array fails if any of its tasks does."""

    def badness(verdict: JobVerdict) -> tuple[int, int]:
        unknown = verdict.code in (Ending.GONE, Ending.OTHER)
        known_failure = not unknown and verdict.code is not Ending.SUCCEEDED
        rank = 2 if known_failure and not verdict.interrupted else 1
        return (0 if verdict.code is Ending.SUCCEEDED else rank, verdict.exit_code)

    return max(verdicts, key=badness)
