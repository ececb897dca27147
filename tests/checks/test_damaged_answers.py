"""Answers about GPUs, wiring and links that were damaged on their way: judged, and never better."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.preflight.check import LEVELS, Finding
from dslaunch.preflight.checks import built_in
from tests.checks.recorded import Case, expected, findings
from tests.checks.test_checks import CASES

CHECKS = built_in()
MINE = [case for case in CASES if case.check.split(".")[0] in ("gpu", "topo", "ib")]
BAD = [
    case
    for case in MINE
    if "node" not in case.content
    and any(level in ("fail", "warn") for level, _, _ in expected(case))
]
ASKED = [case for case in BAD if case.content["answers"].get("query", {}).get("value")]
FREE = {"name", "index", "uuid"}
"""Cells in which nothing is wrong by itself."""


def texts(case: Case) -> Iterator[tuple[str, ...]]:
    """Where a case has texts, as the keys to them."""

    def walk(value: Any, way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if isinstance(value, dict):
            for key, below in value.items():
                yield from walk(below, (*way, key))
        elif isinstance(value, str) and "answers" in way and way[-1] != "json":
            yield way

    yield from walk(case.content, ())


def changed(case: Case, way: tuple[str, ...], text: str) -> Case:
    """The case with another text there."""
    content = copy.deepcopy(dict(case.content))
    place = content
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = text
    return Case(case.path, content)


def at(case: Case, way: tuple[str, ...]) -> str:
    """The text there."""
    place: Any = case.content
    for key in way:
        place = place[key]
    return str(place)


JUNK = st.text(max_size=8) | st.sampled_from(["\n", "\x1b[4m", "[N/A]", "[GPU is lost]", ",", "-1"])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_damage_makes_a_check_stumble(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(MINE), label="case")
    ways = [way for way in texts(case) if "error" not in way]
    if not ways:
        return
    way = data.draw(st.sampled_from(ways))
    text = at(case, way)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    damaged = changed(case, way, text[:start] + data.draw(JUNK) + text[end:])
    try:
        found = findings(damaged, CHECKS[case.check])
    except AssertionError as error:
        assert "not asked" in str(error)  # nothing was asked of what is no GPU any more
        return
    assert all(f.level in LEVELS and f.found for f in found)


def driver(case: Case) -> tuple[Finding, ...]:
    """What is said of the driver that gave the case's query."""
    answers = {name: case.content["answers"][name] for name in ("which", "query")}
    return findings(Case(case.path, {"answers": answers}), CHECKS["gpu.driver-up"])


def _cells(case: Case) -> Iterator[tuple[str, Case]]:
    """The case with each cell of its query damaged in turn, and the cell's title."""
    way = ("answers", "query", "value", "out")
    lines = at(case, way).split("\n")
    head: list[str] = []
    for number, line in enumerate(lines):
        cells = line.split(", ")
        if cells[0] == "index":
            head = cells
        elif head and len(cells) == len(head):
            for place, title in enumerate(head):
                other = ", ".join([*cells[:place], "x?7", *cells[place + 1 :]])
                damaged = "\n".join([*lines[:number], other, *lines[number + 1 :]])
                yield title, changed(case, way, damaged)


@pytest.mark.parametrize("case", ASKED, ids=lambda c: f"{c.check}-{c.path.stem}")
def test_a_damaged_cell_does_not_make_a_finding_go_away(case: Case) -> None:
    for title, damaged in _cells(case):
        if title in FREE:
            continue
        found = findings(damaged, CHECKS[case.check])
        levels = {finding.level for finding in (*found, *driver(damaged))}
        assert levels & {"fail", "warn", "unknown"}, (title, found)


@pytest.mark.parametrize("case", ASKED, ids=lambda c: f"{c.check}-{c.path.stem}")
def test_a_query_that_was_cut_is_never_all_well(case: Case) -> None:
    way = ("answers", "query", "value", "out")
    text = at(case, way)
    for length in range(0, len(text), 5):
        damaged = changed(case, way, text[:length])
        if not text[:length].endswith("\n"):
            levels = {finding.level for finding in driver(damaged)}
            assert levels <= {"unknown", "fail"}, json.dumps(text[:length])
