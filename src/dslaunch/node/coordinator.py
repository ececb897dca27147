"""The first node of a detached run: it decides when all nodes end their ranks."""

from __future__ import annotations

import time

from dslaunch.node.hang_inquiry import HangInquiry
from dslaunch.node.link_end import LinkEnd
from dslaunch.node.link_messages import MOST_TEXT, News, news_of
from dslaunch.node.member_connections import MemberConnections
from dslaunch.node.rank_progress import MOST_PAIRED, Quiet, RankProgress, quiet_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional

    from dslaunch.node.agent import Agent
    from dslaunch.node.member_link import Message

NO_QUIET = Quiet(0.0, 0.0, None)
"""Of a node whose ranks have just made progress."""


class Coordinator(LinkEnd):
    """The first node's end. `link` also holds all hosts, and where to listen."""

    def __init__(self, link: Dict[str, Any], agent: Agent) -> None:
        super().__init__(link, agent)
        self.hosts: List[str] = link["hosts"]
        self.others: List[str] = [host for host in self.hosts if host != agent.host]
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
        self.connections = MemberConnections(link["listen"], self.keys, agent, self.take)
        self.port = self.connections.port

    def take(self, host: str, message: Message) -> None:
        """Handle a message of a member. Raises Broken."""
        self.heard[host] = time.monotonic()
        self.judge(host, News(message))
        if self.stopped:
            self.connections.tell(host, {"stop": self.grace})

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
            self.connections.tell_all({"stop": self.grace, "why": why[:MOST_TEXT], **cause})
            self.agent.end(self.grace, why, **cause)

    def busy(self) -> bool:
        """Return whether a reachable member has not ended."""
        now = time.monotonic()
        return any(not self.finished[h] and now - self.heard[h] < self.timeout for h in self.others)

    def tick(self, now: float) -> None:
        """Check for members that are lost, hang or do not end; send a heartbeat."""
        self.connections.tick(now)
        for host, heard in self.heard.items():
            if not self.finished[host] and now - heard > self.timeout:
                self.stop(f"{host} was lost: no heartbeat for {now - heard:.0f} s")
        if self.good_since is not None and now - self.good_since > self.exit_timeout:
            self.stop(f"still running {self.exit_timeout:g} s after others succeeded")
        if now - self.beaten > self.beat:
            self.beaten = now
            self.connections.tell_all({"beat": True})
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
            self.connections.tell_all({"record": True})
            progress.record()
        if progress.recorded:
            self.hang.recorded(self.agent.host, progress.port)
        if progress.dialed:
            self.hang.dialed(self.agent.host)
        if not self.hang.is_finished(self.quiet, now):
            return
        if not self.hang.dials and 1 < len(self.hosts) <= MOST_PAIRED:
            ports = self.hang.begin_dialing(self.hosts, now)
            self.connections.tell_all({"dial": ports})
            progress.dial(ports)
            return
        self.stop(f"hang: no progress for {quiet:.0f} s", hang=quiet)
