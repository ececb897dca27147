"""Set values in a cluster file's text and leave everything else as its author wrote it.

Only what must change changes: comments, order, quotes and indents stay. The result is read again
and compared with what was wanted before anybody gets to see it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dslaunch.cluster import schema, yamltext
from dslaunch.errors import ConfigError, Problem

Value = str | int | list[int]


@dataclass(frozen=True, slots=True)
class Change:
    """A value to set."""

    path: yamltext.Path
    """Where, as `("nodes", 0, "env", "NCCL_IB_HCA")`. Its mappings are made if they are not there;
    items of lists must be."""
    value: Value


@dataclass(frozen=True, slots=True)
class _Part:
    """A value in the text, from its first character to behind its last."""

    start: int
    end: int
    column: int
    """Of its first character, from 0."""
    flow: bool = True
    """Whether it is a scalar, or written with brackets or braces."""
    kind: str = "scalar"
    children: dict[str | int, _Part] | None = None
    shared: bool = False
    """Whether it has an anchor or is an alias: a change of it would be one elsewhere too."""


def edited(text: str, changes: Iterable[Change], file: str) -> str:
    """Give the text with the values set. Raises ConfigError if that cannot be done in place."""
    for change in changes:
        text = _edited(text, change, file)
    return text


def _edited(text: str, change: Change, file: str) -> str:
    document = yamltext.parse(text, file, verbatim=schema.VERBATIM)
    if document.problems:
        raise ConfigError(tuple(document.problems))
    wanted = _with(document, change)
    if wanted == document.data:
        return text
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    new = mark + _inserted(body, _parts(body), change, document)
    try:
        done = yamltext.parse(new, file, verbatim=schema.VERBATIM)
    except ConfigError:
        raise _impossible(document, change) from None
    if done.problems or done.data != wanted:
        raise _impossible(document, change)
    return new


def _with(document: yamltext.Document, change: Change) -> Any:
    """The data as it should be afterwards."""
    data = copy.deepcopy(document.data)
    here, key = data, change.path[-1]
    for at, step in enumerate(change.path[:-1]):
        there = _has(here, step)
        if not there and not isinstance(here, dict):
            raise _impossible(document, change)
        if not there or here[step] is None or here[step] == "":
            following = change.path[at + 1]
            if isinstance(following, int):
                raise _impossible(document, change)
            here[step] = {}
        here = here[step]
    if not isinstance(here, dict) or not isinstance(key, str):
        raise _impossible(document, change)
    here[key] = change.value
    return data


def _has(here: Any, step: str | int) -> bool:
    if isinstance(here, list):
        return isinstance(step, int) and 0 <= step < len(here)
    return isinstance(here, dict) and step in here


def _impossible(document: yamltext.Document, change: Change) -> ConfigError:
    words = f"cannot be changed in place; write {_flow(change.value)} there by hand"
    line, column = document.place(change.path)
    path = yamltext.path_text(change.path)
    return ConfigError((Problem(document.file, line, column, path, words),))


def _inserted(text: str, top: _Part, change: Change, document: yamltext.Document) -> str:
    """Replace the value, or add what of its path is not there to the last mapping that is."""
    part, steps = top, list(change.path)
    while steps and part.children is not None and steps[0] in part.children:
        part = part.children[steps.pop(0)]
        if part.shared:
            raise _impossible(document, change)
    value = _flow(change.value)
    if not steps:
        return text[: part.start] + _spaced(text, part, value) + text[part.end :]
    if part.kind == "scalar":
        return text[: part.start] + _spaced(text, part, _nested(steps, value)) + text[part.end :]
    if part.kind != "mapping":
        raise _impossible(document, change)
    if part.flow:
        return _into_flow(text, part, steps, value)
    return _into_block(text, part, steps, value)


def _spaced(text: str, part: _Part, value: str) -> str:
    """Put a blank before what stands in the place of nothing, as behind `env:`."""
    return (
        value
        if part.end > part.start or text[part.start - 1 : part.start] in " \t"
        else f" {value}"
    )


def _nested(steps: list[str | int], value: str) -> str:
    """Write a path as flow mappings: `{env: {A: "1"}}`."""
    for step in reversed(steps):
        value = f"{{{step}: {value}}}"
    return value


def _into_flow(text: str, part: _Part, steps: list[str | int], value: str) -> str:
    entry = _nested(steps, value)[1:-1]
    if not part.children:
        return text[: part.start] + f"{{{entry}}}" + text[part.end :]
    end = max(child.end for child in part.children.values())
    return text[:end] + f", {entry}" + text[end:]


def _into_block(text: str, part: _Part, steps: list[str | int], value: str) -> str:
    """Add lines behind the mapping's last one, indented as its keys are."""
    feed = "\r\n" if "\r\n" in text else "\n"
    lines = [" " * (part.column + 2 * depth) + f"{step}:" for depth, step in enumerate(steps)]
    added = feed.join(lines) + f" {value}"
    if text[part.end - 1] == "\n":  # behind a block scalar, which ends with its last line
        return text[: part.end] + added + feed + text[part.end :]
    found = text.find("\n", part.end)
    end = len(text) if found < 0 else found
    end -= text[end - 1] == "\r"
    return text[:end] + feed + added + text[end:]


def _flow(value: Value) -> str:
    """Write a value on one line; text with quotes where YAML could take it for something else."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w./-]*", value):
        plain = value.lower() not in ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
        return value if plain else json.dumps(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f")  # no YAML as it is


def _parts(text: str) -> _Part:
    """Find where each value is. The text has been read, so it is neither broken nor deep."""
    import yaml

    events = list(yaml.parse(text, Loader=yaml.SafeLoader))
    return _value(events[2:], 0)[0]


def _value(events: list[Any], at: int) -> tuple[_Part, int]:
    """Read the value that begins with an event; give the index of the event behind it."""
    event = events[at]
    kind = type(event).__name__
    start, column = event.start_mark.index, event.start_mark.column
    if kind in ("ScalarEvent", "AliasEvent"):
        shared = kind == "AliasEvent" or bool(event.anchor)
        return _Part(start, event.end_mark.index, column, shared=shared), at + 1
    mapping = kind == "MappingStartEvent"
    children: dict[str | int, _Part] = {}
    last, at = start, at + 1
    while not type(events[at]).__name__.endswith("EndEvent"):
        key: str | int = len(children)
        if mapping:
            key = events[at].value
            at += 1
        part, at = _value(events, at)
        children[key] = part
        last = part.end
    end = events[at].end_mark.index if event.flow_style else last
    name = "mapping" if mapping else "sequence"
    part = _Part(
        start,
        end,
        column,
        flow=bool(event.flow_style),
        kind=name,
        children=children,
        shared=bool(event.anchor),
    )
    return part, at + 1
