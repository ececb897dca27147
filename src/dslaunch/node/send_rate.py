"""Send to another node for a while, as fast as TCP goes: a program of its own, read from standard
input. The other node's `network.Server` takes what comes and forgets it."""

from __future__ import annotations

import array
import fcntl
import json
import socket
import sys
import termios
import time
from typing import Any, Dict

PIECE = 1 << 20
MOST = (1 << 32) - 1


def main(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Send `bytes` to `target` (address and port), for `seconds` at most. Gives the bytes that
    arrived and the seconds that they took, without the connection's start; or `error`."""
    address, port = arguments["target"]
    token = arguments["token"].encode() + b"\n"
    try:
        with socket.create_connection((address, port), arguments["seconds"]) as peer:
            if peer.recv(len(token), socket.MSG_WAITALL) != token:
                return {"error": "somebody else answers there"}
            return send(peer, arguments["bytes"], arguments["seconds"])
    except OSError as error:
        return {"error": error.strerror or str(error)}


def send(peer: socket.socket, size: int, seconds: float) -> Dict[str, Any]:
    """Send, and wait until it has arrived, or the time is over."""
    piece = bytes(PIECE)
    began = time.monotonic()
    deadline = began + seconds
    peer.sendall(MOST.to_bytes(4, "big"))
    sent = 0
    while sent < size and time.monotonic() < deadline:
        peer.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            sent += peer.send(piece[: size - sent])
        except socket.timeout:  # Python 3.8 knows it by this name alone
            break
    while waiting(peer) and time.monotonic() < deadline:
        time.sleep(0.001)
    arrived = max(0, sent - waiting(peer))
    return {"bytes": arrived, "seconds": round(time.monotonic() - began, 6)}


def waiting(peer: socket.socket) -> int:
    """Bytes that the other side has not confirmed; tcp(7), SIOCOUTQ, which is TIOCOUTQ."""
    room = array.array("i", [0])
    fcntl.ioctl(peer, termios.TIOCOUTQ, room)
    return room[0]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
