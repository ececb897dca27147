"""Checks of the nodes' clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from dslaunch.preflight.check import Check, Finding, NodeAnswers, Nodes, Question, passed, skipped
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.protocol.survey import Ran
from dslaunch.registry import LAUNCHERS


def _compare_clock_skew(nodes: Nodes) -> Iterator[Finding]:
    """Against the middle one: our own clock may be the wrong one."""
    clocks = {host: a.clock for host, a in nodes.items() if a.clock is not None}
    for host in nodes.keys() - clocks.keys():
        yield Finding("unknown", "its clock was not asked", hosts=(host,))
    middle = median(offset for offset, _ in clocks.values()) if clocks else 0.0
    for host, (offset, error) in clocks.items():
        yield _skew_of(host, offset - middle, error, nodes)


def _skew_of(host: str, ahead: float, error: float, nodes: Nodes) -> Finding:
    a = nodes[host]
    launcher = LAUNCHERS.find(a.scope.launcher)
    by_clock = launcher is not None and launcher.compares_clocks
    limit = a.limits["elastic" if by_clock else "fail"]
    off = max(0.0, abs(ahead) - error)
    if off < a.limits["warn"]:
        return Finding("pass", f"within {a.limits['warn']:g} s of each other", hosts=(host,))
    found = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the other nodes"
    expected = f"less than {a.limits['warn']:g} s"
    return Finding("fail" if off >= limit else "warn", found, expected, hosts=(host,))


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
    """Ask a program where no file says that the clock is kept."""
    files = a["files"]
    if TIMESYNCD in files:
        return [passed("kept by systemd-timesyncd")]
    if any(path in files for path in CHRONY):
        a = yield {"said": TRACKING}
        return [_chrony(a.value(TRACKING))]
    if files.get("/proc/1/comm") == "systemd":
        a = yield {"said": TIMEDATE}
        return [_timedate(a.value(TIMEDATE))]
    return [skipped("no service keeps the clock there: a container, or its host does")]


NO_PROGRAM = skipped("no program there says whether the clock is kept")


def _timedate(said: Ran) -> Finding:
    if said["code"] == NOT_FOUND:
        return NO_PROGRAM
    if said["code"]:
        return Finding("unknown", "timedatectl does not answer")
    properties = dict(line.split("=", 1) for line in said["out"].splitlines() if "=" in line)
    if properties.get("NTPSynchronized") == "yes":
        return passed("kept right")
    off = properties.get("NTP") == "no"
    service = "no service is on" if off else "no server has answered yet"
    return Finding("warn", f"the clock is not kept right: {service}", "synchronized")


def _chrony(said: Ran) -> Finding:
    if said["code"] == NOT_FOUND:
        return NO_PROGRAM
    if said["code"]:
        return Finding("warn", "chronyd does not answer", "a daemon that keeps the clock")
    words = said["out"] + said["err"]
    if re.search(r"Leap status\s*:\s*Not synchronised|^Stratum\s*:\s*0\s*$", words, re.M):
        found = "the clock is not kept right: chronyd reaches no server"
        return Finding("warn", found, "synchronized")
    return passed("kept by chronyd")


CHECKS = {
    "clock.skew": Check(
        title="the nodes' clocks agree",
        tier="gate",
        why="torchrun's c10d rendezvous drops nodes whose clock is 15 s off, without a word: a "
        "node may train alone and report success. Logs cannot be ordered; munge and Kerberos "
        "refuse at 300 s.",
        fix="start chronyd or systemd-timesyncd there, and see that it reaches its servers",
        see="chronyc tracking || timedatectl",
        source="torch 2.13 elastic/rendezvous/dynamic_rendezvous.py (_sanitize: keep-alive 5 s x "
        "3); pytorch#76287",
        compare=_compare_clock_skew,
        limits={"warn": 1.0, "elastic": 10.0, "fail": 60.0},
        limits_mean="seconds from the middle of all nodes' clocks; `elastic` is for torchrun's "
        "c10d",
    ),
    "clock.sync": Check(
        title="something keeps the nodes' clocks right",
        why="A clock that nobody keeps drifts by a second in a day or so; torchrun's c10d "
        "rendezvous drops nodes at 15 s, munge and Kerberos refuse at 300 s.",
        fix="`systemctl enable --now chronyd` (or systemd-timesyncd), and let it reach its servers",
        see="chronyc tracking || timedatectl",
        source="systemd-timesyncd.service(8); chronyc(1), tracking",
        ask=lambda scope: {"files": KEEPERS},
        flow=each(_flow_clock_sync),
    ),
}
