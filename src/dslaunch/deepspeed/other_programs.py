"""What people write that is not DeepSpeed's: names of other programs, and what to do about them.

Names alone mislead (`max_grad_norm` looks like a parameter of an optimizer), so they are looked up
before any comparison of letters. They and their sources are in `tables/other_programs.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dslaunch.deepspeed.config_text import Path, path_text
from dslaunch.deepspeed.schema import Table, by_hand


@dataclass(frozen=True, slots=True)
class KeyAdvice:
    """What to do about a key that is not DeepSpeed's."""

    fix: str
    target: str | None = None
    """The key of the config that is meant; None: it has none, another program reads this."""


def names(kind: str) -> Any:
    """Return a part of the table, such as `gpt_neox`."""
    return by_hand("other_programs")[kind]


def meanings(kind: str) -> Mapping[str, str]:
    """Return a part of the table that lists names by their meaning, by name."""
    return {name: meaning for meaning, listed in names(kind).items() for name in listed}


def advice(path: Path, table: Table) -> KeyAdvice | None:
    """Return what to do about an unknown key, where its name is known from elsewhere."""
    name = normalized(path[-1])
    if len(path) == 1:
        found = _top_level().get(name)
        return found if found and _exists(found, table) else None
    section = names("in_sections").get(path_text(path[:-1]), {})
    fix = next((fix for fix, listed in section.items() if name in listed), None)
    if fix is None:
        return None
    target = fix.removeprefix("the key is ") if fix.startswith("the key is ") else ""
    return KeyAdvice(fix, target if target.replace("_", "").isalnum() else None)


@cache
def _top_level() -> Mapping[str, KeyAdvice]:
    keys = meanings("keys")
    renamed = {name: KeyAdvice(f"the key is {target}", target) for name, target in keys.items()}
    return renamed | {name: KeyAdvice(fix) for name, fix in meanings("advice").items()}


def with_letter(letter: str) -> list[str]:
    """Return the other names of DeepSpeed's keys that begin with a letter."""
    return [name for name, known in _top_level().items() if known.target and name[0] == letter]


def normalized(name: object) -> str:
    """Return a name without what differs between programs: dashes, capitals."""
    return str(name).lower().replace("-", "_").strip()


def _exists(found: KeyAdvice, table: Table) -> bool:
    return found.target is None or any(
        part in table.keys or table.names(part) for part in found.target.split(" or ")
    )
