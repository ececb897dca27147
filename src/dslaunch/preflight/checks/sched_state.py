"""What SLURM says of the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dslaunch.preflight.check import (
    Check,
    Finding,
    Flow,
    Level,
    Nodes,
    Question,
    Round,
    UnansweredError,
)

CONFIGURED = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/var/spool/slurm/conf-cache/slurm.conf",
)
PRESENT = Question("present", ["scontrol", *CONFIGURED])
SHOWN = Question("run", {"argv": ["scontrol", "show", "node", "-o"]}, 15)
BAD = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "ERROR"}
AWAY = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "REBOOT_ISSUED", "FUTURE"}
DOUBTFUL = {"MAINT", "MAINTENANCE", "COMPLETING", "RESERVED", "INVAL", "UNKNOWN", "BLOCKED"}
BUSY = {"ALLOCATED", "MIXED"}


def _teller(nodes: Nodes) -> str | None:
    """The first node that can ask SLURM; one question to slurmctld is enough for all."""
    for host, a in nodes.items():
        if a.has("present") and "scontrol" in a["present"] and len(a["present"]) > 1:
            return host
    return None


def _flow(nodes: Nodes) -> Flow:
    host = _teller(nodes)
    if host is None:
        return [Finding("skip", "there is no SLURM", hosts=tuple(nodes))]
    nodes = yield Round({host: {"shown": SHOWN}})
    return _judge(host, nodes)


def _judge(teller: str, nodes: Nodes) -> Iterator[Finding]:
    try:
        shown = nodes[teller].value(SHOWN)
    except UnansweredError as error:
        raise UnansweredError(f"scontrol on {teller}: {error}") from None
    if shown["code"]:
        words = (shown["err"].strip().splitlines() or ["no words"])[-1][:120]
        raise UnansweredError(f"scontrol on {teller} failed: {words}")
    states = known(shown["out"])
    for name, a in nodes.items():
        names = (name, str(a.hello.get("hostname", "")), name.split(".")[0], a.node.address or "")
        found = next((states[n] for n in names if n in states), None)
        yield _one(name, found)


def known(text: str) -> dict[str, tuple[str, str]]:
    """State and reason by name, host name and address, of `scontrol show node -o`."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^|\s)(NodeName|NodeHostName|NodeAddr|State)=(\S+)", line))
        reason = line.partition(" Reason=")[2].strip()
        if reason.endswith("]"):  # who set it, and when
            reason = reason.rpartition(" [")[0].strip()
        if "State" in fields and "NodeName" in fields:
            for key in ("NodeAddr", "NodeHostName", "NodeName"):
                found[fields.get(key, "")] = (fields["State"], reason)
    return found


def _one(host: str, found: tuple[str, str] | None) -> Finding:
    if found is None:
        return Finding("info", "SLURM does not know it", hosts=(host,))
    state, reason = found
    flags = set(re.split(r"[+]", state.rstrip("*~#$@^!%-").upper()))
    words = f"SLURM: {state.lower()}" + (f", {reason}" if reason else "")
    level: Level = "pass"
    if flags & BAD or "*" in state:
        level = "fail"
    elif flags & (DOUBTFUL | AWAY) or state[-1:] in "@$^!%~#":
        level = "warn"
    elif flags & BUSY:
        return Finding("info", "a job of SLURM runs there", hosts=(host,))
    return Finding(level, words, "idle" if level != "pass" else "", hosts=(host,))


CHECK = Check(
    title="SLURM has nothing against the nodes",
    why="A drained node was taken out for a reason. pam_slurm_adopt refuses logins to nodes "
    "where one has no job, and a job that comes later shares the GPUs with yours.",
    fix="`scontrol show node NODE` says why; `scontrol update nodename=NODE state=resume` when "
    "it is mended",
    see="scontrol show node NODE",
    source="SLURM scontrol(1), NODE STATE CODES; pam_slurm_adopt",
    ask=lambda scope: {"present": PRESENT},
    flow=_flow,
)
