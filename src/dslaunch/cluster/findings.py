"""Convert the validation errors of pydantic to mistakes with positions in the text.

Invalid parts are then removed and the rest is checked again, so that the rules about several keys
(see `rules`) are reported at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from dslaunch.cluster import schema
from dslaunch.cluster.container_section import ContainerSection
from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.preflight_section import PreflightSection
from dslaunch.cluster.sbatch_options import as_directive
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.cluster.synonyms import meant_key, meant_of_node
from dslaunch.cluster.yamltext import Path, YamlDocument, described
from dslaunch.errors import Problem
from dslaunch.texts import closest

_SECTIONS: dict[str, type[BaseModel]] = {
    "nodes": schema.NodeEntry,
    "ssh": schema.SshSection,
    "network": schema.NetworkSection,
    "storage": schema.StorageSection,
    "secrets": schema.SecretFile,
    "job": schema.JobSection,
    "slurm": SlurmSection,
    "preflight": PreflightSection,
}
_EXPECTED = {
    "int_type": (MistakeCode.WRONG_TYPE, "an integer"),
    "float_type": (MistakeCode.WRONG_TYPE, "a number"),
    "bool_type": (MistakeCode.WRONG_TYPE, "true or false"),
    "string_type": (MistakeCode.WRONG_TYPE, "text"),
    "list_type": (MistakeCode.WRONG_TYPE, "a list"),
    "dict_type": (MistakeCode.WRONG_TYPE, "a mapping"),
    "model_type": (MistakeCode.WRONG_TYPE, "a mapping"),
    "model_attributes_type": (MistakeCode.WRONG_TYPE, "a mapping"),
    "greater_than": (MistakeCode.OUT_OF_RANGE, "more than {gt:g}"),
    "greater_than_equal": (MistakeCode.OUT_OF_RANGE, "at least {ge}"),
    "less_than": (MistakeCode.OUT_OF_RANGE, "less than {lt:g}"),
    "less_than_equal": (MistakeCode.OUT_OF_RANGE, "at most {le}"),
    "words": (MistakeCode.WRONG_FORMAT, "{what}"),
}
"""Error types of pydantic, as codes, with the expected value."""
_ROUNDS = 5
"""Rounds to remove a key, then the entry that requires it, then the list that is empty now."""
_TAG = re.compile(r"<[a-z]+>")


@dataclass(frozen=True, slots=True)
class Checked:
    """The valid part of a file."""

    file: schema.ClusterFile | None
    """None: no valid part remains."""
    indexes: tuple[int, ...]
    """For each entry of `file.nodes`, its index in the text."""
    problems: tuple[Problem, ...]


def check(document: YamlDocument) -> Checked:
    """Check the data of a cluster file against its schema."""
    data, indexes = document.data, tuple(range(_node_count(document.data)))
    problems: tuple[Problem, ...] = ()
    for attempt in range(_ROUNDS):
        try:
            return Checked(schema.ClusterFile.model_validate(data), indexes, problems)
        except ValidationError as error:
            found: Any = error.errors(include_url=False)
        if attempt == 0:
            problems = tuple(_problems(document, found))
        data, indexes = _without(data, indexes, set(map(_fault, found)))
    return Checked(None, (), problems)


def _node_count(data: dict[str, Any]) -> int:
    nodes = data.get("nodes")
    return len(nodes) if isinstance(nodes, list) else 0


def _problems(document: YamlDocument, found: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    found = list(found)
    renamed = set(_renamed(found))
    for finding in found:
        if finding["type"] == "too_short" and finding["input"]:
            continue  # pydantic counts only the valid items
        path = _path(finding["loc"])
        if finding["type"] == "missing" and path in renamed:
            continue  # it is set under another name, which is reported
        yield document.problem(path, _mistake(finding, path))


def _renamed(found: Iterable[Mapping[str, Any]]) -> Iterator[Path]:
    """Return the paths of keys that are set under another name: `nodes` for `hosts`."""
    for finding in found:
        path = _path(finding["loc"])
        if finding["type"] == "extra_forbidden":
            meant = meant_key(str(path[-1]), str(path[0]) if len(path) > 1 else None)
            if meant is not None:
                yield (*path[:-1], meant)


def _path(location: Path) -> Path:
    """Return the location without the tags of unions and the marker of a mapping's key."""
    path = location[:-1] if location[-1:] == ("[key]",) else location
    return tuple(s for s in path if not (isinstance(s, str) and _TAG.fullmatch(s)))


def _mistake(finding: Mapping[str, Any], path: Path) -> Mistake:
    kind, given = finding["type"], finding["input"]
    found = described(given)
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return mistake(MistakeCode.MISSING_KEY)
    if kind in ("too_short", "string_too_short"):
        return mistake(MistakeCode.EMPTY_VALUE)
    if kind == "literal_error":
        expected = finding["ctx"]["expected"]
        known = re.findall(r"'([\w-]+)'", expected)
        return mistake(
            MistakeCode.UNKNOWN_VALUE,
            expected=expected.replace("'", "`"),
            found=found,
            similar=closest(str(given), known),
        )
    if kind not in _EXPECTED:
        reason = finding["msg"][:1].lower() + finding["msg"][1:]
        return mistake(MistakeCode.INVALID_VALUE, error=reason, found=found)
    code, template = _EXPECTED[kind]
    expected = template.format(**finding.get("ctx", {}))
    if len(path) == 2 and path[0] == "nodes" and isinstance(given, str):
        expected += " such as `{host: node01, slots: 8}`"
        glued = _glued_key(given)
        if glued:
            return mistake(MistakeCode.MISSING_SPACE, text=glued)
    if path[0] == "secrets":  # the value may be the secret itself
        return mistake(MistakeCode.INVALID_SECRET, expected=expected)
    if "<value>" in finding["loc"]:
        expected = "`auto`" + (", " if " or " in expected else " or ") + expected
    return mistake(code, expected=expected, found=found)


def _glued_key(text: str) -> str:
    """Return `host:` of `host:a`, which lacks a space; an empty text if it is not of that form."""
    key, colon, rest = text.partition(":")
    known = {*schema.ClusterFile.model_fields, *schema.NodeEntry.model_fields}
    return f"{key}:" if colon and rest and key in known else ""


def _unknown_key(path: Path) -> Mistake:
    key, top = str(path[-1]), str(path[0])
    glued = _glued_key(key)
    if glued:
        return mistake(MistakeCode.MISSING_SPACE, text=glued)
    deepest = 3 if top == "nodes" else 2
    parent = top if len(path) > 1 else None
    meant = meant_key(key, parent) if len(path) <= deepest else None
    if meant is not None:
        return mistake(MistakeCode.UNKNOWN_KEY, key=key, similar=meant)
    if len(path) == 1:
        return mistake(MistakeCode.UNKNOWN_KEY, key=key, similar=_nearest_at_the_top(key))
    section = ContainerSection if "container" in path[1:-1] else _SECTIONS[top]
    option = as_directive(key) if section is SlurmSection else None
    if option is not None and key.lower().replace("-", "_") not in section.model_fields:
        return mistake(MistakeCode.SBATCH_OPTION, key=key, option=option)
    nearest = closest(key, section.model_fields)
    return mistake(MistakeCode.UNKNOWN_KEY, key=key, similar=nearest)


def _nearest_at_the_top(key: str) -> str:
    """Return the key that an unknown one probably means; it may belong to a section."""
    of_node = meant_of_node(key)
    if of_node is not None and key not in schema.NodeEntry.model_fields:
        return of_node
    for name, section in _SECTIONS.items():
        if key in section.model_fields and name not in ("nodes", "secrets"):
            return f"{name}.{key}"
    return of_node or closest(key, schema.ClusterFile.model_fields)


def _fault(finding: Mapping[str, Any]) -> Path:
    """Return the smallest part to remove: a key of a node entry, an entry, or a top-level key."""
    path = _path(finding["loc"])
    if finding["type"] == "missing" and path[2:] != ("slots",):
        path = path[:-1]
    return path[: 3 if path[:1] == ("nodes",) else 1]


def _without(
    data: dict[str, Any], indexes: tuple[int, ...], faults: set[Path]
) -> tuple[dict[str, Any], tuple[int, ...]]:
    if () in faults:
        return {}, ()
    rest = {key: value for key, value in data.items() if (key,) not in faults}
    if not isinstance(rest.get("nodes"), list):
        return rest, ()
    kept = [i for i in range(len(indexes)) if ("nodes", i) not in faults]
    rest["nodes"] = [_less(data["nodes"][i], i, faults) for i in kept]
    return rest, tuple(indexes[i] for i in kept)


def _less(entry: Any, index: int, faults: set[Path]) -> Any:
    if not isinstance(entry, dict):
        return entry
    rest = {key: value for key, value in entry.items() if ("nodes", index, key) not in faults}
    # keep the names, so that they are still compared with other entries
    return rest | {"slots": 1} if ("nodes", index, "slots") in faults else rest
