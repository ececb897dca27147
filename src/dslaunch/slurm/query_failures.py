"""Why a query to SLURM failed, parsed from the standard error of its commands. Pure.

Only "Invalid job id specified" is about the job; with every other failure, known or not, the job's
state is unknown. The patterns are for the texts of SLURM's src/common/slurm_errno.c, 22.05 to
25.11.
"""

from __future__ import annotations

import re

from dslaunch.errors import DslaunchError
from dslaunch.notes import NoteCode, note
from dslaunch.texts import Value


class QueryFailure(NoteCode):
    """What failed."""

    AUTH = "authentication", "SLURM cannot authenticate this machine (munge)"
    BUSY = "busy", "the SLURM controller is busy"
    STANDBY = "standby", "the SLURM backup controller is in standby mode"
    RATE_LIMIT = "rate-limit", "the SLURM controller limits the rate of requests"
    TIMEOUT = "timeout", "the SLURM controller did not answer in time"
    NO_CONTACT = "no-contact", "cannot contact the SLURM controller"
    NO_SLURM = "no-slurm", "cannot read the SLURM configuration"
    CLUSTER_NOT_FOUND = "cluster-not-found", "SLURM does not find the cluster of the job"
    ACCOUNTING = "accounting", "the SLURM accounting database does not answer"
    COMMAND_NOT_STARTED = "command-not-started", "{command} cannot be started: {error}"
    COMMAND_TIMEOUT = "command-timeout", "{command} did not answer within {seconds} s"
    CUT_ANSWER = "cut-answer", "the answer of {command} is incomplete or damaged"
    JOB_MISSING = "job-missing", "the answer of {command} does not contain the job"
    UNPROVEN = (
        "unproven",
        "job {job} may be a requeue of this run's job, or another job with the same number",
    )
    NO_END = "no-end", "the controller does not know job {job}, and accounting has no end of it"
    OTHER = "other", "SLURM does not answer the query: {error}"


OF_THE_JOB = frozenset((QueryFailure.UNPROVEN, QueryFailure.NO_END))
"""Failures that are about one job, and not about the cluster."""
_PATTERNS: tuple[tuple[str, QueryFailure], ...] = (
    (r"[Mm]unge|[Aa]uthenticat|Protocol authentication|auth_g_", QueryFailure.AUTH),
    (r"standby mode", QueryFailure.STANDBY),
    (r"[Rr]ate.?limit|RPC limit exceeded", QueryFailure.RATE_LIMIT),
    (r"slurmdbd|slurm_persist_conn|database", QueryFailure.ACCOUNTING),
    (r"can't be reached now, or it is an invalid entry", QueryFailure.CLUSTER_NOT_FOUND),
    (r"[Cc]luster .* (?:not|invalid)", QueryFailure.CLUSTER_NOT_FOUND),
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
LONGEST_ERROR = 200
"""Characters of an unknown error of SLURM that are shown."""


class QueryError(DslaunchError):
    """The state of a job is unknown, since a query to SLURM failed."""

    def __init__(self, code: QueryFailure, *, hint: str | None = None, **values: Value) -> None:
        self.failure = note(code, **values)
        super().__init__(str(self.failure), hint=hint)

    @property
    def code(self) -> QueryFailure:
        """What failed."""
        assert isinstance(self.failure.code, QueryFailure)
        return self.failure.code

    @classmethod
    def of(cls, stderr: str) -> QueryError:
        """Return the failure of a command, by its standard error."""
        code = next((code for pattern, code in _PATTERNS if re.search(pattern, stderr)), None)
        if code is not None:
            return cls(code)
        lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line) for line in stderr.splitlines()]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return cls(QueryFailure.OTHER, error=last[:LONGEST_ERROR] or "no reason given")


def is_forgotten(stderr: str) -> bool:
    """Return whether the controller answered that it knows no such job, and nothing else failed."""
    found = _FORGOTTEN.search(stderr) is not None
    return found and not any(re.search(pattern, stderr) for pattern, _ in _PATTERNS)


def without_accounting(stderr: str) -> bool:
    """Return whether the site has no accounting."""
    return _NO_ACCOUNTING.search(stderr) is not None
