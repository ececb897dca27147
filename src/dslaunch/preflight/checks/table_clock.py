"""Checks of the nodes' clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from dslaunch.preflight.check import (
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    passed,
    skipped,
)
from dslaunch.preflight.flow import NodeFlow, compared, each
from dslaunch.protocol.survey import Ran
from dslaunch.registry import LAUNCHERS


def _compare_clock_skew(nodes: Nodes) -> Iterator[Finding]:
    """Against the other nodes: our own clock may be the wrong one."""
    clocks = {host: a.clock for host, a in nodes.items() if a.clock is not None}
    unknown = tuple(host for host in nodes if host not in clocks)
    yield Finding("unknown", "clock offset not measured", hosts=unknown)
    first = next(iter(nodes.values()))
    launcher = LAUNCHERS.find(first.scope.launcher)
    by_clock = launcher is not None and launcher.compares_clocks
    warn, fail = first.limits["warn"], first.limits["elastic" if by_clock else "fail"]
    fine = []
    for host, difference in clock_differences(clocks).items():
        off = max(0.0, abs(difference.ahead) - difference.error)
        if off < warn:
            fine.append(host)
            continue
        side = "ahead of" if difference.ahead > 0 else "behind"
        found = f"clock {abs(difference.ahead):.1f} s {side} the other nodes"
        level: Level = "fail" if off >= fail else "warn"
        yield Finding(level, found, f"less than {warn:g} s", hosts=(host,))
    yield Finding("pass", f"clock within {warn:g} s of the other nodes", hosts=tuple(fine))


class ClockDifference(Struct, frozen=True):
    """How far a node's clock is from those of the other nodes, in seconds."""

    ahead: float
    """Negative: it is behind."""
    error: float
    """By how much that may be wrong."""


def clock_differences(clocks: Mapping[str, tuple[float, float]]) -> dict[str, ClockDifference]:
    """Compare the clock of each node with the median of the other nodes' clocks.

    `clocks`: by host, the seconds by which it is ahead of ours, and by how much that may be wrong.
    """
    hosts = sorted(clocks, key=lambda host: clocks[host])
    places = {host: place for place, host in enumerate(hosts)}
    found = {}
    for host, clock in clocks.items():
        middle = [clocks[other] for other in _middle_of_others(hosts, places[host])]
        found[host] = _difference(clock, middle)
    return found


def _middle_of_others(hosts: Sequence[str], place: int) -> list[str]:
    """Return which of the hosts is in the middle when the one at a place is left out: two of an
    even number, none if there is no other."""
    count = len(hosts) - 1
    middle = sorted({(count - 1) // 2, count // 2}) if count else []
    return [hosts[at if at < place else at + 1] for at in middle]


def _difference(
    clock: tuple[float, float], middle: Sequence[tuple[float, float]]
) -> ClockDifference:
    """Return the difference from the closer one of two clocks: of three nodes with one wrong clock,
    the two right ones are not behind by half of what that is ahead."""
    offset, error = clock
    if not middle:
        return ClockDifference(0.0, error)
    near_offset, near_error = min(middle, key=lambda other: abs(other[0] - offset))
    return ClockDifference(offset - near_offset, error + near_error)


NOT_FOUND = 127
"""The exit code for a program that is not there."""

TIMESYNCD = "/run/systemd/timesync/synchronized"
"""systemd-timesyncd makes it when the clock has been set (systemd-timesyncd.service(8))."""
CHRONY = ("/run/chrony/chronyd.pid", "/run/chronyd.pid", "/var/run/chrony/chronyd.pid")
KEEPERS = Question("read", [TIMESYNCD, *CHRONY, "/proc/1/comm"])
TRACKING = Question("run", {"argv": ["chronyc", "-n", "tracking"]}, 5)
TIMEDATE = Question(
    "run", {"argv": ["timedatectl", "show", "-p", "NTPSynchronized", "-p", "NTP"]}, 5
)


def _flow_clock_sync(a: NodeAnswers) -> NodeFlow:
    """Ask a program if no file shows that the clock is synchronized."""
    files = a["files"]
    if TIMESYNCD in files:
        return [passed("clock synchronized by systemd-timesyncd")]
    if any(path in files for path in CHRONY):
        a = yield {"said": TRACKING}
        return [CHRONY_FINDINGS[chrony_status(a.value(TRACKING))]]
    if files.get("/proc/1/comm") == "systemd":
        a = yield {"said": TIMEDATE}
        return [TIMEDATE_FINDINGS[timedatectl_status(a.value(TIMEDATE))]]
    return [skipped("no time service found: a container, or its host synchronizes the clock")]


class Synchronization(Enum):
    """What a program reports of the clock's synchronization."""

    SYNCHRONIZED = "synchronized"
    NO_SERVER = "no server has answered"
    NO_SERVICE = "NTP is disabled"
    NO_PROGRAM = "the program is not installed"
    NO_ANSWER = "the program failed"


def timedatectl_status(ran: Ran) -> Synchronization:
    """Parse `timedatectl show -p NTPSynchronized -p NTP`."""
    if ran["code"] == NOT_FOUND:
        return Synchronization.NO_PROGRAM
    if ran["code"]:
        return Synchronization.NO_ANSWER
    properties = dict(line.split("=", 1) for line in ran["out"].splitlines() if "=" in line)
    if properties.get("NTPSynchronized") == "yes":
        return Synchronization.SYNCHRONIZED
    off = properties.get("NTP") == "no"
    return Synchronization.NO_SERVICE if off else Synchronization.NO_SERVER


_UNSYNCHRONIZED = re.compile(r"Leap status\s*:\s*Not synchroni[sz]ed|^Stratum\s*:\s*0\s*$", re.M)


def chrony_status(ran: Ran) -> Synchronization:
    """Parse `chronyc -n tracking`."""
    if ran["code"] == NOT_FOUND:
        return Synchronization.NO_PROGRAM
    if ran["code"]:
        return Synchronization.NO_ANSWER
    reaches_none = _UNSYNCHRONIZED.search(ran["out"] + ran["err"])
    return Synchronization.NO_SERVER if reaches_none else Synchronization.SYNCHRONIZED


NO_PROGRAM = skipped("chronyc and timedatectl not found")
TIMEDATE_FINDINGS = {
    Synchronization.SYNCHRONIZED: passed("clock synchronized"),
    Synchronization.NO_SERVER: Finding(
        "warn", "clock not synchronized: no NTP server has answered yet", "synchronized"
    ),
    Synchronization.NO_SERVICE: Finding(
        "warn", "clock not synchronized: no NTP service is enabled", "synchronized"
    ),
    Synchronization.NO_PROGRAM: NO_PROGRAM,
    Synchronization.NO_ANSWER: Finding("unknown", "timedatectl does not answer"),
}
CHRONY_FINDINGS = {
    Synchronization.SYNCHRONIZED: passed("clock synchronized by chronyd"),
    Synchronization.NO_SERVER: Finding(
        "warn", "clock not synchronized: chronyd reaches no server", "synchronized"
    ),
    Synchronization.NO_PROGRAM: NO_PROGRAM,
    Synchronization.NO_ANSWER: Finding(
        "warn", "chronyd does not answer", "a daemon that synchronizes the clock"
    ),
}


CHECKS = {
    "clock.skew": Check(
        title="clocks of all nodes agree",
        tier="gate",
        why=(
            "torchrun's c10d rendezvous silently drops nodes whose clock is 15 s off: a "
            "node may train alone and report success. Logs cannot be ordered; munge and "
            "Kerberos refuse at 300 s."
        ),
        fix="start chronyd or systemd-timesyncd, and check that it reaches its servers",
        see="chronyc tracking || timedatectl",
        source="torch 2.13 elastic/rendezvous/dynamic_rendezvous.py (_sanitize: keep-alive 5 s x "
        "3); pytorch#76287",
        flow=compared(_compare_clock_skew),
        limits={"warn": 1.0, "elastic": 10.0, "fail": 60.0},
        limits_mean=(
            "seconds from the median of the other nodes' clocks; `elastic` applies to "
            "torchrun's c10d rendezvous"
        ),
    ),
    "clock.sync": Check(
        title="clocks are synchronized",
        why=(
            "An unsynchronized clock drifts by about a second per day; torchrun's c10d "
            "rendezvous drops nodes at 15 s, munge and Kerberos refuse at 300 s."
        ),
        fix=(
            "run `systemctl enable --now chronyd` (or systemd-timesyncd), and check that "
            "it reaches its servers"
        ),
        see="chronyc tracking || timedatectl",
        source="systemd-timesyncd.service(8); chronyc(1), tracking",
        flow=each(_flow_clock_sync, lambda scope: {"files": KEEPERS}),
    ),
}
