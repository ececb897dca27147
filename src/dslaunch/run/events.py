"""The events and output lines of a run, as values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from dslaunch.errors import FailureKind
from dslaunch.protocol.messages import Evidence
from dslaunch.recorded import as_json_data
from dslaunch.run.hang_verdict import HangVerdict
from dslaunch.run.reasons import EndReason, OwnProcess, Restart
from dslaunch.run.recorded_values import (
    Count,
    Duration,
    ExitCode,
    Host,
    Pid,
    RankNumber,
    Signal,
    Time,
)
from dslaunch.run.slower_rank import SlowerRank

Kind = Literal[
    "connected",
    "shipped",
    "resent",
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
    "slow",
    "stalled",
    "continued",
]


class Event(Struct, frozen=True, omit_defaults=True, gc=False):
    """One event of a run. A recorded one whose values are out of these bounds is left out."""

    time: Time
    """Seconds since the epoch by the launcher's clock; a node's clock is corrected for."""
    kind: Kind
    host: Host | None = None
    rank: RankNumber | None = None
    """None: the node as a whole, or the launcher on it."""
    code: ExitCode | None = None
    signal: Signal | None = None
    pid: Pid | None = None
    asked: bool | None = None
    """Of an exit: it came after we had stopped the node's processes."""
    process: OwnProcess | None = None
    """Of a node that was lost or ends its part: which of our own processes was killed."""
    failure: FailureKind | None = None
    """Of a node that is unreachable or lost: the kind of `NodeFailure`."""
    error: str | None = None
    """The message of the system, the node or the transport."""
    contained: Literal["cgroup", "descendants"] | None = None
    """How the node tracks the processes of the run."""
    seconds: Duration | None = None
    """For how long a node was unreachable, or no collective has completed; of a stop, how long the
    ranks have to end; of a node that ends its part, for how long no rank had made progress."""
    ranks: Count | None = None
    """Of a stop: how many ranks have not exited."""
    nodes: Count | None = None
    """Of a stop: on how many nodes these are."""
    reason: EndReason | None = None
    """Why the run is being stopped."""
    restart: Restart | None = None
    trace: str | None = None
    """The traceback of an agent that failed."""
    sent: Count | None = None
    """How many ranks got a signal that the launcher forwarded."""
    unhandled: tuple[RankNumber, ...] | None = None
    """Ranks that did not get it, since they have no handler and it would end them."""
    evidence: Evidence | None = None
    """What the node found out about a failed rank."""
    slower: tuple[SlowerRank, ...] | None = None
    """Ranks of the node that the others wait for; each is named once."""

    hang: HangVerdict | None = None
    """Of a stall: what the ranks wait for."""
    receivers: str | None = None
    """The nodes to which the launcher sent files itself, since another node did not hand them on:
    folded, as `node[01-03]`. `failure` says why."""
    senders: str | None = None
    """The nodes that did not hand them on, folded."""

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        found: dict[str, Any] = as_json_data(self)
        return found


class LineBlock(Struct, frozen=True):
    """Lines of one rank that arrived together, ready for a terminal; see `Line`."""

    time: float
    host: str
    rank: int | None
    stream: Literal["stdout", "stderr"]
    text: str
    """The lines, with a newline between them."""
    task: str = ""

    def __iter__(self) -> Iterator[Line]:
        """Return the lines one by one."""
        for text in self.text.split("\n"):
            yield Line(
                time=self.time,
                host=self.host,
                rank=self.rank,
                stream=self.stream,
                text=text,
                task=self.task,
            )


class Line(Struct, frozen=True):
    """One line of a rank's output, ready for a terminal: no control characters except colors."""

    time: float
    host: str
    rank: int | None
    stream: Literal["stdout", "stderr"]
    text: str
    task: str = ""
    """Of a SLURM array, such as `12_3`; empty: the run is no task."""
    partial: bool = False
    """A state of a progress bar, which the rank will redraw."""

    def as_data(self) -> dict[str, Any]:
        """Return the fields for JSON; `task` and `partial` only if they are set."""
        # written out: `asdict` takes several times as long, and this is done for every line
        found: dict[str, Any] = {
            "time": self.time,
            "host": self.host,
            "rank": self.rank,
            "stream": self.stream,
            "text": self.text,
        }
        if self.task:
            found["task"] = self.task
        if self.partial:
            found["partial"] = True
        return found
