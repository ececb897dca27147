"""The checks, one file each: a module that is not private holds `CHECK`. Those of third parties are
in `registry.CHECKS`."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from dslaunch.preflight.check import TIERS, Check, Tier
from dslaunch.registry import CHECKS


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
    found = built_in()
    return found | CHECKS.installed(taken=found)


def of_tier(checks: dict[str, Check], tier: Tier) -> dict[str, Check]:
    """The checks of a tier and of those before it."""
    wanted = TIERS[: TIERS.index(tier) + 1]
    return {name: check for name, check in checks.items() if check.tier in wanted}
