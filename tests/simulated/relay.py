"""A simulated relay: it carries the bytes of its children in frames, as `dslaunch.node.relay` does,
but its children are simulated nodes of the same process."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable

from dslaunch.node import relay_frames
from dslaunch.node.relay import REPORTED_AT_ONCE
from tests.simulated.streams import Stream, Work

REFUSED = 255
"""The exit code of an ssh that was not let in."""
Serve = Callable[[str, "RelayedStream"], object]
"""Begins to serve a child, by its name."""
READ = 64 * 1024
"""Bytes that a relay reads at a time: the others must be able to answer pings in between."""
AT_ONCE = 50
"""Children that read before connections are looked at again."""


class Turns:
    """What the children of all relays have to do, a few at a time: they are one process, in which
    each relay must answer its pings."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Work] = deque()
        self._is_due = False
        """Whether the loop is to call `_run`."""

    def add(self, work: Work) -> None:
        """Do work soon."""
        self._waiting.append(work)
        self._run_soon()

    def _run_soon(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        turn = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
        self._run_soon()
        for work in turn:
            work()


class SimulatedRelay:
    """The relay of one node."""

    def __init__(self, stream: Stream, delay: float, serve: Serve, turns: Turns) -> None:
        """`delay`: seconds until bytes of the launcher are passed on."""
        self._stream, self._delay, self._serve = stream, delay, serve
        self.turns = turns
        self._loop = asyncio.get_running_loop()
        self._decoder = relay_frames.Decoder()
        self._texts: dict[int, bytes] = {}
        self._children: dict[int, RelayedStream] = {}
        self._outbox = bytearray(relay_frames.GREETING)
        """What is written once in a turn of the loop."""
        self._is_due = False
        """Whether the loop is to write it."""
        self._late: deque[tuple[float, bytes]] = deque()
        """What has arrived and is on its way, with the time at which it is there."""
        self.over = False
        stream.on_readable(self._read)
        self._write()

    def end(self) -> None:
        """Let the relay and all logins of it end."""
        if not self.over:
            self.over = True
            self._stream.close()
            for child in list(self._children.values()):
                child.lose()

    def say(self, data: bytes) -> None:
        """Send a frame."""
        if not self.over:
            self._outbox += data
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._write)

    def forget(self, number: int) -> None:
        """Forget a child that has left."""
        self._children.pop(number, None)

    def _write(self) -> None:
        self._is_due = False
        if self.over:
            return
        try:
            while self._outbox:
                del self._outbox[: self._stream.send(bytes(self._outbox))]
        except BlockingIOError:
            self._stream.on_writable(self._write)
        except OSError:
            self.end()
        else:
            self._stream.on_writable(None)

    def _read(self) -> None:
        try:
            data = self._stream.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not self._delay:
            self._hear(data)
            return
        self._late.append((time.monotonic() + self._delay, data))
        if len(self._late) == 1:
            self._loop.call_later(self._delay, self._hear_late)

    def _hear_late(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            self._hear(self._late.popleft()[1])
        if self._late:
            self._loop.call_later(self._late[0][0] - now, self._hear_late)

    def _hear(self, data: bytes) -> None:
        if not data:
            self.end()
        for kind, number, body in self._decoder.feed(data):
            if not self.over:
                self._take(kind, number, body)

    def _take(self, kind: int, number: int, body: bytes) -> None:
        child = self._children.get(number)
        if kind == relay_frames.PING:
            self.say(relay_frames.frame(relay_frames.PING, 0))
        elif kind == relay_frames.DEFINE:
            self._texts[number] = body
        elif kind == relay_frames.OPEN:
            child = self._children[number] = RelayedStream(self, number)
            self._serve(json.loads(body)["host"], child)
        elif child is None:  # it has just ended
            return
        elif kind == relay_frames.DATA:
            child.feed(body)
        elif kind == relay_frames.TEXT:
            child.feed(self._texts[relay_frames.amount_of(body)])
        elif kind == relay_frames.PASSED:
            child.widen(relay_frames.amount_of(body))
        else:  # the end of the input, or of the login
            child.feed(b"")


class RelayedStream:
    """The connection of a child, through a relay."""

    def __init__(self, relay: SimulatedRelay, number: int) -> None:
        self._relay, self._number = relay, number
        self._arrived = bytearray()
        self._unreported = 0
        """Bytes that were read since the launcher was last told."""
        self._window = relay_frames.OUTPUT_WINDOW
        """Bytes that the launcher still takes."""
        self._ended = self._closed = self._telling = False
        self._readable: Work | None = None
        self._writable: Work | None = None

    # ------------------------------------------------------------ for the node

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def send(self, data: bytes) -> int:
        """Send some of `data`. Raises BlockingIOError, BrokenPipeError."""
        if self._closed:
            raise BrokenPipeError
        size = min(len(data), self._window, relay_frames.PIECE)
        if not size:
            raise BlockingIOError
        self._window -= size
        self._relay.say(relay_frames.frame(relay_frames.DATA, self._number, data[:size]))
        return size

    def recv(self, size: int) -> bytes:
        """Return what has arrived. Raises BlockingIOError."""
        data = bytes(self._arrived[:size])
        if not data and not self._ended:
            raise BlockingIOError
        del self._arrived[:size]
        self._unreported += len(data)
        if self._unreported >= REPORTED_AT_ONCE:
            self._relay.say(relay_frames.passed(self._number, self._unreported))
            self._unreported = 0
        return data

    def unread(self, data: bytes) -> None:
        """Have it arrive again."""
        self._arrived[:0] = data
        self._unreported -= len(data)

    def close(self) -> None:
        """Let the login end."""
        self.exit(0)

    def exit(self, code: int) -> None:
        """Let the program exit, and the login with it."""
        if not self._closed:
            self._leave(relay_frames.finished(self._number, code, relay_frames.EXITED, b""))

    def on_readable(self, work: Work | None) -> None:
        """Call `work` when something has arrived."""
        self._readable = work
        if self._arrived or self._ended:
            self._tell()

    def on_writable(self, work: Work | None) -> None:
        """Call `work` when something can be sent."""
        self._writable = work

    def let_in(self) -> None:
        """Report that the login has succeeded."""
        self._relay.say(relay_frames.frame(relay_frames.OPENED, self._number))

    def refuse(self, words: str) -> None:
        """Report that the login was refused."""
        how = relay_frames.EXITED
        self._leave(relay_frames.finished(self._number, REFUSED, how, words.encode()))

    # ------------------------------------------------------------ for the relay

    def feed(self, data: bytes) -> None:
        """Take input; empty: its end."""
        self._arrived += data
        self._ended = self._ended or not data
        self._tell()

    def widen(self, amount: int) -> None:
        """Send so many bytes more."""
        self._window += amount
        if self._writable is not None:
            self._writable()

    def lose(self) -> None:
        """The relay is lost."""
        self._closed = True
        self.feed(b"")

    def _leave(self, last: bytes) -> None:
        self._closed = self._ended = True
        self._readable = self._writable = None
        self._relay.say(last)
        self._relay.forget(self._number)

    def _tell(self) -> None:
        """Have the node read, soon: it may be busy with what came before."""
        if self._readable is not None and not self._telling:
            self._telling = True
            self._relay.turns.add(self._let_read)

    def _let_read(self) -> None:
        self._telling = False
        if self._readable is not None and (self._arrived or self._ended):
            self._readable()
        if self._arrived:  # it reads a part at a time
            self._tell()
