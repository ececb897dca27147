"""One node's end of a run as the launcher sees it: requests, replies, events, and its loss."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Queue
from typing import IO, Any

from dslaunch.errors import NodeFailure
from dslaunch.node import frames
from dslaunch.run.boot import NO_PYTHON
from dslaunch.transport.base import Channel, Connection

_NOISE_LIMIT = 64 * 1024
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Lost:
    """The node can no longer be spoken to."""

    failure: NodeFailure


Arrival = tuple["Session", frames.Message | frames.Output | Lost]
Inbox = Queue[Arrival]


class LostError(Exception):
    """The session ended before it answered; carries the failure."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Session:
    """Speaks to one agent. Events and output go to the inbox, replies to whoever asked."""

    def __init__(self, host: str, connection: Connection, channel: Channel, inbox: Inbox) -> None:
        self.host = host
        self.hello: Future[frames.Message] = Future()
        self.offset = 0.0
        """Seconds that the node's clock is ahead of ours."""
        self.heard = time.monotonic()
        self.over = False
        self._connection, self._channel, self._inbox = connection, channel, inbox
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._writing = threading.Lock()
        self._noise = b""

    def begin(self, text: bytes) -> None:
        """Send the agent's program and start to listen."""
        with contextlib.suppress(OSError):  # a program that died says why on its other streams
            self._channel.write(text)
        threading.Thread(target=self._listen, name=f"session {self.host}", daemon=True).start()

    # ------------------------------------------------------------ speaking

    def send(self, **message: Any) -> None:
        """Send a message; if the node is gone, its loss is reported by the listener."""
        self._write(frames.pack_message(message))

    def ask(self, **questions: Any) -> Future[dict[str, Any]]:
        """Ask the node; the future holds an answer per question, or raises LostError."""
        id, future = self._expect()
        self.send(op="ask", id=id, questions=questions)
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
        id, future = self._expect()
        self.send(op="clock", id=id)
        future.add_done_callback(lambda _: self._set_offset(asked))
        return future

    def close(self) -> None:
        """Say goodbye and let go. Safe to call twice."""
        if not self.over:
            self.send(op="bye")
        with contextlib.suppress(OSError):
            self._channel.close_input()
        self._channel.wait(2)
        self.over = True
        self._channel.close()
        self._connection.close()

    def _write(self, data: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):
            self._channel.write(data)

    def _expect(self) -> tuple[int, Future[Any]]:
        id, future = next(self._ids), Future[Any]()
        self._waiting[id] = future
        if self.over:
            self._abandon(NodeFailure(self.host, "lost", "the connection is gone"))
        return id, future

    # ------------------------------------------------------------ hearing

    def _listen(self) -> None:
        decoder = frames.Decoder()
        try:
            data = self._skip_noise()
            while data:
                self.heard = time.monotonic()
                for frame in decoder.feed(data):
                    self._take(frame)
                data = self._channel.read()
            self._lose(self._why())
        except frames.FrameError as error:
            self._lose(NodeFailure(self.host, "protocol", f"the agent's output is broken: {error}"))
        except OSError as error:
            self._lose(NodeFailure(self.host, "lost", f"the connection broke: {error}"))

    def _skip_noise(self) -> bytes:
        """Read up to the greeting; what a login shell prints before it is kept for messages."""
        data = b""
        while frames.GREETING not in data:
            piece = self._channel.read()
            if not piece or len(data) > _NOISE_LIMIT:
                self._noise = data
                return b""
            data += piece
        self._noise, _, rest = data.partition(frames.GREETING)
        return rest or self._channel.read()

    def _take(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Data):
            return
        if isinstance(frame, dict) and "reply" in frame:
            future = self._waiting.pop(frame["reply"])
            if "error" in frame:
                future.set_exception(LostError(NodeFailure(self.host, "protocol", frame["error"])))
            else:
                self._replied = frame["time"]
                future.set_result(frame["value"])
        elif isinstance(frame, dict) and frame["event"] == "hello":
            self.hello.set_result(frame)
        else:
            self._inbox.put((self, frame))

    def _set_offset(self, asked: float) -> None:
        self.offset = getattr(self, "_replied", asked) - (asked + time.time()) / 2

    def _why(self) -> NodeFailure:
        """Say why the channel ended, from the exit code and what was written beside it."""
        code = self._channel.wait(2)
        words = (self._channel.stderr().strip() or self._noise.decode(errors="replace").strip())[
            -600:
        ]
        if code == NO_PYTHON and "no python3" in words:
            return NodeFailure(
                self.host,
                "no-python",
                "there is no python3 on the node's PATH",
                hint="install Python 3.8 or newer there, or set `python:` to an absolute path",
            )
        if self.hello.done():
            return NodeFailure(
                self.host, "lost", f"the agent is gone{': ' + words if words else ''}"
            )
        return NodeFailure(
            self.host,
            "noisy-shell" if self._noise else "protocol",
            f"the agent did not start (exit code {code}): {words or 'it said nothing'}",
            hint="try the login by hand: a shell's start-up file may print or exit",
        )

    def _lose(self, failure: NodeFailure) -> None:
        self.over = True
        if not self.hello.done():
            self.hello.set_exception(LostError(failure))
        self._abandon(failure)
        self._inbox.put((self, Lost(failure)))

    def _abandon(self, failure: NodeFailure) -> None:
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(LostError(failure))
        self._waiting.clear()
