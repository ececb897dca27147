"""The states of the nodes in SLURM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.preflight.check import (
    Check,
    Finding,
    Flow,
    Level,
    Nodes,
    Question,
    Round,
    Scope,
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
AWAY = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "FUTURE"}
TO_REBOOT = {"REBOOT_REQUESTED", "REBOOT_ISSUED"}
DOUBTFUL = {"MAINT", "MAINTENANCE", "COMPLETING", "RESERVED", "INVAL", "UNKNOWN", "BLOCKED"}
BUSY = {"ALLOCATED", "MIXED"}


def _teller(nodes: Nodes) -> str | None:
    """The first node that can ask SLURM; one question to slurmctld is enough for all."""
    for host, a in nodes.items():
        if a.has("present") and "scontrol" in a["present"] and len(a["present"]) > 1:
            return host
    return None


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, {"present": PRESENT})
    host = _teller(nodes)
    if host is None:
        return [Finding("skip", "SLURM is not installed", hosts=tuple(nodes))]
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
    states = node_states(shown["out"])
    for name, a in nodes.items():
        names = (name, str(a.hello.get("hostname", "")), name.split(".")[0], a.node.address or "")
        found = next((states[n] for n in names if n in states), None)
        yield _one(name, found)


class SlurmNodeState(Struct, frozen=True):
    """The state of a node as `scontrol show node` prints it; scontrol(1), NODE STATE CODES."""

    text: str
    reason: str

    @property
    def flags(self) -> frozenset[str]:
        """The states, such as `IDLE` and `DRAIN`."""
        return frozenset(re.split(r"[+]", self.text.rstrip("*~#$@^!%-").upper()))

    @property
    def responding(self) -> bool:
        """Whether slurmctld reaches the node."""
        return "*" not in self.text

    @property
    def changing(self) -> bool:
        """Whether it is powered up or down, rebooted, reserved or planned."""
        return self.text[-1:] in "@$^!%~#"


_FIELD = re.compile(r"(?:^|\s)(NodeName|NodeHostName|NodeAddr|State)=(\S+)")


def node_states(text: str) -> dict[str, SlurmNodeState]:
    """Parse `scontrol show node -o`: states by name, host name and address."""
    found: dict[str, SlurmNodeState] = {}
    for line in text.splitlines():
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(line):
            fields.setdefault(name, value)  # free text, such as the reason, comes later
        reason = line.partition(" Reason=")[2].strip()
        if reason.endswith("]"):  # who set it, and when
            reason = reason.rpartition(" [")[0].strip()
        if "State" in fields and "NodeName" in fields:
            for key in ("NodeAddr", "NodeHostName", "NodeName"):
                found[fields.get(key, "")] = SlurmNodeState(fields["State"], reason)
    return found


def _one(host: str, state: SlurmNodeState | None) -> Finding:
    if state is None:
        return Finding("info", "not a node of this SLURM cluster", hosts=(host,))
    words = f"SLURM state {state.text.lower()}" + (f": {state.reason}" if state.reason else "")
    level: Level = "pass"
    if state.flags & BAD or not state.responding:
        level = "fail"
    elif state.flags & (DOUBTFUL | AWAY | TO_REBOOT) or state.changing:
        level = "warn"
    elif state.flags & BUSY:
        return Finding("info", "a SLURM job is running", hosts=(host,))
    return Finding(level, words, "idle" if level != "pass" else "", hosts=(host,))


CHECK = Check(
    title="nodes are available in SLURM",
    why=(
        "A drained node was taken out of service for a reason. pam_slurm_adopt "
        "refuses logins to nodes without a job of the user, and a later job would "
        "share the GPUs."
    ),
    fix=(
        "read the reason with `scontrol show node NODE`; run `scontrol update "
        "nodename=NODE state=resume` after the repair"
    ),
    see="scontrol show node NODE",
    source="SLURM scontrol(1), NODE STATE CODES; pam_slurm_adopt",
    flow=_flow,
)
