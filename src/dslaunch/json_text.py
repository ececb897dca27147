"""The only writer of JSON on the launching machine: for programs, config files and messages.

JSON has no NaN and no infinity (RFC 8259, section 6), but Python's `json` writes them, and many
other parsers refuse a whole text for one. A training's loss is often NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

Default = Callable[[Any], Any]
"""Makes JSON data of a value of another type."""


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
    """
    encoder = json.JSONEncoder(
        indent=indent,
        separators=(",", ":") if compact else None,
        ensure_ascii=ascii_only,
        sort_keys=sort_keys,
        default=default,
        allow_nan=False,
    )
    try:
        return encoder.encode(value)
    except ValueError:  # rare, so that the values of most texts are visited once
        return encoder.encode(_finite(value, default))


def json_literal(value: object, *, indent: int | None = None, ascii_only: bool = True) -> str:
    """Return a value as it is written in a config file, for such files and for messages about them.

    NaN and infinities stay: Python's `json.load`, with which DeepSpeed reads configs, accepts them.
    """
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only)


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
