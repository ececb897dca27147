"""Why something failed on a node, as a code: what was written about it is parsed here alone.

Recorded answers hold texts: of Linux (strerror(3)), of Python, and of the program on the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dslaunch.protocol.survey import Ran


class Reason(Enum):
    """What a failure means for the checks."""

    NOT_ASKED = "not asked"
    TIMEOUT = "timeout"
    MISSING = "missing"
    INVALID_ARGUMENT = "invalid argument"
    FILE_SERVER_GONE = "file server gone"
    LARGE_PACKETS_LOST = "large packets lost"
    NOT_INSTALLED = "not installed"
    OTHER = "other"


_BEGINNINGS = {
    "no answer within": Reason.TIMEOUT,
    "small packets arrive": Reason.LARGE_PACKETS_LOST,
    "No such file or directory": Reason.MISSING,
    "Invalid argument": Reason.INVALID_ARGUMENT,
    "Stale file handle": Reason.FILE_SERVER_GONE,
    "Transport endpoint is not connected": Reason.FILE_SERVER_GONE,
    "Host is down": Reason.FILE_SERVER_GONE,
    "Input/output error": Reason.FILE_SERVER_GONE,
    "Cannot send after transport endpoint shutdown": Reason.FILE_SERVER_GONE,
}
_OF_PYTHON = "No module named"
"""It stands behind the exception, or behind the path of the interpreter."""


def reason_of(text: str) -> Reason:
    """Return what a failure means, of the text that the node wrote about it."""
    for beginning, reason in _BEGINNINGS.items():
        if text.startswith(beginning):
            return reason
    return Reason.NOT_INSTALLED if _OF_PYTHON in text else Reason.OTHER


def lacks_program(name: str, ran: Ran) -> bool:
    """Whether a program was not there, by what was written in its place (`node/questions.py`);
    ssh also ends with 127 where a program is missing at the other end."""
    return ran["code"] == 127 and ran["err"].startswith(f"{name}: not found")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it is shown, and what it means."""

    text: str
    reason: Reason = Reason.OTHER

    @classmethod
    def parse(cls, text: str) -> Failure:
        """Return the failure about which a node wrote a text."""
        return cls(text, reason_of(text))


class UnansweredError(Exception):
    """A question has no answer; says why."""

    def __init__(self, text: str, reason: Reason = Reason.OTHER) -> None:
        super().__init__(text)
        self.reason = reason
