"""The nodes of a detached run coordinate among themselves, without a launcher.

The first node's agent listens, the others connect to it (`member_link` has the protocol). Each
reports how its ranks end, and how long they have made no progress; the first decides when all must
end, as the launcher would. Before it ends a run that hangs, all nodes record what they know of it
(`hang_inquiry`). A node that cannot reach the first node within its timeout ends.

Every host that reaches the port can connect. The first node listens at one address only and closes
connections from addresses that no member has. It keeps few connections that are not authenticated,
for a few seconds. Authenticated members are not affected.
"""

from __future__ import annotations

import resource
import socket
import time

from dslaunch.node import threads
from dslaunch.node.bridge import Door
from dslaunch.node.hang_inquiry import HangInquiry
from dslaunch.node.link_messages import MOST_TEXT, News, Order, news_of
from dslaunch.node.member_link import Broken, Closed, MemberLink
from dslaunch.node.rank_progress import MOST_PAIRED, Quiet, RankProgress, quiet_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Tuple

    from dslaunch.node.agent import Agent
    from dslaunch.node.member_link import Message


BEAT = 5.0
REDIAL = 1.0
CONNECT_TIMEOUT = 1.0
"""Seconds for one try to connect."""
PROOF_TIMEOUT = 5.0
"""Seconds for the other end to authenticate."""
MOST_UNPROVED = 128
"""Connections that are not authenticated yet, at most."""
MOST_UNPROVED_OF_ONE = 32
"""The same, from one address; the oldest is closed for a new one."""
SPARE_FILES = 64
"""Open files that connections leave to the agent, which needs some to inspect processes."""
NO_QUIET = Quiet(0.0, 0.0, None)
"""Of a node whose ranks have just made progress."""


def make(link: Dict[str, Any], agent: Agent) -> Links:
    """Return this node's end of the link: the first node coordinates. Raises OSError."""
    return Coordinator(link, agent) if link["first"] else Member(link, agent)


class Links:
    """The common part of both ends. `link` holds keys and times (seconds)."""

    port: Optional[int] = None

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        self.keys: Dict[str, str] = link["keys"]
        """Host -> key: of all members on the first node, its own on any other."""
        self.grace: float = link["grace"]
        self.exit_timeout: float = link["exit_timeout"]
        self.beat = min(BEAT, agent.timeouts["heartbeat"] / 3)
        self.timeout: float = agent.timeouts["heartbeat"] + agent.timeouts["reconnect"]
        self.agent = agent
        self.beaten = 0.0
        self.progress: Optional[RankProgress] = None
        """None: a hang does not end the run."""
        if link["hang"] is not None:
            self.progress = RankProgress(agent, link["hang"])

    def connect_to(self, first: Dict[str, Any]) -> None:
        """Stay connected to the first node, at its `address` and `port`."""

    def note(self, message: Message) -> None:
        """Handle an event of this node."""

    def busy(self) -> bool:
        """Return whether the agent must stay because other nodes still need it."""
        return False

    def tick(self, now: float) -> None:
        """Do the periodic work."""


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


class Coordinator(Links):
    """The first node's end. `link` also holds all hosts, and where to listen."""

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        super().__init__(link, agent)
        self.hosts: List[str] = link["hosts"]
        self.others: List[str] = [host for host in self.hosts if host != agent.host]
        where = link["listen"]
        self.addresses = set(map(plain, where["members"]))
        """The addresses that members have."""
        self.server = listen(where["address"], where["ports"])
        self.port = self.server.getsockname()[1]
        self.members: Dict[str, MemberLink] = {}
        """Host -> the connection of an authenticated member."""
        self.unproved: Dict[MemberLink, Tuple[str, float]] = {}
        """The connections that are not authenticated, the oldest first -> address, and since
        when."""
        now = time.monotonic()
        self.heard = dict.fromkeys(self.others, now)
        self.quiet = dict.fromkeys(self.hosts, NO_QUIET)
        """For how long the ranks of each node that has not ended have made no progress, as it last
        reported."""
        self.hang: Optional[HangInquiry] = None
        """None: there is progress."""
        self.finished: Dict[str, bool] = dict.fromkeys(self.others, False)
        self.good_since: Optional[float] = None
        self.stopped = False
        self.door = Door(self.server, agent, self.accept)

    # ------------------------------------------------------------ connections

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
        self.heard[host] = time.monotonic()
        self.judge(host, News(message))
        if self.stopped:
            self.tell(member, {"stop": self.grace})

    def welcome(self, member: MemberLink, host: str) -> None:
        """Authenticate to a member that has authenticated; a new connection replaces an older
        one."""
        del self.unproved[member]
        older = self.members.get(host)
        if older is not None:
            self.drop(older)
        self.members[host] = member
        self.tell(member, {})

    def drop(self, member: MemberLink) -> None:
        """Close a connection; its member may connect again. Safe to call twice."""
        if member.socket.fileno() < 0:
            return
        self.agent.loop.ignore(member.socket.fileno())
        self.unproved.pop(member, None)
        if member.host is not None and self.members.get(member.host) is member:
            del self.members[member.host]
        member.socket.close()

    def say(self, message: Message) -> None:
        """Send a message to all members."""
        for member in list(self.members.values()):
            self.tell(member, message)

    def tell(self, member: MemberLink, message: Message) -> None:
        """Send a message to a member. If that fails it may have ended: the messages that it sent
        before, and that were not read yet, still count."""
        try:
            member.send(message)
        except Broken:
            self.drop(member)

    # ------------------------------------------------------------ decisions

    def note(self, message: Message) -> None:
        """Handle an event of this node."""
        self.judge(self.agent.host, News(news_of(message)))

    def judge(self, host: str, news: News) -> None:
        """Decide what a node's report means for all nodes."""
        if host in self.quiet:
            # any other report only shows that the node is alive
            self.quiet[host] = news.quiet or NO_QUIET
        if news.port is not None and self.hang is not None:
            self.hang.recorded(host, news.port)
        if news.dialed and self.hang is not None:
            self.hang.dialed(host)
        if news.failed:
            self.stop(f"{news.failed} on {host}")
        if news.good and self.good_since is None:
            self.good_since = time.monotonic()
        if news.done:
            self.quiet.pop(host, None)
        if news.done and host in self.finished:
            self.finished[host] = True

    def stop(self, why: str, **cause: float) -> None:
        """End all nodes, once. `cause`: as of `Agent.end`."""
        if not self.stopped:
            self.stopped = True
            self.say({"stop": self.grace, "why": why[:MOST_TEXT], **cause})
            self.agent.end(self.grace, why, **cause)

    def busy(self) -> bool:
        """Return whether a reachable member has not ended."""
        now = time.monotonic()
        return any(not self.finished[h] and now - self.heard[h] < self.timeout for h in self.others)

    def tick(self, now: float) -> None:
        """Check for members that are lost, hang or do not end; send a heartbeat."""
        self.door.tick(now)
        for member, (_, since) in list(self.unproved.items()):
            if now - since > PROOF_TIMEOUT:
                self.drop(member)
        for host, heard in self.heard.items():
            if not self.finished[host] and now - heard > self.timeout:
                self.stop(f"{host} was lost: no heartbeat for {now - heard:.0f} s")
        if self.good_since is not None and now - self.good_since > self.exit_timeout:
            self.stop(f"still running {self.exit_timeout:g} s after others succeeded")
        if now - self.beaten > self.beat:
            self.beaten = now
            self.say({"beat": True})
        if self.progress is not None and not self.stopped:
            self.progress.tick(now)
            if self.agent.host in self.quiet:
                self.quiet[self.agent.host] = self.progress.quiet()
            self.check_for_hang(self.progress, now)

    def check_for_hang(self, progress: RankProgress, now: float) -> None:
        """End all nodes when no rank has made progress for too long, and all nodes have recorded
        what they know of it."""
        quiet = quiet_seconds(tuple(self.quiet.values()))
        if quiet <= progress.limit:
            self.hang = None
            return
        if self.hang is None:
            self.hang = HangInquiry(now)
            self.say({"record": True})
            progress.record()
        if progress.recorded:
            self.hang.recorded(self.agent.host, progress.port)
        if progress.dialed:
            self.hang.dialed(self.agent.host)
        if not self.hang.is_finished(self.quiet, now):
            return
        if not self.hang.dials and 1 < len(self.hosts) <= MOST_PAIRED:
            ports = self.hang.begin_dialing(self.hosts, now)
            self.say({"dial": ports})
            progress.dial(ports)
            return
        self.stop(f"hang: no progress for {quiet:.0f} s", hang=quiet)


class Member(Links):
    """The end of every other node."""

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        super().__init__(link, agent)
        self.first: Optional[Dict[str, Any]] = None
        """The `address` and `port` of the first node, once the ranks have started."""
        self.member: Optional[MemberLink] = None
        self.heard = time.monotonic()
        """When the first node last sent something."""
        self.tried = self.heard
        """When this node last tried to connect to it, or succeeded."""
        self.is_connecting = False
        self.unsaid: List[Message] = []
        """Reports that could not be sent yet."""
        self.recording = self.dialing = False
        """Whether it records what its ranks do, or connects to all other nodes; the first node does
        not know of the end of that."""
        self.finished = self.known = False
        """Whether all processes of this node have ended, and whether the first node knows that or
        is lost."""

    def connect_to(self, first: Dict[str, Any]) -> None:
        """Connect to the first node, now and after each loss of the connection."""
        self.first = first
        self.connect(first)

    def connect(self, first: Dict[str, Any]) -> None:
        """Begin to connect, in a thread: a packet may be lost, and a name server slow."""
        self.tried = time.monotonic()
        address = (first["address"], first["port"])
        self.is_connecting = threads.start(lambda: self.try_once(address))

    def try_once(self, address: Tuple[str, int]) -> None:
        """Try to connect, in a thread, and hand the connection or the error over to the loop."""
        try:
            connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT)
        except OSError as failure:
            error = failure
            self.agent.loop.hand_over(lambda: self.not_connected(error))
        else:
            self.agent.loop.hand_over(lambda: self.connected(connection))

    def not_connected(self, error: OSError) -> None:
        """Note that a try has failed; `tick` begins the next one."""
        self.is_connecting = False
        if isinstance(error, ConnectionRefusedError):
            # it listens for as long as it runs: it has ended
            self.known = self.finished

    def connected(self, connection: socket.socket) -> None:
        """Take a new connection, over which both ends must authenticate."""
        self.is_connecting = False
        self.tried = time.monotonic()
        self.member = MemberLink(connection, self.keys, host=self.agent.host)
        self.agent.loop.watch(connection.fileno(), self.read)

    def read(self) -> None:
        """Read and handle the first node's messages."""
        if self.member is None:  # it was closed after the loop saw it readable
            return
        try:
            for message in self.member.receive():
                self.heard = time.monotonic()
                self.obey(Order(message))
            if self.is_proved:
                self.flush()
        except Closed:
            # the first node closes a connection when it has read all of it
            self.known = self.finished and not self.unsaid
            self.drop()
        except Broken:
            self.drop()

    def obey(self, order: Order) -> None:
        """Do what the first node wants."""
        if order.record and self.progress is not None:
            self.progress.record()
            self.recording = True
        if order.dial and self.progress is not None:
            self.progress.dial(order.dial)
            self.dialing = True
        if order.stop is not None:
            cause = {} if order.hang is None else {"hang": order.hang}
            self.agent.end(order.stop, order.why or "the others end", **cause)

    def drop(self) -> None:
        """Close the connection."""
        if self.member is not None:
            self.agent.loop.ignore(self.member.socket.fileno())
            self.member.socket.close()
            self.member = None
        if self.finished and not self.known and not self.unsaid:
            # it was sent, but may not have arrived: a reset discards what is on its way
            self.unsaid.append({"done": True})

    def note(self, message: Message) -> None:
        """Handle an event of this node; those after its end are not reported."""
        if self.finished:
            return
        news = news_of(message)
        self.finished = "done" in news
        if news:
            self.say(news)

    def say(self, news: Message) -> None:
        """Send a report, after those that could not be sent before."""
        self.unsaid.append(news)
        if self.is_proved:
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
        """Return whether the first node does not know yet how this node ended."""
        wanted = not self.known and (self.finished or bool(self.unsaid))
        return wanted and time.monotonic() - self.heard < self.timeout

    def tick(self, now: float) -> None:
        """Send heartbeats and reconnect; end the node when the first node is unreachable too
        long."""
        if self.first is None or self.known:
            return
        if self.member is not None and not self.is_proved and now - self.tried > PROOF_TIMEOUT:
            self.drop()
        is_due = now - self.tried > REDIAL
        if self.member is None and not self.is_connecting and is_due:
            self.connect(self.first)
        unheard = now - self.heard
        if unheard > self.timeout and not self.agent.done:
            why = f"the first node was lost: no heartbeat for {unheard:.0f} s"
            self.agent.end(self.grace, why)
        if self.progress is not None:
            self.progress.tick(now)
            self.report_answers(self.progress)
        if self.is_proved and not self.finished and now - self.beaten > self.beat:
            self.beaten = now
            self.say(self.report())

    @property
    def is_proved(self) -> bool:
        """Whether there is a connection over which the first node has authenticated itself."""
        return self.member is not None and self.member.proved

    def report_answers(self, progress: RankProgress) -> None:
        """Tell the first node when that is done which it has asked for."""
        if self.recording and progress.recorded:
            self.recording = False
            self.say({**self.report(), "port": progress.port})
        if self.dialing and progress.dialed:
            self.dialing = False
            self.say({**self.report(), "dialed": True})

    def report(self) -> Message:
        """Return for how long the ranks of this node have made no progress."""
        if self.progress is None:
            return {"idle": self.agent.idle}
        quiet = self.progress.quiet()
        return {"idle": quiet.idle, "printed": quiet.printed, "moved": quiet.moved}
