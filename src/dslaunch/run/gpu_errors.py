"""Hardware errors of GPUs that nodes have logged during a run, and a hang due to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dslaunch.preflight import kernel_log, xid
from dslaunch.preflight.check import UnansweredError
from dslaunch.protocol.survey import Ran
from dslaunch.run.hang_verdict import GpuError, HangCode, HangVerdict
from dslaunch.run.rank_views import RankView

_OF_RANKS = frozenset({HangCode.BUSY, HangCode.NOT_ENTERED, HangCode.GPU_BUSY})
_OF_NO_RANK = frozenset({HangCode.NETWORK, HangCode.SLOW, HangCode.UNKNOWN})
"""Codes that only say what is seen of a hang: an error of a GPU explains them. A rank that waits
for its GPU computes, or is in a call that does not return."""


def logged_gpu_errors(host: str, ran: Ran | None, seconds: float) -> list[GpuError]:
    """Return the hardware errors of GPUs in the answer of a node to `kernel_log.LOG`, of the last
    seconds; none if it has not answered, or may not read its log."""
    try:
        text = kernel_log.kept(ran["out"] if ran is not None else "")
    except UnansweredError:
        return []
    found = xid.xids(text, kernel_log.since(text, seconds / 3600))
    errors = [
        GpuError(host, each.number, each.bus, each.pid) for each in found if each.is_of_hardware
    ]
    return list(dict.fromkeys(errors))


def with_gpu_errors(
    verdict: HangVerdict, errors: Sequence[GpuError], views: Mapping[int, RankView]
) -> HangVerdict:
    """Return the verdict that GPUs are the reason, if they can be; else the verdict as it is.

    A verdict about ranks stays unless the error is on their node.
    """
    if verdict.code in _OF_RANKS:
        errors = [each for each in errors if each.host in verdict.hosts]
    elif verdict.code not in _OF_NO_RANK:
        errors = []
    if not errors:
        return verdict
    hosts = {each.host for each in errors}
    pids = {(each.host, each.pid) for each in errors}
    on_nodes = [view for view in views.values() if view.host in hosts]
    named = [view for view in on_nodes if pids & _processes(view)]
    known = {rank for _, rank in verdict.ranks} if verdict.code in _OF_RANKS else set()
    waited_for = [view for view in on_nodes if view.rank in known]
    guilty = named or waited_for or on_nodes
    ranks = {view.rank for view in guilty}
    return replace(
        verdict,
        code=HangCode.GPU,
        ranks=tuple(view.source for view in guilty),
        waiting=tuple(rank for rank in verdict.waiting if rank not in ranks),
        gpus=tuple(errors),
        unreachable=(),
    )


def _processes(view: RankView) -> set[tuple[str, int | None]]:
    processes = [view.process, *view.children]
    return {(view.host, each.pid) for each in processes if each is not None}
