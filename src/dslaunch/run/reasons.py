"""Why a run ended, is being stopped or is restarted: codes with typed parameters.

Their text is made in `outcome_text.py`; nothing depends on it. docs/reference/codes.md lists
the codes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from dslaunch.errors import ErrorCode, FailureKind
from dslaunch.launch.replacement import Replacement
from dslaunch.recorded import as_json_data
from dslaunch.run.hang_verdict import HangVerdict
from dslaunch.run.recorded_values import Count, Duration, ExitCode, Host, RankNumber, Signal

OwnProcess = Literal["agent", "guardian"]
"""A process of ours on a node."""
RankSource = tuple[str, int | None]
"""A host and a rank; no rank: the node's launcher."""


class EndCode(StrEnum):
    """Why a run ended, or is being stopped."""

    SUCCEEDED = "succeeded"
    ENOUGH_SUCCEEDED = "enough-succeeded"
    RUNNING = "running"
    NOT_STARTED = "not-started"
    INTERRUPTED = "interrupted"
    INTERRUPTED_TWICE = "interrupted-twice"
    OUTPUT_CLOSED = "output-closed"
    STOPPED = "stopped"
    START_FAILED = "start-failed"
    RANK_FAILED = "rank-failed"
    LAUNCHER_FAILED = "launcher-failed"
    NODE_LOST = "node-lost"
    PROCESS_KILLED = "process-killed"
    PROCESS_FAILED = "process-failed"
    NODE_ENDED = "node-ended"
    EXIT_TIMEOUT = "exit-timeout"
    HANG = "hang"
    REHEARSED = "rehearsed"
    REHEARSAL_LIMIT = "rehearsal-limit"
    REHEARSAL_SPAWNS = "rehearsal-spawns"
    SLURM_JOB = "slurm-job"


BY_USER = frozenset(
    {EndCode.INTERRUPTED, EndCode.INTERRUPTED_TWICE, EndCode.OUTPUT_CLOSED, EndCode.STOPPED}
)
"""Ends that a user requested."""


class EndReason(Struct, frozen=True, omit_defaults=True):
    """A code with its parameters; docs/reference/codes.md says which parameters a code has."""

    code: EndCode
    host: Host | None = None
    rank: RankNumber | None = None
    """None: the launcher on the node, or the node as a whole."""
    exit_code: ExitCode | None = None
    signal: Signal | None = None
    oom: bool | None = None
    """The kernel has reported that its out-of-memory killer killed the rank."""
    process: OwnProcess | None = None
    failure: FailureKind | None = None
    """A lost node: the kind of `NodeFailure`."""
    problem: ErrorCode | None = None
    """Why it was not started: the code of the error."""
    failures: tuple[tuple[str, FailureKind], ...] = ()
    """Not started since nodes could not be reached: each host and the kind of its `NodeFailure`."""
    checks: tuple[tuple[str, str], ...] = ()
    """Not started since checks failed: each host and the check."""
    error: str | None = None
    """The message of the system, a node or our own program."""
    by: str | None = None
    """Who stopped the run."""
    seconds: Duration | None = None
    nodes: Count | None = None
    """On how many nodes it succeeded."""
    steps: int | None = None
    """Optimizer steps of a rehearsal."""
    ranks: tuple[RankSource, ...] = ()
    """Those that had not exited, or that a failed rank probably waited for."""
    exited: tuple[RankSource, ...] = ()
    """Those that had exited successfully when a failed rank lost its connection to another one."""
    hang: HangVerdict | None = None
    """What the ranks wait for."""
    job: str | None = None
    """Verdict of the SLURM job (`slurm/verdict_text.py`); its codes are in the outcome's jobs."""
    not_restarted: str | None = None
    """Why it was not restarted although requested."""

    def as_data(self) -> dict[str, Any]:
        """The fields that are set, for JSON."""
        found: dict[str, Any] = as_json_data(self)
        return found


class Restart(Struct, frozen=True):
    """A restart of a run."""

    attempt: int
    """Counted from 1; the first start is not a restart."""
    most: int
    """How many restarts were requested."""
    after: EndReason
    """Why the attempt before ended."""
    replaced: tuple[Replacement, ...] = ()
