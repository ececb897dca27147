"""Fold the nodes that a tree did not reach through their parents, by reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dslaunch.launch.decisions import Decision, DecisionCode, decision

if TYPE_CHECKING:
    from dslaunch.errors import FailureKind
    from dslaunch.transport.base import Detour


def detour_decisions(detours: Iterable[Detour]) -> tuple[Decision, ...]:
    """Return one decision for each reason, with all nodes and parents that it holds for."""
    by_kind: dict[FailureKind, list[Detour]] = {}
    for detour in detours:
        by_kind.setdefault(detour.kind, []).append(detour)
    return tuple(
        decision(
            DecisionCode.TREE_DETOUR,
            hosts=tuple(dict.fromkeys(detour.host for detour in found)),
            parents=tuple(dict.fromkeys(detour.parent for detour in found)),
            kind=kind,
        )
        for kind, found in by_kind.items()
    )
