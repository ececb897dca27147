"""JSON without the library's `json`: that imports `re` and `enum`, and these a dozen more, which
takes a node longer than to answer all that it is asked (measured: 9 ms of processor time, on Python
3.11)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    from typing import Any

_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), ord('"'), ord("\\"))}
_WORDS = {None: "null", True: "true", False: "false"}


def as_json(value: Any) -> bytes:
    """One line of JSON for texts, finite numbers, lists, dicts and so on. Raises TypeError."""
    # names of files may have bytes that are no text: what stands for these is escaped too
    return _text(value).encode("utf-8", "backslashreplace")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{%s}" % ",".join(f"{_text(str(k))}:{_text(v)}" for k, v in value.items())
    raise TypeError(f"JSON has no {type(value).__name__}")
