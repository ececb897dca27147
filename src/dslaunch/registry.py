"""All that can be added to dslaunch: what is built in, and what installed packages bring.

A built-in part is a module of the kind's directory, or a row of a table. A third party's is an
entry point of the kind's group; it is looked for only where a name is not built in, or all are
listed.
`docs/howto/write-a-plugin.md` describes what each kind is.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from msgspec import Struct

from dslaunch.errors import DslaunchError, ErrorCode, PluginError, UsageError
from dslaunch.notes import Note, NoteCode, note
from dslaunch.texts import closest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from dslaunch.deepspeed.linted_config import LintedConfig
    from dslaunch.launch.launchers import Launcher
    from dslaunch.lint.rules import RuleFunction
    from dslaunch.preflight.check import Check
    from dslaunch.render.formats import Format
    from dslaunch.run.known_endings import KnownEnding
    from dslaunch.slurm.training_commands import LintedScript
    from dslaunch.transport.base import TransportType


class PluginNote(NoteCode):
    """What to know about an installed plugin."""

    NAME_TAKEN = (
        "plugin-name-taken",
        "plugin {plugin}: `{name}` ({entry}) is not used: it is the name of a built-in {noun}",
    )


Part = TypeVar("Part")
HERE = Path(__file__).parent


class Registry(Struct, Generic[Part], frozen=True):
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
        return (*modules, *self._rows())

    def is_built_in(self, name: str) -> bool:
        """Return whether the part of that name is none of a plugin."""
        return name in self.names()

    def every_name(self) -> tuple[str, ...]:
        """Return the names that are built in or installed."""
        return tuple(dict.fromkeys((*self.names(), *_entry_points(self.group))))

    def unused(self) -> tuple[Note, ...]:
        """Return a note for each part of a plugin that has the name of a built-in one."""
        built_in = self.names()
        return tuple(
            note(
                PluginNote.NAME_TAKEN,
                plugin=plugin_of(entry),
                name=name,
                entry=f"{entry.group}: {entry.value}",
                noun=self.noun,
            )
            for name, entries in _entry_points(self.group).items()
            if name in built_in
            for entry in entries
        )

    def require(self, name: str) -> None:
        """Raise UsageError if no part has the name. What is built in is not imported."""
        if not self.is_built_in(name):
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
        # entry points are looked for only where it is not built in: that takes some milliseconds
        known = name in self.names() or name in self.every_name()
        return self.get(name) if known else None

    def installed(self, taken: Collection[str] = ()) -> dict[str, Part]:
        """Load and return all parts of third parties. `taken`: further names that are built in."""
        return {name: self._loaded(entry) for name, entry in self.entries(taken).items()}

    def entries(self, taken: Collection[str] = ()) -> dict[str, EntryPoint]:
        """Return the entry points by name. Raises PluginError for a name that is given twice."""
        built_in = {*self.names(), *taken}
        for name, entries in _entry_points(self.group).items():
            if name in built_in:
                why = f"cannot replace the built-in {self.noun} `{name}`"
                raise broken_plugin(entries[:1], why)
        return {name: self._only(entries) for name, entries in _entry_points(self.group).items()}

    def check_returned(self, name: str, value: object, expected: type) -> None:
        """Raise PluginError if what a part has returned is of another type."""
        if not isinstance(value, expected):
            found = type(value).__name__
            self.fail(name, f"has returned {found} instead of {expected.__name__}")
        if issubclass(expected, Struct):
            wrong = _wrong_attribute(value, expected)
            if wrong is not None:
                self.fail(name, f"has returned a {expected.__name__} that {wrong}")

    def fail(self, name: str, why: str) -> NoReturn:
        """Raise PluginError for an installed part."""
        raise broken_plugin([self._entry(name)], why)

    def _rows(self) -> Mapping[str, Part]:
        if not self.table:
            return {}
        return cast(Callable[[], Mapping[str, Part]], _object(self.table))()

    def _entry(self, name: str) -> EntryPoint:
        entries = _entry_points(self.group)
        if name in entries:
            return self._only(entries[name])
        raise unknown_name(self.noun, name, self.every_name())

    def _only(self, entries: Sequence[EntryPoint]) -> EntryPoint:
        """Return the one entry point of a name. Raises PluginError if several plugins have it."""
        first, *others = entries
        if others:
            raise broken_plugin(others[:1], f"is defined by plugin {plugin_of(first)}, too")
        return first

    def _loaded(self, entry: EntryPoint) -> Part:
        try:
            part = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may do anything
            raise broken_plugin([entry], f"cannot be loaded: {described(error)}") from None
        if not self.shape:
            if not callable(part):
                raise broken_plugin([entry], "cannot be called")
            return cast(Part, part)
        shape = cast(type, _object(self.shape))
        if not isinstance(part, shape):
            raise broken_plugin([entry], f"is not a {self.shape.replace(':', '.')}")
        wrong = _wrong_attribute(part, shape)
        if wrong is not None:
            raise broken_plugin([entry], wrong)
        return cast(Part, part)


_CHECKED_TYPES: dict[str, type] = {
    "str": str,
    "bool": bool,
    "tuple[str, ...]": tuple,
    "Mapping[str, float]": Mapping,
}


class _Attribute(Struct, frozen=True):
    """What the class of a part says of an attribute or property."""

    name: str
    kind: str
    """Its type, as it is written there, without `| None`."""
    optional: bool
    expected: type | None
    choices: tuple[str, ...]

    def fault(self, value: object) -> str | None:
        """Return what is wrong with its value; None: nothing."""
        if value is None and self.optional:
            return None
        if self.expected is not None and not isinstance(value, self.expected):
            return f"has a `{self.name}` that is no {self.kind}: {type(value).__name__}"
        if self.choices and value not in self.choices:
            return f"has a `{self.name}` that is none of {', '.join(self.choices)}: {value!r:.40}"
        if self.kind.startswith("Callable") and not callable(value):
            return f"has a `{self.name}` that cannot be called"
        return None


def _wrong_attribute(value: object, shape: type) -> str | None:
    """Return which attribute of a value is missing or of another type than its class says.

    Only what would fail far from the plugin's code: texts, switches, choices, functions.
    """
    for attribute in _attributes(shape):
        if not hasattr(value, attribute.name):
            return f"has no `{attribute.name}`"
        fault = attribute.fault(getattr(value, attribute.name))
        if fault is not None:
            return fault
    return None


@cache  # plans of many nodes have a value of the same class for each rank
def _attributes(shape: type) -> tuple[_Attribute, ...]:
    """Return the attributes and properties of a class."""
    properties = {
        name: str(member.fget.__annotations__.get("return", ""))
        for name, member in vars(shape).items()
        if isinstance(member, property) and member.fget is not None
    }
    written = {name: str(kind) for name, kind in shape.__annotations__.items()} | properties
    found = []
    for name, text in written.items():
        kind = text.removesuffix(" | None")
        found.append(
            _Attribute(
                name=name,
                kind=kind,
                optional=kind != text,
                expected=_CHECKED_TYPES.get(kind),
                choices=_choices(kind, shape),
            )
        )
    return tuple(found)


def _choices(kind: str, shape: type) -> tuple[str, ...]:
    """Return the values of a `Literal` that the module of the class has by that name."""
    named = getattr(sys.modules[shape.__module__], kind, None)
    return get_args(named) if get_origin(named) is Literal else ()


def unknown_name(noun: str, name: str, known: Sequence[str]) -> UsageError:
    """Return the error for an unknown name, with the one that was probably meant."""
    meant = closest(name, known)
    hint = {"meant": meant} if meant else {"available": ", ".join(known)}
    return UsageError.coded(ErrorCode.UNKNOWN_NAME, noun=noun, name=name, **hint)


def modules_in(directory: str) -> tuple[ModuleType, ...]:
    """Import and return the modules of a package below this file that are not private."""
    return tuple(_module(directory, name) for name in _module_names(directory))


def raised_in_plugin(error: Exception) -> PluginError | None:
    """Return what to report instead of an error that the code of a plugin has raised.

    The modules in the traceback identify the part.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = {str(frame.f_globals.get("__name__")) for frame in frames}
    named = [same for kind in EVERY_KIND for same in _entry_points(kind.group).values()]
    entries = [entry for same in named for entry in same]
    at_fault = [entry for entry in entries if entry.module in modules - {__name__}]
    if not at_fault:
        packages = {module.partition(".")[0] for module in modules} - {__package__}
        at_fault = [entry for entry in entries if entry.module.partition(".")[0] in packages]
    if not at_fault:
        return None
    return broken_plugin(at_fault, f"failed: {described(error)}")


@contextmanager
def plugin_faults() -> Iterator[None]:
    """Raise PluginError in the place of an exception that the code of a plugin has raised."""
    try:
        yield
    except DslaunchError:
        raise
    except Exception as error:
        broken = raised_in_plugin(error)
        if broken is None:
            raise
        raise broken from error


def plugin_of(entry: EntryPoint) -> str:
    """Return the name of the package that an entry point is from."""
    if entry.dist is None or "Name" not in entry.dist.metadata:
        return "of unknown origin"
    return entry.dist.metadata["Name"]


def broken_plugin(entries: Sequence[EntryPoint], why: str) -> PluginError:
    """Return the error for a part that cannot be used, or for those that it may be."""
    plugin = plugin_of(entries[0])
    parts = " or ".join(f"`{entry.name}` ({entry.group}: {entry.value})" for entry in entries)
    return PluginError(f"plugin {plugin}: {parts} {why}", hint=f"update {plugin} or uninstall it")


@cache
def _module_names(directory: str) -> tuple[str, ...]:
    modules = pkgutil.iter_modules([str(HERE / directory)])
    return tuple(m.name for m in modules if not m.name.startswith("_"))


@cache
def _names_in(directory: str) -> tuple[str, ...]:
    """Return the names of the parts that modules of a package hold."""
    return tuple(name.replace("_", "-") for name in _module_names(directory))


@cache
def _module(directory: str, name: str) -> ModuleType:
    return import_module(f"{__package__}.{directory.replace('/', '.')}.{name}")


@cache
def _entry_points(group: str) -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points

    try:
        installed = entry_points(group=group)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of whatever package is installed
        raise PluginError(
            f"the entry points of installed packages cannot be read: {described(error)}",
            hint="`pip check` or a new environment may help",
        ) from None
    found: dict[str, list[EntryPoint]] = {}
    for entry in installed:
        found.setdefault(entry.name, []).append(entry)
    return found


def place_of(error: Exception) -> str:
    """Return where an exception was raised, as `module:line`: in the code of a plugin if any of it
    was called, for its author cannot do anything about code that it calls."""
    packages = {
        entry.module.partition(".")[0]
        for kind in EVERY_KIND
        for entries in _entry_points(kind.group).values()
        for entry in entries
    }
    frames = [
        (str(frame.f_globals.get("__name__")), line) for frame, line in walk_tb(error.__traceback__)
    ]
    of_plugins = [each for each in frames if each[0].partition(".")[0] in packages]
    module, line = (of_plugins or frames or [("unknown", 0)])[-1]
    return f"{module}:{line}"


def described(error: BaseException) -> str:
    """Return the class of an exception and the first line of its message."""
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
CONFIG_RULES: Registry[RuleFunction[LintedConfig]] = Registry(
    noun="rule", group="dslaunch.config_rules"
)
"""Of third parties; `deepspeed.rules` has the others."""
SCRIPT_RULES: Registry[RuleFunction[LintedScript]] = Registry(
    noun="rule", group="dslaunch.script_rules"
)
"""Of third parties; `slurm.rules` has the others."""
ENDINGS: Registry[KnownEnding] = Registry(
    noun="known ending",
    group="dslaunch.endings",
    shape="dslaunch.run.known_endings:KnownEnding",
    table="dslaunch.run.known_endings:built_in",
)
EVERY_KIND: tuple[Registry[Any], ...] = (
    LAUNCHERS,
    FORMATS,
    TRANSPORTS,
    CHECKS,
    CONFIG_RULES,
    SCRIPT_RULES,
    ENDINGS,
)
