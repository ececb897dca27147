"""What both ends of the link between the nodes of a detached run have in common."""

from __future__ import annotations

from dslaunch.node.rank_progress import RankProgress

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Optional

    from dslaunch.node.agent import Agent
    from dslaunch.node.member_link import Message

BEAT = 5.0
"""Seconds between two heartbeats, at most."""


class LinkEnd:
    """One node's end of the link. `link` holds keys and times (seconds)."""

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
