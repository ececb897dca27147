"""The hook that answers questions about the collectives of a rank, without PyTorch."""

from __future__ import annotations

import errno
import socket
import threading
from pathlib import Path
from typing import Any, cast

from dslaunch.node import hook_collectives


class Crowded:
    """A listening socket of a process that has too many files open when the first client comes."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._refusals = [OSError(errno.EMFILE, "Too many open files")]

    def fileno(self) -> int:
        return self._server.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        if self._refusals:
            raise self._refusals.pop()
        return self._server.accept()


def test_a_rank_answers_again_when_it_may_open_files_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "socket"))
        server.listen(1)
        crowded = cast("socket.socket", Crowded(server))
        serving = threading.Thread(target=hook_collectives.serve, args=(crowded,), daemon=True)
        serving.start()
        client.settimeout(300)
        client.connect(str(tmp_path / "socket"))
        client.sendall(b"status 0\n")
        assert client.recv(1 << 16)
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread
    serving.join(300)
    assert not serving.is_alive()
