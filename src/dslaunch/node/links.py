"""How the nodes of a detached run hold together when no launcher does.

The first node's agent listens, the others dial it. Each tells what its ranks come to; the first
decides when all must end, as the launcher would. A node that loses the first for too long ends.
"""

from __future__ import annotations

import contextlib
import socket
import time

from dslaunch.node.wire import Broken, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

    from dslaunch.node.agent import Agent
    from dslaunch.node.wire import Message


BEAT = 5.0
REDIAL = 1.0


def make(link: Dict[str, Any], agent: Agent) -> Links:
    """The end of the link for this node: the first node coordinates."""
    return Coordinator(link, agent) if link["first"] else Member(link, agent)


class Links:
    """What both ends have in common. `link` holds the token, the hosts and the times (seconds)."""

    port: Optional[int] = None

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        self.token: str = link["token"]
        self.others: List[str] = [host for host in link["hosts"] if host != agent.host]
        self.grace: float = link["grace"]
        self.exit_timeout: float = link["exit_timeout"]
        self.hang_timeout: Optional[float] = link["hang_timeout"]
        self.beat = min(BEAT, agent.times["silence"] / 3)
        self.patience: float = agent.times["silence"] + agent.times["reconnect"]
        self.agent = agent
        self.beaten = 0.0

    def dial(self, link: Dict[str, Any]) -> None:
        """Where the first node is: `addresses` and `port`."""

    def note(self, message: Message) -> None:
        """Something happened on this node."""

    def busy(self) -> bool:
        """Whether the agent must stay for the others' sake."""
        return False

    def tick(self, now: float) -> None:
        """Do what time demands."""


class Coordinator(Links):
    """The first node's end."""

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        super().__init__(link, agent)
        self.server = socket.create_server(("", 0))
        self.server.setblocking(False)
        self.port = self.server.getsockname()[1]
        self.wires: Dict[Wire, Optional[str]] = {}
        now = time.monotonic()
        self.heard = dict.fromkeys(self.others, now)
        self.idle = dict.fromkeys(link["hosts"], 0.0)
        self.finished: Dict[str, bool] = dict.fromkeys(self.others, False)
        self.good_since: Optional[float] = None
        self.stopped = False
        agent.listen(self.server.fileno(), self.accept)

    def accept(self) -> None:
        """Somebody dials; who it is must be shown by its first message."""
        with contextlib.suppress(OSError, Broken):
            wire = Wire(self.server.accept()[0], self.token, listening=True)
            self.wires[wire] = None
            self.agent.listen(wire.socket.fileno(), lambda: self.read(wire))

    def read(self, wire: Wire) -> None:
        """Take what a member says."""
        try:
            for message in wire.receive():
                self.take(wire, message)
        except Broken:
            self.drop(wire)

    def take(self, wire: Wire, message: Message) -> None:
        """One message of a member; the first names it."""
        host = message["host"]
        if host not in self.heard:
            raise Broken("not one of our nodes")
        self.wires[wire] = host
        self.heard[host] = time.monotonic()
        self.judge(host, message)
        if self.stopped:
            wire.send({"stop": self.grace})

    def drop(self, wire: Wire) -> None:
        """A connection is over; its member may dial again."""
        self.agent.ignore(wire.socket.fileno())
        self.wires.pop(wire, None)
        wire.socket.close()

    def note(self, message: Message) -> None:
        """Something happened on this node."""
        self.judge(self.agent.host, {"host": self.agent.host, **_news(message)})

    def judge(self, host: str, news: Message) -> None:
        """Decide what a node's news mean for all."""
        self.idle[host] = news.get("idle", 0.0)
        if news.get("failed"):
            self.stop(f"{news['failed']} on {host}")
        if news.get("good") and self.good_since is None:
            self.good_since = time.monotonic()
        if news.get("done") and host in self.finished:
            self.finished[host] = True

    def stop(self, why: str) -> None:
        """End all nodes, once."""
        if not self.stopped:
            self.stopped = True
            self.say({"stop": self.grace, "why": why})
            self.agent.end(self.grace, why)

    def say(self, message: Message) -> None:
        """Tell all members."""
        for wire, host in list(self.wires.items()):
            if host is not None:
                try:
                    wire.send(message)
                except Broken:
                    self.drop(wire)

    def busy(self) -> bool:
        """Whether a member that can be reached has not ended."""
        now = time.monotonic()
        return any(
            not self.finished[h] and now - self.heard[h] < self.patience for h in self.others
        )

    def tick(self, now: float) -> None:
        """Look for members that are gone, hang or will not end; show that we are there."""
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
        self.wire: Optional[Wire] = None
        self.heard = self.dialled = time.monotonic()
        self.unsaid: List[Message] = []

    def dial(self, link: Dict[str, Any]) -> None:
        """Connect to the first node, now and whenever the connection is lost."""
        self.target = link
        self.connect()

    def connect(self) -> None:
        """Try once, without waiting long."""
        assert self.target is not None
        self.dialled = time.monotonic()
        with contextlib.suppress(OSError, Broken):
            address = (self.target["address"], self.target["port"])
            wire = Wire(socket.create_connection(address, timeout=1), self.token, listening=False)
            self.wire = wire
            self.agent.listen(wire.socket.fileno(), self.read)

    def read(self) -> None:
        """Take what the first node says."""
        assert self.wire is not None
        try:
            first = not self.wire.ready()
            for message in self.wire.receive():
                self.heard = time.monotonic()
                if "stop" in message:
                    self.agent.end(message["stop"], message.get("why") or "the others end")
            if first and self.wire.ready():
                self.flush({"hello": True})
        except Broken:
            self.drop()

    def drop(self) -> None:
        """The connection is over."""
        if self.wire is not None:
            self.agent.ignore(self.wire.socket.fileno())
            self.wire.socket.close()
            self.wire = None

    def note(self, message: Message) -> None:
        """Something happened on this node."""
        news = _news(message)
        if news:
            self.flush(news)

    def flush(self, news: Message) -> None:
        """Say it, and what could not be said before."""
        self.unsaid.append({"host": self.agent.host, **news})
        if self.wire is None or not self.wire.ready():
            return
        try:
            while self.unsaid:
                self.wire.send(self.unsaid[0])
                self.unsaid.pop(0)
        except Broken:
            self.drop()

    def busy(self) -> bool:
        """Whether the first node does not know yet how this one ended."""
        return bool(self.unsaid) and time.monotonic() - self.heard < self.patience

    def tick(self, now: float) -> None:
        """Keep in touch, and end when that has failed for too long."""
        if self.target is None:
            return
        if self.wire is None and now - self.dialled > REDIAL:
            self.connect()
        if now - self.heard > self.patience and not self.agent.done:
            self.agent.end(
                self.grace, f"the first node was lost: silent for {now - self.heard:.0f} s"
            )
        if now - self.beaten > self.beat and self.wire is not None:
            self.beaten = now
            self.flush({"idle": self.agent.idle})


def _news(event: Message) -> Message:
    """What the others must know of an event."""
    kind = event.get("event")
    if kind == "exit" and not event["asked"]:
        bad = event["code"] or event["signal"] is not None
        return {"failed": f"rank {event['rank']} failed"} if bad else {"good": True}
    if kind == "unstarted":
        return {"failed": "a rank could not start"}
    if kind == "stopping":
        return {"failed": f"stopped by {event.get('by')}"}
    return {"done": True} if kind == "done" else {}
