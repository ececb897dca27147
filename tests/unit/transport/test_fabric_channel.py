"""A program on a node through paramiko, with paramiko's own server at the other end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import paramiko
import pytest

from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.ssh.paramiko_link import ParamikoChannel, QueueingTransport


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
        client.start_client(timeout=60)
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
    channel = ParamikoChannel(client.open_session(timeout=60))
    output = ChannelOutput(channel)
    near.shutdown(socket.SHUT_RDWR)
    channel.write(b"x")
    assert output.end() == End()


def test_programs_on_one_connection_that_are_written_to_at_once_all_get_everything(
    connected: tuple[paramiko.Transport, socket.socket],
) -> None:
    client, _ = connected
    channels = [ParamikoChannel(client.open_session(timeout=60)) for _ in range(4)]
    with ThreadPoolExecutor(len(channels)) as pool:
        for _ in range(500):
            list(pool.map(lambda channel: channel.write(b"x" * 100), channels))
            assert all(channel.flush(5) for channel in channels)
