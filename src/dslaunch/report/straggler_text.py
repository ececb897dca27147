"""The texts of stragglers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.run.slower_rank import Evidence, Reason, SlowerRank
from dslaunch.terminal import one_line

_EVIDENCE: Mapping[Evidence, str] = {
    Evidence.CPU: "busy while the others sleep",
    Evidence.GPU_IDLE: "GPU partly idle while the others are busy",
    Evidence.GPU_THROTTLED: "GPU clock lower than that of the others",
    Evidence.GPU_POWER: "GPU computes while the others only wait",
    Evidence.COLLECTIVES: "last in most collectives",
}
_REASONS: Mapping[Reason, str] = {
    Reason.CPU_LIMIT: "CPU limit of a control group reached",
    Reason.OTHER_LOAD: "other processes on the node use its CPUs",
    Reason.THERMAL: "GPU too hot",
    Reason.POWER_BRAKE: "GPU slowed down by the power supply",
    Reason.HARDWARE: "GPU slowed down by the hardware",
    Reason.LINK_ERRORS: "errors on the node's links",
    Reason.CLOCK: "GPU clock lower than that of the others",
    Reason.DISK: "disks of the node busier than those of the others",
    Reason.NODE: "all ranks of the node are slow",
}


def straggler_rows(stragglers: tuple[SlowerRank, ...]) -> list[str]:
    """Return a line per node whose ranks the others wait for."""
    rows = []
    in_order = sorted(stragglers, key=lambda each: (each.host, each.rank))
    for host, group in groupby(in_order, key=lambda each: each.host):
        several = list(group)
        ranks = ranks_text(each.rank for each in several)
        why = "; ".join(reason_text(reason) for reason in several[0].reasons)
        reason = f" ({why})" if why else ""
        evidence = _EVIDENCE[several[0].evidence]
        text = f"slow: {ranks} on {host}: {evidence}{_cost(several)}{reason}"
        rows.append(one_line(text))
    return rows


def _cost(slow: list[SlowerRank]) -> str:
    """Return how long the others wait for the slowest of these ranks, if that is known."""
    costs = [each.cost for each in slow if each.cost is not None]
    return f", the others wait for {100 * max(costs):.0f} % of each step" if costs else ""


def reason_text(reason: Reason) -> str:
    """Return why a rank is slow."""
    return _REASONS[reason]
