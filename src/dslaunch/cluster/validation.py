"""Check the data of a cluster file; invalid parts are left out, so that the rules about several
keys (see `rules`) are reported at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from dslaunch.cluster import schema
from dslaunch.cluster.container_section import ContainerSection
from dslaunch.cluster.forms import Fault, Section
from dslaunch.cluster.mistakes import Mistake, MistakeCode, mistake
from dslaunch.cluster.preflight_section import PreflightSection
from dslaunch.cluster.sbatch_options import as_directive
from dslaunch.cluster.slurm_section import SlurmSection
from dslaunch.cluster.synonyms import meant_key, meant_of_node
from dslaunch.cluster.yamltext import Path, YamlDocument
from dslaunch.errors import Problem
from dslaunch.texts import closest

_SECTIONS: dict[str, type[Section]] = {
    "nodes": schema.NodeEntry,
    "ssh": schema.SshSection,
    "network": schema.NetworkSection,
    "storage": schema.StorageSection,
    "secrets": schema.SecretFile,
    "job": schema.JobSection,
    "slurm": SlurmSection,
    "preflight": PreflightSection,
}
_UNEXPECTED = (MistakeCode.WRONG_TYPE, MistakeCode.OUT_OF_RANGE, MistakeCode.WRONG_FORMAT)


class Checked(Struct, frozen=True):
    """The valid part of a file."""

    file: schema.ClusterFile | None
    """None: it has no valid node."""
    indexes: tuple[int, ...]
    """For each entry of `file.nodes`, its index in the text."""
    problems: tuple[Problem, ...]


def check(document: YamlDocument) -> Checked:
    """Check the data of a cluster file against its schema."""
    faults: list[Fault] = []
    values = schema.ClusterFile.given(document.data, (), faults.append)
    problems = tuple(_problems(document, faults))
    if not values.get("nodes"):
        return Checked(None, (), problems)
    file = schema.ClusterFile(values)
    return Checked(file, tuple(entry.index for entry in file.nodes), problems)


def _problems(document: YamlDocument, faults: list[Fault]) -> Iterator[Problem]:
    found = [(fault.path, _mistake(fault)) for fault in faults]
    meant = set(_meant_keys(found))
    for path, one in found:
        if one.code is MistakeCode.MISSING_KEY and path in meant:
            continue  # it is set under another name, which is reported
        yield document.problem(path, one)


def _meant_keys(found: Iterable[tuple[Path, Mistake]]) -> Iterator[Path]:
    """Return the paths of keys that unknown ones probably mean: `nodes` for `hosts`."""
    for path, one in found:
        similar = one.values.get("similar")
        if one.code is MistakeCode.UNKNOWN_KEY and similar:
            yield (*path[:-1], str(similar))


def _mistake(fault: Fault) -> Mistake:
    """Return the mistake behind a fault, with what the position tells about it."""
    path, found = fault.path, fault.found
    if found.code is MistakeCode.UNKNOWN_KEY:
        return _unknown_key(path)
    if found.code not in _UNEXPECTED:
        return found
    if len(path) == 2 and path[0] == "nodes" and isinstance(fault.given, str):
        glued = _glued_key(fault.given)
        if glued:
            return mistake(MistakeCode.MISSING_SPACE, text=glued)
    if path[0] == "secrets":  # the value may be the secret itself
        return mistake(MistakeCode.INVALID_SECRET, expected=found.values["expected"])
    return found


def _glued_key(text: str) -> str:
    """Return `host:` of `host:a`, which lacks a space; an empty text if it is not of that form."""
    key, colon, rest = text.partition(":")
    known = {*schema.ClusterFile.KEYS, *schema.NodeEntry.KEYS}
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
    if option is not None and key.lower().replace("-", "_") not in section.KEYS:
        return mistake(MistakeCode.SBATCH_OPTION, key=key, option=option)
    nearest = closest(key, section.KEYS)
    return mistake(MistakeCode.UNKNOWN_KEY, key=key, similar=nearest)


def _nearest_at_the_top(key: str) -> str:
    """Return the key that an unknown one probably means; it may belong to a section."""
    if key.lower() in schema.ClusterFile.KEYS:
        return key.lower()
    of_node = meant_of_node(key)
    if of_node is not None and key not in schema.NodeEntry.KEYS:
        return of_node
    for name, section in _SECTIONS.items():
        if key in section.KEYS and name not in ("nodes", "secrets"):
            return f"{name}.{key}"
    return of_node or closest(key, schema.ClusterFile.KEYS)
