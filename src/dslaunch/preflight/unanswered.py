"""Why something failed on a node, as a code: what was written about it is parsed here alone.

Recorded answers hold texts: of Linux (strerror(3)), of Python, and of the program on the node.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from dslaunch.protocol.survey import Ran


class UnansweredReason(Enum):
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
    "no answer within": UnansweredReason.TIMEOUT,
    "small packets arrive": UnansweredReason.LARGE_PACKETS_LOST,
    "No such file or directory": UnansweredReason.MISSING,
    "Invalid argument": UnansweredReason.INVALID_ARGUMENT,
    "Stale file handle": UnansweredReason.FILE_SERVER_GONE,
    "Transport endpoint is not connected": UnansweredReason.FILE_SERVER_GONE,
    "Host is down": UnansweredReason.FILE_SERVER_GONE,
    "Input/output error": UnansweredReason.FILE_SERVER_GONE,
    "Cannot send after transport endpoint shutdown": UnansweredReason.FILE_SERVER_GONE,
}
_OF_PYTHON = "No module named"
"""It stands behind the exception, or behind the path of the interpreter."""


def reason_of(text: str) -> UnansweredReason:
    """Return what a failure means, of the text that the node wrote about it."""
    for beginning, reason in _BEGINNINGS.items():
        if text.startswith(beginning):
            return reason
    return UnansweredReason.NOT_INSTALLED if _OF_PYTHON in text else UnansweredReason.OTHER


def lacks_program(name: str, ran: Ran) -> bool:
    """Whether a program was not there, by what was written in its place (`node/questions.py`);
    ssh also ends with 127 where a program is missing at the other end."""
    return ran["code"] == 127 and ran["err"].startswith(f"{name}: not found")


class CallFailure(Struct, frozen=True):
    """A failure as it is shown, and what it means."""

    text: str
    reason: UnansweredReason = UnansweredReason.OTHER

    @classmethod
    def parse(cls, text: str) -> CallFailure:
        """Return the failure about which a node wrote a text."""
        return cls(text, reason_of(text))


class UnansweredError(Exception):
    """A question has no answer; the text is the reason."""

    def __init__(self, text: str, reason: UnansweredReason = UnansweredReason.OTHER) -> None:
        super().__init__(text)
        self.reason = reason
