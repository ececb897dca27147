"""NCCL's report is read only from a process of this user."""

from __future__ import annotations

import socket
import threading

import pytest

from dslaunch.node import nccl_ras


def test_the_report_is_what_the_listener_sends() -> None:
    asked = []

    def serve(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            asked.append(client.recv(100))
            client.sendall(b"OK\nJob summary\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        assert nccl_ras.report(f"127.0.0.1:{server.getsockname()[1]}") == "OK\nJob summary\n"
        thread.join()
    assert asked == [nccl_ras.REQUEST]


def test_there_is_no_report_without_a_listener() -> None:
    assert nccl_ras.report() is None


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("", ("localhost", 28028)),
        ("localhost:12345", ("localhost", 12345)),
        ("[::1]:12345", ("::1", 12345)),
        (":12345", ("localhost", 12345)),
    ],
)
def test_the_address_is_that_of_the_variable(value: str, address: tuple[str, int]) -> None:
    assert nccl_ras.host_and_port(value) == address


@pytest.mark.parametrize("value", ["localhost", "localhost:", "localhost:99999", "localhost:x"])
def test_an_address_without_a_port_is_an_error(value: str) -> None:
    with pytest.raises(ValueError, match="NCCL_RAS_ADDR"):
        nccl_ras.host_and_port(value)
