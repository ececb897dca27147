"""What differs between two runs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dslaunch.plural import counted
from dslaunch.run.compare_runs import Change, RunComparison, Topic, TopicChanges
from dslaunch.terminal import one_line

NAMES: Mapping[Topic, str] = {
    Topic.OUTCOME: "outcome",
    Topic.PROGRAM: "program",
    Topic.ARGUMENTS: "arguments",
    Topic.CODE: "code",
    Topic.ENVIRONMENT: "environment",
    Topic.CONFIG: "DeepSpeed config",
    Topic.VERSIONS: "versions",
    Topic.NODES: "nodes",
    Topic.CLUSTER: "cluster file",
    Topic.DECISIONS: "decisions",
    Topic.BATCH_SCRIPT: "batch script",
}
LONGEST_ROW = 90
"""Columns of a change on one line; longer values have a line each."""
WIDEST_NAME = 32


def comparison_text(found: RunComparison) -> str:
    """Return the differences, grouped; values of the first run stand before those of the second."""
    lines = [f"{one_line(found.first)} -> {one_line(found.second)}"]
    if found.is_equal:
        lines.append("no differences found")
    for topic in found.topics:
        lines += ["", NAMES[topic.topic], *_rows(topic)]
    if found.not_compared:
        names = ", ".join(NAMES[topic] for topic in found.not_compared)
        lines += ["", f"not compared, because not recorded for both runs: {names}"]
    return "\n".join(lines)


def _rows(topic: TopicChanges) -> Iterator[str]:
    width = min(max(len(one_line(change.name)) for change in topic.changes), WIDEST_NAME)
    for change in topic.changes:
        yield from _row(change, topic.topic, width)
    if topic.more:
        yield f"  and {counted(topic.more, 'more difference')}"


def _row(change: Change, topic: Topic, width: int) -> Iterator[str]:
    name = one_line(change.name)
    is_switch = {change.first, change.second} == {None, ""}
    if change.secret or is_switch or topic is Topic.CODE:
        yield f"  {name:<{width}}  {_kind(change)}{' (secret)' if change.secret else ''}"
        return
    row = f"  {name:<{width}}  {_value(change.first)} -> {_value(change.second)}"
    if "\n" not in f"{change.first}{change.second}" and len(row) <= LONGEST_ROW:
        yield row
        return
    yield f"  {name}"
    yield from _block("-", change.first)
    yield from _block("+", change.second)


def _kind(change: Change) -> str:
    if change.first is None:
        return "added"
    return "removed" if change.second is None else "changed"


def _value(text: str | None) -> str:
    if text is None:
        return "(not set)"
    return one_line(text) or '""'


def _block(sign: str, text: str | None) -> Iterator[str]:
    if text is not None:
        for line in text.split("\n"):
            yield f"    {sign} {one_line(line)}"
