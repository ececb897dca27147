"""All that can be added to dslaunch: what is built in, and what installed packages bring.

A built-in part is a module of the kind's directory, or is listed here. A third party's is an entry
point of the kind's group; it is looked for only where a name is not built in, or all are listed.
`docs/howto/write-a-plugin.md` describes what each kind is.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, cast

from dslaunch.errors import DslaunchError, PluginError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from dslaunch.cluster.model import Cluster
    from dslaunch.deepspeed.subject import Subject
    from dslaunch.launch.launchers import Launcher
    from dslaunch.lint.rules import Rule
    from dslaunch.preflight.check import Check
    from dslaunch.render.formats import Format
    from dslaunch.run.known_endings import Known
    from dslaunch.slurm.launches import Reading
    from dslaunch.transport.base import Transport

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
    listed: Mapping[str, str] = field(default_factory=dict)
    """Further built-in parts, as `module:attribute`."""

    def names(self) -> tuple[str, ...]:
        """Return the names that are built in."""
        modules = _names_in(self.directory) if self.directory else ()
        return (*(name.replace("_", "-") for name in modules), *self.listed)

    def every_name(self) -> tuple[str, ...]:
        """Return the names that are built in or installed."""
        return (*self.names(), *self._entries())

    def require(self, name: str) -> None:
        """Raise UsageError if no part has the name. What is built in is not imported."""
        if name not in self.names():
            self._entry(name)

    def get(self, name: str) -> Part:
        """Return the part of that name. Raises UsageError if there is none."""
        if name in self.listed:
            return cast(Part, _object(self.listed[name]))
        if name in self.names():
            module = _module(self.directory, name.replace("-", "_"))
            return cast(Part, getattr(module, self.attribute))
        return self._loaded(self._entry(name))

    def installed(self, taken: Collection[str] = ()) -> dict[str, Part]:
        """Load and return all parts of third parties. `taken`: further names that are built in."""
        return {name: self._loaded(entry) for name, entry in self._entries(taken).items()}

    @contextmanager
    def blamed(self, name: str) -> Iterator[None]:
        """Turn what a third party's part raises unexpectedly into a PluginError."""
        try:
            yield
        except DslaunchError:
            raise
        except Exception as error:
            entry = _entry_points(self.group).get(name)
            if name in self.names() or not entry:
                raise
            self._refuse(entry[0], f"failed: {_described(error)}")

    def _entry(self, name: str) -> EntryPoint:
        entries = self._entries()
        if name in entries:
            return entries[name]
        from difflib import get_close_matches

        known = (*self.names(), *entries)
        close = get_close_matches(name, known, 1)
        hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(known)}"
        raise UsageError(f"no {self.noun} is named `{name}`", hint=hint)

    def _entries(self, taken: Collection[str] = ()) -> dict[str, EntryPoint]:
        """The entry points by name. Raises PluginError for a name that is given twice."""
        built_in = {*self.names(), *taken}
        for name, entries in _entry_points(self.group).items():
            first, *others = entries
            if name in built_in:
                self._refuse(first, f"cannot replace the built-in {self.noun} `{name}`")
            if others:
                self._refuse(others[0], f"is defined by {_distribution(first)}, too")
        return {name: entries[0] for name, entries in _entry_points(self.group).items()}

    def _loaded(self, entry: EntryPoint) -> Part:
        try:
            part = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may do anything
            self._refuse(entry, f"cannot be loaded: {_described(error)}")
        if self.shape and not isinstance(part, cast(type, _object(self.shape))):
            self._refuse(entry, f"is not a {self.shape.replace(':', '.')}")
        if not self.shape and not callable(part):
            self._refuse(entry, "cannot be called")
        return cast(Part, part)

    def _refuse(self, entry: EntryPoint, why: str) -> NoReturn:
        plugin = _distribution(entry)
        raise PluginError(
            f"plugin {plugin}: {self.noun} `{entry.name}` ({entry.group}: {entry.value}) {why}",
            hint=f"update {plugin} or uninstall it",
        )


def modules_in(directory: str) -> tuple[ModuleType, ...]:
    """Import and return the modules of a package below this file that are not private."""
    return tuple(_module(directory, name) for name in _names_in(directory))


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


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "of unknown origin"


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
TRANSPORTS: Registry[Callable[[Cluster], Transport]] = Registry(
    noun="transport",
    group="dslaunch.transports",
    listed={
        name: f"dslaunch.transport.{name}:make" for name in ("fabric", "local", "openssh", "srun")
    },
)
CHECKS: Registry[Check] = Registry(
    noun="check",
    group="dslaunch.checks",
    shape="dslaunch.preflight.check:Check",
)
"""Of third parties; `preflight.checks` has the others."""
CONFIG_RULES: Registry[Rule[Subject]] = Registry(noun="rule", group="dslaunch.config_rules")
"""Of third parties; `deepspeed.rules` has the others."""
SCRIPT_RULES: Registry[Rule[Reading]] = Registry(noun="rule", group="dslaunch.script_rules")
"""Of third parties; `slurm.rules` has the others."""
ENDINGS: Registry[Known] = Registry(
    noun="known ending",
    group="dslaunch.endings",
    shape="dslaunch.run.known_endings:Known",
)
"""Of third parties; `run.known_endings` has the others."""
