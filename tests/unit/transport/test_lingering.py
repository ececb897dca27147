"""Connections that are closed while data are still on their way."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dslaunch.transport.ssh.lingering import LingeringSockets


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection; each waits at most 60 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    here.settimeout(60)
    there.settimeout(60)
    with here, there:
        yield here, there


def test_a_socket_closed_with_unread_data_resets_its_connection(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """What the kernel does, and why the others are ended in order."""
    here, there = pair
    there.sendall(b"exit status")
    here.recv(1)
    here.close()
    with pytest.raises(ConnectionResetError):
        there.recv(1)


def test_the_other_side_sees_an_orderly_end_although_data_were_not_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    there.sendall(b"exit status")
    lingering = LingeringSockets()
    lingering.end(here)
    here.close()
    there.sendall(b"more, after the end was announced")
    assert there.recv(1) == b""
    there.close()
    lingering.wait()
    assert here.fileno() == -1


def test_a_side_that_never_ends_is_not_waited_for_longer_than_the_limit(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    here, there = pair
    lingering = LingeringSockets()
    lingering.end(here)
    lingering.wait(0.05)
    here.close()
    assert there.recv(1) == b""


def test_a_socket_that_is_not_connected_is_left_alone() -> None:
    lingering = LingeringSockets()
    with socket.socket() as closed:
        closed.close()
        lingering.end(closed)
    lingering.wait()
    assert closed.fileno() == -1
