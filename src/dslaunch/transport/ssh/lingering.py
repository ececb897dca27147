"""Close connections so that the other side is certain to receive the end.

A socket that is closed while it holds data that was not read is reset: the kernel sends one
packet, once, and forgets the connection (Linux, net/ipv4/tcp.c, `__tcp_close`). Where that packet
is lost, sshd on the node keeps its session for hours. An orderly end is repeated until the node
has confirmed it, so what is still to come is read first.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

LONGEST = 1.0
"""Seconds to wait for all nodes together; each has answered after a round trip."""
_PIECE = 1 << 16


class LingeringSockets:
    """Sockets whose connection has been ended here, and not yet by the other side."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._changing = threading.Lock()

    def end(self, connected: socket.socket) -> None:
        """End the connection in our direction, and keep it until `wait`.

        The socket itself can be closed afterwards. Does nothing for one that is not connected.
        """
        with contextlib.suppress(OSError):
            kept = connected.dup()
            with self._changing:
                self._sockets.append(kept)
            kept.setblocking(False)
            kept.shutdown(socket.SHUT_WR)

    def wait(self, seconds: float = LONGEST) -> None:
        """Read what still comes, until every other side has ended its half or time is up."""
        with self._changing:
            remaining, self._sockets = self._sockets, []
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for kept in remaining:
                selector.register(kept, selectors.EVENT_READ)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                for key, _ in selector.select(left):
                    if _is_at_end(key.fileobj):
                        selector.unregister(key.fileobj)
        for kept in remaining:
            kept.close()


def _is_at_end(kept: object) -> bool:
    """Read once; whether nothing can come any more."""
    assert isinstance(kept, socket.socket)
    try:
        return not kept.recv(_PIECE)
    except BlockingIOError:
        return False
    except OSError:
        return True
