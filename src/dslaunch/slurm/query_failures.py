"""Why a question to SLURM has no answer now, by what its commands wrote to standard error. Pure.

Only "Invalid job id specified" says anything of a job; whatever else fails, known or not, says only
that the job's state is unknown now. The texts are those of SLURM's src/common/slurm_errno.c, from
22.05 to 25.11.
"""

from __future__ import annotations

import re
from enum import Enum

from dslaunch.errors import DslaunchError


class QueryFailure(Enum):
    """What went wrong."""

    AUTH = "authentication"
    BUSY = "busy"
    STANDBY = "standby"
    RATE_LIMIT = "rate-limit"
    TIMEOUT = "timeout"
    NO_CONTACT = "no-contact"
    NO_SLURM = "no-slurm"
    NO_CLUSTER = "no-cluster"
    ACCOUNTING = "accounting"
    CUT_ANSWER = "cut-answer"
    UNPROVEN = "unproven"
    """An answer came, and it cannot be told whether the job in it is ours."""
    NO_END = "no-end"
    """The controller has forgotten the job, and the accounting has no end of it."""
    OTHER = "other"


OF_THE_JOB = frozenset((QueryFailure.UNPROVEN, QueryFailure.NO_END))
"""Failures that say nothing of other jobs of the same cluster."""
_WORDS = {
    QueryFailure.AUTH: "SLURM cannot authenticate this machine (munge)",
    QueryFailure.BUSY: "SLURM's controller is busy",
    QueryFailure.STANDBY: "SLURM's controller is a standby that does not answer yet",
    QueryFailure.RATE_LIMIT: "SLURM's controller limits how often it may be asked",
    QueryFailure.TIMEOUT: "SLURM's controller did not answer in time",
    QueryFailure.NO_CONTACT: "SLURM's controller does not answer",
    QueryFailure.NO_SLURM: "SLURM's configuration cannot be read",
    QueryFailure.NO_CLUSTER: "SLURM does not find the job's cluster now",
    QueryFailure.ACCOUNTING: "SLURM's accounting does not answer",
}
_PATTERNS: tuple[tuple[str, QueryFailure], ...] = (
    (r"[Mm]unge|[Aa]uthenticat|Protocol authentication|auth_g_", QueryFailure.AUTH),
    (r"standby mode", QueryFailure.STANDBY),
    (r"[Rr]ate.?limit|RPC limit exceeded", QueryFailure.RATE_LIMIT),
    (r"slurmdbd|slurm_persist_conn|database", QueryFailure.ACCOUNTING),
    (r"can't be reached now, or it is an invalid entry", QueryFailure.NO_CLUSTER),
    (r"[Cc]luster .* (?:not|invalid)", QueryFailure.NO_CLUSTER),
    (r"configuration source|Unable to process configuration", QueryFailure.NO_SLURM),
    (r"timed out", QueryFailure.TIMEOUT),
    (r"Resource temporarily unavailable|too busy|try again", QueryFailure.BUSY),
    (r"Unable to (?:contact|establish|connect)|connect failure", QueryFailure.NO_CONTACT),
    (
        r"[Cc]onnection refused|Zero Bytes|[Cc]ommunication|[Nn]o route to host",
        QueryFailure.NO_CONTACT,
    ),
)
_FORGOTTEN = re.compile(r"Invalid job id specified|Invalid job id\b")
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)


class UnknownNow(DslaunchError):
    """How a job stands cannot be told now; it says nothing of the job."""

    def __init__(self, code: QueryFailure, message: str = "", *, hint: str | None = None) -> None:
        words = message or _WORDS.get(code, "SLURM does not answer the question")
        super().__init__(words, hint=hint)
        self.code = code

    @classmethod
    def of(cls, said: str) -> UnknownNow:
        """By what a command wrote to standard error."""
        code = next((code for pattern, code in _PATTERNS if re.search(pattern, said)), None)
        if code is not None:
            return cls(code)
        lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in said.splitlines()]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return cls(QueryFailure.OTHER, f"SLURM does not answer: {last[:200]}" if last else "")


def is_forgotten(said: str) -> bool:
    """Whether the controller answered that it knows no such job, and nothing else is wrong."""
    found = _FORGOTTEN.search(said) is not None
    return found and not any(re.search(pattern, said) for pattern, _ in _PATTERNS)


def without_accounting(said: str) -> bool:
    """Whether the site keeps no accounting."""
    return _NO_ACCOUNTING.search(said) is not None
