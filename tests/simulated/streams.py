"""The node's end of a connection: bytes from and to the launcher, over a socket or a relay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

PIECE = 1 << 20
LINE = 4096
"""Bytes that are read at a time in search of the end of a line."""
Work = Callable[[], object]


class Stream(Protocol):
    """Bytes in both directions. It has the methods of a socket that does not block, as far as
    `AgentClient` calls them."""

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def send(self, data: bytes) -> int:
        """Send some of `data`. Raises OSError, BlockingIOError if nothing can be sent now."""

    def recv(self, size: int) -> bytes:
        """Return what has arrived; empty: the end. Raises OSError, BlockingIOError if nothing has
        arrived yet."""

    def unread(self, data: bytes) -> None:
        """Have `data` arrive again, before all else."""

    def close(self) -> None:
        """End it. Safe to call twice."""

    def exit(self, code: int) -> None:
        """Let the program at its end exit, which ends it."""

    def on_readable(self, work: Work | None) -> None:
        """Call `work` when something has arrived; None: call nothing any more."""

    def on_writable(self, work: Work | None) -> None:
        """Call `work` when something can be sent; None: call nothing any more."""


class SocketStream:
    """A socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._unread = b""
        self.send = connection.send

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def recv(self, size: int) -> bytes:
        """Return what has arrived. Raises OSError."""
        if not self._unread:
            return self._socket.recv(size)
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def unread(self, data: bytes) -> None:
        """Have it arrive again."""
        self._unread = data + self._unread

    def close(self) -> None:
        """Close the socket."""
        if self._socket.fileno() >= 0:
            self.on_readable(None)
            self.on_writable(None)
            self._socket.close()

    def exit(self, code: int) -> None:
        """Close the socket, over which no exit code comes."""
        self.close()

    def on_readable(self, work: Work | None) -> None:
        """Watch for what arrives."""
        if work is not None:
            self._loop.add_reader(self._socket, work)
            if self._unread:
                self._loop.call_soon(work)
        else:
            self._loop.remove_reader(self._socket)

    def on_writable(self, work: Work | None) -> None:
        """Watch for room."""
        if work is not None:
            self._loop.add_writer(self._socket, work)
        else:
            self._loop.remove_writer(self._socket)


async def read(stream: Stream, size: int) -> bytes:
    """Wait for at most `size` bytes. Raises ConnectionResetError at the end."""
    while True:
        try:
            data = stream.recv(size)
        except BlockingIOError:
            await _until_readable(stream)
            continue
        if not data:
            raise ConnectionResetError
        return data


async def _until_readable(stream: Stream) -> None:
    readable = asyncio.Event()
    stream.on_readable(readable.set)
    await readable.wait()
    stream.on_readable(None)


async def exactly(stream: Stream, size: int) -> bytes:
    """Wait for `size` bytes. Raises ConnectionResetError at the end."""
    data = b""
    while len(data) < size:
        data += await read(stream, size - len(data))
    return data


async def skip(stream: Stream, size: int) -> None:
    """Wait for `size` bytes, and drop them. Raises ConnectionResetError at the end."""
    while size:
        size -= len(await read(stream, min(size, PIECE)))


async def line(stream: Stream) -> bytes:
    """Wait for a line. Raises ConnectionResetError at the end."""
    text = b""
    while b"\n" not in text:
        text += await read(stream, LINE)
    first, _, rest = text.partition(b"\n")
    stream.unread(rest)
    return first
