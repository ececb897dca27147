"""A check: whether logs of all nodes have times of one time zone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.preflight.check import Check, Finding, Question, as_on, odd_ones, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.preflight.check import Answers, Nodes

FILE = "/etc/timezone"
ZONE = Question("texts", [FILE], 5)


def zone(answers: Answers) -> str:
    """Return the node's time zone. Raises UnansweredError."""
    return str(answers.value(ZONE).get(FILE, "UTC")).strip()


def judge(answers: Answers) -> Iterator[Finding]:
    """Say what the node's time zone is."""
    yield passed(f"the time zone is {zone(answers)}")


def compare(nodes: Nodes) -> Iterator[Finding]:
    """Warn of the nodes that differ from most."""
    zones = {host: zone(answers) for host, answers in nodes.items()}
    for value, hosts, common, count in odd_ones(zones):
        yield Finding("warn", f"the time zone is {value}", as_on(common, count), hosts=hosts)


CHECK = Check(
    title="the nodes have one time zone",
    tier="static",
    why="Logs of nodes with different time zones are hard to compare.",
    fix="timedatectl set-timezone UTC",
    see="cat /etc/timezone",
    source="timezone(5)",
    ask=lambda scope: {"zone": ZONE},
    judge=judge,
    compare=compare,
)
