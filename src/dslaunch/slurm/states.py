"""The record of a job in SLURM as typed values, and the final states. Pure.

States and reasons are those of squeue(1), "JOB STATE CODES" and "JOB REASON CODES", of SLURM 22.05.
"""

from __future__ import annotations

import re

from msgspec import Struct

WAITING = frozenset(
    (
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    )
)
"""States and flags of a job that has not started, or is requeued."""
FINAL = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    )
)
"""States of a job that has ended. REVOKED is not final: the job runs in another cluster of the
federation."""
BASE_STATES = FINAL | {"PENDING", "RUNNING", "SUSPENDED"}
"""The base states, of which a job has exactly one; all others are flags (slurm.h, `job_states` and
JOB_STATE_FLAGS)."""
AFTER_THE_END = frozenset(("LAUNCH_FAILED", "RECONFIG_FAIL", "UPDATE_DB", "POWER_UP_NODE"))
"""Flags of jobs that have ended; with any other flag, known or not, a job has not ended."""
GONE = "GONE"
"""SLURM no longer knows the job, and the accounting has no record of it."""
UNKNOWN = "UNKNOWN"
"""The answer of SLURM has no valid state."""


class JobInfo(Struct, frozen=True):
    """The record of a job, a task of an array, or a component of a heterogeneous job."""

    job: str
    """The job number."""
    state: str
    """The base state, such as `RUNNING`, or SLURM's only state."""
    reason: str = ""
    code: int | None = None
    signal: int | None = None
    nodes: str = ""
    """The allocated nodes, folded; empty: none."""
    batch_host: str = ""
    restarts: int = 0
    submitted: int | None = None
    """The time of the submission or of the last requeue, in Unix seconds like all times here. None:
    unknown."""
    started: int | None = None
    ended: int | None = None
    """The end; of a running job, that of its time limit."""
    user: int | None = None
    """The numeric user ID of its owner."""
    flags: tuple[str, ...] = ()
    """States besides the base state: COMPLETING, REQUEUED, SIGNALING."""
    cluster: str = ""
    """As in JobId."""
    command: str | None = None
    """The path and arguments of the script, or the command line of its submission; empty: the
    script was read from standard input. None: unknown."""
    output: str = ""
    error: str = ""
    """The path of its standard error, if that is a separate file."""
    array: str = ""
    """The number of the array of which this is a task."""
    task: str = ""
    """Its index, or several in SLURM's notation while they are pending."""
    leader: str = ""
    """The number of the heterogeneous job of which this is a component."""
    component: int = 0
    """The index of the component; the first is 0."""

    @property
    def array_task(self) -> str:
        """`12_3`; empty: not a task of an array."""
        return f"{self.array}_{self.task}" if self.array else ""

    @property
    def over(self) -> bool:
        """Whether it has ended. A job in a state that is not listed as final has not ended."""
        if self.state == GONE:
            return True
        return self.state in FINAL and AFTER_THE_END.issuperset(self.flags)

    @property
    def waiting(self) -> bool:
        """Whether it is pending, also after a requeue."""
        return not WAITING.isdisjoint((self.state, *self.flags)) and not self.over


_STATE = re.compile(r"[A-Z][A-Z_]{1,40}")
_LONGEST_NUMBER = 18
"""Digits; SLURM has no longer numbers, and Python refuses to parse 4,301 digits."""


def whole_number(text: str) -> int | None:
    """Return a number of SLURM's output; None for anything else, such as truncated text."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
    return int(text) if plain else None


def moment(text: str) -> int | None:
    """Return a time of SLURM_TIME_FORMAT=%s; None for `Unknown` and anything else."""
    return whole_number(text) or None


def state_word(text: str) -> str:
    """Return a state, known or not; UNKNOWN for text that cannot be one."""
    state = text.rstrip("+")
    return state if _STATE.fullmatch(state) else UNKNOWN


def given(text: str) -> str:
    """Return a value; empty for SLURM's words for a missing one."""
    return "" if text in ("(null)", "None", "N/A", "n/a", "None assigned", "NONE") else text
