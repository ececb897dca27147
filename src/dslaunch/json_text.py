"""The only writer of JSON on the launching machine: for programs, config files and messages.

JSON has no NaN and no infinity (RFC 8259, section 6), but Python's `json` writes them, and many
other parsers refuse a whole text for one. A training's loss is often NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

Default = Callable[[Any], Any]
"""Makes JSON data of a value of another type."""
LONG = 64
"""Members of an indented array or object up to which these have lines for their members."""
MOST_KEPT = 1024
"""Texts of members that are kept, since the members may be there again."""


def json_text(
    value: object,
    *,
    indent: int | None = None,
    compact: bool = False,
    ascii_only: bool = True,
    sort_keys: bool = False,
    default: Default | None = None,
) -> str:
    """Return a value as valid JSON: NaN and infinities are null.

    `ascii_only` escapes all other characters, so that text with bytes that are no UTF-8 (lone
    surrogates) can be encoded. Raises TypeError for a value of a type that JSON does not have.
    With `indent` there is a line per member. An array of single values takes one line; an object of
    single values in an array does, and each member of an array or object of more than LONG: of many
    nodes each has its line.
    """
    encoder = _encoder(compact, ascii_only, sort_keys, default)
    if indent is None:
        return _encoded(encoder, value)
    return "".join(_Indented(encoder, indent).pieces(value))


def json_pieces(value: object, *, indent: int, default: Default | None = None) -> Iterator[str]:
    """Yield what `json_text` returns in pieces, for a file: the text of ten thousand nodes takes
    more memory than all else about them. Raises TypeError as `json_text`."""
    encoder = _encoder(compact=False, ascii_only=True, sort_keys=False, default=default)
    return _Indented(encoder, indent).pieces(value)


def _encoded(encoder: json.JSONEncoder, value: object) -> str:
    try:
        return encoder.encode(value)
    except ValueError:  # rare, so that the values of most texts are visited once
        return encoder.encode(_finite(value, encoder.default))


def json_lines_of(texts: Sequence[str]) -> str:
    """Return texts as JSON strings, each in a line: many take a tenth of the time of one by one."""
    return _ONE_PER_LINE.encode(texts)[1:-1]


_ONE_PER_LINE = json.JSONEncoder(separators=("\n", ": "))
"""Line feeds within a text are escaped."""


@lru_cache(maxsize=32)
def _encoder(
    compact: bool, ascii_only: bool, sort_keys: bool, default: Default | None
) -> json.JSONEncoder:
    return json.JSONEncoder(
        separators=(",", ":") if compact else None,
        ensure_ascii=ascii_only,
        sort_keys=sort_keys,
        default=default,
        allow_nan=False,
    )


def members(value: Any) -> dict[str, Any]:
    """Return the fields of a Struct, not those of its fields: a `default` for `json_text`."""
    return msgspec.structs.asdict(value)


def json_literal(value: object, *, indent: int | None = None, ascii_only: bool = True) -> str:
    """Return a value as it is written in a config file, for such files and for messages about them.

    NaN and infinities stay: Python's `json.load`, with which DeepSpeed reads configs, accepts them.
    """
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only)


class _Indented:
    """Writes a value with a line per member, as `json` does with `indent`, but for arrays.

    `json` itself is slow with `indent`: it writes in C only without, and so only the members of
    long arrays and objects. Plans and states of ten thousand nodes have a million members.
    """

    def __init__(self, encoder: json.JSONEncoder, indent: int) -> None:
        self._encoder = encoder
        self._step = " " * indent
        self._keys: dict[Any, str] = {}
        """Keys as they are written: the objects of a list have the same ones."""

    def pieces(self, value: Any, line: str = "\n") -> Iterator[str]:
        """Yield a value; its lines after the first begin with `line`, a line end and blanks."""
        if isinstance(value, dict):
            yield from self._object(value, line)
        elif isinstance(value, list | tuple):
            yield from self._array(value, line)
        elif value is None or isinstance(value, _SINGLE):
            yield self._encode(value)
        else:
            yield from self.pieces(self._encoder.default(value), line)

    def _encode(self, value: Any) -> str:
        return _encoded(self._encoder, value)

    def _object(self, value: dict[Any, Any], line: str) -> Iterator[str]:
        if not value:
            yield "{}"
            return
        inner = line + self._step
        pairs = sorted(value.items()) if self._encoder.sort_keys else value.items()
        pieces = self._on_one_line() if len(value) > LONG else self.pieces
        before = "{" + inner
        for key, each in pairs:
            yield before + (self._keys.get(key) or self._key(key))
            yield from pieces(each, inner)
            before = "," + inner
        yield line + "}"

    def _array(self, value: list[Any] | tuple[Any, ...], line: str) -> Iterator[str]:
        if _are_single(value):
            yield self._encode(value)
            return
        inner = line + self._step
        pieces = self._on_one_line() if len(value) > LONG else self._item
        before = "[" + inner
        for each in value:
            yield before
            yield from pieces(each, inner)
            before = "," + inner
        yield line + "]"

    def _item(self, value: Any, line: str) -> Iterator[str]:
        """Yield an item of an array."""
        if isinstance(value, dict) and _are_single(value.values()):
            yield self._encode(value)
        else:
            yield from self.pieces(value, line)

    def _on_one_line(self) -> Callable[[Any, str], Iterator[str]]:
        """Return what yields members or items of many. One that is there several times, such as the
        data of nodes that are alike, is encoded once."""
        encoded: dict[int, str] = {}

        def pieces(value: Any, line: str) -> Iterator[str]:
            text = encoded.get(id(value))
            if text is None:
                text = self._encode(value)
                if len(encoded) < MOST_KEPT:
                    encoded[id(value)] = text
            yield text

        return pieces

    def _key(self, key: Any) -> str:
        # a number, True or None is written differently as a key
        object_of_key = self._encode({key: 0})
        text = object_of_key.removeprefix("{").removesuffix("0}")
        if isinstance(key, str):  # 1 and True are equal, but not their texts
            self._keys[key] = text
        return text


_SINGLE = (str, int, float)
"""Types of single values, and so of True and False."""
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))


def _are_single(values: Iterable[Any]) -> bool:
    return _PLAIN_TYPES.issuperset(map(type, values))


def _finite(value: Any, default: Default | None) -> Any:
    """Return JSON data without NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _finite(inner, default) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner, default) for inner in value]
    return value if default is None else _finite(default(value), default)


def _key(key: Any) -> Any:
    """Return a key of an object; numbers become text, which may be `nan`."""
    return str(key) if isinstance(key, float) else key
