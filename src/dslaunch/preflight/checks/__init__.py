"""The checks. A module that is not private holds `CHECK`, or as `table_...` several rows `CHECKS`.

Those of third parties are in `registry.CHECKS`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from importlib import import_module

from msgspec.structs import replace

from dslaunch.json_text import json_text
from dslaunch.preflight.check import TIERS, Check, Finding, Flow, Question, Round, Scope, Tier
from dslaunch.registry import CHECKS

_CHECK_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.[a-z0-9][a-z0-9.-]*")
"""A check's name: the part before the full stop is that of a family, for --only and --skip."""


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
    installed = CHECKS.installed(found)
    for name in installed:
        if not _CHECK_NAME.fullmatch(name):
            CHECKS.fail(name, "has no name of the form `family.name`, such as `acme.memory`")
    return found | {name: _checked(name, check) for name, check in installed.items()}


def _checked(name: str, check: Check) -> Check:
    """Return a plugin's check that raises PluginError for questions that cannot be asked."""

    def flow(scope: Scope) -> Flow:
        own = check.flow(scope)
        CHECKS.check_returned(name, own, Generator)
        try:
            asked = next(own)
            while True:
                _check_round(name, asked)
                asked = own.send((yield asked))
        except StopIteration as end:
            findings: Iterable[Finding] = end.value
            return findings

    return replace(check, flow=flow)


def _check_round(name: str, asked: Round) -> None:
    """Raise PluginError if questions of a plugin's check are none."""
    CHECKS.check_returned(name, asked, Round)
    for questions in (*asked.asked.values(), asked.here, *asked.last.values()):
        CHECKS.check_returned(name, questions, Mapping)
        for question in questions.values():
            CHECKS.check_returned(name, question, Question)
            try:
                json_text([question.argument, question.timeout])
            except (TypeError, ValueError):
                CHECKS.fail(name, f"asks `{question.kind}` with an argument that is not JSON")


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
