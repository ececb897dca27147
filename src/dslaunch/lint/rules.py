"""The rules of a lint: functions that declare what they report, built in or from plugins.

    @rule("nvme-path", "error", "NVMe offloading without `nvme_path`", source="DeepSpeed 0.19.8")
    def offload(config: LintedConfig) -> Iterator[Remark]: ...

A name is stable over releases, since users ignore rules by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from types import ModuleType
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.lint.remark import Level, Remark
from dslaunch.registry import Registry, modules_in

Text = TypeVar("Text")
RuleFunction = Callable[[Text], Iterable[Remark]]
Function = TypeVar("Function", bound=Callable[..., Iterable[Remark]])

_DECLARED = "declared_rules"
"""The attribute of a function that holds the rules that it declares."""


class LintRule(Struct, frozen=True):
    """One rule, with all that is known of it."""

    name: str
    severity: Level
    """The highest severity of its remarks."""
    summary: str
    """What it finds, in a few words."""
    source: str
    """Source of the rule: project, file or issue, version. Findings may override it."""
    function: Callable[..., Iterable[Remark]] | None = None
    """None: reported by the lint itself, before it applies the rules."""


def rule(
    name: str, severity: Level, summary: str, *, source: str
) -> Callable[[Function], Function]:
    """Return a decorator that declares a rule of a function, which may have several."""

    def declare(function: Function) -> Function:
        declared = LintRule(name, severity, summary, source, function)
        setattr(function, _DECLARED, (declared, *_declared(function)))
        return function

    return declare


def also_reports(function: Function) -> Function:
    """Mark a function all of whose rules are declared by another function."""
    setattr(function, _DECLARED, _declared(function))
    return function


class Rules(Struct, Generic[Text], frozen=True, dict=True):
    """All rules of a lint."""

    rules: tuple[LintRule, ...]
    functions: tuple[RuleFunction[Text], ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names by which findings can be ignored."""
        return frozenset(self._sources)

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {each.name: each.source for each in self.rules}

    def remarks(self, text: Text) -> Iterator[Remark]:
        """Apply every rule to a text that was read, and yield the findings."""
        for function in self.functions:
            for remark in function(text):
                yield replace(remark, source=remark.source or self._sources.get(remark.rule))


def rules_of(
    directory: str, plugins: Registry[RuleFunction[Text]], more: Collection[LintRule] = ()
) -> Rules[Text]:
    """Return the rules of a directory's modules and of plugins. Raises PluginError.

    `more` are rules that the lint itself reports.
    """
    functions = [each for module in modules_in(directory) for each in _rule_functions(module)]
    rules = [*more, *(each for function in functions for each in _declared(function))]
    installed = plugins.installed(taken={each.name for each in rules})
    for name, function in installed.items():
        declared = _declared(function) or (_of_plugin(name, function),)
        rules += declared
        functions.append(_checked(plugins, name, function, {each.name for each in declared}))
    return Rules(tuple(rules), tuple(functions))


def _checked(
    plugins: Registry[RuleFunction[Text]],
    name: str,
    function: RuleFunction[Text],
    declared: Collection[str],
) -> RuleFunction[Text]:
    """Return a plugin's function that raises PluginError for other values than its findings."""

    def checked(text: Text) -> Iterator[Remark]:
        remarks = function(text)
        plugins.check_returned(name, remarks, Iterable)
        for remark in remarks:
            plugins.check_returned(name, remark, Remark)
            if remark.rule not in declared:
                # it could not be ignored by its name
                plugins.fail(name, f"reports the rule `{remark.rule}`, which it does not declare")
            yield remark

    return checked


def _rule_functions(module: ModuleType) -> list[Callable[..., Any]]:
    """Return the rule functions that a module defines, in their order in the file."""
    own = (each for each in vars(module).values() if hasattr(each, _DECLARED))
    return [each for each in own if each.__module__ == module.__name__]


def _declared(function: Callable[..., Any]) -> tuple[LintRule, ...]:
    declared: tuple[LintRule, ...] = getattr(function, _DECLARED, ())
    return declared


def _of_plugin(name: str, function: Callable[..., Iterable[Remark]]) -> LintRule:
    """Return the rule of a plugin's function that declares none."""
    summary = (function.__doc__ or name).strip().partition("\n")[0].rstrip(".")
    return LintRule(name, "warning", summary, source=function.__module__, function=function)
