"""Parse YAML text as plain data, with the position of each part in the file.

Scalars are strings, except `null`, `true`, `false` and numbers in JSON syntax. Other scalars of
YAML 1.1 (`no`, `022`, `1_000`, `12:30:00`, dates) are strings. Rejected are duplicate keys, merge
keys, tags, keys that are not strings, several documents, and aliases that expand too far.

The events of the parser are handled one by one with an explicit stack, because composing nodes with
libyaml (PyYAML 6.0) crashes the interpreter (segmentation fault) on 100,000 open brackets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.yaml_errors import ParserError, explained, fault_of
from dslaunch.errors import ConfigError, Problem
from dslaunch.terminal import shortened

if TYPE_CHECKING:
    from yaml.events import Event, MappingStartEvent, ScalarEvent, SequenceStartEvent

Path = tuple[str | int, ...]
"""A position in the data: keys and indexes from the top."""
Place = tuple[int, int]
"""Line and column, both from 1."""

DEPTH = 32
"""Maximum depth of nested lists and mappings."""
EXPANDED = 1_000_000
"""Maximum number of values of a document with its aliases expanded."""

_PRINTABLE_ASCII = "\t\n\r\x20-\x7e"
_PRINTABLE = _PRINTABLE_ASCII + "\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff"
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMERIC = frozenset("-0123456789")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"(?=.*[.eE])-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class YamlDocument(Struct):
    """The data of one YAML document, and the position of each part."""

    file: str
    data: Any
    problems: list[Problem]
    """Problems of a text that could be parsed."""
    places: dict[int, dict[str | int, Place]]
    """`id` of a list or mapping in `data` -> positions of its items or keys."""

    def place(self, path: Path) -> Place:
        """Return the position of `path`; if it does not exist, of its nearest existing parent."""
        found, here = (1, 1), self.data
        for step in path:
            places = self.places.get(id(here), {}) if isinstance(here, dict | list) else {}
            if step not in places:
                break
            found, here = places[step], here[step]
        return found

    def problem(self, path: Path, found: Mistake) -> Problem:
        """Return a mistake at `path`."""
        return found.at(self.file, self.place(path), path_text(path))


def path_text(path: Path) -> str:
    """Render a path as `nodes[2].env.NAME`; a key with special characters as `['a b']`."""
    text = ""
    for step in path:
        plain = isinstance(step, str) and _PLAIN_KEY.fullmatch(step)
        text += f".{step}" if plain else f"[{shortened(step)}]"
    return text.removeprefix(".")


def parse(text: str, file: str, *, verbatim: Iterable[str] = ()) -> YamlDocument:
    """Parse one YAML document whose top level is a mapping.

    Below a key of `verbatim` every plain scalar is a string as written: `22`, `1e3`, `no`.
    Raises ConfigError for a text that cannot be parsed; other problems are in the result.
    """
    reader = _DocumentReader(file, frozenset(verbatim))
    text = text.removeprefix("\ufeff")
    # the large class takes longer to compile than most files take to parse
    odd = re.search(f"[^{_PRINTABLE_ASCII if text.isascii() else _PRINTABLE}]", text)
    if odd:
        before = text[: odd.start()]
        place = (before.count("\n") + 1, odd.start() - before.rfind("\n"))
        raise reader.fatal(place, MistakeCode.CONTROL_CHARACTER, character=odd[0])
    _read_events(text, reader)
    if not isinstance(reader.top, dict):
        found = "nothing" if reader.top is None else described(reader.top)
        raise reader.fatal((1, 1), MistakeCode.NO_MAPPING, found=found)
    return YamlDocument(file, reader.top, reader.problems, reader.places)


def described(value: object) -> str:
    """Return a value of the data for messages: short text and numbers unchanged."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or value == "":
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(value)


def _read_events(text: str, reader: _DocumentReader) -> None:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        place, found = explained(_parser_error(error), text)
        raise reader.error(place, found) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The last two: the pure parser's answer to an escape such as \U99999999 (PyYAML 6.0).
        raise reader.fatal((1, 1), MistakeCode.INVALID_YAML, error=str(error)) from None
    finally:
        loader.dispose()


def _parser_error(error: Any) -> ParserError:
    """Return the error of the parser as a value of ours."""
    mark = error.problem_mark or error.context_mark
    place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    began = error.context_mark
    problem, context = error.problem or "", error.context or ""
    return ParserError(
        fault=fault_of(problem, context),
        place=place,
        began=(began.line + 1, began.column + 1) if began else None,
        message=f"{problem} {context}".strip(),
    )


class _Frame(Struct):
    """A list or mapping that is being parsed."""

    value: list[Any] | dict[str, Any]
    place: Place
    verbatim: bool
    places: dict[str | int, Place] = field(default_factory=dict)
    size: int = 1
    anchor: str | None = None
    key: str | None = None
    """The key of the next value; None: a key is next."""


class _Anchored(Struct, frozen=True):
    """The value of an alias, its text if it is a scalar, and its number of values."""

    value: Any
    source: str | None
    size: int


class _DocumentReader:
    """Builds data from events."""

    def __init__(self, file: str, verbatim: frozenset[str]) -> None:
        self.top: Any = None
        self.problems: list[Problem] = []
        self.places: dict[int, dict[str | int, Place]] = {}
        self._file = file
        self._verbatim = verbatim
        self._stack: list[_Frame] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._documents = 0
        self._take: dict[str, Callable[[Any], None]] = {
            "ScalarEvent": self._scalar,
            "MappingStartEvent": self._open,
            "SequenceStartEvent": self._open,
            "MappingEndEvent": self._close,
            "SequenceEndEvent": self._close,
            "AliasEvent": self._alias,
            "DocumentStartEvent": self._document,
        }

    def take(self, event: Event) -> None:
        """Handle the next event of the parser."""
        take = self._take.get(type(event).__name__)
        if take:
            take(event)

    def fatal(self, place: Place, code: MistakeCode, **values: str | int) -> ConfigError:
        """Return the error that ends parsing, with all problems found so far."""
        return self.error(place, mistake(code, **values))

    def error(self, place: Place, found: Mistake) -> ConfigError:
        """Return the error that ends parsing, with all problems found so far."""
        return ConfigError((*self.problems, found.at(self._file, place)))

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self.fatal(_place(event), MistakeCode.SEVERAL_DOCUMENTS)

    def _scalar(self, event: ScalarEvent) -> None:
        if event.tag is not None:
            self._refuse_tag(event)
        source = event.value
        style = event.style  # of a plain scalar: None, or empty from libyaml (PyYAML 6.0)
        value = source if style or self._expects_key() else _plain(source)
        if event.anchor:
            self._anchors[event.anchor] = _Anchored(value, source, 1)
        if style and (odd := _UNUSABLE.search(source)):
            self._problem(_place(event), MistakeCode.UNPRINTABLE, character=odd[0])
        if source == "<<" and not style and self._expects_key():
            self._problem(_place(event), MistakeCode.MERGE_KEY)
        self._put(_place(event), value, source, 1)

    def _open(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        if len(self._stack) >= DEPTH:
            raise self.fatal(_place(event), MistakeCode.TOO_DEEP, limit=DEPTH)
        if event.tag is not None:
            self._refuse_tag(event)
        outer = self._stack[-1] if self._stack else None
        verbatim = outer is not None and (outer.verbatim or outer.key in self._verbatim)
        mapping = type(event).__name__ == "MappingStartEvent"
        frame = _Frame({} if mapping else [], _place(event), verbatim, anchor=event.anchor)
        if event.anchor:
            self._anchors[event.anchor] = None
        self._stack.append(frame)

    def _close(self, event: Event) -> None:
        frame = self._stack.pop()
        self.places[id(frame.value)] = frame.places
        if frame.anchor:
            self._anchors[frame.anchor] = _Anchored(frame.value, None, frame.size)
        self._put(frame.place, frame.value, None, frame.size)

    def _alias(self, event: Any) -> None:
        name = event.anchor
        if name not in self._anchors:
            raise self.fatal(_place(event), MistakeCode.UNKNOWN_ALIAS, name=name)
        anchored = self._anchors[name]
        if anchored is None:
            raise self.fatal(_place(event), MistakeCode.RECURSIVE_ALIAS, name=name)
        self._put(_place(event), anchored.value, anchored.source, anchored.size)

    def _put(self, place: Place, value: Any, source: str | None, size: int) -> None:
        """Store a finished value: as a key, the value of a key, an item, or the document."""
        if not self._stack:
            self.top = value
            return
        frame = self._stack[-1]
        frame.size += size
        if frame.size > EXPANDED:
            raise self.fatal(place, MistakeCode.TOO_MANY_PARTS, limit=EXPANDED)
        verbatim = frame.verbatim or frame.key in self._verbatim
        if verbatim and source is not None:
            value = source
        if isinstance(frame.value, list):
            frame.places[len(frame.value)] = place
            frame.value.append(value)
        elif frame.key is None:
            frame.key = self._key(frame, source, place)
        else:
            frame.value.setdefault(frame.key, value)
            frame.key = None

    def _key(self, frame: _Frame, source: str | None, place: Place) -> str:
        if source is None:
            self._problem(place, MistakeCode.KEY_NOT_TEXT)
            frame.places.setdefault("", place)
            return ""
        if source in frame.places:
            first = frame.places[source][0]
            self._problem(place, MistakeCode.DUPLICATE_KEY, key=source, line=first)
        frame.places.setdefault(source, place)
        return source

    def _expects_key(self) -> bool:
        return (
            bool(self._stack)
            and isinstance(self._stack[-1].value, dict)
            and (self._stack[-1].key is None)
        )

    def _refuse_tag(self, event: Any) -> None:
        self._problem(_place(event), MistakeCode.TAG, tag=event.tag)

    def _problem(self, place: Place, code: MistakeCode, **values: str | int) -> None:
        self.problems.append(mistake(code, **values).at(self._file, place))


def _place(event: Event) -> Place:
    mark: Any = event.start_mark
    return mark.line + 1, mark.column + 1


def _plain(source: str) -> str | float | bool | None:
    if source in _WORDS:
        return _WORDS[source]
    if source[0] not in _NUMERIC:
        return source
    if _INTEGER.fullmatch(source):
        return int(source)
    if _FLOAT.fullmatch(source) and math.isfinite(number := float(source)):
        return number
    return source
