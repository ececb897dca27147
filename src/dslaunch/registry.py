"""Parts that are found by name: a package with one file for each, or what others have installed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from dslaunch.errors import UsageError

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Registry(Generic[Part]):
    """The parts in the modules of a package that are not private.

    `_` in a module's name is `-` in the part's. Third parties add theirs by an entry point, which
    is read only when a name is not built in.
    """

    package: str
    path: Iterable[str]
    """The package's `__path__`."""
    attribute: str
    """What holds the part in its module."""
    group: str
    """Of the entry points."""
    noun: str
    """What a part is called in messages."""

    def names(self) -> tuple[str, ...]:
        """The parts that are built in."""
        modules = (m.name for m in pkgutil.iter_modules(self.path))
        return tuple(name.replace("_", "-") for name in modules if not name.startswith("_"))

    def require(self, name: str) -> None:
        """Raise UsageError when there is no part of that name. What is built in is not imported."""
        if name not in self.names():
            self._installed(name)

    def get(self, name: str) -> Part:
        """Give the part of that name. Raises UsageError when there is none."""
        if name in self.names():
            module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
            return cast(Part, getattr(module, self.attribute))
        return self._installed(name)

    def _installed(self, name: str) -> Part:
        import difflib
        from importlib.metadata import entry_points

        for entry in entry_points(group=self.group, name=name):
            return cast(Part, entry.load())
        close = difflib.get_close_matches(name, self.names(), 1)
        there_are = f"there are: {', '.join(self.names())}"
        hint = f"did you mean `{close[0]}`?" if close else there_are
        raise UsageError(f"no {self.noun} is named `{name}`", hint=hint)
