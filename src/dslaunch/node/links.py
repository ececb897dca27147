"""How the nodes of a detached run coordinate among themselves, without a launcher.

The first node's agent listens, the others connect to it (`member_link` has the protocol). Each
reports how its ranks end; the first decides when all must end, as the launcher would. A node that
cannot reach the first for too long ends.

Everyone who reaches the port can connect. The first node listens at one address only, closes
connections from addresses that no member has, keeps few whose other end has proved nothing, and
those for a few seconds. Members that are connected are not affected by any of that.
"""

from __future__ import annotations

import resource
import socket
import time

from dslaunch.node.bridge import Door
from dslaunch.node.member_link import Broken, Closed, MemberLink

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Tuple

    from dslaunch.node.agent import Agent
    from dslaunch.node.member_link import Message


BEAT = 5.0
REDIAL = 1.0
PROOF_TIMEOUT = 5.0
"""Seconds for the other end to prove who it is."""
MOST_UNPROVED = 128
"""Connections that have proved nothing yet."""
MOST_UNPROVED_OF_ONE = 32
"""The same, from one address; the oldest is closed for a new one."""
SPARE_FILES = 64
"""Open files that connections leave to the agent, which needs some to look at processes."""
MOST_TEXT = 300
"""Characters of a reason that another node gives."""
MOST_SECONDS = 1e9


def make(link: Dict[str, Any], agent: Agent) -> Links:
    """The end of the link for this node: the first node coordinates. Raises OSError."""
    return Coordinator(link, agent) if link["first"] else Member(link, agent)


class Links:
    """What both ends have in common. `link` holds keys, hosts, addresses and times (seconds)."""

    port: Optional[int] = None

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        self.keys: Dict[str, str] = link["keys"]
        """Host -> key: of all members on the first node, its own on any other."""
        self.others: List[str] = [host for host in link["hosts"] if host != agent.host]
        self.grace: float = link["grace"]
        self.exit_timeout: float = link["exit_timeout"]
        self.hang_timeout: Optional[float] = link["hang_timeout"]
        self.beat = min(BEAT, agent.times["silence"] / 3)
        self.patience: float = agent.times["silence"] + agent.times["reconnect"]
        self.agent = agent
        self.beaten = 0.0

    def dial(self, link: Dict[str, Any]) -> None:
        """Where the first node is: `address` and `port`."""

    def note(self, message: Message) -> None:
        """Something happened on this node."""

    def busy(self) -> bool:
        """Whether the agent must stay for the others' sake."""
        return False

    def tick(self, now: float) -> None:
        """Do what time demands."""


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
    """Whether few files can be opened after this one: descriptors are given from the lowest up."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and fd >= limit - SPARE_FILES


def plain(address: str) -> str:
    """An address in one form: an IPv4 one that arrives at an IPv6 socket, and without a zone."""
    address = address.partition("%")[0]
    return address[len("::ffff:") :] if address.startswith("::ffff:") else address


class Coordinator(Links):
    """The first node's end."""

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        super().__init__(link, agent)
        where = link["listen"]
        self.addresses = set(map(plain, where["members"]))
        """The addresses that members have."""
        self.server = listen(where["address"], where["ports"])
        self.port = self.server.getsockname()[1]
        self.members: Dict[str, MemberLink] = {}
        """Host -> the connection of a member that has proved who it is."""
        self.unproved: Dict[MemberLink, Tuple[str, float]] = {}
        """The other connections, the oldest first -> address, and since when."""
        now = time.monotonic()
        self.heard = dict.fromkeys(self.others, now)
        self.idle = dict.fromkeys(link["hosts"], 0.0)
        self.finished: Dict[str, bool] = dict.fromkeys(self.others, False)
        self.good_since: Optional[float] = None
        self.stopped = False
        self.door = Door(self.server, agent, self.accept)

    # ------------------------------------------------------------ connections

    def accept(self, connection: socket.socket, where: Any) -> None:
        """Take a connection; who it is must be proved by its first message."""
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
        self.agent.listen(connection.fileno(), lambda: self.read(member))

    def make_room(self, address: str) -> None:
        """Close the oldest connections that have proved nothing, if there are too many."""
        same = [member for member, (other, _) in self.unproved.items() if other == address]
        if len(same) >= MOST_UNPROVED_OF_ONE:
            self.drop(same[0])
        if len(self.unproved) >= MOST_UNPROVED:
            self.drop(next(iter(self.unproved)))

    def read(self, member: MemberLink) -> None:
        """Take what a member says."""
        try:
            for message in member.receive():
                self.take(member, message)
        except Broken:
            self.drop(member)

    def take(self, member: MemberLink, message: Message) -> None:
        """One genuine message of a member. Raises Broken."""
        host = member.host
        assert host is not None
        if member in self.unproved:
            self.welcome(member, host)
        self.heard[host] = time.monotonic()
        self.judge(host, News(message))
        if self.stopped:
            self.tell(member, {"stop": self.grace})

    def welcome(self, member: MemberLink, host: str) -> None:
        """A member has proved who it is: so do we. A new connection replaces an older one."""
        del self.unproved[member]
        older = self.members.get(host)
        if older is not None:
            self.drop(older)
        self.members[host] = member
        self.tell(member, {})

    def drop(self, member: MemberLink) -> None:
        """A connection is over; its member may connect again. Safe to call twice."""
        if member.socket.fileno() < 0:
            return
        self.agent.ignore(member.socket.fileno())
        self.unproved.pop(member, None)
        if member.host is not None and self.members.get(member.host) is member:
            del self.members[member.host]
        member.socket.close()

    def say(self, message: Message) -> None:
        """Tell all members."""
        for member in list(self.members.values()):
            self.tell(member, message)

    def tell(self, member: MemberLink, message: Message) -> None:
        """Tell a member. One that cannot be told may have ended; what it said before that, and we
        have not yet taken, still counts."""
        try:
            member.send(message)
        except Broken:
            self.drop(member)

    # ------------------------------------------------------------ decisions

    def note(self, message: Message) -> None:
        """Something happened on this node."""
        self.judge(self.agent.host, News(_news(message)))

    def judge(self, host: str, news: News) -> None:
        """Decide what a node's news mean for all."""
        # news of anything else are a sign of life
        self.idle[host] = news.idle or 0.0
        if news.failed:
            self.stop(f"{news.failed} on {host}")
        if news.good and self.good_since is None:
            self.good_since = time.monotonic()
        if news.done and host in self.finished:
            self.finished[host] = True

    def stop(self, why: str) -> None:
        """End all nodes, once."""
        if not self.stopped:
            self.stopped = True
            self.say({"stop": self.grace, "why": why[:MOST_TEXT]})
            self.agent.end(self.grace, why)

    def busy(self) -> bool:
        """Whether a member that can be reached has not ended."""
        now = time.monotonic()
        return any(
            not self.finished[h] and now - self.heard[h] < self.patience for h in self.others
        )

    def tick(self, now: float) -> None:
        """Look for members that are gone, hang or will not end; show that we are there."""
        self.door.tick(now)
        for member, (_, since) in list(self.unproved.items()):
            if now - since > PROOF_TIMEOUT:
                self.drop(member)
        for host, heard in self.heard.items():
            if not self.finished[host] and now - heard > self.patience:
                self.stop(f"{host} was lost: nothing was heard of it for {now - heard:.0f} s")
        if self.good_since is not None and now - self.good_since > self.exit_timeout:
            self.stop(f"still there {self.exit_timeout:g} s after others had ended well")
        if now - self.beaten > self.beat:
            self.beaten = now
            self.idle[self.agent.host] = self.agent.idle
            self.say({"beat": True})
            least = min(self.idle.values())
            if self.hang_timeout is not None and least > self.hang_timeout:
                self.stop(f"hang: no rank printed or computed for {least:.0f} s")


class Member(Links):
    """Every other node's end."""

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        super().__init__(link, agent)
        self.target: Optional[Dict[str, Any]] = None
        self.member: Optional[MemberLink] = None
        self.heard = self.dialled = time.monotonic()
        self.unsaid: List[Message] = []
        self.finished = self.known = False
        """Whether all processes of this node have ended, and whether the first node knows it or is
        gone."""

    def dial(self, link: Dict[str, Any]) -> None:
        """Connect to the first node, now and whenever the connection is lost."""
        self.target = link
        self.connect()

    def connect(self) -> None:
        """Try once, without waiting long."""
        assert self.target is not None
        self.dialled = time.monotonic()
        address = (self.target["address"], self.target["port"])
        try:
            connection = socket.create_connection(address, timeout=1)
        except ConnectionRefusedError:
            # it listens as long as it is there: nobody waits for our end
            self.known = self.finished
        except OSError:
            pass  # tried again, see `tick`
        else:
            self.member = MemberLink(connection, self.keys, host=self.agent.host)
            self.agent.listen(connection.fileno(), self.read)

    def read(self) -> None:
        """Take what the first node says."""
        if self.member is None:  # it was dropped after the loop saw it readable
            return
        try:
            for message in self.member.receive():
                self.heard = time.monotonic()
                order = StopOrder(message)
                if order.stop is not None:
                    self.agent.end(order.stop, order.why or "the others end")
            if self.member is not None and self.member.proved:
                self.flush()
        except Closed:
            # the first node closes a connection when it has read all of it
            self.known = self.finished and not self.unsaid
            self.drop()
        except Broken:
            self.drop()

    def drop(self) -> None:
        """The connection is over."""
        if self.member is not None:
            self.agent.ignore(self.member.socket.fileno())
            self.member.socket.close()
            self.member = None
        if self.finished and not self.known and not self.unsaid:
            # it was sent, but may not have arrived: a reset discards what is on its way
            self.unsaid.append({"done": True})

    def note(self, message: Message) -> None:
        """Something happened on this node; what comes after its end is no news."""
        if self.finished:
            return
        news = _news(message)
        self.finished = "done" in news
        if news:
            self.say(news)

    def say(self, news: Message) -> None:
        """Say it, and what could not be said before."""
        self.unsaid.append(news)
        if self.member is not None and self.member.proved:
            try:
                self.flush()
            except Broken:
                self.drop()

    def flush(self) -> None:
        """Send what has not been sent. Raises Broken."""
        assert self.member is not None
        if not self.unsaid:
            return
        while self.unsaid:
            self.member.send(self.unsaid[0])
            self.unsaid.pop(0)
        if self.finished:
            self.member.finish()

    def busy(self) -> bool:
        """Whether the first node does not know yet how this one ended."""
        wanted = not self.known and (self.finished or bool(self.unsaid))
        return wanted and time.monotonic() - self.heard < self.patience

    def tick(self, now: float) -> None:
        """Keep in touch, and end when that has failed for too long."""
        if self.target is None or self.known:
            return
        if (
            self.member is not None
            and not self.member.proved
            and now - self.dialled > PROOF_TIMEOUT
        ):
            self.drop()
        if self.member is None and now - self.dialled > REDIAL:
            self.connect()
        if now - self.heard > self.patience and not self.agent.done:
            self.agent.end(
                self.grace, f"the first node was lost: silent for {now - self.heard:.0f} s"
            )
        proved = self.member is not None and self.member.proved
        if now - self.beaten > self.beat and proved and not self.finished:
            self.beaten = now
            self.say({"idle": self.agent.idle})


# ---------------------------------------------------------------- messages


class News:
    """What a node reports: valid values only. Raises Broken for anything else."""

    def __init__(self, message: Message) -> None:
        self.idle = _seconds(message, "idle")
        self.failed = _text(message, "failed")
        self.good = _flag(message, "good")
        self.done = _flag(message, "done")


class StopOrder:
    """What the first node demands: valid values only. Raises Broken for anything else."""

    def __init__(self, message: Message) -> None:
        self.stop = _seconds(message, "stop")
        self.why = _text(message, "why")


def _seconds(message: Message, name: str) -> Optional[float]:
    value = message.get(name)
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_SECONDS:
        raise Broken(f"{name} is not a number of seconds")
    return float(value)


def _text(message: Message, name: str) -> str:
    value = message.get(name, "")
    if not isinstance(value, str) or len(value) > MOST_TEXT or not value.isprintable():
        raise Broken(f"{name} is not a short text")
    return value


def _flag(message: Message, name: str) -> bool:
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise Broken(f"{name} is not true or false")
    return value


def _news(event: Message) -> Message:
    """What the others must know of an event."""
    kind = event.get("event")
    if kind == "exit" and not event["asked"]:
        bad = event["code"] or event["signal"] is not None
        return {"failed": f"rank {event['rank']} failed"} if bad else {"good": True}
    if kind == "unstarted":
        return {"failed": "a rank could not start"}
    if kind == "stopping":
        return {"failed": _short(f"stopped by {event.get('by')}")}
    return {"done": True} if kind == "done" else {}


def _short(text: str) -> str:
    """A text that `_text` takes."""
    return "".join(c if c.isprintable() else "?" for c in text)[:MOST_TEXT]
