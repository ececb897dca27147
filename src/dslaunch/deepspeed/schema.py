"""The config keys of each DeepSpeed version: one table per version, as data.

tools/deepspeed_schema.py generates the tables from installed packages. A version without a table
uses the newest table that is not newer. Other tables are written by hand: see `by_hand`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from msgspec import Struct, field

from dslaunch.deepspeed.config_text import Path
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.json_text import json_literal

TABLES = files("dslaunch.deepspeed") / "tables"
LISTS = ("choices", "rejects", "auto", "requires")


class Key(Struct, frozen=True):
    """One key, or section, of the config."""

    path: str
    """`zero_optimization.stage`; `<name>` stands for any key, `[]` for any item."""
    type: str
    """`int|null`, `list[str]`, `object`, `any`; `removed`: DeepSpeed stops at it."""
    default: Any = None
    choices: tuple[Any, ...] = ()
    min: float | None = None
    above: float | None = None
    max: float | None = None
    below: float | None = None
    checked: bool = False
    """Whether pydantic validates it when DeepSpeed reads the config."""
    unknown_keys: str | None = None
    """Effect of unknown keys in a section: `forbid` or `ignore`; None: not a section."""
    rejects: tuple[str, ...] = ()
    """The kinds of values at which DeepSpeed stops, as tested; see `kind_of`."""
    auto: tuple[str, ...] = ()
    """Frameworks that replace `auto`: `hf_trainer`, `accelerate`."""
    deprecated: bool = False
    replaced_by: str | None = None
    alias_of: str | None = None
    applies_to: Mapping[str, Any] | None = None
    """For parameters of optimizers and schedulers: the types that accept it, with defaults."""
    requires: tuple[str, ...] = ()
    """Required keys of a section."""

    @property
    def name(self) -> str:
        """Return the last step of the path."""
        return self.path.rpartition(".")[2]

    @property
    def types(self) -> tuple[str, ...]:
        """Return the parts of the type."""
        return tuple(self.type.split("|"))

    @property
    def is_section(self) -> bool:
        """Return whether it is a section with keys."""
        return "object" in self.types


def kind_of(value: Any) -> str:
    """Return the kind of a value, as in `Key.rejects`."""
    if value is None or isinstance(value, bool):
        return json_literal(value)
    if isinstance(value, dict):
        return "object" if value else "empty"
    if isinstance(value, list):
        return "list" if value else "empty list"
    if isinstance(value, str):
        return "auto" if value == "auto" else "text"
    if isinstance(value, int) or float(value).is_integer():
        if value == 0:
            return "zero"
        return "negative" if value < 0 else "whole"
    return "fraction"


class Table(Struct, frozen=True, dict=True):
    """All keys of one version."""

    version: str
    keys: Mapping[str, Key]
    optimizers: tuple[str, ...] = ()
    """Names of DeepSpeed's optimizers, in lower case."""
    schedulers: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """DeepSpeed's schedulers, with their parameters and defaults, or `required`."""

    @cached_property
    def _children(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for path in self.keys:
            steps = _steps(path)
            for depth, step in enumerate(steps):
                names = found.setdefault(_joined(steps[:depth]), [])
                if step not in names:
                    names.append(step)
        return {path: tuple(names) for path, names in found.items()}

    def names(self, section: str) -> tuple[str, ...]:
        """Return the names of the keys of a section; `<name>`: any name."""
        return self._children.get(section, ())

    def general(self, path: Path) -> str | None:
        """Return the path in the table, with `<name>` and `[]`; None: unknown."""
        here = ""
        for step in path:
            names = self.names(here)
            found = "[]" if isinstance(step, int) else step
            if isinstance(step, str) and step not in names:
                found = next((name for name in names if name.startswith("<")), step)
            if found not in names:
                return None
            here = _joined([here, found] if here else [found])
        return here

    def find(self, path: Path) -> Key | None:
        """Return the key at a path of a config; None: unknown in this version."""
        general = self.general(path)
        return self.keys.get(general) if general is not None else None

    def below(self, section: str) -> Iterator[Key]:
        """Return the keys of a section that are in the table."""
        for name in self.names(section):
            key = self.keys.get(_joined([section, name] if section else [name]))
            if key:
                yield key


def _steps(path: str) -> list[str]:
    return path.replace("[]", ".[]").split(".") if path else []


def _joined(steps: list[str]) -> str:
    return ".".join(steps).replace(".[]", "[]")


@cache
def versions() -> tuple[str, ...]:
    """Return the versions with a table, oldest first."""
    names = (each.name.removesuffix(".json") for each in TABLES.iterdir())
    return tuple(sorted((name for name in names if name[:1].isdecimal()), key=number))


def number(version: str) -> tuple[int, ...]:
    """Return a version as numbers, without a suffix as in `0.19.8+cu121`.

    Raises UsageError for an invalid version.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if not found:
        raise UsageError.coded(
            ErrorCode.INVALID_OPTION,
            option="--deepspeed",
            value=version,
            expected="a version number",
            example="0.19.8",
        )
    return tuple(map(int, found[1].split(".")))


def table(version: str | None = None) -> Table:
    """Return the table for configs of this version; None: the newest.

    Raises UsageError for an invalid version.
    """
    known = versions()
    if version is None:
        return load(known[-1])
    fitting = [each for each in known if number(each) <= number(version)]
    return load(fitting[-1] if fitting else known[0])


@cache
def load(version: str) -> Table:
    """Load the table of exactly this version."""
    content = json.loads((TABLES / f"{version}.json").read_text("utf-8"))
    keys = {path: _key(path, row) for path, row in content["keys"].items()}
    return Table(content["deepspeed"], keys, tuple(content["optimizers"]), content["schedulers"])


def _key(path: str, row: dict[str, Any]) -> Key:
    known = set(Key.__struct_fields__)
    settings: dict[str, Any] = {
        name: tuple(value) if name in LISTS else value
        for name, value in row.items()
        if name in known
    }
    return Key(path, **settings)


@cache
def by_hand(name: str) -> Mapping[str, Any]:
    """Return a table that is written by hand.

    `keys`: meanings and notes; `unknown_keys`: names that only documentation or older versions
    have, and sections whose names have other meanings elsewhere; `other_programs`: names of other
    programs; `torch`: torch's optimizers and schedulers; `models`: defaults of transformers;
    `pickled_names`: names that files of checkpoints may load.
    """
    found: dict[str, Any] = json.loads((TABLES / f"{name}.json").read_text("utf-8"))
    return found
