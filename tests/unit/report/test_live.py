"""What a person sees of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.plan import Plan, Rendezvous
from dslaunch.report.live import (
    JsonView,
    NodeProgress,
    TerminalView,
    decision_rows,
    outcome_rows,
)
from dslaunch.run.events import Event, Kind, Line
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason

HOSTS = tuple(f"node{i:02}" for i in range(1, 17))
WELL = Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
MASTER = decision(DecisionCode.MASTER_GIVEN, address="a", port=1)
PLAN = Plan("c", "direct", 1, Rendezvous("a", 1), (), decisions=(MASTER,))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error, self.calls = error, 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise self.error


def line(text: str, rank: int = 0) -> Line:
    return Line(0.0, "node01", rank, "stdout", text)


def happened(kind: Kind, host: str | None = None, code: EndCode | None = None) -> Event:
    return Event(0.0, kind, host, reason=EndReason(code) if code else None)


def on_terminal(columns: int = 60) -> tuple[TerminalView, Terminal]:
    err = Terminal()
    return TerminalView(io.StringIO(), err, nodes=HOSTS, width=lambda: columns), err


def last_line(err: Terminal) -> str:
    return re.split("\r|\n|\x1b\\[K", err.getvalue())[-1]


def test_progress_names_the_nodes_that_are_late_folded() -> None:
    progress = NodeProgress(HOSTS)
    for host in HOSTS[:4]:
        progress.note(happened("connected", host))
    assert str(progress) == "nodes connected: 4 of 16, waiting for node[05-16]"


def test_progress_has_nothing_to_say_when_all_have_met_or_a_rank_has_ended() -> None:
    met, ended = NodeProgress(HOSTS[:1]), NodeProgress(HOSTS)
    met.note(happened("joined", "node01"))
    ended.note(happened("exit", "node01"))
    assert met.complete and ended.complete
    ended.note(happened("restarting"))
    assert not ended.complete


def test_the_progress_line_is_the_last_one_and_leaves_room_for_an_echo() -> None:
    screen, err = on_terminal(30)
    screen.event(happened("connected", "node01"))
    screen.line(line("hello"))
    assert last_line(err) == str(screen.progress)[:27]


def test_a_terminal_that_changes_its_width_is_followed() -> None:
    columns = [60]
    err = Terminal()
    screen = TerminalView(io.StringIO(), err, nodes=HOSTS, width=lambda: columns[0])
    columns[0] = 20
    screen.event(happened("connected", "node01"))
    assert len(last_line(err)) == 17


@pytest.mark.parametrize("why", [EndCode.RANK_FAILED, EndCode.INTERRUPTED])
def test_there_is_no_progress_line_while_a_run_is_ended(why: EndCode) -> None:
    screen, err = on_terminal()
    screen.event(happened("connected", "node01"))
    screen.event(happened("stopping", code=why))
    screen.event(happened("exit", "node01"))
    assert err.getvalue().endswith("; ending all nodes\n")


def test_output_after_ctrl_c_is_shown_and_after_a_failure_not() -> None:
    shown = {}
    for why in (EndCode.INTERRUPTED, EndCode.STOPPED, EndCode.RANK_FAILED):
        out = io.StringIO()
        screen = TerminalView(out, io.StringIO(), nodes=HOSTS)
        screen.event(happened("stopping", code=why))
        screen.line(line("saving"))
        shown[why] = out.getvalue()
    saving = "node01:0│saving\n"
    assert shown == {
        EndCode.INTERRUPTED: saving,
        EndCode.STOPPED: saving,
        EndCode.RANK_FAILED: "",
    }


def test_a_stop_that_every_node_reports_is_said_once() -> None:
    screen, err = on_terminal()
    for host in HOSTS:
        screen.event(happened("stopping", host, EndCode.STOPPED))
    assert err.getvalue().count("ending all nodes") == 1


def test_nothing_moves_where_there_is_no_terminal() -> None:
    err = io.StringIO()
    screen = TerminalView(io.StringIO(), err, nodes=HOSTS)
    screen.event(happened("connected", "node01"))
    assert err.getvalue() == ""


def test_decisions_are_continued_below_their_values_on_a_terminal_only() -> None:
    storage = decision(DecisionCode.STORAGE_SHARED, path="/a")
    assert decision_rows((storage,), 40) == [
        "  storage    /a is shared  (a file",
        "             written by each node was",
        "             seen by all)",
    ]
    assert len(decision_rows((storage,))) == 1


def test_one_rank_on_one_node_is_said_in_the_singular(tmp_path: Path) -> None:
    err = io.StringIO()
    TerminalView(io.StringIO(), err, nodes=HOSTS[:1]).plan(PLAN, tmp_path)
    assert err.getvalue().startswith("dslaunch: 1 rank on 0 nodes, direct\n")


# ------------------------------------------------------------ what cannot be written


def test_ranks_that_failed_for_the_same_reason_are_one_line_by_node(tmp_path: Path) -> None:
    alike = (("n1", 1), ("n1", 2), ("n2", 4))
    failed = Outcome("failed", 1, EndReason(EndCode.RANK_FAILED, "n1", 0), alike=alike)
    rows = outcome_rows(failed, tmp_path, brief=False)
    assert "  the same on 3 more ranks: 1-2 on n1, 4 on n2" in rows


def test_a_full_disk_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    out, err = Broken(OSError(28, "No space left on device")), io.StringIO()
    screen = TerminalView(out, err, nodes=HOSTS)
    screen.line(line("one"))
    screen.line(line("two"))
    screen.outcome(WELL, tmp_path)
    assert out.calls == 1
    assert err.getvalue() == (
        "dslaunch: standard output: No space left on device; the run goes on, see its logs\n"
        "dslaunch: all ranks ended well\n"
    )


@pytest.fixture
def wishes() -> Iterator[list[int]]:
    """The signals that asked for the end of the run."""
    seen: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGHUP, before)


def test_a_reader_that_leaves_ends_the_run_like_a_closed_terminal(
    wishes: list[int], tmp_path: Path
) -> None:
    screen = JsonView(Broken(BrokenPipeError(32, "Broken pipe")))
    screen.line(line("one"))
    screen.line(line("two"))
    assert wishes == [signal.SIGHUP]
    with pytest.raises(SystemExit) as left:
        screen.outcome(WELL, tmp_path)
    assert left.value.code == 141


def test_a_reader_that_left_before_any_run_kills_nothing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        JsonView(Broken(BrokenPipeError(32, "Broken pipe"))).outcome(WELL, tmp_path)
