"""What pydantic found in a cluster file, in our words and with its place in the text.

What is at fault is then cut out and the rest checked again, so that the rules for which the
whole must be seen (see `rules`) are heard at the same time.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from dslaunch.cluster import schema
from dslaunch.cluster.container_section import ContainerSection
from dslaunch.cluster.preflight_section import PreflightSection
from dslaunch.cluster.sbatch_options import as_directive
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.cluster.synonyms import meant_key, meant_of_node
from dslaunch.cluster.yamltext import Document, Path, described
from dslaunch.errors import Problem

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
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le}",
    "words": "{what}",
}
RULES = {"extra_forbidden": "unknown-key", "missing": "missing-key"}
"""pydantic's kinds of findings, as rules; the others are `wrong-value`."""
NAMES = frozenset({"missing-key", "syntax", "unknown-key", "wrong-value"})
"""The rules of `dslaunch validate`."""
_ROUNDS = 5
"""Enough to cut out a key, then its entry that lacks it, then the list that is left empty."""
_TAG = re.compile(r"<[a-z]+>")


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of a file when all that is at fault is cut out."""

    file: schema.ClusterFile | None
    """None: nothing sensible is left."""
    indexes: tuple[int, ...]
    """For each entry of `file.nodes`, its index in the text."""
    problems: tuple[Problem, ...]


def check(document: Document) -> Checked:
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


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Give `, did you mean ...?` with the word that is nearest, or nothing."""
    close = difflib.get_close_matches(word, list(words), 1)
    return f", did you mean `{close[0]}`?" if close else ""


def _node_count(data: dict[str, Any]) -> int:
    nodes = data.get("nodes")
    return len(nodes) if isinstance(nodes, list) else 0


def _problems(document: Document, found: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    found = list(found)
    renamed = set(_renamed(found))
    for finding in found:
        if finding["type"] == "too_short" and finding["input"]:
            continue  # pydantic counts only the items that are right
        path = _path(finding["loc"])
        if finding["type"] == "missing" and path in renamed:
            continue  # it stands there under another name, which is told
        rule = RULES.get(finding["type"], "wrong-value")
        yield document.problem(path, _message(finding, path), rule)


def _renamed(found: Iterable[Mapping[str, Any]]) -> Iterator[Path]:
    """Give the paths of keys that stand there by another word: `nodes` for `hosts`."""
    for finding in found:
        path = _path(finding["loc"])
        if finding["type"] == "extra_forbidden":
            meant = meant_key(str(path[-1]), str(path[0]) if len(path) > 1 else None)
            if meant is not None:
                yield (*path[:-1], meant)


def _path(location: Path) -> Path:
    """Give the place without the tags of unions and the mark of a mapping's key."""
    path = location[:-1] if location[-1:] == ("[key]",) else location
    return tuple(s for s in path if not (isinstance(s, str) and _TAG.fullmatch(s)))


def _message(finding: Mapping[str, Any], path: Path) -> str:
    kind, given = finding["type"], finding["input"]
    if kind == "extra_forbidden":
        return f"unknown key `{path[-1]}`{_without_space(str(path[-1])) or _nearest_key(path)}"
    if kind == "missing":
        return "is missing"
    if kind in ("too_short", "string_too_short"):
        return "is empty"
    if kind == "literal_error":
        return f"expected {_choices(finding)}, got {described(given)}" + did_you_mean(
            str(given), re.findall(r"'([\w-]+)'", finding["ctx"]["expected"])
        )
    expected = _EXPECTED.get(kind)
    if expected is None:
        return f"{finding['msg'][:1].lower()}{finding['msg'][1:]}, got {described(given)}"
    expected = expected.format(**finding.get("ctx", {}))
    if len(path) == 2 and path[0] == "nodes" and isinstance(given, str):
        more = _without_space(given) or ", such as `{host: node01, slots: 8}`"
        return f"expected {expected}, got {described(given)}{more}"
    if path[0] == "secrets":  # somebody may have put the secret itself there
        return f"expected {expected}; a secret's value does not belong in this file"
    if "<value>" in finding["loc"]:
        expected = "`auto`" + (", " if " or " in expected else " or ") + expected
    return f"expected {expected}, got {described(given)}"


def _choices(finding: Mapping[str, Any]) -> str:
    return str(finding["ctx"]["expected"]).replace("'", "`")


def _without_space(text: str) -> str:
    """Say that `host:a` lacks a space; nothing if it is not of that form."""
    key, colon, rest = text.partition(":")
    known = {*schema.ClusterFile.model_fields, *schema.NodeEntry.model_fields}
    return f": a space is missing after `{key}:`" if colon and rest and key in known else ""


def _nearest_key(path: Path) -> str:
    key, top = str(path[-1]), str(path[0])
    deepest = 3 if top == "nodes" else 2
    parent = top if len(path) > 1 else None
    meant = meant_key(key, parent) if len(path) <= deepest else None
    if meant is not None:
        return f", did you mean `{meant}`?"
    if len(path) == 1:
        of_node = meant_of_node(key)
        if of_node is not None and key not in schema.NodeEntry.model_fields:
            return f", did you mean `{of_node}`?"
        for name, section in _SECTIONS.items():
            if key in section.model_fields and name not in ("nodes", "secrets"):
                return f", did you mean `{name}.{key}`?"
        if of_node is not None:
            return f", did you mean `{of_node}`?"
        return did_you_mean(key, schema.ClusterFile.model_fields)
    section = ContainerSection if "container" in path[1:-1] else _SECTIONS[top]
    option = as_directive(key) if section is SlurmSection else None
    if option is not None and key.lower().replace("-", "_") not in section.model_fields:
        return f"; it is an option of sbatch: `directives: [{option}]`"
    return did_you_mean(key, section.model_fields)


def _fault(finding: Mapping[str, Any]) -> Path:
    """Give the smallest part that must be cut out: a key of a node entry, an entry, a top key."""
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
    # so that the entry's names are still compared with those of others
    return rest | {"slots": 1} if ("nodes", index, "slots") in faults else rest
