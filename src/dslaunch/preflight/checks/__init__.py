"""The checks. A module that is not private holds `CHECK`, or as `table_...` several rows `CHECKS`.

Those of third parties are in `registry.CHECKS`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from dslaunch.preflight.check import TIERS, Check, Tier
from dslaunch.registry import CHECKS


def built_in() -> dict[str, Check]:
    """The checks of the house by name, in the order of their names."""
    found: dict[str, Check] = {}
    for module in _modules():
        found |= _checks_in(module)
    return {name: found[name] for name in sorted(found, key=_module_of)}


def some(names: Sequence[str]) -> dict[str, Check]:
    """Checks of the house by their names; as few modules as possible are imported."""
    modules = _modules()
    found: dict[str, Check] = {}
    for name in names:
        alone = _module_of(name)
        area = name.partition(".")[0]
        likely = sorted(filter(_is_table, modules), key=lambda table: (area not in table, table))
        for module in [alone] if alone in modules else likely:
            if name not in found:
                found |= _checks_in(module)
    return {name: found[name] for name in names}


def load() -> dict[str, Check]:
    """All checks by name: the house's, and those that are installed beside."""
    found = built_in()
    return found | CHECKS.installed(taken=found)


def of_tier(checks: dict[str, Check], tier: Tier) -> dict[str, Check]:
    """The checks of a tier and of those before it."""
    wanted = TIERS[: TIERS.index(tier) + 1]
    return {name: check for name, check in checks.items() if check.tier in wanted}


def _modules() -> set[str]:
    return {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}


def _is_table(module: str) -> bool:
    return module.startswith("table_")


def _checks_in(module: str) -> dict[str, Check]:
    loaded = import_module(f"{__name__}.{module}")
    if _is_table(module):
        return dict(loaded.CHECKS)
    return {module.replace("_", ".", 1).replace("_", "-"): loaded.CHECK}


def _module_of(name: str) -> str:
    """The module of a check that has one for itself."""
    return name.replace(".", "_").replace("-", "_")
