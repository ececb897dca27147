"""A node's interfaces and names: which addresses it has, and which it gives to others."""

from __future__ import annotations

import os
import struct

from dslaunch.node.paths import number_of

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    import socket
    from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

    Answer = Dict[str, Any]
else:
    import _socket as socket  # why not `socket`: see paths.py

_GETLINK, _GETADDR, _DUMP, _ERROR, _DONE = 18, 22, 0x301, 2, 3
_NAME, _MTU, _ADDRESS, _LOCAL = 3, 4, 1, 2
_UP, _LOOPBACK, _SCOPE_LINK = 1, 8, 253
_MESSAGE_HEADER = struct.Struct("IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, port."""
_ALL_ADDRESSES = struct.pack("B7x", socket.AF_UNSPEC)
"""struct ifaddrmsg of a question about all families; the other fields are 0."""
_ALL_LINKS = struct.pack("B15x", socket.AF_UNSPEC)
"""struct ifinfomsg, in the same order."""
PIECE = 65536


def held() -> List[Answer]:
    """Return one entry per address as the kernel lists them, IPv4 first: interface, address,
    whether it is up, its speed and MTU; rtnetlink(7). Link-local IPv6 addresses are left out: they
    need a scope. Raises OSError."""
    links = dict(_links())
    found = []
    for message in _dump(_GETADDR, _ALL_ADDRESSES):
        family, _, _, scope, index = struct.unpack_from("BBBBI", message)
        usable = family == socket.AF_INET or (family == socket.AF_INET6 and scope != _SCOPE_LINK)
        if usable and index in links:
            given = dict(_attributes(message[8:]))
            own = given.get(_LOCAL) or given[_ADDRESS]  # with a peer this one is the peer's
            found.append({"address": socket.inet_ntop(family, own), **links[index]})
    return found


def _links() -> Iterator[Tuple[int, Answer]]:
    """Yield the interfaces by their index."""
    for message in _dump(_GETLINK, _ALL_LINKS):
        _, index, flags = struct.unpack_from("iiI", message)
        given = dict(_attributes(message[16:]))
        name = given[_NAME].rstrip(b"\0").decode()
        link = {
            "name": name,
            "loopback": bool(flags & _LOOPBACK),
            "up": bool(flags & _UP),
            "speed": _speed(name),
            "mtu": struct.unpack("I", given[_MTU])[0] if _MTU in given else None,
        }
        yield index, link


def _speed(name: str) -> Optional[int]:
    """Return the speed in Mbit/s; None where the driver does not report it."""
    return number_of(f"/sys/class/net/{name}/speed")


def _dump(kind: int, question: bytes) -> Iterator[bytes]:
    """Yield the kernel's answers to a question of netlink(7), without their headers."""
    handle = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        length = _MESSAGE_HEADER.size + len(question)
        sequence, port = 1, 0
        handle.send(_MESSAGE_HEADER.pack(length, kind, _DUMP, sequence, port) + question)
        while True:
            left = handle.recv(PIECE)
            while left:
                size, answer = struct.unpack_from("IH", left)
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    (code,) = struct.unpack_from("i", left, 16)
                    raise OSError(-code, os.strerror(-code))
                yield left[16:size]
                left = left[_aligned(size) :]
    finally:
        handle.close()


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        yield kind, data[4:size]
        data = data[_aligned(size) :]


def _aligned(size: int) -> int:
    return size + 3 & ~3


# ---------------------------------------------------------------- names


def resolve(names: List[str]) -> Dict[str, List[str]]:
    """Return the addresses of each name on this node; none if it is not known here."""
    return {name: _addresses(name) for name in names}


def _addresses(name: str) -> List[str]:
    try:
        found = socket.getaddrinfo(_encoded(name), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _encoded(name: str) -> Union[str, bytes]:
    """Return a name that the library need not encode itself: it would import its IDNA codec."""
    plain = name.isascii() and all(0 < len(label) < 64 for label in name.split("."))
    return name.encode() if plain else name


def own_names() -> Answer:
    """Return this node's own host name, and the addresses that it resolves to here."""
    name = socket.gethostname()
    return {"hostname": name, "fqdn": _full_name(name), "addresses": _addresses(name)}


def _full_name(name: str) -> str:
    """Return the first name with a domain that the resolver has for it, as `socket.getfqdn` finds
    it."""
    try:
        first, others, _ = socket.gethostbyaddr(_encoded(name))  # type: ignore[arg-type]
    except (OSError, UnicodeError):
        return name
    return next((each for each in [first, *others] if "." in each), first)
