"""Validate and convert values as DeepSpeed does."""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from functools import cache
from typing import Any, Literal

from dslaunch.deepspeed.schema import Key, kind_of

LEAVES = "zero_optimization.leaf_module"
"""A single name counts as a list (DeepSpeed 0.19.8, runtime/zero/leaf_module_config.py)."""
_PLAIN: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "path": str,
    "null": None,
    "list": list[Any],
    "object": dict[str, Any],
    "any": Any,
    "python": type,
}
_OF_PYTHON: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
    "path": str,
    "null": type(None),
    "list": list,
    "object": dict,
}


def taken(key: Key, value: Any) -> bool:
    """Return whether DeepSpeed accepts the value of a key that pydantic validates.

    `auto` is accepted: DeepSpeed drops these keys before it validates the config (0.19.8,
    runtime/config_utils.py).
    """
    from pydantic import ValidationError

    if value == "auto" or _leaves(key, value):
        return True
    try:
        _adapter(key.type, key.choices).validate_python(value)
        number = float(value) if _bounded(key) and value is not None else None
    except (ValidationError, TypeError, ValueError):
        return False
    return number is None or in_bounds(key, number)


def coerced(key: Key, value: Any) -> Any:
    """Return an accepted value as pydantic converts it."""
    if value == "auto" or _leaves(key, value):
        return value
    made = _adapter(key.type, key.choices).validate_python(value)
    return made.value if isinstance(made, Enum) else made


def _leaves(key: Key, value: Any) -> bool:
    """Return whether a value is accepted for leaf modules, besides lists."""
    one = isinstance(value, str) and key.path.startswith(f"{LEAVES}.")
    return one or (value is None and key.path == LEAVES)


def in_bounds(key: Key, value: float) -> bool:
    """Return whether a number is within the key's limits."""
    return (
        (key.min is None or value >= key.min)
        and (key.above is None or value > key.above)
        and (key.max is None or value <= key.max)
        and (key.below is None or value < key.below)
    )


def bounds_text(key: Key) -> str:
    """Return the limits as text; empty without limits."""
    words = (
        ("at least", key.min),
        ("more than", key.above),
        ("at most", key.max),
        ("less than", key.below),
    )
    return " and ".join(f"{word} {bound:g}" for word, bound in words if bound is not None)


def fits(key: Key, value: Any) -> bool:
    """Return whether a value has the type of the key, without a conversion."""
    kinds = key.types
    if isinstance(value, bool):
        return "bool" in kinds or "any" in kinds
    if isinstance(value, float) and value.is_integer() and "int" in kinds:
        return True
    if isinstance(value, list):
        return any(_items_fit(kind, value) for kind in kinds)
    return any(kind == "any" or isinstance(value, _OF_PYTHON.get(kind, ())) for kind in kinds)


def _items_fit(kind: str, value: list[Any]) -> bool:
    found = re.fullmatch(r"list(?:\[(\w+)\])?", kind)
    if kind == "any" or (found and found[1] in (None, "any")):
        return True
    allowed = _OF_PYTHON.get(found[1] if found else "", ())
    return all(isinstance(item, allowed) for item in value) if found else False


def allowed(key: Key, value: Any) -> bool:
    """Return whether a value is one of the key's choices; True without choices."""
    if (
        not key.choices
        or _open_ended(key.choices)
        or not isinstance(value, str | int)
        or value == "auto"
    ):
        return True
    return value in key.choices or (
        isinstance(value, str) and value.lower() in [str(c).lower() for c in key.choices]
    )


def refused(key: Key, value: Any) -> bool:
    """Return whether DeepSpeed stops at a value of this kind, for a key that pydantic does not
    validate."""
    kind = kind_of(value)
    if kind == "text" and "other text" in key.rejects:
        return not (value in key.choices if "other case" in key.rejects else allowed(key, value))
    return kind in key.rejects


def _bounded(key: Key) -> bool:
    return any(b is not None for b in (key.min, key.above, key.max, key.below))


@cache
def _adapter(kind: str, choices: tuple[Any, ...]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_annotation(kind, choices))


def _annotation(kind: str, choices: tuple[Any, ...]) -> Any:
    """Return the type for pydantic; choices of DeepSpeed's enumerations are enumerations."""
    parts: list[Any] = []
    for name in kind.split("|"):
        items = re.fullmatch(r"list\[(\w+)\]", name)
        if items and choices and not _open_ended(choices):
            parts.append(list[Literal[choices]])  # type: ignore[valid-type]
        elif items:
            parts.append(list[_PLAIN[items[1]]])  # type: ignore[valid-type]
        elif choices and name in ("int", "str") and not _open_ended(choices):
            parts.append(_enumeration(choices))
        else:
            parts.append(_PLAIN[name])
    union = parts[0]
    for part in parts[1:]:
        union = union | part
    return union


def _open_ended(choices: tuple[Any, ...]) -> bool:
    return any(str(choice).startswith("<") for choice in choices)


def _enumeration(choices: tuple[Any, ...]) -> Any:
    if all(isinstance(choice, int) for choice in choices):
        return IntEnum("Choice", {f"n{c}": c for c in choices})
    return Enum("Choice", {f"c{i}": c for i, c in enumerate(choices)}, type=str)
