"""Whether something keeps a node's clock right."""

from __future__ import annotations

import re

from dslaunch.preflight.check import Answers, Check, Question, Verdict, passed, skipped
from dslaunch.preflight.flow import NodeFlow, each
from dslaunch.protocol.survey import Ran

NOT_FOUND = 127
"""The exit code for a program that is not there."""

TIMESYNCD = "/run/systemd/timesync/synchronized"
"""systemd-timesyncd makes it when the clock has been set (systemd-timesyncd.service(8))."""
CHRONY = ("/run/chrony/chronyd.pid", "/run/chronyd.pid", "/var/run/chrony/chronyd.pid")
FILES = Question("read", [TIMESYNCD, *CHRONY, "/proc/1/comm"])
TRACKING = Question("run", {"argv": ["chronyc", "-n", "tracking"]}, 5)
TIMEDATE = Question(
    "run", {"argv": ["timedatectl", "show", "-p", "NTPSynchronized", "-p", "NTP"]}, 5
)


def _flow(a: Answers) -> NodeFlow:
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


def _timedate(said: Ran) -> Verdict:
    if said["code"] == NOT_FOUND:
        return NO_PROGRAM
    if said["code"]:
        return Verdict("unknown", "timedatectl does not answer")
    if "NTPSynchronized=yes" in said["out"]:
        return passed("kept right")
    service = "no service is on" if "NTP=no" in said["out"] else "no server has answered yet"
    return Verdict("warn", f"the clock is not kept right: {service}", "synchronized")


def _chrony(said: Ran) -> Verdict:
    if said["code"] == NOT_FOUND:
        return NO_PROGRAM
    if said["code"]:
        return Verdict("warn", "chronyd does not answer", "a daemon that keeps the clock")
    words = said["out"] + said["err"]
    if re.search(r"Leap status\s*:\s*Not synchronised|^Stratum\s*:\s*0\s*$", words, re.M):
        found = "the clock is not kept right: chronyd reaches no server"
        return Verdict("warn", found, "synchronized")
    return passed("kept by chronyd")


CHECK = Check(
    title="something keeps the nodes' clocks right",
    tier="static",
    why="A clock that nobody keeps drifts by a second in a day or so; torchrun's c10d rendezvous "
    "drops nodes at 15 s, munge and Kerberos refuse at 300 s.",
    fix="`systemctl enable --now chronyd` (or systemd-timesyncd), and let it reach its servers",
    see="chronyc tracking || timedatectl",
    source="systemd-timesyncd.service(8); chronyc(1), tracking",
    ask=lambda scope: {"files": FILES},
    flow=each(_flow),
)
