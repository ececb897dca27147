"""A check: whether logs of all nodes have times of one time zone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.preflight.check import Check, Question
from dslaunch.preflight.comparison import alike

if TYPE_CHECKING:
    from dslaunch.preflight.check import NodeAnswers

FILE = "/etc/timezone"
ZONE = Question("texts", [FILE], 5)


def zone(answers: NodeAnswers) -> str:
    """Return the node's time zone. Raises UnansweredError."""
    return str(answers.value(ZONE).get(FILE, "UTC")).strip()


CHECK = Check(
    title="the nodes have one time zone",
    why="Logs of nodes with different time zones are hard to compare.",
    fix="timedatectl set-timezone UTC",
    see="cat /etc/timezone",
    source="timezone(5)",
    ask=lambda scope: {"zone": ZONE},
    compare=alike(zone, found="the time zone is {value}", whole=True),
)
