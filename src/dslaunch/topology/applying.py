"""Advice written into a cluster file's text, unless somebody has said otherwise there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.edit import ClusterFileEdit, edited
from dslaunch.cluster.nodeset import expand, fold
from dslaunch.errors import ConfigError
from dslaunch.topology.advice import Advice


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a file."""

    text: str
    done: tuple[str, ...]
    """What was set, each as `nodes[0].env.NCCL_IB_HCA: =mlx5_0`."""
    left: tuple[str, ...]
    """What was not, and why."""


def apply(text: str, file: str, advice: Iterable[Advice]) -> Applied:
    """Write advice into the text of a valid cluster file; what it says already is left as it is.

    An entry of several nodes of which only some need a value is left too: it would have to be
    taken apart. Raises ConfigError for a text that cannot be edited.
    """
    done: list[str] = []
    left: list[str] = []
    for each in advice:
        if not each.where or each.value is None:
            continue
        data = yamltext.parse(text, file, verbatim=schema.VERBATIM).data
        for change, why_not in _changes(data, each):
            place = yamltext.path_text(change.path)
            why_not = why_not or _said(data, change)
            if not why_not:
                try:
                    text = edited(text, change, file)
                except ConfigError as problem:
                    why_not = problem.problems[0].message
            if why_not:
                left.append(f"{place}: {why_not}")
            else:
                done.append(f"{place}: {change.value}")
    return Applied(text, tuple(done), tuple(left))


def _changes(data: Any, advice: Advice) -> Iterable[tuple[ClusterFileEdit, str]]:
    """Where the value goes; with each place, why it cannot go there, or nothing."""
    value = advice.value or ""
    if advice.where == "interface":
        yield ClusterFileEdit(("network", "interface"), value), ""
        return
    entries = [expand(entry["host"]) for entry in data["nodes"]]
    wanted = set(advice.hosts)
    last: yamltext.Path = ("env", advice.what) if advice.where == "env" else ("slots",)
    if advice.where == "env" and wanted >= {host for hosts in entries for host in hosts}:
        yield ClusterFileEdit(last, value), ""
        return
    for at, hosts in enumerate(entries):
        if not wanted & set(hosts):
            continue
        some = "" if wanted >= set(hosts) else _for_some(wanted & set(hosts), value)
        new = _slots(value) if advice.where == "slots" else value
        yield ClusterFileEdit(("nodes", at, *last), new), some


def _for_some(hosts: set[str], value: str) -> str:
    return f"only {fold(hosts)} of this entry needs {value}: give it an entry of its own"


def _slots(value: str) -> int | list[int]:
    """Write slots that count from 0 as their number, as people do."""
    numbers = [int(part) for part in value.split(",")]
    return len(numbers) if numbers == list(range(len(numbers))) else numbers


def _said(data: Any, change: ClusterFileEdit) -> str:
    """What the file says there already, if somebody has decided that."""
    here = data
    for step in change.path:
        if isinstance(here, dict) and step not in here:
            return ""
        here = here[step] if here is not None else None
    if here in (None, "", "auto") or change.path[-1] == "slots":
        return ""
    same = here == change.value
    return "is so already" if same else f"is {here} already, and stays; found was {change.value}"
