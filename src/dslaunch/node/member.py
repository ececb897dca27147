"""Every other node of a detached run: it reports to the first node, and does what that decides."""

from __future__ import annotations

import socket
import time

from dslaunch.node import threads
from dslaunch.node.link_end import LinkEnd
from dslaunch.node.link_messages import Order, news_of
from dslaunch.node.member_connections import PROOF_TIMEOUT
from dslaunch.node.member_link import Broken, Closed, MemberLink

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Tuple

    from dslaunch.node.agent import Agent
    from dslaunch.node.member_link import Message
    from dslaunch.node.rank_progress import RankProgress

REDIAL = 1.0
"""Seconds between two tries to connect."""
CONNECT_TIMEOUT = 1.0
"""Seconds for one try to connect."""


class Member(LinkEnd):
    """The end of every node but the first."""

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
