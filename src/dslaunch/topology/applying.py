"""Write advice into the text of a cluster file; existing values are kept."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.edit import ClusterFileEdit, edited
from dslaunch.cluster.nodeset import expand, fold
from dslaunch.errors import ConfigError
from dslaunch.topology.advice_codes import Advice


class NotAppliedCode(StrEnum):
    """The reason why advice was not written."""

    SET_ALREADY = "set-already"
    OTHER_VALUE = "other-value"
    SHARED_ENTRY = "shared-entry"
    NOT_EDITABLE = "not-editable"


class NotApplied(Struct, frozen=True):
    """Advice that was not written into the file."""

    code: NotAppliedCode
    place: str
    """Such as `nodes[0].env.NCCL_IB_HCA`."""
    value: str
    """The advised value."""
    detail: str = ""
    """The value in the file, the nodes that need the value, or why the text cannot be edited."""

    @property
    def text(self) -> str:
        """Return the place and the reason as text."""
        reason = _TEXTS[self.code].format(value=self.value, detail=self.detail)
        return f"{self.place}: {reason}"


_TEXTS = {
    NotAppliedCode.SET_ALREADY: "set already",
    NotAppliedCode.OTHER_VALUE: "kept the existing value {detail}; advised: {value}",
    NotAppliedCode.SHARED_ENTRY: (
        "only {detail} of this entry needs {value}; use a separate entry for it"
    ),
    NotAppliedCode.NOT_EDITABLE: "{detail}",
}


class Applied(Struct, frozen=True):
    """The result of applying advice to a file."""

    text: str
    done: tuple[str, ...]
    """The settings that were written, such as `nodes[0].env.NCCL_IB_HCA: =mlx5_0`."""
    left: tuple[NotApplied, ...]


def apply(text: str, file: str, advice: Iterable[Advice]) -> Applied:
    """Write advice into the text of a valid cluster file; existing values are kept.

    An entry of several nodes is kept too if only some of them need the value: it would have to be
    split. Raises ConfigError for a text that cannot be edited.
    """
    done: list[str] = []
    left: list[NotApplied] = []
    for each in advice:
        if not each.where or each.value is None:
            continue
        data = yamltext.parse(text, file, verbatim=schema.VERBATIM).data
        for change, some in _changes(data, each):
            place = yamltext.path_text(change.path)
            value = str(change.value)
            not_applied = _why_not(data, change, some)
            if not_applied is None:
                try:
                    text = edited(text, change, file)
                except ConfigError as problem:
                    reason = problem.problems[0].message
                    code = NotAppliedCode.NOT_EDITABLE
                    not_applied = NotApplied(code, place, value, reason)
            if not_applied is not None:
                left.append(not_applied)
            else:
                done.append(f"{place}: {change.value}")
    return Applied(text, tuple(done), tuple(left))


def _changes(data: Any, advice: Advice) -> Iterable[tuple[ClusterFileEdit, str]]:
    """Yield the edits, each with the nodes of the entry that need it if not all do."""
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
        some = "" if wanted >= set(hosts) else fold(wanted & set(hosts))
        new = _slots(value) if advice.where == "slots" else value
        yield ClusterFileEdit(("nodes", at, *last), new), some


def _slots(value: str) -> int | list[int]:
    """Return slots that count from 0 as their number, otherwise as a list."""
    numbers = [int(part) for part in value.split(",")]
    return len(numbers) if numbers == list(range(len(numbers))) else numbers


def _why_not(data: Any, change: ClusterFileEdit, some: str) -> NotApplied | None:
    """Return why a value is not written, before the text is edited."""
    place, value = yamltext.path_text(change.path), str(change.value)
    if some:
        return NotApplied(NotAppliedCode.SHARED_ENTRY, place, value, some)
    here = _value_at(data, change.path)
    if here in (None, "", "auto") or change.path[-1] == "slots":
        return None
    if here == change.value:
        return NotApplied(NotAppliedCode.SET_ALREADY, place, value)
    return NotApplied(NotAppliedCode.OTHER_VALUE, place, value, str(here))


def _value_at(data: Any, path: yamltext.Path) -> Any:
    """Return the value in the file; None: not set."""
    here = data
    for step in path:
        if isinstance(here, dict) and step not in here:
            return None
        here = here[step] if here is not None else None
    return here
