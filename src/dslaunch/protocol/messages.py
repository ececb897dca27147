"""Messages of an agent: its greeting, heartbeats, events, output and replies.

`Incoming` is the only way from an agent's bytes to values. Data that is malformed, too large, or
about ranks of other nodes raises ProtocolError: the node has failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field, TypeAdapter
from pydantic_core import from_json

from dslaunch.node import frames
from dslaunch.protocol.values import (
    LATEST,
    AbsolutePath,
    Count,
    InvalidAnswer,
    Path,
    Pid,
    Rank,
    RunId,
    Sent,
    Several,
    Short,
    Text,
    Time,
    parse,
)

NO_RANK = frames.NO_RANK
MOST_EVENT_BYTES = 32 << 20
"""Of all events of one node in one session. An event takes some 100 bytes; one with the text of
an error file up to 64 KiB."""
LARGEST_EVENT = 256 * 1024
MOST_EVENTS = 10_000
"""Of one node in one session. Each rank has two for each time that it is started, and each is kept
until the end of the run."""


class ProtocolError(Exception):
    """A node sent what no agent sends. The text names it without quoting it."""

    def __init__(self, text: str, found: bytes = b"") -> None:
        """`found`: the first bytes that are no frame, where a frame must begin."""
        super().__init__(text)
        self.found = found


class Hello(Struct, frozen=True):
    """The greeting: who the node is, and how far its agent is."""

    time: float
    started: bool
    last: int
    """Number of the newest frame in its journal."""
    machine: str
    """Equal for two nodes that share kernel and network: they are one machine."""
    home: str
    peer: str | None
    """The launcher's address, as reported by the node's sshd."""


class SentHello(Sent):
    """The greeting as a node sends it; a model of pydantic takes 1 KiB, too much to be kept."""

    time: Time
    run: RunId
    started: bool
    last: Count
    hostname: Short
    boot: Short
    network: Short
    home: AbsolutePath
    peer: Short | None = None

    def kept(self) -> Hello:
        """Return what is kept of it."""
        return Hello(
            time=self.time,
            started=self.started,
            last=self.last,
            machine=f"{self.boot} {self.network}",
            home=self.home,
            peer=self.peer,
        )


class Heartbeat(Sent):
    """A periodic message of an agent that is alive."""

    time: Time
    idle: Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
    """Seconds since a rank last printed or computed."""


class Reply(Sent):
    """The reply to a request: a value, or the reason why the node has none."""

    reply: Count
    time: Time
    received: Time | None = None
    """When the request had arrived; agents of earlier versions do not say it."""
    value: Any = None
    """Not validated yet: its type depends on the request (`queries`)."""
    error: Text | None = None


class Evidence(Sent):
    """A node's evidence about a rank that failed."""

    signal: Annotated[int, Field(ge=0, le=127)] | None = None
    shm_free: Count | None = None
    """Free bytes in /dev/shm."""
    oom: Short | None = None
    """The kernel's own line about killing it."""
    full: Several[Path] = ()
    """File systems without free space."""
    error_file: Text | None = None
    """torch's error file."""

    @property
    def exception(self) -> str | None:
        """The last line of the exception in torch's error file, as `ValueError: bad batch`; None
        for anything else.

        torch 2.13, distributed/elastic/multiprocessing/errors/error_handler.py: `message` is a
        text or an object that holds one.
        """
        try:
            error = frames.read_message((self.error_file or "").encode("utf-8", "replace"))
        except frames.FrameError:
            return None
        message = error.get("message")
        if isinstance(message, dict):
            message = message.get("message")
        if not isinstance(message, str) or not message.strip():
            return None
        return message.strip().splitlines()[-1]


class Gone(Sent):
    """The end of an agent that was killed or failed: sent by itself, or recorded by its
    guardian."""

    event: Literal["gone"]
    time: Time
    how: Literal["killed", "failed"]
    signal: Annotated[int, Field(ge=1, le=127)] | None = None
    error: Text | None = None
    """The last line of the trace."""
    trace: Text | None = None
    over: bool = False
    """Its guardian has ended all that it had started, and has exited."""


EventKind = Literal[
    "contained", "started", "unstarted", "joined", "exit", "stopping", "ending", "done"
]
OwnProcess = Literal["agent", "guardian"]
Containment = Literal["cgroup", "descendants"]


class NodeEvent(Struct, frozen=True):
    """An event on a node."""

    event: EventKind
    time: float
    """By the node's clock."""
    rank: int = NO_RANK
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    asked: bool | None = None
    error: str | None = None
    by: str | None = None
    """The user and host that requested the end."""
    left: tuple[int, ...] = ()
    """Processes that could not be ended."""
    process: OwnProcess | None = None
    """`ending`: which of dslaunch's processes received a signal."""
    hang: float | None = None
    """`ending`: for how many seconds no rank had made progress."""
    contained: Containment | None = None
    """How the processes of the run are identified: as members of a control group, or as descendants
    of the agent and by their environment."""
    evidence: Evidence | None = None


class SentEvent(Sent):
    """An event as a node sends it; thousands wait while ranks start, for which a model of pydantic
    is too large."""

    event: EventKind
    time: Time
    rank: Rank = NO_RANK
    pid: Pid | None = None
    code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=127)] | None = None
    asked: bool | None = None
    error: Text | None = None
    by: Short | None = None
    left: Several[Pid] = ()
    process: OwnProcess | None = None
    hang: Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)] | None = None
    contained: Containment | None = None
    evidence: Evidence | None = None

    def kept(self) -> NodeEvent:
        """Return what is kept of it."""
        return NodeEvent(**dict(self))


Arrived = Hello | Heartbeat | Gone | Reply | NodeEvent | frames.Output
HELLO = TypeAdapter(SentHello)
HEARTBEAT = TypeAdapter(Heartbeat)
GONE = TypeAdapter(Gone)
REPLY = TypeAdapter(Reply)
EVENT = TypeAdapter(SentEvent)


def read_message(body: bytes) -> frames.Message:
    """Return a JSON object, as `frames.read_message` does, which takes twice as long and decides
    about all that is unusual. Raises FrameError."""
    if frames.most_values(body) > frames.MOST_VALUES:
        return frames.read_message(body)
    try:
        message = from_json(body)
    except ValueError:  # such as for a lone surrogate, which `json` accepts
        return frames.read_message(body)
    return message if isinstance(message, dict) else frames.read_message(body)


class Incoming:
    """Parses the bytes of one agent, across all of its connections."""

    __slots__ = ("_decoder", "_event_bytes", "_events", "number", "ranks")

    def __init__(self, ranks: range) -> None:
        """`ranks`: the ranks that the node may report."""
        self.ranks = ranks
        self.number = 0
        """Number of the newest frame that has arrived."""
        self._events = self._event_bytes = 0
        self._decoder = frames.Decoder(read_message)

    def reconnected(self) -> None:
        """Drop the beginning of a frame that the old connection left."""
        self._decoder = frames.Decoder(read_message)

    def feed(self, data: bytes) -> Iterator[Arrived]:
        """Add bytes and yield every value that is complete now. Raises ProtocolError."""
        try:
            for frame in self._decoder.feed(data):
                yield self._value(frame)
                self.number = max(self.number, self._decoder.number)
        except frames.FrameError as error:
            raise ProtocolError(str(error), error.found) from None
        except InvalidAnswer as error:
            raise ProtocolError(str(error)) from None

    def _value(self, frame: frames.Frame) -> Arrived:
        if isinstance(frame, frames.Output):
            return self._output(frame)
        if isinstance(frame, frames.Data):
            raise ProtocolError("a piece of a file, which was not asked for")
        if "reply" in frame:
            return parse(REPLY, frame)
        if frame.get("event") == "hello":
            return parse(HELLO, frame).kept()
        if frame.get("event") == "beat":
            return parse(HEARTBEAT, frame)
        if frame.get("event") == "gone":
            return parse(GONE, frame)
        return self._event(frame)

    def _output(self, output: frames.Output) -> frames.Output:
        self._check_rank(output.rank)
        if output.stream not in (1, 2):
            raise ProtocolError(f"output of stream {output.stream}")
        if not (math.isfinite(output.time) and 0 <= output.time <= LATEST):
            raise ProtocolError("output of an impossible time")
        return output

    def _event(self, frame: frames.Message) -> NodeEvent:
        size = self._decoder.size
        self._events += 1
        self._event_bytes += size
        too_many = self._events > MOST_EVENTS or self._event_bytes > MOST_EVENT_BYTES
        if size > LARGEST_EVENT or too_many:
            raise ProtocolError("too many or too large events")
        event = parse(EVENT, frame).kept()
        self._check_rank(event.rank)
        return event

    def _check_rank(self, rank: int) -> None:
        if rank != NO_RANK and rank not in self.ranks:
            raise ProtocolError(f"rank {rank}, which is not a rank of this node")
