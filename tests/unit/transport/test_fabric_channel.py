"""A program on a node through paramiko, with paramiko's own server at the other end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import paramiko
import pytest

from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.outbox import Outbox
from dslaunch.transport.ssh.paramiko_link import (
    ParamikoChannel,
    QueueingPacketizer,
    QueueingTransport,
)


class Server(paramiko.ServerInterface):
    """Lets everybody in, and starts a session."""

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


@pytest.fixture
def connected() -> Iterator[tuple[paramiko.Transport, socket.socket]]:
    """A client's transport, and its socket."""
    near, far = socket.socketpair()
    server = paramiko.Transport(far)
    server.add_server_key(paramiko.ECDSAKey.generate())
    client = QueueingTransport(near)
    try:
        server.start_server(event=threading.Event(), server=Server())
        client.start_client(timeout=300)
        client.auth_none("somebody")
        yield client, near
    finally:
        client.close()
        server.close()
        near.close()
        far.close()


def test_a_connection_that_ends_ends_the_channel(
    connected: tuple[paramiko.Transport, socket.socket],
) -> None:
    client, near = connected
    channel = ParamikoChannel(client.open_session(timeout=300))
    output = ChannelOutput(channel)
    near.shutdown(socket.SHUT_RDWR)
    channel.write(b"x")
    assert output.end() == End()


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
    connected: tuple[paramiko.Transport, socket.socket],
) -> None:
    client, _ = connected
    channels = [ParamikoChannel(client.open_session(timeout=300)) for _ in range(4)]
    with ThreadPoolExecutor(len(channels)) as pool:
        for _ in range(500):
            list(pool.map(lambda channel: channel.write(b"x" * 100), channels))
            assert all(channel.flush(300) for channel in channels)
