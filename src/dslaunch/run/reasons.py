"""Why a run ended, is being ended or is started again: codes with typed parameters.

Their text is made in `outcome_text.py`; nothing depends on words. docs/reference/codes.md lists
the codes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal

from dslaunch.errors import ErrorCode, FailureKind
from dslaunch.launch.replacement import Replacement

OwnProcess = Literal["agent", "guardian"]
"""A process of ours on a node."""
RankSource = tuple[str, int | None]
"""A host and a rank; no rank: the node's launcher."""


class EndCode(StrEnum):
    """Why a run ended, or is being ended."""

    SUCCEEDED = "succeeded"
    ENOUGH_SUCCEEDED = "enough-succeeded"
    RUNNING = "running"
    NOT_STARTED = "not-started"
    INTERRUPTED = "interrupted"
    INTERRUPTED_TWICE = "interrupted-twice"
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
    SLURM_JOB = "slurm-job"


BY_USER = frozenset({EndCode.INTERRUPTED, EndCode.INTERRUPTED_TWICE, EndCode.STOPPED})
"""Ends that somebody asked for."""


@dataclass(frozen=True, slots=True)
class EndReason:
    """A code with what belongs to it; docs/reference/codes.md says which parameters a code has."""

    code: EndCode
    host: str | None = None
    rank: int | None = None
    """None: the launcher on the node, or the node as a whole."""
    exit_code: int | None = None
    signal: int | None = None
    oom: bool | None = None
    """The kernel has said that it killed the rank for want of memory."""
    process: OwnProcess | None = None
    failure: FailureKind | None = None
    """A lost node: the kind of `NodeFailure`."""
    problem: ErrorCode | None = None
    """Why it was not started: the code of the error."""
    error: str | None = None
    """What the system, a node or our own program said of it."""
    by: str | None = None
    """Who stopped the run."""
    seconds: float | None = None
    nodes: int | None = None
    """On how many nodes it succeeded."""
    ranks: tuple[RankSource, ...] = ()
    """Those that had not exited, or that a failed rank likely waited for."""
    job: str | None = None
    """What SLURM says of the job (`slurm/verdict_text.py`); its codes are in the outcome's jobs."""
    not_restarted: str | None = None
    """Why it was not started again although it was to be."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, for JSON."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in pairs if value not in (None, ())}


@dataclass(frozen=True, slots=True)
class Restart:
    """A run is started again, on nodes that were chosen anew."""

    attempt: int
    """Counted from 1; the first start is no restart."""
    most: int
    """How many restarts were requested."""
    after: EndReason
    """Why the attempt before ended."""
    replaced: tuple[Replacement, ...] = ()
