"""What happens in a run, as values in the order of the launcher's clock."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dslaunch.errors import FailureKind
from dslaunch.protocol.messages import Evidence
from dslaunch.run.reasons import EndReason, OwnProcess, Restart

Kind = Literal[
    "connected",
    "contained",
    "started",
    "unstarted",
    "joined",
    "exit",
    "away",
    "back",
    "lost",
    "stopping",
    "ending",
    "ended",
    "restarting",
    "noticed",
]


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
    process: OwnProcess | None = None
    """Of a node that was lost or ends its part: which of our own processes somebody ended."""
    failure: FailureKind | None = None
    """A node that is away or lost: the kind of `NodeFailure`."""
    error: str | None = None
    """What the system, the node or the transport said of it."""
    contained: Literal["cgroup", "descendants"] | None = None
    """How the node knows the processes of the run."""
    seconds: float | None = None
    """For how long a node was away."""
    reason: EndReason | None = None
    """Why the run is being ended."""
    restart: Restart | None = None
    trace: str | None = None
    """The traceback of an agent that failed."""
    evidence: Evidence | None = None
    """What the node found out about a rank that failed."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, for JSON."""
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        found = {name: value for name, value in pairs if value is not None}
        if self.evidence is not None:
            found["evidence"] = self.evidence.model_dump(exclude_defaults=True)
        if self.reason is not None:
            found["reason"] = self.reason.as_dict()
        if self.restart is not None:
            found["restart"] = asdict(self.restart) | {"after": self.restart.after.as_dict()}
        return found


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank's output, ready for a terminal: no control characters but colours."""

    time: float
    host: str
    rank: int | None
    stream: Literal["stdout", "stderr"]
    text: str
    task: str = ""
    """Of a SLURM array, such as `12_3`; empty: the run is no task."""

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON; `task` where there is one."""
        found = asdict(self)
        if not self.task:
            del found["task"]
        return found
