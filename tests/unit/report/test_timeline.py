"""The course of a run: spans, marks, and which nodes and ranks are folded into one row."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from tests.unit.report.recorded_runs import LENGTH, START, details_of

from dslaunch.launch.replacement import Replacement
from dslaunch.report.event_meaning import Sign
from dslaunch.report.timeline import LineKind, Phase, Timeline, timeline
from dslaunch.report.timeline_svg import drawing
from dslaunch.run.events import Event
from dslaunch.run.reasons import EndCode, EndReason, Restart
from dslaunch.run.slower_rank import Evidence, SlowerRank

FAILED = EndReason(EndCode.RANK_FAILED, "n1", 0, exit_code=1)


def course(*events: Event, end: float = 100.0) -> Timeline:
    return timeline(events, 0.0, end)


def test_phases_of_a_node_follow_its_events() -> None:
    found = course(
        Event(0.0, "connected", "n1"),
        Event(2.0, "shipped", "n1"),
        Event(3.0, "started", "n1", rank=0),
        Event(3.5, "started", "n1", rank=1),
        Event(10.0, "joined", "n1"),
        Event(60.0, "ended", "n1"),
    )
    (row,) = found.nodes
    assert [(span.phase, span.start, span.end) for span in row.spans] == [
        (Phase.PREPARING, 0.0, 3.0),
        (Phase.STARTING, 3.0, 10.0),
        (Phase.RUNNING, 10.0, 60.0),
    ]
    assert [mark.sign for mark in row.marks] == [Sign.CONNECTED, Sign.SHIPPED, Sign.JOINED]


def test_a_run_that_is_going_on_ends_now() -> None:
    found = course(Event(0.0, "started", "n1", rank=0), end=42.0)
    assert found.ranks[0].spans[0].end == 42.0


def test_ranks_end_successfully_by_failure_or_by_the_stop() -> None:
    found = course(
        *(Event(1.0, "started", "n1", rank=rank) for rank in range(3)),
        Event(5.0, "exit", "n1", rank=0, code=1, asked=False),
        Event(6.0, "exit", "n1", rank=1, signal=15, asked=True),
        Event(7.0, "exit", "n1", rank=2, code=0, asked=False),
    )
    assert [row.marks[-1].sign for row in found.ranks] == [
        Sign.FAILED,
        Sign.STOPPED,
        Sign.SUCCEEDED,
    ]


def test_an_attempt_ends_at_the_restart_at_the_latest() -> None:
    restart = Restart(1, 2, FAILED, (Replacement("n2"),))
    found = course(
        Event(1.0, "started", "n1", rank=0),
        Event(20.0, "restarting", restart=restart),
        Event(25.0, "started", "n1", rank=0),
        Event(90.0, "exit", "n1", rank=0, code=0, asked=False),
    )
    assert [(span.start, span.end) for span in found.ranks[0].spans] == [(1.0, 20.0), (25.0, 90.0)]
    assert [(line.kind, line.attempt) for line in found.lines] == [(LineKind.RESTART, 1)]


def test_time_without_a_connection_is_a_span() -> None:
    found = course(
        Event(0.0, "connected", "n1"),
        Event(5.0, "away", "n1", failure="lost", error="gone"),
        Event(9.0, "back", "n1", seconds=4.0),
    )
    assert found.nodes[0].spans[-1].phase is Phase.AWAY


def test_equal_nodes_are_one_row_with_the_range_of_their_times() -> None:
    events = [Event(0.1 * number, "connected", f"n{number}") for number in range(20)]
    (row,) = course(*events).nodes
    assert (row.label, row.note) == ("n[0-19]", "20 nodes")
    assert (row.marks[0].low, row.marks[0].high) == (0.0, pytest.approx(1.9))


def test_few_nodes_have_a_row_each() -> None:
    events = [Event(0.1 * number, "connected", f"n{number}") for number in range(4)]
    assert [row.label for row in course(*events).nodes] == ["n0", "n1", "n2", "n3"]


def test_a_slow_rank_is_a_moment_of_its_node_and_changes_no_phase() -> None:
    slow = (SlowerRank(1, "n1", Evidence.CPU),)
    found = course(Event(1.0, "connected", "n1"), Event(5.0, "slow", "n1", slower=slow))
    assert [(m.first, m.hosts, m.is_failure) for m in found.moments] == [
        (1.0, "n1", False),
        (5.0, "n1", False),
    ]
    assert [span.phase for span in found.nodes[0].spans] == [Phase.PREPARING]


def test_equal_events_are_one_moment() -> None:
    events = [Event(float(n), "exit", f"n{n}", rank=n, code=0, asked=False) for n in range(5)]
    (moment,) = course(*events).moments
    assert (moment.first, moment.last, moment.hosts, moment.ranks) == (0.0, 4.0, "n[0-4]", "0-4")


def test_a_moment_of_an_attempt_is_drawn_once() -> None:
    stop = Event(20.0, "stopping", reason=FAILED)
    restart = Event(30.0, "restarting", restart=Restart(1, 2, FAILED))
    later = [replace(stop, time=21.0), restart, replace(stop, time=50.0)]
    cause = Event(19.0, "exit", "n1", 0, code=1)
    found = timeline([stop, *later], 0.0, 100.0, cause)
    assert [(line.kind, line.time, line.attempt) for line in found.lines] == [
        (LineKind.ROOT_CAUSE, 19.0, 0),
        (LineKind.STOP, 20.0, 0),
        (LineKind.RESTART, 30.0, 1),
        (LineKind.STOP, 50.0, 1),
    ]


@pytest.mark.parametrize("nodes", [1, 4, 500])
def test_drawing_is_well_formed(nodes: int) -> None:
    events = details_of(nodes).events
    svg = drawing(timeline(events, START, START + LENGTH, events[-1]))
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_drawing_of_a_run_of_no_length_is_well_formed() -> None:
    svg = drawing(timeline([Event(5.0, "connected", "n1")], 5.0, 5.0))
    assert "nan" not in svg


def test_nodes_are_in_the_order_of_their_ranks_and_spares_come_last() -> None:
    found = course(
        Event(0.0, "connected", "spare"),
        Event(0.1, "connected", "n2"),
        Event(0.2, "connected", "n1"),
        Event(1.0, "started", "n2", rank=1),
        Event(1.1, "started", "n1", rank=0),
    )
    assert [row.label for row in found.nodes] == ["n1", "n2", "spare"]
