"""JSON by the functions in C that Python's `json` uses itself.

To import `json`, which needs `re` and `enum`, takes a node as much processor time as to start
Python. These functions are not public: a Python without them uses `json`. What is read here comes
from our own programs; the launcher reads what nodes send with `json`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable

ascii_text: Callable[[object], str]
"""Return a value as JSON without spaces, in ASCII."""
text: Callable[[object], str]
"""The same with all letters as they are."""


class _Rules:
    """What `json.JSONDecoder` passes to the same function."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _refused(value: object) -> None:
    raise TypeError(f"no JSON value: {type(value).__name__}")


def _encoder(make: Any, quoted: Callable[[str], str]) -> Callable[[object], str]:
    """Return a function that writes JSON; `quoted`: how it writes strings."""
    pieces = make(
        markers=None,
        default=_refused,
        encoder=quoted,
        indent=None,
        key_separator=":",
        item_separator=",",
        sort_keys=False,
        skipkeys=False,
        allow_nan=True,
    )
    return lambda value: "".join(pieces(value, 0))


_scan: Callable[[str, int], Any]
try:
    import _json

    _scan = _json.make_scanner(_Rules)  # type: ignore[arg-type]
    ascii_text = _encoder(_json.make_encoder, _json.encode_basestring_ascii)
    text = _encoder(_json.make_encoder, _json.encode_basestring)
except (ImportError, AttributeError, TypeError):
    import json

    _scan = json.JSONDecoder().raw_decode
    ascii_text = json.JSONEncoder(separators=(",", ":")).encode
    text = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def value(text: str) -> Any:
    """Return the value of a JSON text, before which there is no space. Raises ValueError."""
    try:
        found, _ = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON text") from None
    return found
