"""What SLURM says of a job as typed values, and which of its states are an end. Pure.

States and reasons are those of squeue(1), "JOB STATE CODES" and "JOB REASON CODES", of SLURM 22.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
"""States and flags of a job that has not begun, or not again."""
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
"""States of a job that has ended. REVOKED is none: the job is then another cluster's of the
federation."""
BASE_STATES = FINAL | {"PENDING", "RUNNING", "SUSPENDED"}
"""States of which a job has one at a time; all others are flags beside it (slurm.h, `job_states`
and JOB_STATE_FLAGS)."""
AFTER_THE_END = frozenset(("LAUNCH_FAILED", "RECONFIG_FAIL", "UPDATE_DB", "POWER_UP_NODE"))
"""Flags that stay on a job that has ended; every other flag, known or not, says that it goes on."""
GONE = "GONE"
"""SLURM knows the job no more, and its accounting has no record of it."""
UNKNOWN = "UNKNOWN"
"""SLURM's answer does not say it."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job, one task of an array, or one component of a heterogeneous job, as SLURM tells it."""

    job: str
    """Its own number."""
    state: str
    """The base state, such as `RUNNING`, or the only word that SLURM has for it."""
    reason: str = ""
    code: int | None = None
    signal: int | None = None
    nodes: str = ""
    """Folded; empty as long as there are none."""
    batch_host: str = ""
    restarts: int = 0
    submitted: int | None = None
    """Unix seconds, as all times here; of a requeued job the requeue's. None: not said."""
    started: int | None = None
    ended: int | None = None
    """Of a job that goes on: when its time limit ends it."""
    user: int | None = None
    """Of whom, as a number."""
    flags: tuple[str, ...] = ()
    """States beside the base state: COMPLETING, REQUEUED, SIGNALING."""
    cluster: str = ""
    """As in JobId."""
    command: str | None = None
    """The script's path and arguments, or the whole command of its submission; empty: it was read
    from standard input. None: not said."""
    output: str = ""
    error: str = ""
    """Where its standard error goes, if that is another file than the output's."""
    array: str = ""
    """The array's number, of which this is a task."""
    task: str = ""
    """Its index, or several in SLURM's notation while they wait."""
    leader: str = ""
    """The number of the heterogeneous job, of which this is a component."""
    component: int = 0
    """Of a heterogeneous job; the first is 0."""

    @property
    def over(self) -> bool:
        """Whether it will not run any more. Whatever SLURM calls a job, it goes on unless this
        is listed."""
        if self.state == GONE:
            return True
        return self.state in FINAL and AFTER_THE_END.issuperset(self.flags)

    @property
    def waiting(self) -> bool:
        """Whether it has not begun, or was put back into the queue."""
        return not WAITING.isdisjoint((self.state, *self.flags)) and not self.over


_STATE = re.compile(r"[A-Z][A-Z_]{1,40}")
_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_LONGEST_NUMBER = 18
"""Digits; a longer number is none of SLURM's, and Python refuses to read one of 4,301."""


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol --oneliner`; a value may hold blanks."""
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys[1:]), len(line)]
    return {key[1]: line[key.end() : end].strip() for key, end in zip(keys, ends, strict=False)}


def whole_number(text: str) -> int | None:
    """Return a number of SLURM's output; None for anything else, such as cut text."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
    return int(text) if plain else None


def moment(text: str) -> int | None:
    """Return a time as SLURM_TIME_FORMAT=%s has it; None for `Unknown` and all else."""
    return whole_number(text) or None


def state_word(text: str) -> str:
    """Return a state as it is, known or not; UNKNOWN for what cannot be one."""
    state = text.rstrip("+")
    return state if _STATE.fullmatch(state) else UNKNOWN


def given(text: str) -> str:
    """Return a value; empty for the words with which SLURM says that there is none."""
    return "" if text in ("(null)", "None", "N/A", "n/a", "None assigned", "NONE") else text
