"""TCP between nodes: which ports answer, and whether large packets arrive."""

from __future__ import annotations

import _thread
import errno
import os
import select
import time

from dslaunch.node.paths import WHOLE, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    import socket
    from typing import Any, Dict, List, Optional

    Answer = Dict[str, Any]
else:
    import _socket as socket  # why not `socket`: see paths.py

PIECE = 65536
MOST_PEERS = 512
"""Connections that a server keeps; the oldest is closed for a new one."""
REST = 0.05
"""Seconds that a server waits after it could not accept a connection."""
_CLOSED = (errno.EINVAL, errno.EBADF)
"""What `accept` reports once the listener is closed."""


def listen(argument: Answer) -> Answer:
    """Hold the first free port of `ports` and answer clients with `token`, until `hang_up`.

    With `instead`, the ports that were held before are released first.
    """
    if argument.get("instead"):
        hang_up()
    taken = []
    for port in argument["ports"]:
        try:
            listener = _bind(port)
        except OSError as error:
            taken.append({"port": port, "error": error.strerror})
            continue
        server = Server(listener, argument["token"].encode() + b"\n")
        _SERVERS.append(server)
        server.start()
        return {"port": listener.getsockname()[1], "taken": taken}
    return {"port": None, "taken": taken}


_SERVERS: List[Server] = []


def _bind(port: int) -> socket.socket:
    """Listen on all addresses as a training's store does: both families where there is IPv6."""
    family = socket.AF_INET6 if os.path.exists("/proc/net/if_inet6") else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


class Server:
    """Sends every client the token, and confirms a payload when all of it has arrived.

    The client closes first, so that TIME_WAIT is on its side and not on the port.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self.listener, self.token = listener, token
        self.poll = select.epoll()
        self.peers: Dict[int, socket.socket] = {}
        self.expected: Dict[int, Optional[int]] = {}
        """Bytes of each peer's payload that are still missing; None: its size has not arrived."""
        # here, not in the thread: the listener may be closed before that has begun
        self.door = listener.fileno()
        self.poll.register(self.door, select.EPOLLIN)
        self.serving = _thread.allocate_lock()
        """Held while the thread serves."""

    def start(self) -> None:
        """Serve in a thread."""
        self.serving.acquire()
        _thread.start_new_thread(self._run, ())

    def end(self) -> None:
        """Release the port, and wait for the thread."""
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
        except OSError:
            pass  # it is shut down already
        # once it is closed, nothing wakes that thread any more
        self.serving.acquire(timeout=1.0)
        self.listener.close()

    def _run(self) -> None:
        """Serve until the listener is closed."""
        try:
            self._serve()
        finally:
            for fd in list(self.peers):
                self._drop(fd)
            self.poll.close()
            self.serving.release()

    def _serve(self) -> None:
        while True:
            for fd, _ in self.poll.poll():
                try:
                    if fd == self.door:
                        self._greet()
                    else:
                        self._read(fd)
                except BlockingIOError:
                    continue  # the event was of a peer that was dropped since the poll
                except OSError as error:
                    if fd != self.door:
                        self._drop(fd)
                    elif error.errno in _CLOSED:
                        return
                    else:  # too many open files
                        self._drop_oldest()
                        time.sleep(REST)

    def _greet(self) -> None:
        fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # what `socket.accept` calls
        peer = socket.socket(fileno=fd)
        if len(self.peers) >= MOST_PEERS:
            self._drop_oldest()
        self.peers[fd], self.expected[fd] = peer, None
        peer.setblocking(False)
        self.poll.register(fd, select.EPOLLIN)
        try:
            peer.send(self.token)
        except OSError:
            pass  # the peer has closed it again

    def _read(self, fd: int) -> None:
        if fd not in self.peers:  # dropped for a newer one since the poll
            return
        data = self.peers[fd].recv(PIECE)
        if not data:
            raise ConnectionResetError
        left = self.expected[fd]
        if left is None:
            left, data = int.from_bytes(data[:4], "big"), data[4:]
        self.expected[fd] = left = left - len(data)
        if left <= 0:
            self.peers[fd].send(b"ok\n")

    def _drop_oldest(self) -> None:
        if self.peers:
            self._drop(next(iter(self.peers)))

    def _drop(self, fd: int) -> None:
        self.poll.unregister(fd)
        del self.expected[fd]
        self.peers.pop(fd).close()


def hang_up() -> None:
    """Release the ports that `listen` holds."""
    while _SERVERS:
        _SERVERS.pop().end()


# ---------------------------------------------------------------- dialing


def dial(argument: Answer) -> Dict[str, Answer]:
    """Connect to all `targets`, name -> [address, port], at the same time.

    `payload`: bytes to send after the token has arrived. Returns for each target `local`, the own
    address on that route, or `error`, how far the connection came.
    """
    calls = [
        Dialing(
            name,
            address,
            port,
            token=argument["token"],
            payload=argument.get("payload", {}).get(name, 0),
        )
        for name, (address, port) in argument["targets"].items()
    ]
    by_fd = {call.peer.fileno(): call for call in calls}
    deadline = time.monotonic() + argument["timeout"]
    poll = select.epoll()
    try:
        for call in calls:
            call.begin(poll)
        while any(call.answer is None for call in calls) and time.monotonic() < deadline:
            for fd, _ in poll.poll(max(0.0, deadline - time.monotonic())):
                by_fd[fd].go_on(poll)
    finally:
        poll.close()
    return {call.name: call.end() for call in calls}


class Dialing:
    """One connection to one target."""

    def __init__(self, name: str, address: str, port: int, token: str, payload: int) -> None:
        self.name, self.where = name, (address, port)
        self.token = token.encode() + b"\n"
        self.left = payload.to_bytes(4, "big") + bytes(payload) if payload else b""
        self.got, self.stage = b"", "no answer to the connection"
        self.answer: Optional[Answer] = None
        self.local: Optional[str] = None
        self.peer = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.peer.setblocking(False)

    def begin(self, poll: select.epoll) -> None:
        """Start to connect."""
        try:
            self.peer.connect(self.where)
        except BlockingIOError:
            pass  # the answer is still on its way
        except OSError as error:
            self.answer = {"error": error.strerror or str(error)}
            return
        poll.register(self.peer.fileno(), select.EPOLLOUT)

    def go_on(self, poll: select.epoll) -> None:
        """Continue as far as possible without waiting."""
        try:
            self._go_on(poll)
        except OSError as error:
            self.answer = {"error": error.strerror or str(error)}
        if self.answer is not None:
            poll.unregister(self.peer.fileno())

    def _go_on(self, poll: select.epoll) -> None:
        if self.local is None:
            error = self.peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            self.local = self.peer.getsockname()[0]
            self.stage = "it accepts the connection but sends nothing"
            poll.modify(self.peer.fileno(), select.EPOLLIN)
        elif self.got == self.token and self.left:
            self.left = self.left[self.peer.send(self.left) :]
            if not self.left:
                poll.modify(self.peer.fileno(), select.EPOLLIN)
        else:
            self._listen(poll)

    def _listen(self, poll: select.epoll) -> None:
        piece = self.peer.recv(PIECE)
        self.got += piece
        wanted = self.token + (b"ok\n" if self.stage == "big" else b"")
        if not piece or not wanted.startswith(self.got):
            self.answer = {"error": "another program answers there"}
        elif self.got == wanted and self.left:
            self.stage = "big"
            poll.modify(self.peer.fileno(), select.EPOLLIN | select.EPOLLOUT)
        elif self.got == wanted:
            self.answer = {"local": self.local}

    def end(self) -> Answer:
        """Close the connection, and return the answer."""
        self.peer.close()
        if self.answer is None and self.stage == "big":
            return {"local": self.local, "error": "small packets arrive, big ones do not"}
        return self.answer or {"error": self.stage, "late": True}


def established(port: int) -> int:
    """Return the number of TCP connections of this node to `port` of any node."""
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in text_of(table, WHOLE).splitlines()[1:]
    ]
    wanted = f":{port:04X}"
    return sum(fields[3] == "01" and fields[2].endswith(wanted) for fields in lines)
