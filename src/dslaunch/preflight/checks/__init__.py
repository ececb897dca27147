"""The checks, one file each: a module that is not private holds `CHECK`. Third parties add theirs
by an entry point of the group `dslaunch.checks`."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from dslaunch.preflight.check import TIERS, Check, Tier

GROUP = "dslaunch.checks"


def built_in() -> dict[str, Check]:
    """The checks of the house, by name."""
    modules = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {
        name.replace("_", ".", 1).replace("_", "-"): import_module(f"{__name__}.{name}").CHECK
        for name in modules
    }


def some(names: Sequence[str]) -> dict[str, Check]:
    """Checks of the house by their names; no other is imported."""
    modules = {name: name.replace(".", "_").replace("-", "_") for name in names}
    return {n: import_module(f"{__name__}.{m}").CHECK for n, m in modules.items()}


def load() -> dict[str, Check]:
    """All checks by name: the house's, and those that are installed beside."""
    from importlib.metadata import entry_points

    found = built_in()
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, entry.load())
    return found


def of_tier(checks: dict[str, Check], tier: Tier) -> dict[str, Check]:
    """The checks of a tier and of those before it."""
    wanted = TIERS[: TIERS.index(tier) + 1]
    return {name: check for name, check in checks.items() if check.tier in wanted}
