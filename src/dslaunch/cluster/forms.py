"""Forms of the values in a cluster file: how a value is checked, and its JSON Schema.

Every command loads a cluster file first, so these are plain functions over plain values: importing
pydantic and making its validators takes several times longer than checking the largest file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cluster.mistakes import Mistake, MistakeCode, Value, mistake
from dslaunch.cluster.yamltext import Path, described
from dslaunch.registry import Registry
from dslaunch.texts import alternatives, closest

Schema = dict[str, Any]
"""A part of a JSON Schema."""


class Fault(Struct, frozen=True):
    """A mistake at a position; `given` is the value there."""

    path: Path
    found: Mistake
    given: Any
    expected: tuple[str, ...] = ()
    """Descriptions of the values that are valid there; empty: the mistake does not name them."""

    def with_valid(self, description: str) -> Fault:
        """Return the fault where another value is valid too, which is named first."""
        if not self.expected:
            return self
        expected = (description, *self.expected)
        found = self.found.with_values(expected=alternatives(expected))
        return replace(self, found=found, expected=expected)


Report = Callable[[Fault], object]
"""Takes each fault when it is found."""


class _Invalid:
    """The result of a value that has a fault."""


INVALID: Final = _Invalid()
REQUIRED: Final = _Invalid()
"""The default of a key that must be set."""


class Form(Protocol):
    """A kind of values."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the value as the program uses it; INVALID after a report of each fault in it."""

    def schema(self) -> Schema:
        """Return the JSON Schema of the values."""


def _unexpected(
    code: MistakeCode,
    *expected: str,
    value: Any,
    path: Path,
    report: Report,
    **values: Value,
) -> _Invalid:
    """Report a value that is none of those that are expected."""
    named = alternatives(expected)
    found = mistake(code, expected=named, found=described(value), **values)
    report(Fault(path, found, value, expected))
    return INVALID


def _wrong_type(*expected: str, value: Any, path: Path, report: Report) -> _Invalid:
    return _unexpected(MistakeCode.WRONG_TYPE, *expected, value=value, path=path, report=report)


def _out_of_range(expected: str, *, value: Any, path: Path, report: Report) -> _Invalid:
    return _unexpected(MistakeCode.OUT_OF_RANGE, expected, value=value, path=path, report=report)


def _empty(value: Any, path: Path, report: Report) -> _Invalid:
    report(Fault(path, mistake(MistakeCode.EMPTY_VALUE), value))
    return INVALID


class Text(Struct, frozen=True):
    """Text that fully matches `pattern`; `what` describes it in messages."""

    pattern: str = ""
    what: str = ""
    written: bool = False
    """Whether a value that looks like a number is a text exactly as written: see `VERBATIM`."""
    holds: Callable[[str], bool] | None = None
    """What else must be true of a text that matches."""
    at_least: int = 0
    """Minimum number of characters."""
    at_most: int = 0
    """Maximum number of characters; 0: any number."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the text."""
        if not isinstance(value, str):
            return _wrong_type("text", value=value, path=path, report=report)
        if len(value) < self.at_least:
            return _empty(value, path, report)
        if self.at_most and len(value) > self.at_most:
            return _out_of_range(
                f"at most {self.at_most} characters", value=value, path=path, report=report
            )
        if self.pattern and not self._matches(value):
            return _unexpected(
                MistakeCode.WRONG_FORMAT, self.what, value=value, path=path, report=report
            )
        return value

    def _matches(self, text: str) -> bool:
        if re.fullmatch(self.pattern, text) is None:
            return False
        return self.holds is None or self.holds(text)

    def schema(self) -> Schema:
        """Return the type, the pattern and the lengths."""
        of: Schema = {"type": ["string", "number", "boolean", "null"] if self.written else "string"}
        if self.pattern:
            of["pattern"] = f"^(?:{self.pattern})$"
        if self.at_least:
            of["minLength"] = self.at_least
        if self.at_most:
            of["maxLength"] = self.at_most
        return of


class Number(Struct, frozen=True):
    """A number in a range; by default an integer."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    whole: bool = True

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the number."""
        wanted = int if self.whole else int | float
        if not isinstance(value, wanted) or isinstance(value, bool):
            expected = "an integer" if self.whole else "a number"
            return _wrong_type(expected, value=value, path=path, report=report)
        if self.at_least is not None and value < self.at_least:
            return _out_of_range(
                f"at least {self.at_least:g}", value=value, path=path, report=report
            )
        if self.above is not None and value <= self.above:
            return _out_of_range(f"more than {self.above:g}", value=value, path=path, report=report)
        if self.at_most is not None and value > self.at_most:
            return _out_of_range(
                f"at most {self.at_most:.15g}", value=value, path=path, report=report
            )
        return value if self.whole else float(value)

    def schema(self) -> Schema:
        """Return the type and the range."""
        bounds = {
            "minimum": self.at_least,
            "exclusiveMinimum": self.above,
            "maximum": self.at_most,
        }
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"type": "integer" if self.whole else "number"} | given


class Flag(Struct, frozen=True):
    """True or false."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the flag."""
        if not isinstance(value, bool):
            return _wrong_type("true", "false", value=value, path=path, report=report)
        return value

    def schema(self) -> Schema:
        """Return the type."""
        return {"type": "boolean"}


class OneOf(Struct, frozen=True):
    """One of several names."""

    names: tuple[str, ...]

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the name."""
        if isinstance(value, str) and value in self.names:
            return value
        return unknown_name(self.names, value, path, report)

    def schema(self) -> Schema:
        """Return the names."""
        return {"type": "string", "enum": list(self.names)}


def unknown_name(names: tuple[str, ...], value: Any, path: Path, report: Report) -> _Invalid:
    """Report a value that is none of the names."""
    return _unexpected(
        MistakeCode.UNKNOWN_VALUE,
        *(f"`{name}`" for name in names),
        value=value,
        path=path,
        report=report,
        similar=closest(str(value), names),
    )


class NameOf(Struct, frozen=True):
    """The name of a built-in or installed part."""

    parts: Registry[Any]
    description: str
    """What the value decides."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the name."""
        if not isinstance(value, str):
            return _wrong_type("text", value=value, path=path, report=report)
        if value in self.parts.names() or value in self.parts.every_name():
            return value
        return unknown_name(self.parts.every_name(), value, path, report)

    def schema(self) -> Schema:
        """Return the names and their meanings."""
        names = self.parts.every_name()
        meanings = (f"`{name}` ({self.parts.get(name).summary})" for name in names)
        text = f"{self.description}: {', '.join(meanings)}."
        return {"type": "string", "enum": list(names), "description": text}


class ListOf(Struct, frozen=True):
    """A list whose items have one form."""

    item: Form
    at_least: int = 0
    at_most: int = 0
    """Maximum number of items; 0: any number."""
    unique: bool = False
    """Whether editors reject equal items; the rules have texts for them."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the list."""
        if not isinstance(value, list):
            return _wrong_type("a list", value=value, path=path, report=report)
        if len(value) < self.at_least:
            return _empty(value, path, report)
        if self.at_most and len(value) > self.at_most:
            return _out_of_range(
                f"at most {self.at_most} items", value=value, path=path, report=report
            )
        items = [self.item.read(each, (*path, index), report) for index, each in enumerate(value)]
        return INVALID if INVALID in items else items

    def schema(self) -> Schema:
        """Return the form of the items, and their number."""
        of: Schema = {"type": "array", "items": self.item.schema()}
        if self.at_least:
            of["minItems"] = self.at_least
        if self.at_most:
            of["maxItems"] = self.at_most
        if self.unique:
            of["uniqueItems"] = True
        return of


class MappingOf(Struct, frozen=True):
    """A mapping of names to values of one form."""

    name: Text
    value: Form
    at_least: int = 0

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the mapping."""
        if not isinstance(value, dict):
            return _wrong_type("a mapping", value=value, path=path, report=report)
        if len(value) < self.at_least:
            return _empty(value, path, report)
        names = [self.name.read(name, (*path, name), report) for name in value]
        items = [self.value.read(each, (*path, name), report) for name, each in value.items()]
        if INVALID in names or INVALID in items:
            return INVALID
        return dict(zip(names, items, strict=True))

    def schema(self) -> Schema:
        """Return the forms of the names and values."""
        of: Schema = {"type": "object"}
        if self.at_least:
            of["minProperties"] = self.at_least
        if not self.name.pattern:
            return of | {"additionalProperties": self.value.schema()}
        pattern = self.name.schema()["pattern"]
        return of | {
            "patternProperties": {pattern: self.value.schema()},
            "additionalProperties": False,
        }


class Either(Struct, frozen=True):
    """One of several forms; which one is decided before the value is checked, so that only faults
    about that form are reported."""

    forms: tuple[Form, ...]
    choose: Callable[[Any], int]
    """Returns the index of the form for a value."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the value in its form."""
        return self.forms[self.choose(value)].read(value, path, report)

    def schema(self) -> Schema:
        """Return the forms."""
        return {"oneOf": [form.schema() for form in self.forms]}


class AutoOr(Struct, frozen=True):
    """The word `auto`, or a value."""

    form: Form

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return `auto` or the value."""
        if value == "auto":
            return value

        def report_with_auto(fault: Fault) -> None:
            report(fault.with_valid("`auto`"))

        return self.form.read(value, path, report_with_auto)

    def schema(self) -> Schema:
        """Return both."""
        return {"oneOf": [{"type": "string", "const": "auto"}, self.form.schema()]}


class Key(Struct, frozen=True):
    """A key of a section. One whose default is None takes `null` as well."""

    form: Form
    default: Any
    description: str
    more: Schema
    """More of its JSON Schema, about which `rules` has texts."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the value."""
        if value is None and self.default is None:
            return None
        return self.form.read(value, path, report)

    def schema(self) -> Schema:
        """Return the form with the default and the description."""
        of = self.form.schema()
        if self.default is None:
            of = {"anyOf": [of, {"type": "null"}], "default": None}
        elif isinstance(self.default, str | int | float):
            of["default"] = self.default
        if self.description:
            of["description"] = self.description
        return of | self.more


def key(
    form: Form, default: Any = REQUIRED, *, description: str = "", more: Schema | None = None
) -> Any:
    """Declare a key of a section; in values of the section it is an attribute."""
    return Key(form, default, description, more or {})


class Section:
    """A mapping with known keys. A subclass declares each with `key`."""

    KEYS: ClassVar[Mapping[str, Key]]
    DEFAULTS: ClassVar[Mapping[str, Any]]
    MORE: ClassVar[Schema] = {}
    """More of the JSON Schema, about which `rules` has texts."""

    def __init_subclass__(cls) -> None:
        cls.KEYS = {name: each for name, each in vars(cls).items() if isinstance(each, Key)}
        cls.DEFAULTS = {name: each.default for name, each in cls.KEYS.items()}

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(self.DEFAULTS)
        vars(self).update(values)

    @classmethod
    def given(cls, data: Mapping[str, Any], path: Path, report: Report) -> dict[str, Any]:
        """Return the valid values; the others, unknown keys and missing ones are reported."""
        values = {}
        for name, each in cls.KEYS.items():
            if name in data:
                value = each.read(data[name], (*path, name), report)
                if value is not INVALID:
                    values[name] = value
            elif each.default is REQUIRED:
                report(Fault((*path, name), mistake(MistakeCode.MISSING_KEY), data))
        for name in data:
            if name not in cls.KEYS:
                unknown = mistake(MistakeCode.UNKNOWN_KEY, key=name, similar="")
                report(Fault((*path, name), unknown, data[name]))
        return values

    @classmethod
    def schema(cls) -> Schema:
        """Return the keys and what else holds."""
        of: Schema = {
            "title": cls.__name__,
            "description": str(cls.__doc__).strip(),
            "type": "object",
            "properties": {name: each.schema() for name, each in cls.KEYS.items()},
            "additionalProperties": False,
        }
        required = [name for name, each in cls.KEYS.items() if each.default is REQUIRED]
        if required:
            of["required"] = required
        return of | cls.MORE

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self | None:
        """Return a section of these values; None: one is invalid."""
        faults: list[Fault] = []
        values = cls.given(data, (), faults.append)
        return None if faults else cls(values)


class SectionForm(Struct, frozen=True):
    """A section as a value."""

    section: type[Section]

    def read(self, value: Any, path: Path, report: Report) -> Any:
        """Return the section; INVALID if anything in it is."""
        if not isinstance(value, dict):
            return _wrong_type("a mapping", value=value, path=path, report=report)
        faults: list[Fault] = []
        values = self.section.given(value, path, faults.append)
        for fault in faults:
            report(fault)
        return INVALID if faults else self.section(values)

    def schema(self) -> Schema:
        """Return a reference to the section."""
        return {"$ref": f"#/$defs/{self.section.__name__}"}


def sections_in(section: type[Section]) -> Iterator[type[Section]]:
    """Yield the sections in a section, inner ones too."""
    for each in section.KEYS.values():
        yield from _sections_of(each.form)


def _sections_of(form: Form) -> Iterator[type[Section]]:
    if isinstance(form, SectionForm):
        yield form.section
        yield from sections_in(form.section)
    elif isinstance(form, Either):
        for each in form.forms:
            yield from _sections_of(each)
    elif isinstance(form, ListOf):
        yield from _sections_of(form.item)
    elif isinstance(form, MappingOf):
        yield from _sections_of(form.value)
