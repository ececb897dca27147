"""One node's end of a run as the launcher sees it: requests, replies, events, and its loss.

A connection that breaks during a run is made anew: the agent lives on behind it, keeps what the
ranks write, and sends what has not arrived.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Queue
from typing import IO, TYPE_CHECKING, Any

from dslaunch.errors import NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.run import boot
from dslaunch.transport import program

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.transport.base import Channel, Connection, Transport

_NOISE_LIMIT = 64 * 1024
_PIECE = 256 * 1024
_CONFIRM_EVERY = 256 * 1024
RETRY = 1.0
"""Seconds between two tries to reach a node again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The node can no longer be spoken to."""

    failure: NodeFailure


@dataclass(frozen=True, slots=True)
class Away:
    """The connection broke; it is being made anew."""

    failure: NodeFailure


@dataclass(frozen=True, slots=True)
class Back:
    """The connection is there again, and nothing was missed."""

    after: float
    """Seconds that it took."""


Arrival = dict[str, Any] | frames.Output | Lost | Away | Back
Inbox = Queue[tuple["Session", Arrival]]


class LostError(Exception):
    """The session ended before it answered; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Session:
    """Speaks to one agent. Events and output go to the inbox, replies to whoever asked."""

    def __init__(
        self, node: Node, connection: Connection, agent: boot.Agent, inbox: Inbox, way: Transport
    ) -> None:
        self.host = node.host
        self.hello: Future[frames.Message] = Future()
        self.offset = 0.0
        """Seconds that the node's clock is ahead of ours."""
        self.idle = 0.0
        """Seconds for which its ranks did nothing, as it said last."""
        self.over = False
        self._node, self._agent, self._inbox, self._way = node, agent, inbox, way
        self._connection = connection
        self._channel: Channel | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._noise = b""
        self._number = self._confirmed = 0
        self._unconfirmed = 0
        self._reading_since: float | None = None
        self._holding = False

    def begin(self, *, join: bool = False) -> None:
        """Start the agent, or with `join` speak to the one that is there; and listen."""
        try:
            self._open(join=join)
        except OSError as error:
            self._lose(NodeFailure(self.host, "lost", f"the connection broke: {error}"))
            return
        threading.Thread(target=self._listen, name=f"session {self.host}", daemon=True).start()

    # ------------------------------------------------------------ speaking

    def send(self, **message: Any) -> None:
        """Send a message; if the node is gone, its loss is reported by the listener."""
        self._write(frames.pack_message(message))

    def ask(self, **questions: Any) -> Future[dict[str, Any]]:
        """Ask the node; the future holds an answer per question, or raises LostError."""
        return self.request("ask", questions=questions)

    def request(self, operation: str, **message: Any) -> Future[Any]:
        """Send a message that is replied to."""
        id, future = self._expect()
        self.send(op=operation, id=id, **message)
        return future

    def put(self, root: str, archive: IO[bytes]) -> Future[int]:
        """Unpack a tar archive below `root` on the node; the future holds the count of files."""
        id, future = self._expect()
        self.send(op="put", id=id, root=root)
        while piece := archive.read(_PIECE):
            self._write(frames.pack_data(id, piece))
        self._write(frames.pack_data(id, b""))
        return future

    def measure_clock(self) -> Future[Any]:
        """Find out by how much the node's clock is ahead, to half a round trip."""
        asked = time.time()
        future = self.request("clock")
        future.add_done_callback(lambda _: self._set_offset(asked))
        return future

    def follow(self, *, hold: bool) -> None:
        """Have events and output sent. With `hold` the run ends when we are gone for too long,
        and a connection that breaks is made anew."""
        self._holding = hold
        self.send(op="follow", after=self._number, hold=hold)

    def ping(self) -> None:
        """Show that we are there, and what has arrived."""
        self._confirm()
        self.send(op="ping")

    def silent(self) -> float:
        """Seconds for which we have waited for the node to say something."""
        since = self._reading_since
        return 0.0 if since is None else time.monotonic() - since

    def interrupt(self) -> None:
        """Give this connection up, and have it made anew; does not wait."""
        self._reading_since = None
        connection = self._connection
        threading.Thread(target=connection.close, daemon=True).start()

    def close(self) -> None:
        """Say goodbye and let go. Safe to call twice."""
        self._closing.set()
        if not self.over:
            self.send(op="bye")
        self.over = True
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.close_input()
            self._channel.wait(2)
            self._channel.close()
        self._connection.close()

    def _write(self, data: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):
            if self._channel is not None:
                self._channel.write(data)

    def _confirm(self) -> None:
        if self._number > self._confirmed:
            self._confirmed, self._unconfirmed = self._number, 0
            self.send(op="got", number=self._number)

    def _expect(self) -> tuple[int, Future[Any]]:
        id, future = next(self._ids), Future[Any]()
        self._waiting[id] = future
        if self.over:
            self._abandon(NodeFailure(self.host, "lost", "the connection is gone"))
        return id, future

    # ------------------------------------------------------------ connecting

    def _open(self, *, join: bool) -> None:
        """Start the program at the other end. Raises OSError."""
        channel = self._connection.start(program.line(self._node))
        with contextlib.suppress(OSError):  # a program that died says why on its other streams
            channel.write(boot.boot_text(self._agent, join=join))
        self._channel = channel

    def _recover(self, failure: NodeFailure) -> NodeFailure:
        """Connect anew to the agent that is there, and hear it; why that ended."""
        self._inbox.put((self, Away(failure)))
        began = time.monotonic()
        while not self._closing.wait(RETRY):
            try:
                self._connection.close()
                self._connection = self._way.connect(self._node)
                self._open(join=True)
                data = self._skip_noise()
            except NodeError as error:
                failure = error.failures[0]
            except OSError as error:
                failure = replace(failure, message=f"the connection broke: {error}")
            else:
                if data:
                    self.send(op="follow", after=self._number, hold=True)
                    self._inbox.put((self, Back(time.monotonic() - began)))
                    return self._hear(data)
                assert self._channel is not None
                if self._channel.wait(2) == boot.NO_AGENT:
                    return NodeFailure(self.host, "lost", "its agent is gone")
            if time.monotonic() - began > self._agent.reconnect:
                why = f"{failure.message}; not reached again within {self._agent.reconnect:g} s"
                return replace(failure, kind="lost", message=why)
        return failure

    # ------------------------------------------------------------ hearing

    def _listen(self) -> None:
        failure = self._hear(self._skip_noise())
        while self._holding and not self._closing.is_set() and failure.kind == "broken":
            failure = self._recover(failure)
        self._lose(failure)

    def _hear(self, data: bytes) -> NodeFailure:
        """Take what comes, until the channel ends; why it did."""
        decoder = frames.Decoder()
        try:
            while data:
                for frame in decoder.feed(data):
                    self._take(frame)
                    self._number = max(self._number, decoder.number)
                self._unconfirmed += len(data)
                if self._unconfirmed > _CONFIRM_EVERY:
                    self._confirm()
                data = self._read()
            return self._why()
        except frames.FrameError as error:
            return NodeFailure(self.host, "protocol", f"the agent's output is broken: {error}")
        except OSError as error:
            return NodeFailure(self.host, "broken", f"the connection broke: {error}")

    def _read(self) -> bytes:
        assert self._channel is not None
        self._reading_since = time.monotonic()
        try:
            return self._channel.read()
        finally:
            self._reading_since = None

    def _skip_noise(self) -> bytes:
        """Read up to the greeting; what a login shell prints before it is kept for messages."""
        data = b""
        while frames.GREETING not in data:
            piece = self._read()
            if not piece or len(data) > _NOISE_LIMIT:
                self._noise = data
                return b""
            data += piece
        self._noise, _, rest = data.partition(frames.GREETING)
        return rest or self._read()

    def _take(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Output):
            self._inbox.put((self, frame))
        elif isinstance(frame, dict) and "reply" in frame:
            self._replied(frame)
        elif isinstance(frame, dict) and frame["event"] == "hello":
            if not self.hello.done():
                self.hello.set_result(frame)
        elif isinstance(frame, dict) and frame["event"] == "beat":
            self.idle = frame["idle"]
        elif isinstance(frame, dict):
            self._inbox.put((self, frame))

    def _replied(self, frame: frames.Message) -> None:
        future = self._waiting.pop(frame["reply"], None)
        if future is None:  # asked over a connection that broke
            return
        if "error" in frame:
            future.set_exception(LostError(NodeFailure(self.host, "protocol", frame["error"])))
        else:
            self._reply_time = frame["time"]
            future.set_result(frame["value"])

    def _set_offset(self, asked: float) -> None:
        self.offset = getattr(self, "_reply_time", asked) - (asked + time.time()) / 2

    def _why(self) -> NodeFailure:
        """Say why the channel ended, from the exit code and what was written beside it."""
        assert self._channel is not None
        code = self._channel.wait(2)
        words = self._channel.stderr().strip() or self._noise.decode(errors="replace").strip()
        words = words[-600:]
        if code == program.NO_PYTHON and "no python3" in words:
            return NodeFailure(
                self.host,
                "no-python",
                "there is no python3 on the node's PATH",
                hint="install Python 3.8 or newer there, or set `python:` to an absolute path",
            )
        if code == boot.NO_AGENT:
            return NodeFailure(self.host, "no-agent", "nothing of this run is there")
        if self.hello.done():
            said = f": {words}" if words else ""
            return NodeFailure(self.host, "broken", f"the connection to the agent ended{said}")
        return NodeFailure(
            self.host,
            "noisy-shell" if self._noise else "protocol",
            f"the agent did not start (exit code {code}): {words or 'it said nothing'}",
            hint="try the login by hand: a shell's start-up file may print or exit",
        )

    def _lose(self, failure: NodeFailure) -> None:
        self.over = True
        if failure.kind == "broken":
            failure = replace(failure, kind="lost")
        if not self.hello.done():
            self.hello.set_exception(LostError(failure))
        self._abandon(failure)
        self._inbox.put((self, Lost(failure)))

    def _abandon(self, failure: NodeFailure) -> None:
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(LostError(failure))
        self._waiting.clear()
