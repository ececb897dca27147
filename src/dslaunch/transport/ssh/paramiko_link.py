"""Paramiko without waiting: what is sent is queued while a node does not read, and what arrives is
announced to the thread of all connections.

Paramiko runs a thread per connection, which reads and decrypts. Its own methods wait for the node
where it does not read, or exchanges new keys: one node could stop all others.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dslaunch.transport import loop
from dslaunch.transport.base import End
from dslaunch.transport.channel import EXIT_TIMEOUT, PIECE, STDERR_KEPT, QueueingChannel
from dslaunch.transport.outbox import Outbox
from dslaunch.transport.ssh.absent import absent
from dslaunch.transport.ssh.shared_keys import SharedKeys

# this module is imported where a connection is opened
with absent("invoke"):  # a third of the time, and only for a reader of ssh_config that is not used
    import paramiko
    from paramiko.packet import Packetizer

if TYPE_CHECKING:
    from typing_extensions import Buffer

AUTHENTICATED = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Ciphers that need no MAC (RFC 5647), which Paramiko compares in a loop of Python."""
LARGEST_PIECE = 32 * 1024
"""Bytes that are encrypted at a time, at most."""
READ_AHEAD = 32 * 1024
"""Bytes that are read of a socket at a time, at most."""


class ReadAhead:
    """A socket that is read with few system calls.

    Paramiko asks for the first bytes of a packet, and then for the rest. With many connections each
    of these calls also waits until no other thread is running Python.
    """

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        self._sock = sock
        self._read = b""
        self._taken = 0
        """How much of what was read has been returned."""
        self.acknowledges = True
        """Whether what is read is acknowledged at once. Until a server has started a program, it
        sends the second of two small messages only when the first one was acknowledged (OpenSSH
        9.2 sets TCP_NODELAY as it starts one), and Linux delays that by 40 ms."""

    def recv(self, size: int) -> bytes:
        """Return at most so many bytes; empty at the end. Raises OSError, as the socket does."""
        if self._taken == len(self._read):
            self._read = self._sock.recv(max(size, READ_AHEAD))
            self._taken = 0
            if self.acknowledges:
                _acknowledge(self._sock)
        piece = self._read[self._taken : self._taken + size]
        self._taken += len(piece)
        return piece

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def _acknowledge(sock: socket.socket | paramiko.Channel) -> None:
    """Acknowledge what was read of a socket without the usual delay (tcp(7), TCP_QUICKACK)."""
    if sys.platform == "linux":
        _set_tcp_option(sock, socket.TCP_QUICKACK)


def _set_tcp_option(sock: socket.socket | paramiko.Channel, option: int) -> None:
    """Switch an option of TCP on, unless a jump host makes the connection."""
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):  # it has ended, which the next read or write shows
            sock.setsockopt(socket.IPPROTO_TCP, option, 1)


class QueueingPacketizer(Packetizer):
    """Sends without waiting for the node, and limits a handshake without another thread."""

    def __init__(self, sock: Any) -> None:
        # a second small message would wait until the server has acknowledged the first one
        _set_tcp_option(sock, socket.TCP_NODELAY)
        self._reading = ReadAhead(sock)
        super().__init__(self._reading)  # type: ignore[arg-type] # it needs no more of a socket
        self._sock = sock
        self._loop = loop.shared()
        self.outbox = Outbox(self._send, lambda: None)
        self._waiting: set[Callable[[], object]] = set()
        """What to do when everything that was encrypted has been taken."""
        self._handshake_ends: float | None = None
        if isinstance(sock, paramiko.Channel):
            _announce_window(sock, self._go_on)

    def write_all(self, out: Buffer) -> None:
        """Send an encrypted packet, or keep it until the node takes it. Raises EOFError."""
        if self.closed or self.outbox.over:
            raise EOFError
        self.outbox.put(bytes(out))
        if self._waiting:
            # another program found it full while this packet was being sent; not in this thread,
            # which has Paramiko's locks
            self._loop.call(self._tell_waiting)

    def close(self) -> None:
        """Close the socket."""
        self.outbox.discard()
        with contextlib.suppress(EOFError):  # see `QueueingTransport.run`
            super().close()

    @property
    def unread(self) -> bool:
        """Return whether the socket has bytes that were not read yet."""
        if isinstance(self._sock, paramiko.Channel):
            return self._sock.recv_ready()
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except (OSError, ValueError):  # closed
            return False
        return bool(poll.poll(0))

    def is_full(self, go_on: Callable[[], object]) -> bool:
        """Return whether no more should be encrypted now; then `go_on` is called later."""
        if not self.outbox.is_stuck():
            return False
        self._waiting.add(go_on)
        return self.outbox.unsent > 0  # else it was taken meanwhile

    def start_handshake(self, timeout: float) -> None:
        """Begin a handshake that is limited in time."""
        self._handshake_ends = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        """Return whether the handshake takes too long."""
        return self._handshake_ends is not None and time.monotonic() > self._handshake_ends

    def complete_handshake(self) -> None:
        """Take note that the handshake is complete."""
        self._handshake_ends = None

    def program_started(self) -> None:
        """Take note that the server has started a program, and delays no message any more."""
        self._reading.acknowledges = False

    def _send(self, data: memoryview) -> int:
        if isinstance(self._sock, paramiko.Channel):
            return _send_over(self._sock, data)
        try:
            # not `send`: it waits as long as the thread that reads
            return os.write(self._sock.fileno(), data)
        except BlockingIOError:
            # not the socket itself, which another thread may close while it is watched
            copy = os.dup(self._sock.fileno())
            self._loop.call(lambda: self._loop.watch(copy, writing=lambda: self._writable(copy)))
            return 0

    def _writable(self, copy: int) -> None:
        self._loop.forget(copy)
        os.close(copy)
        self._go_on()

    def _go_on(self) -> None:
        self.outbox.go_on()
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        while self._waiting and not self.outbox.unsent:
            go_on = self._waiting.pop()
            go_on()


class SharingClient(paramiko.SSHClient):
    """Logs in with private keys that are parsed once for all connections."""

    def __init__(self, keys: SharedKeys) -> None:
        super().__init__()
        self._keys = keys

    def _key_from_filepath(
        self, filename: str, klass: type[paramiko.PKey], password: str | None
    ) -> paramiko.PKey:
        parse = super()._key_from_filepath  # type: ignore[misc] # not public
        return self._keys.get(filename, klass, lambda: parse(filename, klass, password))


class QueueingTransport(paramiko.Transport):
    """A connection that keeps messages while keys are exchanged."""

    _preferred_ciphers = tuple(
        sorted(
            paramiko.Transport._preferred_ciphers,  # type: ignore[attr-defined] # not public
            key=lambda name: name not in AUTHENTICATED,
        )
    )

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, packetizer_class=QueueingPacketizer, **options)
        self._kept: deque[paramiko.Message] = deque()
        """Messages to send when the key exchange is over."""

    def run(self) -> None:
        """Read until the connection ends, and close it: one over a jump host is a channel, which
        cannot be closed any more if the connection to that host has ended before."""
        with contextlib.suppress(EOFError):
            super().run()

    # what is ignored: the stubs leave out methods and attributes that are not public

    def _send_user_message(self, data: paramiko.Message) -> None:
        with self.clear_to_send_lock:
            if not self.active:  # type: ignore[attr-defined]
                return  # as Paramiko's own: the connection has ended
            if self.clear_to_send.is_set():
                self._send_message(data)  # type: ignore[attr-defined]
            else:
                self._kept.append(data)

    def _parse_debug(self, m: paramiko.Message) -> None:
        """Leave out what a server says for debugging: two messages about each login's key, which
        Paramiko makes printable character by character."""

    def _parse_newkeys(self, m: paramiko.Message) -> None:
        super()._parse_newkeys(m)  # type: ignore[misc]
        with self.clear_to_send_lock:
            while self._kept:
                self._send_message(self._kept.popleft())  # type: ignore[attr-defined]


class ParamikoChannel(QueueingChannel):
    """One program on a node."""

    def __init__(self, channel: paramiko.Channel) -> None:
        """`channel`: a session of a `QueueingTransport`, in which nothing was started yet."""
        super().__init__()
        self._channel = channel
        packetizer = channel.get_transport().packetizer
        assert isinstance(packetizer, QueueingPacketizer)
        self._packetizer = packetizer
        channel.settimeout(0.0)
        self._errors = b""
        self._at_end = False
        """Whether all output was delivered."""
        _announce_window(channel, self.outbox.go_on)
        channel.in_stderr_buffer.set_event(_Announcement(self._read_errors))
        channel.status_event = _Announcement(self._look_for_exit)

    def start(self, line: str, text: Sequence[bytes]) -> None:
        """Start the program, and send it `text`. Raises SSHException and EOFError."""
        self._channel.exec_command(line)
        self._packetizer.program_started()
        for piece in text:
            self.outbox.put(piece)

    @property
    def unsent(self) -> int:
        """How many bytes the node has not taken yet."""
        return super().unsent + self._packetizer.outbox.unsent

    @property
    def unread(self) -> bool:
        """Return whether Paramiko's thread has not come to what the node has sent."""
        return self._packetizer.unread

    def flush(self, timeout: float) -> bool:
        """Wait until all was sent, at most `timeout` seconds; return whether it was."""
        deadline = time.monotonic() + timeout
        if not super().flush(timeout):
            return False
        return self._packetizer.outbox.flush(deadline - time.monotonic())

    def close(self) -> None:
        """Close it; another thread may just have closed its connection."""
        self.outbox.discard()
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def read_on(self) -> None:
        """Deliver what has arrived."""
        if self.wanted and not self._at_end:
            # it announces at once what it holds already
            self._channel.in_buffer.set_event(_Announcement(self._read))

    def _read(self) -> None:
        """Deliver one piece; the next one after pieces of other nodes."""
        if not self.wanted or self._at_end:
            return
        try:
            data = self._channel.recv(PIECE)
        except TimeoutError:
            return
        except (EOFError, OSError, paramiko.SSHException):
            # Paramiko had taken a piece, and could not tell the node so: the connection is over,
            # and nothing that is left may be delivered behind the gap
            data = b""
        if data:
            self.deliver(data)
            self.loop.call(self._read)
        else:
            self._at_end = True
            self._look_for_exit()
            self.loop.call_later(EXIT_TIMEOUT, self._end)

    def _read_errors(self) -> None:
        while self._channel.recv_stderr_ready():
            self._errors = (self._errors + self._channel.recv_stderr(PIECE))[-STDERR_KEPT:]

    def _look_for_exit(self) -> None:
        if self._at_end and (self._channel.exit_status != -1 or self._channel.closed):
            self._end()

    def _end(self) -> None:
        if self.told:
            return
        self._read_errors()
        self.outbox.discard()
        code = self._channel.exit_status
        said = self._errors.decode(errors="replace")
        self.tell_end(End(None if code == -1 else int(code), said))

    def send(self, data: memoryview) -> int:
        """Encrypt and send a piece, unless others wait already: they would fill the memory."""
        if self._packetizer.is_full(self.outbox.go_on):
            return 0
        return _send_over(self._channel, data)

    def end_input(self) -> None:
        """Tell the node that no more follows."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()


class _Announcement(threading.Event):
    """Has work done in the loop's thread when Paramiko sets it."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work, self._loop = work, loop.shared()
        self._coming = False

    def set(self) -> None:
        """Have the work done once."""
        if not self._coming:
            self._coming = True
            self._loop.call(self._do)

    def clear(self) -> None:
        """Do nothing: there is no state that is waited for."""

    def is_set(self) -> bool:
        """Return False: nothing is remembered."""
        return False

    def _do(self) -> None:
        # first the mark: what is announced from now on is work again
        self._coming = False
        self._work()


class _WindowCondition(threading.Condition):
    """Has work done in the loop's thread when a channel's window grows, or the channel ends."""

    def __init__(self, lock: threading.Lock, work: Callable[[], object]) -> None:
        super().__init__(lock)
        self._announcement = _Announcement(work)

    def notify_all(self) -> None:
        """Wake up those that wait, and announce it."""
        super().notify_all()
        self._announcement.set()


def _announce_window(channel: paramiko.Channel, work: Callable[[], object]) -> None:
    """Have work done whenever more can be sent over a channel."""
    channel.out_buffer_cv = _WindowCondition(channel.lock, work)


def _send_over(channel: paramiko.Channel, data: memoryview) -> int:
    """Send some data over a channel as far as its window allows. Raises OSError."""
    if not channel.send_ready():
        return 0
    try:
        return int(channel.send(bytes(data[:LARGEST_PIECE])))
    except TimeoutError:
        return 0
    except (paramiko.SSHException, EOFError) as error:
        # EOFError: the connection ended during the write (paramiko 5.1.0, packet.py)
        raise ConnectionError(f"the SSH connection ended: {error!r}") from error
