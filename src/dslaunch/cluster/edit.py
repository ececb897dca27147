"""Set values in the text of a cluster file, and keep everything else unchanged.

Comments, order, quotes and indentation are kept. The result is parsed again and compared with the
expected data before it is returned.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.mistakes import MistakeCode, mistake
from dslaunch.errors import ConfigError
from dslaunch.json_text import json_literal, json_text

Value = str | int | list[int]


class ClusterFileEdit(Struct, frozen=True):
    """A value to set."""

    path: yamltext.Path
    """Such as `("nodes", 0, "env", "NCCL_IB_HCA")`. Missing mappings are added; items of lists must
    exist."""
    value: Value


def edited(text: str, edit: ClusterFileEdit, file: str) -> str:
    """Return the text with the value set. Raises ConfigError if that cannot be done in place."""
    document = yamltext.parse(text, file, verbatim=schema.VERBATIM)
    if document.problems:
        raise ConfigError(tuple(document.problems))
    not_editable = mistake(MistakeCode.NOT_EDITABLE, value=_flow(edit.value))
    impossible = ConfigError((document.problem(edit.path, not_editable),))
    wanted = _with(document.data, edit)
    if wanted is None:
        raise impossible
    if wanted == document.data:
        return text
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    new = mark + _inserted(body, edit)
    try:
        done = yamltext.parse(new, file, verbatim=schema.VERBATIM)
    except ConfigError:
        raise impossible from None
    if done.problems or done.data != wanted:
        raise impossible
    return new


def _with(data: Any, edit: ClusterFileEdit) -> Any:
    """Return the expected data after the edit; None: the path does not exist."""
    # not a deep copy, which would keep the values of aliases shared
    changed = here = json.loads(json_text(data))
    *way, key = edit.path
    for step in way:
        if isinstance(step, int):
            if not isinstance(here, list) or step >= len(here):
                return None
        elif not isinstance(here, dict):
            return None
        elif here.get(step) in (None, ""):
            here[step] = {}
        here = here[step]
    if not isinstance(here, dict):
        return None
    here[key] = edit.value
    return changed


def _inserted(text: str, edit: ClusterFileEdit) -> str:
    """Replace the value, or add the missing part of its path to the last existing mapping."""
    import yaml

    # the text has been parsed before, so it is valid and not too deep
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    steps = list(edit.path)
    while steps and steps[0] in (children := _children(node)):
        node = children[steps.pop(0)]
    value = _flow(edit.value)
    if steps and isinstance(node, yaml.MappingNode):
        if node.flow_style:
            return _into_flow(text, node, _nested(steps, value)[1:-1])
        return _into_block(text, node, steps, value)
    start, end = node.start_mark.index, _end(node)
    # the position of an empty value is directly after `env:`, without a space
    blank = "" if end > start or text[start - 1 : start] in " \t" else " "
    return text[:start] + blank + _nested(steps, value) + text[end:]


def _children(node: Any) -> dict[str | int, Any]:
    """Return the values of a node by their keys or indexes."""
    if node.id == "mapping":
        return {key.value: value for key, value in node.value}
    return dict(enumerate(node.value)) if node.id == "sequence" else {}


def _end(node: Any) -> int:
    """Return the index after a value; the parser's mark is after the comments of a block."""
    children = list(_children(node).values())
    if not children or node.flow_style:
        return int(node.end_mark.index)
    return _end(children[-1])


def _nested(steps: list[str | int], value: str) -> str:
    """Render a path as flow mappings: `{env: {A: "1"}}`."""
    for step in reversed(steps):
        value = f"{{{step}: {value}}}"
    return value


def _into_flow(text: str, node: Any, entry: str) -> str:
    """Add an entry to a mapping in braces."""
    if not node.value:
        return text[: node.start_mark.index] + f"{{{entry}}}" + text[node.end_mark.index :]
    end = _end(node.value[-1][1])
    return text[:end] + f", {entry}" + text[end:]


def _into_block(text: str, node: Any, steps: list[str | int], value: str) -> str:
    """Add lines after the last one of the mapping, indented like its keys."""
    feed = "\r\n" if "\r\n" in text else "\n"
    column = node.start_mark.column
    lines = [" " * (column + 2 * depth) + f"{step}:" for depth, step in enumerate(steps)]
    added = feed.join(lines) + f" {value}"
    end = _end(node)
    if text[end - 1] == "\n":  # after a block scalar, which ends with its last line
        return text[:end] + added + feed + text[end:]
    found = text.find("\n", end)
    end = len(text) if found < 0 else found
    end -= text[end - 1] == "\r"
    return text[:end] + feed + added + text[end:]


def _flow(value: Value) -> str:
    """Render a value on one line; text is quoted where YAML could parse it as another type."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w./-]*", value):
        plain = value.lower() not in ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
        return value if plain else json_literal(value)
    return json_literal(value, ascii_only=False).replace("\x7f", "\\x7f")  # invalid unescaped
