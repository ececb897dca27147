"""Decide which nodes the next attempt of a run should exclude, by the outcomes so far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dslaunch.run.known_endings import is_node_fault

if TYPE_CHECKING:
    from dslaunch.run.outcome import Outcome


def faulty_nodes(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the nodes that caused failed attempts, in the order in which they failed.

    A node counts as faulty when it was lost, when its rank reported a fault of hardware or driver,
    or when it had the root cause of two attempts in a row: an error in the program fails on any
    node, mostly on the first, so once is not evidence.
    """
    found: list[str] = []
    before: str | None = None
    for outcome in outcomes:
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
