"""Measure how fast this node sends to another node, and writes to a directory."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Dict

    Answer = Dict[str, Any]

SEND_PIECE = 1 << 20
WRITE_PIECE = 8 << 20
"""Bytes that are sent, or written and flushed, at a time."""
MOST_PAYLOAD = (1 << 32) - 1
"""The longest payload that `network.Server` can be told of: it confirms none of this length."""
POLL = 0.001
"""Seconds between two looks whether all has arrived."""
FREE_FACTOR = 4
"""How many times the size must be free: a measurement must not fill a disk."""


def send(argument: Answer) -> Answer:
    """Send `bytes` to `target` (address and port) as fast as TCP allows, for `seconds` at most.

    The `network.Server` there answers with `token`, takes what comes and discards it. Returns the
    bytes that arrived and the seconds that they took, without the connection's start. Raises
    OSError.
    """
    address, port = argument["target"]
    token = argument["token"].encode() + b"\n"
    with socket.create_connection((address, port), argument["seconds"]) as peer:
        if peer.recv(len(token), socket.MSG_WAITALL) != token:
            raise ConnectionError("another program answers there")
        return _send(peer, argument["bytes"], argument["seconds"])


def _send(peer: socket.socket, size: int, seconds: float) -> Answer:
    """Send, and wait until all has arrived or the time is over."""
    piece = bytes(SEND_PIECE)
    began = time.monotonic()
    deadline = began + seconds
    peer.sendall(MOST_PAYLOAD.to_bytes(4, "big"))
    sent = 0
    while sent < size and time.monotonic() < deadline:
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            sent += peer.send(piece[: size - sent])
        except socket.timeout:  # Python 3.8 knows it by this name alone
            break
    while _unconfirmed(peer) and time.monotonic() < deadline:
        time.sleep(POLL)
    arrived = max(0, sent - _unconfirmed(peer))
    return {"bytes": arrived, "seconds": round(time.monotonic() - began, 6)}


def _unconfirmed(peer: socket.socket) -> int:
    """Return the bytes that the other side has not confirmed; tcp(7), SIOCOUTQ, which is
    TIOCOUTQ."""
    size = array.array("i", [0])
    fcntl.ioctl(peer, termios.TIOCOUTQ, size)
    return size[0]


def write(argument: Answer) -> Answer:
    """Write `bytes` to the new file `name` in `path`, for `seconds` at most, and remove it.

    `writers`: how many nodes do so at once. Returns bytes and seconds. Raises OSError.
    """
    home = os.path.expanduser("~")
    directory = os.path.join(home, os.path.expanduser(argument["path"]))
    space = os.statvfs(directory)
    needed = FREE_FACTOR * argument["writers"] * argument["bytes"]
    if space.f_bavail * space.f_frsize < needed:
        raise OSError(errno.ENOSPC, "too little free space to try")
    path = os.path.join(directory, argument["name"])
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        return _write(handle, argument["bytes"], argument["seconds"])
    finally:
        os.close(handle)
        os.unlink(path)


def _write(handle: int, size: int, seconds: float) -> Answer:
    """Write pieces that cannot be compressed; each is on the disk before the next one."""
    piece = os.urandom(min(WRITE_PIECE, size))
    began = time.monotonic()
    written = 0
    while written < size and time.monotonic() - began < seconds:
        written += os.write(handle, piece[: size - written])
        os.fsync(handle)
    return {"bytes": written, "seconds": round(time.monotonic() - began, 6)}
