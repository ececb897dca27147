"""The nodes of a detached run coordinate among themselves, without a launcher.

The first node's agent listens, the others connect to it (`member_link` has the protocol). Each
reports how its ranks end, and how long they have made no progress; the first decides when all must
end, as the launcher would (`coordinator`). Before it ends a run that hangs, all nodes record what
they know of it (`hang_inquiry`). A node that cannot reach the first node within its timeout ends
(`member`).
"""

from __future__ import annotations

from dslaunch.node.coordinator import Coordinator
from dslaunch.node.member import Member

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict

    from dslaunch.node.agent import Agent
    from dslaunch.node.link_end import LinkEnd


def make(link: Dict[str, Any], agent: Agent) -> LinkEnd:
    """Return this node's end of the link: the first node coordinates. Raises OSError."""
    return Coordinator(link, agent) if link["first"] else Member(link, agent)
