"""A program on a node through paramiko, with paramiko's own server at the other end."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import paramiko
import pytest

from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.outbox import Outbox
from dslaunch.transport.ssh.paramiko_link import (
    ParamikoChannel,
    QueueingPacketizer,
    QueueingTransport,
    ReadAhead,
)


class Server(paramiko.ServerInterface):
    """Lets everybody in, and starts a session."""

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


@dataclass(frozen=True)
class Connected:
    """Both ends of a connection, and the client's socket."""

    client: paramiko.Transport
    server: paramiko.Transport
    near: socket.socket


@pytest.fixture
def connected() -> Iterator[Connected]:
    """A client that is logged in."""
    near, far = socket.socketpair()
    server = paramiko.Transport(far)
    server.add_server_key(paramiko.ECDSAKey.generate())
    client = QueueingTransport(near)
    try:
        server.start_server(event=threading.Event(), server=Server())
        client.start_client(timeout=300)
        client.auth_none("somebody")
        yield Connected(client, server, near)
    finally:
        client.close()
        server.close()
        near.close()
        far.close()


def test_a_connection_that_ends_ends_the_channel(connected: Connected) -> None:
    channel = ParamikoChannel(connected.client.open_session(timeout=300))
    output = ChannelOutput(channel)
    connected.near.shutdown(socket.SHUT_RDWR)
    channel.write(b"x")
    assert output.end() == End()


def test_a_message_over_a_connection_that_has_ended_is_dropped(connected: Connected) -> None:
    connected.client.close()
    connected.client.global_request("too-late", wait=False)  # raises nothing
    assert not connected.client.is_active()


class Received:
    """What a program has written."""

    def __init__(self) -> None:
        self.data = b""
        self.at_end = threading.Event()

    def received(self, data: bytes) -> None:
        """Keep a piece."""
        self.data += data

    def ended(self, end: End) -> None:
        """It was the last one."""
        self.at_end.set()


def test_nothing_is_delivered_behind_a_piece_that_a_broken_connection_has_lost(
    connected: Connected,
) -> None:
    """What is read makes room for more, which the server is told. That fails if the connection is
    over, although much of what has arrived may not be read yet."""
    session = connected.client.open_session(timeout=300)
    channel = ParamikoChannel(session)
    program = connected.server.accept(300)
    assert program is not None
    written = b"".join(b"%07d\n" % number for number in range(100_000))
    program.sendall(written)
    until = time.monotonic() + 300
    while len(session.in_buffer) < len(written):
        assert time.monotonic() < until
    packetizer = connected.client.packetizer
    assert isinstance(packetizer, QueueingPacketizer)
    packetizer.outbox.discard()
    received = Received()
    channel.listen(received)
    while len(session.in_buffer) == len(written):
        assert time.monotonic() < until
    connected.client.close()
    assert received.at_end.wait(300)
    assert written.startswith(received.data)


class Interrupted(socket.socket):
    """A socket during whose first write something else happens."""

    meanwhile: Callable[[], object] | None = None

    def fileno(self) -> int:
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            work()
        return super().fileno()


def test_what_another_packet_held_up_for_a_moment_is_sent_after_it() -> None:
    """Two programs share a connection. None of them would ever be told otherwise: the packet was
    taken at once, so the socket was never full."""
    plain, far = socket.socketpair()
    near = Interrupted(fileno=plain.detach())
    near.setblocking(False)
    packetizer = QueueingPacketizer(near)

    def send(data: memoryview) -> int:
        if packetizer.is_full(second.go_on):
            return 0
        packetizer.write_all(data)
        return len(data)

    second = Outbox(send, ended=lambda: None)
    near.meanwhile = lambda: second.put(b"second")
    packetizer.write_all(b"first ")
    assert second.flush(timeout=300)
    assert far.recv(100) == b"first second"
    packetizer.close()
    far.close()


def test_programs_on_one_connection_that_are_written_to_at_once_all_get_everything(
    connected: Connected,
) -> None:
    channels = [ParamikoChannel(connected.client.open_session(timeout=300)) for _ in range(4)]
    with ThreadPoolExecutor(len(channels)) as pool:
        for _ in range(500):
            list(pool.map(lambda channel: channel.write(b"x" * 100), channels))
            assert all(channel.flush(300) for channel in channels)


@pytest.fixture
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection over which messages and their answers went already: Linux
    acknowledges the first ones at once."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        for _ in range(8):
            far.sendall(b"x")
            near.recv(1)
            near.sendall(b"x")
            far.recv(1)
        yield near, far


def unacknowledged(sock: socket.socket) -> int:
    """How many bytes that a socket has sent are not acknowledged (tcp(7), SIOCOUTQ)."""
    answer = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_a_server_need_not_wait_until_what_was_read_of_it_is_acknowledged(
    tcp: tuple[socket.socket, socket.socket],
) -> None:
    near, far = tcp
    reading = ReadAhead(near)
    far.sendall(b"first")
    assert reading.recv(5) == b"first"
    assert unacknowledged(far) == 0


def test_a_small_message_does_not_wait_until_the_server_has_acknowledged_another_one(
    tcp: tuple[socket.socket, socket.socket],
) -> None:
    near, _ = tcp
    QueueingPacketizer(near)
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_connection_whose_jump_host_has_ended_before_ends_without_an_error() -> None:
    class Gone:
        """A channel of a connection that has ended: it cannot be closed any more."""

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock
            self.fileno, self.recv, self.settimeout = sock.fileno, sock.recv, sock.settimeout

        def close(self) -> None:
            self._sock.close()
            raise EOFError

    ours, theirs = socket.socketpair()
    connection = QueueingTransport(Gone(ours))
    connection.start()
    theirs.close()
    connection.join(300)  # an error in its thread fails the test
    assert not connection.is_active()
