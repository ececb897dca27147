"""What the status line of a run says, and how it fits into a narrow terminal."""

from __future__ import annotations

import pytest

from dslaunch.report.status_line import RunStatusLine
from dslaunch.run.events import Event, Kind, Line
from dslaunch.run.view import StartStep

HOSTS = tuple(f"n{number}" for number in range(1, 9))


def status(seconds: float = 0.0) -> RunStatusLine:
    """Return the line of a run of 64 ranks that have been running for so long."""
    line = RunStatusLine(HOSTS, now=seconds, ranks=64)
    line.begin_running(0.0)
    return line


def happened(kind: Kind, host: str) -> Event:
    return Event(0.0, kind, host)


def test_a_step_of_the_start_has_its_time_and_the_late_nodes_folded() -> None:
    line = RunStatusLine(HOSTS, now=10.0)
    line.begin(StartStep.CONNECTING, HOSTS)
    line.now = 14.0
    line.begin(StartStep.CONNECTING, HOSTS[5:])
    assert line.text(80) == "connecting 4 s · 5/8 nodes · waiting for n[6-8]"


def test_ranks_run_once_every_node_has_started() -> None:
    line = RunStatusLine(HOSTS, now=0.0, ranks=64)
    for host in HOSTS[:-1]:
        line.note(happened("started", host))
    assert line.text(80) == "starting 0 s · 7/8 nodes · waiting for n8"
    line.note(happened("started", HOSTS[-1]))
    assert line.text(80) == "running 0 s · 8/8 nodes · 64 ranks"


def test_progress_is_that_of_the_lowest_rank_that_prints_any() -> None:
    line = status(751.0)
    for rank, text in ((63, "step 1239 loss 9.9"), (0, "hello"), (8, "step 1240 loss 2.1131")):
        line.note_line(Line(0.0, "n1", rank, "stdout", text))
    line.note_line(Line(0.0, "n1", 63, "stdout", "step 1241 loss 9.9"))
    shown = "running 12:31 · 8/8 nodes · 64 ranks · step 1,240 · loss 2.113"
    assert line.text(80) == shown


def test_nodes_that_are_away_are_named_until_they_are_back() -> None:
    line = status()
    line.note(happened("away", "n2"))
    assert line.text(80) == "running 0 s · 7/8 nodes · 64 ranks · reconnecting to n2"
    line.note(happened("back", "n2"))
    assert line.text(80) == "running 0 s · 8/8 nodes · 64 ranks"


def test_a_stop_says_for_whom_and_for_how_long_it_waits() -> None:
    line = status(100.0)
    line.note(Event(0.0, "stopping", seconds=10.0))
    line.now = 104.0
    line.note(Event(0.0, "stopping", "n3"))
    line.note(happened("ended", "n1"))
    assert line.text(80) == "stopping 4 s · killing in 6 s · waiting for n[2-8]"
    line.now = 111.0
    assert line.text(80) == "stopping 11 s · killing · waiting for n[2-8]"
    line.note(Event(0.0, "restarting"))
    assert line.text(80).startswith("running")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(30, "running 12:31 · 8/8 nodes"), (24, "running 12:31"), (7, "running"), (0, "")],
)
def test_parts_that_do_not_fit_are_left_out(columns: int, shown: str) -> None:
    assert status(751.0).text(columns) == shown


def test_a_restart_begins_the_nodes_again() -> None:
    line = status()
    line.note(happened("ended", "n1"))
    line.note(Event(0.0, "restarting"))
    line.note(happened("started", "n1"))
    assert line.text(40) == "starting 0 s · 1/8 nodes"
