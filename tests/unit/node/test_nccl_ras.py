"""NCCL's report is read only from a process of this user."""

from __future__ import annotations

import socket
import threading

from dslaunch.node import nccl_ras


def test_the_report_is_what_the_listener_sends() -> None:
    asked = []

    def serve(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            asked.append(client.recv(100))
            client.sendall(b"OK\nJob summary\n")

    with socket.create_server(("127.0.0.1", nccl_ras.PORT)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        assert nccl_ras.report() == "OK\nJob summary\n"
        thread.join()
    assert asked == [nccl_ras.REQUEST]


def test_there_is_no_report_without_a_listener() -> None:
    assert nccl_ras.report() is None
