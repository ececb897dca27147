"""A check: whether logs of all nodes have times of one time zone."""

from __future__ import annotations

from dslaunch.plugin import Check, NodeAnswers, Question, alike, compared

FILE = "/etc/timezone"
ZONE = Question("texts", [FILE], timeout=5)


def zone(answers: NodeAnswers) -> str:
    """Return the node's time zone. Raises UnansweredError."""
    return str(answers.value(ZONE).get(FILE, "UTC")).strip()


CHECK = Check(
    title="the nodes have one time zone",
    why="Logs of nodes with different time zones are hard to compare.",
    fix="timedatectl set-timezone UTC",
    see="cat /etc/timezone",
    source="timezone(5)",
    flow=compared(
        alike(zone, found="the time zone is {value}", whole=True),
        lambda scope: {"zone": ZONE},
    ),
)
