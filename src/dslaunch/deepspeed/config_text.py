"""Parse a DeepSpeed config: its data, and the position of each key and value in the text.

DeepSpeed parses a file as HJSON (0.19.8, runtime/config.py), Hugging Face and accelerate as JSON.
This parser has the same results as the package `hjson` 3.1; `ConfigDocument.loose` lists each place
that is not valid JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct, field

from dslaunch.errors import ConfigError, Problem
from dslaunch.json_text import json_literal
from dslaunch.lint import Edit

Path = tuple[str | int, ...]
"""A position in the data: keys and indexes from the top."""
DEPTH = 64
"""Maximum depth of nested objects and lists."""
WHOLE = 1e10
"""Below this value, `hjson` converts 5e8 or 2.0 to an integer."""

LARGEST_INTEGER = 10**50
"""A larger one is refused: no float holds the product of several."""

Kind = Literal[
    "comment",
    "trailing comma",
    "missing comma",
    "unquoted key",
    "unquoted text",
    "single quotes",
    "multi-line text",
    "missing braces",
    "number",
    "control character",
]

_WHITE = " \t\n\r"
_PUNCTUATION = "{}[],:"
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_OF_PYTHON = re.compile(r"(?:NaN|-?Infinity)(?=[\s,}\]]|\Z)")
"""Numbers that Python's json supports, although they are not JSON (json, `parse_constant`)."""
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\"'\\/"}
_CONTROL = re.compile(r"[\x00-\x1f]")


class Span(Struct, frozen=True):
    """Position of a value and of its key, as offsets; the end is exclusive.

    Items of lists and the top level have no key: `key` and `key_end` equal `start`.
    """

    key: int
    key_end: int
    start: int
    end: int


class Loose(Struct, frozen=True):
    """A part of the text that is not valid JSON."""

    kind: Kind
    offset: int
    edits: tuple[Edit, ...]
    """Edits that convert it to JSON; none if impossible, as for a comment."""


class ConfigDocument(Struct, dict=True):
    """The data of one config, and the position of each part."""

    file: str
    text: str
    data: Any
    spans: dict[Path, Span] = field(default_factory=dict)
    loose: list[Loose] = field(default_factory=list)
    twice: list[tuple[Path, int]] = field(default_factory=list)
    """Duplicate keys, with their positions."""

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, from 1."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    @cached_property
    def _lines(self) -> list[int]:
        """Return the offset of each line; cached, since every line may have a finding."""
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def span(self, path: Path) -> Span:
        """Return the position of `path`; if it does not exist, of its nearest existing parent."""
        while path not in self.spans:
            path = path[:-1]
        return self.spans[path]


def path_text(path: Path) -> str:
    """Render a path as `optimizer.params.betas[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def parse(text: str, file: str, *, by_python: bool = False) -> ConfigDocument:
    """Parse a config. Raises ConfigError for a text that DeepSpeed cannot parse either.

    Of duplicate keys the last one counts; `ConfigDocument.twice` lists them. With `by_python`, NaN
    and Infinity are numbers, as in Python's `json.load` (strings in `hjson`).
    """
    body = text.removeprefix("\ufeff")
    return _Reader(body, file, by_python=by_python).document()


class _Reader:
    """Parses the text in one pass."""

    def __init__(self, text: str, file: str, *, by_python: bool) -> None:
        self._text = text
        self._by_python = by_python
        self._at = 0
        self._deep = 0
        self._document = ConfigDocument(file, text, None)

    def document(self) -> ConfigDocument:
        """Parse the whole text."""
        self._skip()
        if self._here() in ("{", "["):
            self._document.data = self._value(())
        else:
            self._bare()
        self._skip()
        if self._at < len(self._text):
            raise self._broken("trailing-text", "unexpected text after the end of the config")
        return self._document

    def _bare(self) -> None:
        """Parse an object without braces."""
        start = self._at
        self._document.data = self._members((), braces=False)
        end = Edit(len(self._text), len(self._text), "\n}")
        self._note("missing braces", start, Edit(start, start, "{\n"), end)
        self._document.spans[()] = Span(start, start, start, self._at)

    def _value(self, path: Path, key: int | None = None, key_end: int | None = None) -> Any:
        start = self._at
        read = {"{": self._object, "[": self._list}.get(self._here())
        if read:
            self._deep += 1
            if self._deep > DEPTH:
                raise self._broken("too-deep", f"nested more than {DEPTH} levels deep")
            value = read(path)
            self._deep -= 1
        elif self._text.startswith("'''", start):
            value = self._lines()
        elif self._here() in ('"', "'"):
            value = self._quoted()
        else:
            value = self._word()
        first = start if key is None else key
        after = start if key_end is None else key_end
        self._document.spans[path] = Span(first, after, start, self._at)
        return value

    def _object(self, path: Path) -> dict[str, Any]:
        self._at += 1
        return self._members(path, braces=True)

    def _members(self, path: Path, *, braces: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        comma = None
        self._skip()
        while not self._ends("}", braces, comma):
            if found and comma is None:
                self._need_comma()
            key_start = self._at
            key = self._key()
            key_end = self._at
            self._skip()
            if self._here() != ":":
                raise self._broken("missing-colon", f"expected `:` after the key {key!r}")
            self._at += 1
            self._skip()
            if key in found:
                self._document.twice.append(((*path, key), key_start))
            found[key] = self._value((*path, key), key_start, key_end)
            comma = self._comma()
        return found

    def _list(self, path: Path) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        comma = None
        self._skip()
        while not self._ends("]", True, comma):
            if found and comma is None:
                self._need_comma()
            found.append(self._value((*path, len(found))))
            comma = self._comma()
        return found

    def _ends(self, bracket: str, closed: bool, comma: int | None) -> bool:
        """Return whether the object or list ends here, and skip its bracket."""
        if self._here() == "" and closed:
            raise self._broken(
                "unclosed-bracket", f"unexpected end of the file, expected `{bracket}`"
            )
        if self._here() != (bracket if closed else ""):
            return False
        if comma is not None:
            self._note("trailing comma", comma, Edit(comma, comma + 1, ""))
        self._at += len(bracket) if closed else 0
        return True

    def _comma(self) -> int | None:
        """Skip a comma after a value, and return its offset."""
        self._end = self._at
        self._skip()
        if self._here() != ",":
            return None
        comma = self._at
        self._at += 1
        self._skip()
        return comma

    def _need_comma(self) -> None:
        self._note("missing comma", self._end, Edit(self._end, self._end, ","))

    def _key(self) -> str:
        if self._here() in ('"', "'"):
            return self._quoted()
        start = self._at
        end = re.compile(r"[\s:{}\[\],]|$").search(self._text, start)
        self._at = end.start() if end else len(self._text)
        if self._at == start:
            raise self._broken("missing-key", "expected a key")
        key = self._text[start : self._at]
        self._note("unquoted key", start, *self._in_quotes(start, self._at))
        self._white()  # comments are not allowed here
        if self._here() != ":":
            raise self._broken("missing-colon", f"expected `:` after the key {key!r}")
        return key

    def _in_quotes(self, start: int, end: int) -> tuple[Edit, ...]:
        return (Edit(start, end, json_literal(self._text[start:end], ascii_only=False)),)

    def _quoted(self) -> str:
        start, quote = self._at, self._here()
        parts: list[str] = []
        self._at += 1
        while (char := self._here()) != quote:
            if char == "":
                self._at = start
                raise self._broken("unclosed-string", "string is not closed")
            if char == "\\":
                parts.append(self._escape())
            else:
                if _CONTROL.match(char):
                    raise self._broken(
                        "invalid-character", f"invalid character {char!r} in a string"
                    )
                parts.append(char)
                self._at += 1
        self._at += 1
        value = "".join(parts)
        if quote == "'":
            self._single(start, value)
        return value

    def _single(self, start: int, value: str) -> None:
        fix = Edit(start, self._at, json_literal(value, ascii_only=False))
        self._note("single quotes", start, fix)

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _ESCAPES:
            self._at += 2
            return _ESCAPES[letter]
        code = self._code(self._at)
        if code is None:
            raise self._broken("invalid-escape", f"invalid escape `\\{letter}`")
        self._at += 6
        low = self._code(self._at) if 0xD800 <= code < 0xDC00 else None
        if low is not None and 0xDC00 <= low < 0xE000:
            self._at += 6
            code = 0x10000 + ((code - 0xD800) << 10 | low - 0xDC00)
        return chr(code)

    def _code(self, at: int) -> int | None:
        found = re.compile(r"\\u([0-9a-fA-F]{4})").match(self._text, at)
        return int(found[1], 16) if found else None

    def _lines(self) -> str:
        """Parse text between three single quotes; the indentation of the first line is removed."""
        start = self._at
        end = self._text.find("'''", start + 3)
        if end < 0:
            raise self._broken("unclosed-string", "string is not closed")
        self._at = end + 3
        while self._here() == "'":  # of more than three quotes, the last three end the text
            self._at += 1
        value = _unindented(self._text, start, self._at - 3)
        fix = Edit(start, self._at, json_literal(value, ascii_only=False))
        self._note("multi-line text", start, fix)
        return value

    def _word(self) -> Any:
        """Parse a number, a word of JSON, or text without quotes up to the end of the line."""
        start = self._at
        if self._here() == "" or self._here() in _PUNCTUATION:
            raise self._broken("missing-value", "expected a value")
        special = _OF_PYTHON.match(self._text, start) if self._by_python else None
        if special:
            self._at = special.end()
            return float(special[0])
        stop = re.compile(r"[\r\n,}\]#]|//|/\*|$").search(self._text, start)
        end = stop.start() if stop else len(self._text)
        word = self._text[start:end].rstrip(_WHITE)
        if word in _WORDS or _NUMBER.fullmatch(self._text, start, end):
            self._at = start + len(word)
            return _WORDS[word] if word in _WORDS else self._number(word)
        if _NUMBER.fullmatch(word):
            self._at = start + len(word)
            return self._number(word)
        return self._line(start)

    def _line(self, start: int) -> str:
        stop = re.compile(r"[\r\n]|$").search(self._text, start)
        value = self._text[start : stop.start() if stop else None].strip(_WHITE)
        self._at = start + len(value)
        self._note("unquoted text", start, *self._in_quotes(start, self._at))
        return value

    def _number(self, word: str) -> int | float:
        """Convert a number as `hjson` does: 5e8 is an integer, 1e12 is not."""
        try:
            if word.lstrip("-").isdecimal():
                return _bounded(int(word))
            number = float(word)
            return int(number) if int(number) == number and abs(number) < WHOLE else number
        except (ValueError, OverflowError):  # Python's limit on digits; infinity; ours
            raise self._broken("too-large", "number too large") from None

    def _skip(self) -> None:
        """Skip whitespace and comments."""
        while True:
            self._white()
            start = self._at
            if self._here() == "#" or self._text.startswith("//", start):
                stop = self._text.find("\n", start)
                self._at = stop if stop >= 0 else len(self._text)
            elif self._text.startswith("/*", start):
                stop = self._text.find("*/", start + 2)
                if stop < 0:
                    raise self._broken("unclosed-comment", "comment is not closed")
                self._at = stop + 2
            else:
                return
            self._note("comment", start)

    def _white(self) -> None:
        while self._here() and self._here() in _WHITE:
            self._at += 1

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _note(self, kind: Kind, offset: int, *edits: Edit) -> None:
        self._document.loose.append(Loose(kind, offset, edits))

    def _broken(self, rule: str, message: str) -> ConfigError:
        at = min(self._at, len(self._text))
        line, column = self._document.place(at)
        problem = Problem(
            file=self._document.file, line=line, column=column, path="", message=message, rule=rule
        )
        return ConfigError((problem,))


def _bounded(number: int) -> int:
    """Return an integer. Raises OverflowError."""
    if abs(number) > LARGEST_INTEGER:
        raise OverflowError(number)
    return number


def _unindented(text: str, start: int, end: int) -> str:
    """Return the text between three quotes at `start` and `end`, as `hjson` does."""
    indent = start - text.rfind("\n", 0, start) - 1
    lines = text[start + 3 : end].replace("\r", "").split("\n")
    first = lines[0].lstrip(" \t")
    rest = [re.sub(rf"^[ \t]{{0,{indent}}}", "", line) for line in lines[1:]]
    kept = rest if rest and not first else [first, *rest]
    return "\n".join(kept).removesuffix("\n")
