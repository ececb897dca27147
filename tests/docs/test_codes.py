"""The page of codes names every code and parameter that there is, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from dslaunch.cluster import mistakes
from dslaunch.errors import ErrorCode, FailureKind
from dslaunch.launch.decisions import DecisionCode, parameters
from dslaunch.run.endings import BY_EVIDENCE
from dslaunch.run.events import Event, Kind
from dslaunch.run.known_endings import built_in
from dslaunch.run.reasons import EndCode, EndReason

PAGE = Path(__file__).parents[2] / "docs/reference/codes.md"


def rows(heading: str) -> dict[str, set[str]]:
    """The first cell of each row of a section's table, with the names in the last one."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if "| `" in line]
    return {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[-1])) for row in cells}


def test_every_reason_of_an_end_is_documented() -> None:
    told = rows("Reasons of an end")
    assert told.keys() == {code.value for code in EndCode}
    assert set.union(*told.values()) <= {field.name for field in fields(EndReason)}


def test_every_error_is_documented() -> None:
    assert rows("Errors").keys() == set(ErrorCode)


def test_every_event_is_documented() -> None:
    told = rows("Events")
    assert told.keys() == set(get_args(Kind))
    assert set.union(*told.values()) <= {field.name for field in fields(Event)}


def test_every_failure_of_a_node_is_documented() -> None:
    assert rows("Failures of nodes").keys() == set(get_args(FailureKind))


def test_every_decision_is_documented_with_its_parameters() -> None:
    expected = {code.value: set(parameters(code)) for code in DecisionCode}
    assert rows("Decisions") == expected


def test_every_known_ending_is_documented() -> None:
    assert rows("Known endings").keys() == {
        *built_in(),
        *(known.code for known in BY_EVIDENCE),
    }


def test_every_mistake_in_a_cluster_file_is_documented_with_its_parameters() -> None:
    expected = {code.value: set(mistakes.parameters(code)) for code in mistakes.MistakeCode}
    assert rows("Mistakes in cluster files") == expected
