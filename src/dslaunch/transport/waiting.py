"""Channels that wait, and channels that call a receiver, made of each other.

A relay of a tree has threads that read and write its channels (`relay_link`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput, QueueingChannel

if TYPE_CHECKING:
    from dslaunch.transport.base import Channel

PIECE = 64 * 1024
"""Bytes that are written at a time."""
MOST_UNSENT = 1 << 20
"""Bytes that are queued before a writer waits."""
POLL = 1.0
"""Seconds between two looks whether a channel has ended, while a writer waits."""
EXIT_TIMEOUT = 2.0
"""Seconds for an exit code after the end of a program's output."""


class WaitingChannel(Protocol):
    """Bytes to and from one program. One thread may read while another writes; a third may call
    `close`, which ends both."""

    def read(self) -> bytes:
        """Wait for standard output of the program and return it; empty at its end."""

    def write(self, data: bytes) -> None:
        """Send all of `data` to its standard input. Raises OSError if it has exited."""

    def close_input(self) -> None:
        """Close its standard input."""

    def close(self) -> None:
        """Close all its streams. Safe to call twice, never raises."""

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if it has not exited within `timeout` seconds."""

    def stderr(self) -> str:
        """Return the last of its standard error, once it has ended."""


@runtime_checkable
class SharingChannel(WaitingChannel, Protocol):
    """A channel over which what several nodes get is sent once, at least for a part of the way."""

    def write_shared(self, data: bytes) -> None:
        """As `write`, for data that other nodes get too. It is kept on the way: no secrets."""


class Waiting:
    """A channel that waits, over one that calls a receiver."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._output = ChannelOutput(channel)
        self._ended = threading.Event()

    def read(self) -> bytes:
        """Wait for standard output and return it; empty at its end."""
        data = self._output.read()
        if not data:
            self._ended.set()
        return data

    def write(self, data: bytes) -> None:
        """Send data, and wait while much of it is not taken. Raises OSError at the end."""
        self._channel.write(data)
        while self._channel.unsent > MOST_UNSENT:
            self._channel.flush(POLL)
        if self._ended.is_set():
            raise BrokenPipeError("the program has ended")

    def close_input(self) -> None:
        """Close its standard input after all that was written."""
        self._channel.close_input()

    def close(self) -> None:
        """Close it."""
        self._channel.close()

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if its output has not ended within `timeout` seconds. Another
        thread must read that."""
        return self._output.end().code if self._ended.wait(timeout) else None

    def stderr(self) -> str:
        """Return the last of its standard error, once it has ended."""
        return self._output.end().stderr if self._ended.is_set() else ""


class Pushing(QueueingChannel):
    """A channel that calls a receiver, over one that waits: a thread reads it, another writes."""

    def __init__(self, channel: WaitingChannel, line: bytes, text: Sequence[bytes] = ()) -> None:
        """Send `line`, and `text`, which other nodes get too."""
        super().__init__()
        self._channel = channel
        self._pieces: list[bytes] = []
        self._wanting = threading.Event()
        """Set when what was read was delivered, or is not wanted any more."""
        self._closed = False
        self._end: End | None = None
        self._writing: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._handed_over = 0
        """Bytes from the outbox that the thread has not written yet."""
        for work in (self._write, self._read):
            threading.Thread(target=work, name="waiting channel", daemon=True).start()
        self._text_left = sum(map(len, text))
        """Bytes of it that were not written yet."""
        self._writing.put(partial(channel.write, line))
        for piece in text:
            for start in range(0, len(piece), PIECE):
                self._writing.put(partial(self._write_text, piece[start : start + PIECE]))

    @property
    def unsent(self) -> int:
        """How many bytes the thread that writes has not written yet."""
        return self._text_left + self._handed_over + super().unsent

    def close(self) -> None:
        """Close it; that ends both threads."""
        self.outbox.discard()
        self._writing.put(None)
        self._channel.close()
        self._closed = True
        self._wanting.set()

    def read_on(self) -> None:
        """Deliver what was read, and let the thread read on."""
        while self.wanted and self._pieces:
            self.deliver(self._pieces.pop(0))
        if self.wanted and self._end is not None:
            self.tell_end(self._end)
        elif self.wanted:
            self._wanting.set()

    # ------------------------------------------------------------ the two threads

    def _read(self) -> None:
        data = self._read_piece()
        while data:
            self._wanting.clear()
            self._pieces.append(data)
            self.loop.call(self.read_on)
            if not self._closed:
                self._wanting.wait()
            data = self._read_piece()
        code = self._channel.wait(EXIT_TIMEOUT)
        self._end = End(code, self._channel.stderr())
        self.outbox.discard()
        self._writing.put(None)
        self.loop.call(self.read_on)

    def _read_piece(self) -> bytes:
        try:
            return self._channel.read()
        except OSError:
            return b""

    def send(self, data: memoryview) -> int:
        """Hand a piece to the thread that writes, one after the other."""
        if self._handed_over:
            return 0
        piece = bytes(data[:PIECE])
        self._handed_over = len(piece)
        self._writing.put(partial(self._write_piece, piece))
        return len(piece)

    def _write_piece(self, piece: bytes) -> None:
        try:
            self._channel.write(piece)
        finally:
            self._handed_over = 0

    def _write_text(self, piece: bytes) -> None:
        channel = self._channel
        write = channel.write_shared if isinstance(channel, SharingChannel) else channel.write
        write(piece)
        self._text_left -= len(piece)

    def end_input(self) -> None:
        """Have the thread that writes close its standard input."""
        self._writing.put(self._channel.close_input)

    def _write(self) -> None:
        while (work := self._writing.get()) is not None:
            with contextlib.suppress(OSError):  # the thread that reads notices it too
                work()
            self.outbox.go_on()
