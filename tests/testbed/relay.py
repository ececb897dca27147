"""Connects standard input and output with a TCP port, as `nc` does: `relay.py HOST PORT`."""

from __future__ import annotations

import os
import socket
import sys
import threading


def main() -> None:
    """Copy both ways until one side ends."""
    server = socket.create_connection((sys.argv[1], int(sys.argv[2])))

    def send() -> None:
        while data := os.read(0, 65536):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    while data := server.recv(65536):
        os.write(1, data)


main()
