"""What a DeepSpeed version knows of its config: one table per version, as data.

The tables are written by tools/deepspeed_schema.py from installed packages. A version that has no
table of its own is read with the newest table that is not newer, since that is what it grew from.
Beside them lie tables that are kept by hand: see `by_hand`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from dslaunch.deepspeed.config_text import Path
from dslaunch.errors import UsageError

TABLES = files("dslaunch.deepspeed") / "tables"
LISTS = ("choices", "rejects", "auto", "requires")


@dataclass(frozen=True, slots=True)
class Key:
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
    """Whether pydantic checks it when DeepSpeed reads the config."""
    unknown_keys: str | None = None
    """Of a section: `forbid` or `ignore`; None: it is no section."""
    rejects: tuple[str, ...] = ()
    """The kinds of values at which DeepSpeed stops, as found out by trying; see `kind_of`."""
    auto: tuple[str, ...] = ()
    """Who fills in `auto`: `hf_trainer`, `accelerate`."""
    deprecated: bool = False
    replaced_by: str | None = None
    alias_of: str | None = None
    applies_to: Mapping[str, Any] | None = None
    """Of an optimizer's or scheduler's parameter: the types that take it, and their defaults."""
    requires: tuple[str, ...] = ()
    """Of a section: the keys without which DeepSpeed stops."""

    @property
    def name(self) -> str:
        """The last step of the path."""
        return self.path.rpartition(".")[2]

    @property
    def types(self) -> tuple[str, ...]:
        """The parts of the type."""
        return tuple(self.type.split("|"))

    @property
    def is_section(self) -> bool:
        """Whether it has keys of its own."""
        return "object" in self.types


def kind_of(value: Any) -> str:
    """The kind of a value, in the words of `Key.rejects`."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
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


@dataclass(frozen=True)
class Table:
    """All keys of one version."""

    version: str
    keys: Mapping[str, Key]
    optimizers: tuple[str, ...] = ()
    """DeepSpeed's own, in lower case."""
    schedulers: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """DeepSpeed's own: the parameters of each and their defaults, or `required`."""

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
        """The keys that a section has; `<name>` among them: any."""
        return self._children.get(section, ())

    def general(self, path: Path) -> str | None:
        """The path as the table has it, with `<name>` and `[]`; None: not in it."""
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
        """The key at a path of a config; None: this version does not know it."""
        general = self.general(path)
        return self.keys.get(general) if general is not None else None

    def below(self, section: str) -> Iterator[Key]:
        """The keys of a section that are in the table."""
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
    """The versions that have a table, oldest first."""
    names = (each.name.removesuffix(".json") for each in TABLES.iterdir())
    return tuple(sorted((name for name in names if name[:1].isdigit()), key=number))


def number(version: str) -> tuple[int, ...]:
    """A version as numbers; what is behind them, as in `0.19.8+cu121`, is left out.

    Raises UsageError for what is none.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if not found:
        raise UsageError(f"{version!r} is no version of DeepSpeed", hint="as in 0.19.8")
    return tuple(map(int, found[1].split(".")))


def table(version: str | None = None) -> Table:
    """The table to read a config of this version with; None: the newest.

    Raises UsageError for what is no version.
    """
    known = versions()
    if version is None:
        return load(known[-1])
    fitting = [each for each in known if number(each) <= number(version)]
    return load(fitting[-1] if fitting else known[0])


@cache
def load(version: str) -> Table:
    """Read the table of exactly this version."""
    content = json.loads((TABLES / f"{version}.json").read_text("utf-8"))
    keys = {path: _key(path, row) for path, row in content["keys"].items()}
    return Table(content["deepspeed"], keys, tuple(content["optimizers"]), content["schedulers"])


def _key(path: str, row: dict[str, Any]) -> Key:
    known = {each.name for each in fields(Key)}
    settings: dict[str, Any] = {
        name: tuple(value) if name in LISTS else value
        for name, value in row.items()
        if name in known
    }
    return Key(path, **settings)


@cache
def by_hand(name: str) -> Mapping[str, Any]:
    """Return a table that no package tells.

    `keys`: meanings and notes; `unknown_keys`: names that only documentation or older versions
    have, and the sections whose names mean other things elsewhere; `other_programs`: names that
    are not DeepSpeed's; `torch`: torch's optimizers and schedulers; `models`: defaults of
    transformers; `pickled_names`: what files of checkpoints may load.
    """
    found: dict[str, Any] = json.loads((TABLES / f"{name}.json").read_text("utf-8"))
    return found
