"""The rules of a lint: those of a package's modules, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from dslaunch.lint.remark import Remark
from dslaunch.registry import Registry, modules_in

Text = TypeVar("Text")
Rule = Callable[[Text], Iterable[Remark]]


@dataclass(frozen=True, slots=True)
class Rules(Generic[Text]):
    """What a lint looks for in a text that it has read."""

    names: frozenset[str]
    """What remarks can be ignored by."""
    functions: tuple[Rule[Text], ...]

    def remarks(self, text: Text) -> Iterator[Remark]:
        """Apply every rule."""
        for rule in self.functions:
            yield from rule(text)


def rules_of(
    directory: str, plugins: Registry[Rule[Text]], more_names: Collection[str] = ()
) -> Rules[Text]:
    """Return the rules of a directory's modules and of plugins. Raises PluginError."""
    modules = modules_in(directory)
    names = {*more_names, *(name for module in modules for name in module.NAMES)}
    functions = [rule for module in modules for rule in module.RULES]
    further = plugins.installed(taken=names)
    return Rules(frozenset({*names, *further}), (*functions, *further.values()))
