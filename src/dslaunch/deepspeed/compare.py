"""Compare the effective values of two configs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dslaunch.deepspeed.config_text import ConfigDocument, Path, path_text
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.deepspeed.schema import Table

UNSET = "(not set)"
ZERO = "zero_optimization"
OVERLAP = f"{ZERO}.overlap_comm"
OFFLOAD = {
    f"{ZERO}.cpu_offload": f"{ZERO}.offload_optimizer.device",
    f"{ZERO}.cpu_offload_param": f"{ZERO}.offload_param.device",
}
"""Deprecated switches, and the settings that DeepSpeed makes of them."""


class Difference(Struct, frozen=True):
    """A key with different effective values in two configs."""

    path: str
    first: Any
    second: Any
    written: tuple[bool, bool]
    """Whether each config sets the key; otherwise the value is the default."""


def differences(
    first: ConfigDocument, second: ConfigDocument, table: Table
) -> tuple[Difference, ...]:
    """Return the keys whose values differ, with defaults applied and names resolved.

    Unknown keys are excluded, because they have no effect.
    """
    subjects = (LintedConfig(first, table), LintedConfig(second, table))
    written = [effective(config) for config in subjects]
    found = []
    for path in dict.fromkeys([*written[0], *written[1]]):
        one, other = (_value(config, w, path) for config, w in zip(subjects, written, strict=True))
        if not _same(one, other):
            present = (path in written[0], path in written[1])
            found.append(Difference(path, one, other, present))
    return tuple(found)


def _value(config: LintedConfig, written: Mapping[str, Any], path: str) -> Any:
    """Return the effective value at a path; the default of `overlap_comm` depends on the stage."""
    value = written[path] if path in written else _default(config.table, path)
    if path == OVERLAP and value is None:
        return config.stage == 3
    return value


def effective(config: LintedConfig) -> Mapping[str, Any]:
    """Return the effective values of the keys that are set, by their current names."""
    found: dict[str, Any] = {}
    for path, value, key in config.walk():
        inside = isinstance(value, dict) and config.table.names(config.table.general(path) or "")
        if key is None and config.table.general(path) is None and not _free(path):
            continue
        if inside or (key is not None and key.type == "removed"):
            continue
        name = _own_name(path, config)
        if name in OFFLOAD:
            found |= {OFFLOAD[name]: "cpu"} if value is True else {}
        else:
            found[name] = _coerced(config, name, value)
    return found


def _free(path: Path) -> bool:
    """Return whether the key is passed on unchanged: a parameter of an optimizer or scheduler."""
    return len(path) == 3 and path[1] == "params"


def _own_name(path: Path, config: LintedConfig) -> str:
    key = config.table.find(path)
    if path[0] == "bfloat16":
        path = ("bf16", *path[1:])
    return key.alias_of if key is not None and key.alias_of and len(path) > 1 else path_text(path)


def _coerced(config: LintedConfig, name: str, value: Any) -> Any:
    key = config.table.keys.get(name)
    if value == "auto" or key is None:
        return value
    return config.get(name) if key.checked else value


def _default(table: Table, path: str) -> Any:
    key = table.keys.get(path)
    if key is None or path.startswith(("optimizer.params.", "scheduler.params.")):
        return UNSET
    return key.default


def _same(first: Any, second: Any) -> bool:
    alike = type(first) is type(second) or (_number(first) and _number(second))
    return bool(alike and first == second)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
