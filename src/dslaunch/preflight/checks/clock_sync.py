"""Whether something keeps a node's clock right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dslaunch.preflight.check import (
    Answers,
    Asked,
    Check,
    Nodes,
    Question,
    Verdict,
    passed,
    skipped,
)

TIMESYNCD = "/run/systemd/timesync/synchronized"
"""systemd-timesyncd makes it when the clock has been set (systemd-timesyncd.service(8))."""
CHRONY = ("/run/chrony/chronyd.pid", "/run/chronyd.pid", "/var/run/chrony/chronyd.pid")
FILES = Question("read", [TIMESYNCD, *CHRONY, "/proc/1/comm"])
TRACKING = Question("run", {"argv": ["chronyc", "-n", "tracking"]}, 5)
TIMEDATE = Question(
    "run", {"argv": ["timedatectl", "show", "-p", "NTPSynchronized", "-p", "NTP"]}, 5
)


def _further(a: Answers) -> Question | None:
    """Whom to ask where no file says that the clock is kept."""
    if not a.has("files") or TIMESYNCD in a["files"]:
        return None
    if any(path in a["files"] for path in CHRONY):
        return TRACKING
    return TIMEDATE if a["files"].get("/proc/1/comm") == "systemd" else None


def _then(nodes: Nodes) -> Mapping[str, Asked]:
    asked = {host: _further(a) for host, a in nodes.items()}
    return {host: {"said": question} for host, question in asked.items() if question}


def _judge(a: Answers) -> Iterator[Verdict]:
    if TIMESYNCD in a["files"]:
        yield passed("kept by systemd-timesyncd")
        return
    question = _further(a)
    if question is None:
        yield skipped("no service keeps the clock there: a container, or its host does")
        return
    said = a.value(question)
    if said["code"] == 127:
        yield skipped("no program there says whether the clock is kept")
    elif question is TRACKING:
        yield _chrony(said["out"] + said["err"], said["code"])
    elif said["code"]:
        yield Verdict("unknown", "timedatectl does not answer")
    elif "NTPSynchronized=yes" in said["out"]:
        yield passed("kept right")
    else:
        service = "no service is on" if "NTP=no" in said["out"] else "no server has answered yet"
        yield Verdict("warn", f"the clock is not kept right: {service}", "synchronized")


def _chrony(words: str, code: int) -> Verdict:
    if code:
        return Verdict("warn", "chronyd does not answer", "a daemon that keeps the clock")
    if re.search(r"Leap status\s*:\s*Not synchronised|^Stratum\s*:\s*0\s*$", words, re.M):
        return Verdict(
            "warn", "the clock is not kept right: chronyd reaches no server", "synchronized"
        )
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
    then=_then,
    judge=_judge,
)
