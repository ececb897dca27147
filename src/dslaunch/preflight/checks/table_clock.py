"""Checks of the nodes' clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from statistics import median

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
    """Against the middle one: our own clock may be the wrong one."""
    clocks = {host: a.clock for host, a in nodes.items() if a.clock is not None}
    unknown = tuple(host for host in nodes if host not in clocks)
    yield Finding("unknown", "clock offset not measured", hosts=unknown)
    middle = median(offset for offset, _ in clocks.values()) if clocks else 0.0
    first = next(iter(nodes.values()))
    launcher = LAUNCHERS.find(first.scope.launcher)
    by_clock = launcher is not None and launcher.compares_clocks
    warn, fail = first.limits["warn"], first.limits["elastic" if by_clock else "fail"]
    fine = []
    for host, (offset, error) in clocks.items():
        ahead = offset - middle
        off = max(0.0, abs(ahead) - error)
        if off < warn:
            fine.append(host)
            continue
        found = f"clock {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the other nodes"
        level: Level = "fail" if off >= fail else "warn"
        yield Finding(level, found, f"less than {warn:g} s", hosts=(host,))
    yield Finding("pass", f"clock within {warn:g} s of the other nodes", hosts=tuple(fine))


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


_UNSYNCHRONIZED = re.compile(r"Leap status\s*:\s*Not synchronized|^Stratum\s*:\s*0\s*$", re.M)


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
            "seconds from the median of all nodes' clocks; `elastic` applies to "
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
