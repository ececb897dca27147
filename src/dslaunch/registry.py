"""All that can be added to dslaunch: what is built in, and what installed packages bring.

A built-in part is a module of the kind's directory, or a row of a table. A third party's is an
entry point of the kind's group; it is looked for only where a name is not built in, or all are
listed.
`docs/howto/write-a-plugin.md` describes what each kind is.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from dslaunch.errors import PluginError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from dslaunch.deepspeed.linted_config import LintedConfig
    from dslaunch.launch.launchers import Launcher
    from dslaunch.lint.rules import Rule
    from dslaunch.preflight.check import Check
    from dslaunch.render.formats import Format
    from dslaunch.run.known_endings import KnownEnding
    from dslaunch.slurm.training_commands import Reading
    from dslaunch.transport.base import TransportType

Part = TypeVar("Part")
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Registry(Generic[Part]):
    """The parts of one kind, by name. Raises PluginError for a broken part of a third party."""

    noun: str
    """What a part is called in messages."""
    group: str
    """Of the entry points."""
    shape: str = ""
    """The class that a part is an instance of, as `module:class`; empty: it is called."""
    directory: str = ""
    """A package with a module for each built-in part, below this file. `_` in a module's name is
    `-` in the part's; private modules hold none."""
    attribute: str = ""
    """What holds the part in such a module."""
    table: str = ""
    """A function that returns the built-in parts by name, as `module:function`, where they are rows
    of a table."""

    def names(self) -> tuple[str, ...]:
        """Return the names that are built in."""
        modules = _names_in(self.directory) if self.directory else ()
        return (*(name.replace("_", "-") for name in modules), *self._rows())

    def every_name(self) -> tuple[str, ...]:
        """Return the names that are built in or installed."""
        return (*self.names(), *self.entries())

    def require(self, name: str) -> None:
        """Raise UsageError if no part has the name. What is built in is not imported."""
        if name not in self.names():
            self._entry(name)

    def get(self, name: str) -> Part:
        """Return the part of that name. Raises UsageError if there is none."""
        rows = self._rows()
        if name in rows:
            return rows[name]
        if name in self.names():
            module = _module(self.directory, name.replace("-", "_"))
            return cast(Part, getattr(module, self.attribute))
        return self._loaded(self._entry(name))

    def find(self, name: str) -> Part | None:
        """Return the part of that name; None without one, as for answers saved elsewhere."""
        return self.get(name) if name in self.every_name() else None

    def installed(self, taken: Collection[str] = ()) -> dict[str, Part]:
        """Load and return all parts of third parties. `taken`: further names that are built in."""
        return {name: self._loaded(entry) for name, entry in self.entries(taken).items()}

    def entries(self, taken: Collection[str] = ()) -> dict[str, EntryPoint]:
        """Return the entry points by name. Raises PluginError for a name that is given twice."""
        built_in = {*self.names(), *taken}
        for name, entries in _entry_points(self.group).items():
            first, *others = entries
            if name in built_in:
                raise broken_plugin([first], f"cannot replace the built-in {self.noun} `{name}`")
            if others:
                raise broken_plugin([others[0]], "is defined by another plugin, too")
        return {name: entries[0] for name, entries in _entry_points(self.group).items()}

    def _rows(self) -> Mapping[str, Part]:
        if not self.table:
            return {}
        return cast(Callable[[], Mapping[str, Part]], _object(self.table))()

    def _entry(self, name: str) -> EntryPoint:
        entries = self.entries()
        if name in entries:
            return entries[name]
        raise unknown_name(self.noun, name, (*self.names(), *entries))

    def _loaded(self, entry: EntryPoint) -> Part:
        try:
            part = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may do anything
            raise broken_plugin([entry], f"cannot be loaded: {_described(error)}") from None
        if self.shape and not isinstance(part, cast(type, _object(self.shape))):
            raise broken_plugin([entry], f"is not a {self.shape.replace(':', '.')}")
        if not self.shape and not callable(part):
            raise broken_plugin([entry], "cannot be called")
        return cast(Part, part)


def unknown_name(noun: str, name: str, known: Sequence[str]) -> UsageError:
    """Return the error for a name that no part has, with the one that was probably meant."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(known)}"
    return UsageError(f"no {noun} is named `{name}`", hint=hint)


def modules_in(directory: str) -> tuple[ModuleType, ...]:
    """Import and return the modules of a package below this file that are not private."""
    return tuple(_module(directory, name) for name in _names_in(directory))


def raised_in_plugin(error: Exception) -> PluginError | None:
    """Return what to report instead of an error that the code of a plugin has raised.

    Which part it was is told by the modules that the traceback names.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = {str(frame.f_globals.get("__name__")) for frame in frames}
    kinds = (LAUNCHERS, FORMATS, TRANSPORTS, CHECKS, CONFIG_RULES, SCRIPT_RULES, ENDINGS)
    entries = [
        entry for kind in kinds for same in _entry_points(kind.group).values() for entry in same
    ]
    at_fault = [entry for entry in entries if entry.module in modules - {__name__}]
    if not at_fault:
        packages = {module.partition(".")[0] for module in modules} - {__package__}
        at_fault = [entry for entry in entries if entry.module.partition(".")[0] in packages]
    if not at_fault:
        return None
    return broken_plugin(at_fault, f"failed: {_described(error)}")


def broken_plugin(entries: Sequence[EntryPoint], why: str) -> PluginError:
    """Return the error for a part that cannot be used, or for those that it may be."""
    first = entries[0]
    plugin = first.dist.name if first.dist else "of unknown origin"
    parts = " or ".join(f"`{entry.name}` ({entry.group}: {entry.value})" for entry in entries)
    return PluginError(f"plugin {plugin}: {parts} {why}", hint=f"update {plugin} or uninstall it")


@cache
def _names_in(directory: str) -> tuple[str, ...]:
    modules = pkgutil.iter_modules([str(HERE / directory)])
    return tuple(m.name for m in modules if not m.name.startswith("_"))


def _module(directory: str, name: str) -> ModuleType:
    return import_module(f"{__package__}.{directory.replace('/', '.')}.{name}")


@cache
def _entry_points(group: str) -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, []).append(entry)
    return found


def _described(error: BaseException) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}".removesuffix(": ")


def _object(path: str) -> object:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


LAUNCHERS: Registry[Launcher] = Registry(
    noun="launcher",
    group="dslaunch.launchers",
    shape="dslaunch.launch.launchers:Launcher",
    directory="launch/launchers",
    attribute="LAUNCHER",
)
FORMATS: Registry[Format] = Registry(
    noun="format",
    group="dslaunch.formats",
    shape="dslaunch.render.formats:Format",
    directory="render/formats",
    attribute="FORMAT",
)
TRANSPORTS: Registry[TransportType] = Registry(
    noun="transport",
    group="dslaunch.transports",
    shape="dslaunch.transport.base:TransportType",
    directory="transport/transports",
    attribute="TRANSPORT",
)
CHECKS: Registry[Check] = Registry(
    noun="check",
    group="dslaunch.checks",
    shape="dslaunch.preflight.check:Check",
)
"""Of third parties; `preflight.checks` has the others."""
CONFIG_RULES: Registry[Rule[LintedConfig]] = Registry(noun="rule", group="dslaunch.config_rules")
"""Of third parties; `deepspeed.rules` has the others."""
SCRIPT_RULES: Registry[Rule[Reading]] = Registry(noun="rule", group="dslaunch.script_rules")
"""Of third parties; `slurm.rules` has the others."""
ENDINGS: Registry[KnownEnding] = Registry(
    noun="known ending",
    group="dslaunch.endings",
    shape="dslaunch.run.known_endings:KnownEnding",
    table="dslaunch.run.known_endings:built_in",
)
