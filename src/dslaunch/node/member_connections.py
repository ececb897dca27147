"""The connections of members to the first node of a detached run.

Every host that reaches the port can connect. The first node listens at one address only and closes
connections from addresses that no member has. It keeps few connections that are not authenticated,
for a few seconds. Authenticated members are not affected.
"""

from __future__ import annotations

import resource
import socket
import time

from dslaunch.node.bridge import Door
from dslaunch.node.member_link import Broken, MemberLink

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, Tuple

    from dslaunch.node.agent import Agent
    from dslaunch.node.member_link import Message

PROOF_TIMEOUT = 5.0
"""Seconds for the other end to authenticate."""
MOST_UNPROVED = 128
"""Connections that are not authenticated yet, at most."""
MOST_UNPROVED_OF_ONE = 32
"""The same, from one address; the oldest is closed for a new one."""
SPARE_FILES = 64
"""Open files that connections leave to the agent, which needs some to inspect processes."""


class MemberConnections:
    """Accepts connections, lets each authenticate, and keeps one for each member."""

    def __init__(
        self,
        where: Dict[str, Any],
        keys: Dict[str, str],
        agent: Agent,
        on_message: Callable[[str, Message], None],
    ) -> None:
        """Listen. `where`: the address, the ports, and the addresses of the `members`; `keys`: of
        all members, by host. `on_message` is called with the host and each of its messages, and
        raises Broken for an invalid one. Raises OSError.
        """
        self.keys, self.agent, self.on_message = keys, agent, on_message
        self.addresses = set(map(plain, where["members"]))
        """The addresses that members have."""
        self.server = listen(where["address"], where["ports"])
        self.members: Dict[str, MemberLink] = {}
        """Host -> the connection of an authenticated member."""
        self.unproved: Dict[MemberLink, Tuple[str, float]] = {}
        """The connections that are not authenticated, the oldest first -> address, and since
        when."""
        self.door = Door(self.server, agent, self.accept)

    @property
    def port(self) -> int:
        """The port at which members connect."""
        port: int = self.server.getsockname()[1]
        return port

    def tick(self, now: float) -> None:
        """Accept again after a rest; close connections that have not authenticated in time."""
        self.door.tick(now)
        for member, (_, since) in list(self.unproved.items()):
            if now - since > PROOF_TIMEOUT:
                self.drop(member)

    def accept(self, connection: socket.socket, where: Any) -> None:
        """Add a connection; its first message must authenticate it."""
        address = plain(where[0])
        if address not in self.addresses:
            connection.close()
            return
        self.make_room(address)
        if _is_scarce(connection.fileno()):
            connection.close()
            for member in list(self.unproved):
                self.drop(member)
            return
        try:
            member = MemberLink(connection, self.keys)
        except Broken:
            connection.close()
            return
        self.unproved[member] = address, time.monotonic()
        self.agent.loop.watch(connection.fileno(), lambda: self.read(member))

    def make_room(self, address: str) -> None:
        """Close the oldest connections that are not authenticated, if there are too many."""
        same = [member for member, (other, _) in self.unproved.items() if other == address]
        if len(same) >= MOST_UNPROVED_OF_ONE:
            self.drop(same[0])
        if len(self.unproved) >= MOST_UNPROVED:
            self.drop(next(iter(self.unproved)))

    def read(self, member: MemberLink) -> None:
        """Read and handle a member's messages."""
        try:
            for message in member.receive():
                self.take(member, message)
        except Broken:
            self.drop(member)

    def take(self, member: MemberLink, message: Message) -> None:
        """Handle an authenticated message of a member. Raises Broken."""
        host = member.host
        assert host is not None
        if member in self.unproved:
            self.welcome(member, host)
        self.on_message(host, message)

    def welcome(self, member: MemberLink, host: str) -> None:
        """Authenticate to a member that has authenticated; a new connection replaces an older
        one."""
        del self.unproved[member]
        older = self.members.get(host)
        if older is not None:
            self.drop(older)
        self.members[host] = member
        self.send(member, {})

    def drop(self, member: MemberLink) -> None:
        """Close a connection; its member may connect again. Safe to call twice."""
        if member.socket.fileno() < 0:
            return
        self.agent.loop.ignore(member.socket.fileno())
        self.unproved.pop(member, None)
        if member.host is not None and self.members.get(member.host) is member:
            del self.members[member.host]
        member.socket.close()

    def tell_all(self, message: Message) -> None:
        """Send a message to all members."""
        for member in list(self.members.values()):
            self.send(member, message)

    def tell(self, host: str, message: Message) -> None:
        """Send a message to a member, if it is connected."""
        member = self.members.get(host)
        if member is not None:
            self.send(member, message)

    def send(self, member: MemberLink, message: Message) -> None:
        """Send a message over a connection. If that fails its member may have ended: the messages
        that it sent before, and that were not read yet, still count."""
        try:
            member.send(message)
        except Broken:
            self.drop(member)


def listen(address: str, ports: Tuple[int, int]) -> socket.socket:
    """Listen at one address, on the first free port of a range. Raises OSError with the reason."""
    first, last = ports
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    error = OSError()
    for port in range(first, last + 1):
        try:
            return socket.create_server((address, port), family=family)
        except OSError as failure:
            error = failure
    which = f"port {first}" if first == last else f"ports {first}-{last}"
    why = f"control {which} of {address or 'this node'} cannot be used: {error.strerror}"
    raise OSError(error.errno, f"{why}; see `network.control_port` in the cluster file")


def _is_scarce(fd: int) -> bool:
    """Return whether few files can be opened after this one: descriptors are given from the lowest
    up."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and fd >= limit - SPARE_FILES


def plain(address: str) -> str:
    """Return an address in one form: an IPv4 one that arrives at an IPv6 socket, and without a
    zone."""
    address = address.partition("%")[0]
    return address[len("::ffff:") :] if address.startswith("::ffff:") else address
