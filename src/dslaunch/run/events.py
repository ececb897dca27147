"""What happens in a run, as values in the order of the launcher's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "connected", "started", "unstarted", "joined", "exit", "away", "back", "lost", "stopping",
    "ending", "ended", "restarting",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    time: float
    """Seconds since the epoch by the launcher's clock; a node's clock is corrected for."""
    kind: Kind
    host: str | None = None
    rank: int | None = None
    """None: the node as a whole, or the launcher on it."""
    code: int | None = None
    signal: int | None = None
    pid: int | None = None
    asked: bool | None = None
    """An exit: it came after we had asked the node's processes to end."""
    text: str | None = None
    evidence: Mapping[str, Any] | None = None
    """What the node found out about a rank that failed."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that say something, for JSON."""
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank's output, ready for a terminal: no control characters but colours."""

    time: float
    host: str
    rank: int | None
    stream: Literal["stdout", "stderr"]
    text: str
