"""The reports and orders that the nodes of a detached run send each other, validated."""

from __future__ import annotations

from dslaunch.node.member_link import Broken
from dslaunch.node.rank_progress import Quiet

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, List, Optional

    from dslaunch.node.member_link import Message

MOST_TEXT = 300
"""Characters of a reason that another node sends, at most."""
MOST_SECONDS = 1e9
"""The longest time that another node may report."""
LAST_PORT = 65535


class News:
    """A node's report, validated. Raises Broken for anything invalid."""

    def __init__(self, message: Message) -> None:
        idle, printed = _seconds(message, "idle"), _seconds(message, "printed")
        self.quiet: Optional[Quiet] = None
        """None: it does not report how long its ranks have made no progress."""
        if idle is not None:
            self.quiet = Quiet(idle, printed or 0.0, _seconds(message, "moved"))
        self.port = _port(message.get("port"))
        """It has recorded what its ranks do, and listens at this port; 0: at none."""
        self.dialed = _flag(message, "dialed")
        self.failed = _text(message, "failed")
        self.good = _flag(message, "good")
        self.done = _flag(message, "done")


class Order:
    """An order of the first node, validated. Raises Broken for anything invalid."""

    def __init__(self, message: Message) -> None:
        self.record = _flag(message, "record")
        """To record what the ranks do."""
        self.dial = _ports(message, "dial")
        """To connect to the other nodes: the port of each, in the order of the hosts; 0: none."""
        self.stop = _seconds(message, "stop")
        """To end them: the seconds that they have for it."""
        self.hang = _seconds(message, "hang")
        """The seconds for which no rank had made progress; None: that is not the reason."""
        self.why = _text(message, "why")


def news_of(event: Message) -> Message:
    """Return the report about an event that other nodes must know."""
    kind = event.get("event")
    if kind == "exit" and not event["asked"]:
        bad = event["code"] or event["signal"] is not None
        return {"failed": f"rank {event['rank']} failed"} if bad else {"good": True}
    if kind == "unstarted":
        return {"failed": "a rank could not start"}
    if kind == "stopping":
        return {"failed": _short(f"stopped by {event.get('by')}")}
    return {"done": True} if kind == "done" else {}


def _seconds(message: Message, name: str) -> Optional[float]:
    value = message.get(name)
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_SECONDS:
        raise Broken(f"{name} is not a number of seconds")
    return float(value)


def _port(value: Any) -> Optional[int]:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LAST_PORT:
        raise Broken("a port is not a number of a port")
    return value


def _ports(message: Message, name: str) -> List[int]:
    value = message.get(name, [])
    if not isinstance(value, list):
        raise Broken(f"{name} is not a list of ports")
    return [_port(each) or 0 for each in value]


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


def _short(text: str) -> str:
    """Return a text that `_text` accepts."""
    return "".join(c if c.isprintable() else "?" for c in text)[:MOST_TEXT]
