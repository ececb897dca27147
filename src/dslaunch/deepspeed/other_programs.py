"""Keys of other programs in a DeepSpeed config, and what to write instead.

They are looked up before similar names, which can mislead: `max_grad_norm` looks like a parameter
of an optimizer. The names and their sources are in `tables/other_programs.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from dslaunch.deepspeed.config_text import Path, path_text
from dslaunch.deepspeed.schema import Table, by_hand


class KeyAdvice(Struct, frozen=True):
    """The advice for a key that is not DeepSpeed's."""

    fix: str
    target: str | None = None
    """The DeepSpeed key that is meant; None: no such key."""


def names(kind: str) -> Any:
    """Return a part of the table, such as `gpt_neox`."""
    return by_hand("other_programs")[kind]


def meanings(kind: str) -> Mapping[str, str]:
    """Return a part of the table that lists names by their meaning, by name."""
    return {name: meaning for meaning, listed in names(kind).items() for name in listed}


def advice(path: Path, table: Table) -> KeyAdvice | None:
    """Return the advice for an unknown key that another program has; else None."""
    name = normalized(path[-1])
    if len(path) == 1:
        found = _top_level().get(name)
        return found if found and _exists(found, table) else None
    section = names("in_sections").get(path_text(path[:-1]), {})
    meaning = next((meaning for meaning, listed in section.items() if name in listed), None)
    if meaning is None:
        return None
    # the table has the name of a key, or an advice in words
    return _renamed(meaning) if meaning.isidentifier() else KeyAdvice(meaning)


@cache
def _top_level() -> Mapping[str, KeyAdvice]:
    keys = meanings("keys")
    renamed = {name: _renamed(target) for name, target in keys.items()}
    return renamed | {name: KeyAdvice(fix) for name, fix in meanings("advice").items()}


def _renamed(target: str) -> KeyAdvice:
    return KeyAdvice(f"write {target}", target)


def with_letter(letter: str) -> list[str]:
    """Return the other names of DeepSpeed's keys that begin with a letter."""
    return [name for name, known in _top_level().items() if known.target and name[0] == letter]


def normalized(name: object) -> str:
    """Return a name without differences between programs: dashes and capitals."""
    return str(name).lower().replace("-", "_").strip()


def _exists(found: KeyAdvice, table: Table) -> bool:
    return found.target is None or any(
        part in table.keys or table.names(part) for part in found.target.split(" or ")
    )
