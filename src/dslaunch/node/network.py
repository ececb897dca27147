"""A node's interfaces and names, and TCP between nodes: who answers, and do big packets pass."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import selectors
import socket
import struct
import threading
import time

from dslaunch.node.paths import WHOLE, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any, Dict, List, Optional, Tuple

    Answer = Dict[str, Any]

_SIOCGIFCONF = 0x8912
PIECE = 65536


def interfaces() -> List[Answer]:
    """One entry per address: interface, address, whether it is up, its speed and MTU."""
    return [
        {
            "name": name,
            "address": address,
            "loopback": bool(_flags(name) & 8),
            "up": bool(_flags(name) & 1),
            "speed": _number(name, "speed"),
            "mtu": _number(name, "mtu"),
        }
        for name, address in [*_ipv4(), *_ipv6()]
    ]


def _ipv4() -> List[Tuple[str, str]]:
    """Interface and address pairs; an alias `eth0:1` is given as its interface."""
    room = array.array("B", bytes(64 * 1024))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(handle, _SIOCGIFCONF, request))[0]
    records = [bytes(room[at : at + 40]) for at in range(0, used, 40)]
    return [
        (r[:16].split(b"\0")[0].decode().split(":")[0], socket.inet_ntoa(r[20:24])) for r in records
    ]


def _ipv6() -> List[Tuple[str, str]]:
    """As /proc/net/if_inet6 lists them, link-local ones left out: they need a scope."""
    lines = [line.split() for line in text_of("/proc/net/if_inet6").splitlines()]
    return [
        (fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
        for fields in lines
        if fields[3] != "20"
    ]


def _flags(name: str) -> int:
    return int(text_of(f"/sys/class/net/{name}/flags") or "0", 16)


def _number(name: str, what: str) -> Optional[int]:
    """Speed in Mbit/s, MTU in bytes; None where the driver does not say."""
    text = text_of(f"/sys/class/net/{name}/{what}")
    return int(text) if text.isdigit() else None


# ---------------------------------------------------------------- names


def resolve(names: List[str]) -> Dict[str, List[str]]:
    """The addresses of each name on this node; none if it is not known here."""
    return {name: _addresses(name) for name in names}


def _addresses(name: str) -> List[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def own_names() -> Answer:
    """What this node is called by itself, and which addresses it thinks that name has."""
    name = socket.gethostname()
    return {"hostname": name, "fqdn": socket.getfqdn(), "addresses": _addresses(name)}


# ---------------------------------------------------------------- listening


def listen(argument: Answer) -> Answer:
    """Hold the first free port of `ports` and answer dialers with `token`, until `hang_up`."""
    taken = []
    for port in argument["ports"]:
        try:
            listener = _bind(port)
        except OSError as error:
            taken.append({"port": port, "error": error.strerror})
            continue
        _LISTENERS.append(listener)
        server = Server(listener, argument["token"].encode() + b"\n")
        threading.Thread(target=server.run, daemon=True).start()
        return {"port": listener.getsockname()[1], "taken": taken}
    return {"port": None, "taken": taken}


_LISTENERS: List[socket.socket] = []


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
    """Greets every dialer with the token, and confirms a payload when all of it has arrived.

    The dialer closes first, so that TIME_WAIT is on its side and not on the port.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self.listener, self.token = listener, token
        self.selector = selectors.DefaultSelector()
        self.expected: Dict[socket.socket, Optional[int]] = {}
        # here, not in the thread: the listener may be closed before that has begun
        self.selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the listener is closed."""
        try:
            self._serve()
        finally:
            for peer in list(self.expected):
                self._drop(peer)
            self.selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                try:
                    if peer is self.listener:
                        self._greet()
                    else:
                        self._read(peer)
                except OSError:
                    if peer is self.listener:
                        return
                    self._drop(peer)

    def _greet(self) -> None:
        peer, _ = self.listener.accept()
        peer.setblocking(False)
        self.expected[peer] = None
        self.selector.register(peer, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            peer.send(self.token)

    def _read(self, peer: socket.socket) -> None:
        data = peer.recv(PIECE)
        if not data:
            raise ConnectionResetError
        left = self.expected[peer]
        if left is None:
            left, data = int.from_bytes(data[:4], "big"), data[4:]
        self.expected[peer] = left = left - len(data)
        if left <= 0:
            peer.send(b"ok\n")

    def _drop(self, peer: socket.socket) -> None:
        self.selector.unregister(peer)
        self.expected.pop(peer, None)
        peer.close()


def hang_up() -> None:
    """Let go of the ports that `listen` holds."""
    while _LISTENERS:
        listener = _LISTENERS.pop()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in select()
        listener.close()


# ---------------------------------------------------------------- dialling


def dial(argument: Answer) -> Dict[str, Answer]:
    """Call every one of `targets`, name -> [address, port], all at once.

    `payload`: bytes to send it after its token came. Gives for each the own address on that route
    and how far it came: `local`, or `error`.
    """
    calls = [
        Call(name, address, port, argument["token"], argument.get("payload", {}).get(name, 0))
        for name, (address, port) in argument["targets"].items()
    ]
    deadline = time.monotonic() + argument["timeout"]
    with selectors.DefaultSelector() as selector:
        for call in calls:
            call.begin(selector)
        while any(call.answer is None for call in calls) and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                key.data.go_on(selector)
    return {call.name: call.end() for call in calls}


class Call:
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

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Start to connect."""
        with contextlib.suppress(BlockingIOError):
            try:
                self.peer.connect(self.where)
            except BlockingIOError:
                raise
            except OSError as error:
                self.answer = {"error": error.strerror or str(error)}
                return
        selector.register(self.peer, selectors.EVENT_WRITE, self)

    def go_on(self, selector: selectors.BaseSelector) -> None:
        """Do what can be done now."""
        try:
            self._go_on(selector)
        except OSError as error:
            self.answer = {"error": error.strerror or str(error)}
        if self.answer is not None:
            selector.unregister(self.peer)

    def _go_on(self, selector: selectors.BaseSelector) -> None:
        if self.local is None:
            error = self.peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            self.local = self.peer.getsockname()[0]
            self.stage = "it accepts the connection but says nothing"
            selector.modify(self.peer, selectors.EVENT_READ, self)
        elif self.got == self.token and self.left:
            self.left = self.left[self.peer.send(self.left) :]
            if not self.left:
                selector.modify(self.peer, selectors.EVENT_READ, self)
        else:
            self._listen(selector)

    def _listen(self, selector: selectors.BaseSelector) -> None:
        piece = self.peer.recv(PIECE)
        self.got += piece
        wanted = self.token + (b"ok\n" if self.stage == "big" else b"")
        if not piece or not wanted.startswith(self.got):
            self.answer = {"error": "somebody else answers there"}
        elif self.got == wanted and self.left:
            self.stage = "big"
            selector.modify(self.peer, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        elif self.got == wanted:
            self.answer = {"local": self.local}

    def end(self) -> Answer:
        """Hang up, and give the answer."""
        self.peer.close()
        if self.answer is None and self.stage == "big":
            return {"local": self.local, "error": "small packets arrive, big ones do not"}
        return self.answer or {"error": self.stage, "late": True}


def established(port: int) -> int:
    """How many TCP connections of this node lead to `port` of some node."""
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in text_of(table, WHOLE).splitlines()[1:]
    ]
    wanted = f":{port:04X}"
    return sum(fields[3] == "01" and fields[2].endswith(wanted) for fields in lines)
