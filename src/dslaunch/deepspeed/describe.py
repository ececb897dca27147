"""What is known of the keys, for people and editors: explanations and a JSON Schema. Pure."""

from __future__ import annotations

import json
from typing import Any

from dslaunch.deepspeed import schema, values
from dslaunch.deepspeed.rules.keys import closest
from dslaunch.deepspeed.schema import Key, Table
from dslaunch.errors import UsageError

NAMES = {"hf_trainer": "Hugging Face's Trainer", "accelerate": "accelerate"}
NARROWEST = 24
"""Columns that an explanation takes however narrow the terminal is."""
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
    """The keys that are meant by a path, or by the end of one.

    Raises UsageError for what no version knows, with what is like it.
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
    hint = f"did you mean {every[similar]}?" if similar else None
    raise UsageError(f"no DeepSpeed config key {words!r}", hint=hint)


def explained(key: Key, table: Table) -> dict[str, Any]:
    """All that is known of a key, in the order in which it is shown; what is not known is out."""
    by_hand = schema.by_hand("keys").get(key.path, {})
    general = schema.by_hand("keys").get(key.alias_of or "", {})
    facts = {
        "key": key.path,
        "meaning": by_hand.get("meaning") or general.get("meaning"),
        "change it": by_hand.get("change") or general.get("change"),
        "type": key.type.replace("|", " or "),
        "default": None if key.type == "removed" else json.dumps(key.default),
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


UNKNOWN = {"forbid": "DeepSpeed stops at them", "ignore": "ignored without a word"}
"""What comes of unknown keys in a section."""


def _checked(key: Key) -> str | None:
    if key.is_section or key.type == "removed":
        return None
    return "when the config is read" if key.checked else "not when the config is read"


def known_in(path: str) -> str:
    """In which of the versions that have a table the key is."""
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
    """One key's facts as text: the path, then a line for each, as long as it is.

    With `width`, a line is continued below itself, until it has so many columns or less.
    """
    lines = [f"    {name}: {words}" for name, words in facts.items() if name != "key"]
    if width is not None:
        from textwrap import wrap

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
    """A JSON Schema (draft 2020-12) of the config, for editors.

    `auto` is allowed at the keys that somebody fills in. Sections whose unknown keys DeepSpeed
    ignores are closed too, since an editor is there to point at them; the top level alone is not,
    as some scripts keep settings of their own there.
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
