"""Explain the keys of a config: texts for users, and a JSON Schema for editors. Pure."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from dslaunch.deepspeed import schema, values
from dslaunch.deepspeed.rules.keys import closest
from dslaunch.deepspeed.schema import Key, Table
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.json_text import json_literal

NAMES = {"hf_trainer": "Hugging Face's Trainer", "accelerate": "accelerate"}
NARROWEST = 24
"""Minimum width of an explanation in columns."""
_TYPES = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "path": "string",
    "null": "null",
    "object": "object",
}


def find(table: Table, words: str) -> tuple[Key, ...]:
    """Return the keys that match a path, or the end of one.

    Raises UsageError for an unknown key, with similar ones.
    """
    wanted = words.strip(".")
    for version in (table, *map(schema.load, reversed(schema.versions()))):
        exact = version.keys.get(wanted)
        ending = (key for key in version.keys.values() if key.path.endswith(f".{wanted}"))
        found = (exact,) if exact else tuple(ending)
        if found:
            return found
    every = {key.path: key.path for key in table.keys.values()}
    every |= {key.name: key.path for key in table.keys.values()}
    similar, _ = closest(wanted, list(every))
    meant = every[similar] if similar else ""
    noun = "DeepSpeed config key"
    raise UsageError.coded(ErrorCode.UNKNOWN_NAME, noun=noun, name=words, meant=meant)


def explained(key: Key, table: Table) -> dict[str, Any]:
    """Return the known facts of a key, in their display order; unknown facts are not included."""
    by_hand = schema.by_hand("keys").get(key.path, {})
    general = schema.by_hand("keys").get(key.alias_of or "", {})
    facts = {
        "key": key.path,
        "meaning": by_hand.get("meaning") or general.get("meaning"),
        "change it": by_hand.get("change") or general.get("change"),
        "type": key.type.replace("|", " or "),
        "default": None if key.type == "removed" else json_literal(key.default),
        "choices": ", ".join(map(str, key.choices)),
        "limits": values.bounds_text(key),
        "auto": " and ".join(NAMES[each] for each in key.auto),
        "parameter of": ", ".join(key.applies_to or ()),
        "keys": ", ".join(table.names(key.path)),
        "unknown keys": UNKNOWN.get(key.unknown_keys or ""),
        "checked": _checked(key),
        "deprecated": f"use {key.replaced_by or key.alias_of}" if key.deprecated else None,
        "other name of": None if key.deprecated else key.alias_of,
        "note": by_hand.get("note"),
        "versions": known_in(key.path),
        "source": by_hand.get("source") or general.get("source"),
    }
    return {name: words for name, words in facts.items() if words not in (None, "")}


UNKNOWN = {"forbid": "DeepSpeed stops at them", "ignore": "silently ignored"}
"""The effect of unknown keys in a section."""


def _checked(key: Key) -> str | None:
    if key.is_section or key.type == "removed":
        return None
    return "when the config is read" if key.checked else "not when the config is read"


def known_in(path: str) -> str:
    """Return the DeepSpeed versions that have a key."""
    versions = schema.versions()
    having = [v for v in versions if path in schema.load(v).keys and not _removed(v, path)]
    gone = [v for v in versions if _removed(v, path)]
    if not having:
        return f"removed, {gone[0]} stops at it"
    words = f"{having[0]} or earlier" if having[0] == versions[0] else f"since {having[0]}"
    if having[-1] != versions[-1]:
        words += f", not after {having[-1]}"
    return words + (f"; {gone[0]} stops at it" if gone else "")


def _removed(version: str, path: str) -> bool:
    key = schema.load(version).keys.get(path)
    return key is not None and key.type == "removed"


def explanation(facts: dict[str, Any], width: int | None = None) -> str:
    """Return the facts of a key as text: the path, then a line for each.

    With `width`, lines are wrapped at that number of columns.
    """
    lines = [f"    {name}: {words}" for name, words in facts.items() if name != "key"]
    if width is not None:
        room = max(NARROWEST, width)
        lines = [
            part
            for line in lines
            for part in wrap(
                line,
                room,
                subsequent_indent=" " * 8,
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
    return "\n".join([facts["key"], *lines])


def json_schema(table: Table) -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of the config, for editors.

    `auto` is allowed at keys for which a framework replaces it. Unknown keys are errors in all
    sections, also where DeepSpeed ignores them; but not at the top level, where some scripts keep
    their own settings.
    """
    top = _object("", table)
    top.pop("additionalProperties", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"DeepSpeed {table.version} config",
        **top,
    }


def _object(path: str, table: Table) -> dict[str, Any]:
    properties, patterns = {}, {}
    for name in table.names(path):
        inner = f"{path}.{name}" if path else name
        key = table.keys.get(inner)
        if key is not None and key.type == "removed":
            properties[name] = False
        elif name.startswith("<"):
            patterns[".*"] = _object(inner, table)
        elif not name.startswith("["):
            properties[name] = _property(key, inner, table)
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if patterns:
        return {"type": "object", "patternProperties": patterns}
    return found | ({"additionalProperties": False} if properties else {})


def _property(key: Key | None, path: str, table: Table) -> Any:
    if key is None:
        return _object(path, table)
    described = _value(key, path, table)
    meaning = schema.by_hand("keys").get(path, {}).get("meaning")
    more: dict[str, Any] = {"description": meaning} if meaning else {}
    if key.default is not None:
        more["default"] = key.default
    if key.deprecated:
        more["deprecated"] = True
    return {**described, **more}


def _value(key: Key, path: str, table: Table) -> dict[str, Any]:
    options = [_option(kind, key, path, table) for kind in key.types if kind != "any"]
    closed = key.choices and not any(str(c).startswith("<") for c in key.choices)
    if closed and "list" not in key.type:
        options = [{"enum": [*key.choices, *([None] if "null" in key.types else [])]}]
    if key.auto:
        options.append({"const": "auto"})
    if not options or "any" in key.types:
        return {}
    return options[0] if len(options) == 1 else {"anyOf": options}


def _option(kind: str, key: Key, path: str, table: Table) -> dict[str, Any]:
    if kind == "object":
        return _object(path, table) if table.names(path) else {"type": "object"}
    if kind.startswith("list"):
        item = kind[5:-1]
        return {"type": "array"} | ({"items": {"type": _TYPES[item]}} if item in _TYPES else {})
    if kind not in _TYPES:
        return {"not": {}}
    bounds = {
        "minimum": key.min,
        "exclusiveMinimum": key.above,
        "maximum": key.max,
        "exclusiveMaximum": key.below,
    }
    found: dict[str, Any] = {"type": _TYPES[kind]}
    if kind in ("int", "float"):
        found |= {name: bound for name, bound in bounds.items() if bound is not None}
    return found
