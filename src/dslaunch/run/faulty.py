"""Decide which nodes the next attempt of a run should exclude, by the outcomes so far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dslaunch.run.hang_verdict import HangCode
from dslaunch.run.known_endings import is_node_fault

if TYPE_CHECKING:
    from dslaunch.run.outcome import Outcome


def faulty_nodes(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the nodes that caused failed attempts, in the order in which they failed.

    A node counts as faulty when it was lost, when its rank reported a fault of hardware or driver,
    when a hang was due to it, or when it had the root cause of two attempts in a row: an error in
    the program fails on any node, mostly on the first, so once is not evidence.
    """
    found: list[str] = []
    before: str | None = None
    for outcome in outcomes:
        found += _hung_nodes(outcome)
        cause = outcome.cause
        host = cause.host if cause is not None else None
        if host is None or cause is None:
            before = None
            continue
        lost = cause.kind == "lost"
        repeated = host == before
        if lost or is_node_fault(outcome.ending) or repeated:
            found.append(host)
        before = host
    return tuple(dict.fromkeys(found))


def _hung_nodes(outcome: Outcome) -> tuple[str, ...]:
    """Return the node that the ranks waited for, if the fault is its own and not the program's."""
    hang = outcome.reason.hang
    if hang is None:
        return ()
    if hang.code in (HangCode.FILESYSTEM, HangCode.STOPPED) and len(hang.hosts) == 1:
        return hang.hosts
    if hang.code is HangCode.GPU:
        return tuple(dict.fromkeys(each.host for each in hang.gpus))
    if hang.code is HangCode.NETWORK:
        return _in_all_pairs(hang.unreachable)
    return ()


def _in_all_pairs(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the one node that is in every pair; none if there are several such nodes."""
    common = set(pairs[0]).intersection(*pairs) if len(pairs) > 1 else set()
    return tuple(common) if len(common) == 1 else ()
