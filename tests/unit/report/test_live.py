"""What a person sees of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.report.terminal import Terminal

from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.plan import NodePlan, Plan, Rendezvous
from dslaunch.report.decision_rows import decision_rows
from dslaunch.report.json_view import JsonView
from dslaunch.report.line_limit import MOST_SHOWN
from dslaunch.report.live import TerminalView, ViewOptions
from dslaunch.report.outcome_rows import LONGEST_LINE, outcome_rows
from dslaunch.report.status_screen import TICK
from dslaunch.run.events import Event, Kind, Line, LineBlock
from dslaunch.run.outcome import Outcome, SecondaryFailure
from dslaunch.run.output_interval import output_interval
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.view import StartStep

FOLDED = ViewOptions(fold=True)
HOSTS = tuple(f"node{i:02}" for i in range(1, 17))
WELL = Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
MASTER = decision(DecisionCode.MASTER_GIVEN, address="a", port=1)
PLAN = Plan("c", "direct", 1, Rendezvous("a", 1), (), decisions=(MASTER,))


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


NOW = 1.8e9
"""The time of day, in seconds since the epoch."""


def on_terminal(columns: int = 60) -> tuple[TerminalView, Terminal]:
    err = Terminal()
    view = TerminalView(
        io.StringIO(),
        err,
        nodes=HOSTS,
        width=lambda: columns,
        clock=lambda: 0.0,
        time_of_day=lambda: NOW,
    )
    return view, err


def last_line(err: Terminal) -> str:
    return re.split("\r|\n|\x1b\\[K", err.getvalue())[-1]


def test_the_status_line_is_the_last_one_and_leaves_room_for_an_echo() -> None:
    screen, err = on_terminal(30)
    screen.begin(StartStep.CONNECTING, HOSTS[1:])
    screen.line(line("hello"))
    assert last_line(err) == "connecting 0 s · 1/16 nodes"


@pytest.mark.parametrize("color", [False, True], ids=["plain", "color"])
@pytest.mark.parametrize("fold", [False, True], ids=["unfolded", "folded"])
@pytest.mark.parametrize("ranks", [None, frozenset({1})], ids=["all ranks", "one rank"])
def test_lines_that_arrive_together_are_shown_as_those_that_arrive_alone(
    color: bool, fold: bool, ranks: frozenset[int] | None
) -> None:
    texts = ("step 1/10 loss 0.5", "", "\x1b[31mred", "step 2/10")
    shown = []
    for together in (False, True):
        out, err = io.StringIO(), Terminal()
        screen = TerminalView(
            out,
            err,
            nodes=HOSTS,
            options=ViewOptions(ranks=ranks, color=color, fold=fold),
            clock=lambda: 0.0,
        )
        for rank in (0, 1):
            block = LineBlock(0.0, "node01", rank, "stdout", "\n".join(texts))
            if together:
                screen.block(block)
            else:
                for each in block:
                    screen.line(each)
        screen.close()
        shown.append((out.getvalue(), screen.status.progress.by_rank))
    assert shown[0] == shown[1]
    assert shown[0][1]  # lines that are not shown may have progress too


def test_a_terminal_that_changes_its_width_is_followed() -> None:
    columns = [60]
    err = Terminal()
    screen = TerminalView(
        io.StringIO(), err, nodes=HOSTS, width=lambda: columns[0], clock=lambda: 0.0
    )
    columns[0] = 20
    screen.begin(StartStep.CONNECTING, HOSTS[1:])
    assert last_line(err) == "connecting 0 s"


@pytest.mark.parametrize("why", [EndCode.RANK_FAILED, EndCode.INTERRUPTED])
def test_a_stop_is_printed_and_then_followed_in_the_status_line(why: EndCode) -> None:
    screen, err = on_terminal()
    screen.follow(16, NOW)
    screen.event(happened("stopping", code=why))
    screen.event(happened("ended", "node01"))
    assert "; stopping all nodes\n" in err.getvalue()
    assert last_line(err) == "stopping 0 s · waiting for node[02-16]"


def test_a_long_step_of_the_start_is_printed_where_there_is_no_status_line() -> None:
    now, err = [0.0], io.StringIO()
    screen = TerminalView(io.StringIO(), err, nodes=HOSTS, clock=lambda: now[0])
    screen.begin(StartStep.CONNECTING, HOSTS[1:])
    for now[0] in (1.0, 11.0, 12.0, 21.0, 39.0):
        screen.tick()
    assert err.getvalue().splitlines() == [
        "dslaunch: connecting 11 s · 1/16 nodes · waiting for node[02-16]",
        "dslaunch: connecting 21 s · 1/16 nodes · waiting for node[02-16]",
    ]


def test_time_goes_on_in_the_status_line_without_output() -> None:
    now = [0.0]
    err = Terminal()
    screen = TerminalView(
        io.StringIO(), err, nodes=HOSTS, clock=lambda: now[0], time_of_day=lambda: NOW
    )
    screen.follow(64, NOW)
    now[0] += 751.5
    screen.tick()
    assert last_line(err) == "running 12:31 · 16/16 nodes · 64 ranks"


def test_many_events_of_many_nodes_are_shown_together() -> None:
    now, err = [100.0], Terminal()
    hosts = tuple(f"n{number}" for number in range(1, 101))
    screen = TerminalView(io.StringIO(), err, nodes=hosts, clock=lambda: now[0])
    screen.event(happened("started", "n1"))
    shown = len(err.getvalue())
    for host in hosts[1:99]:
        screen.event(happened("started", host))
    assert len(err.getvalue()) == shown
    now[0] += 2 * TICK
    screen.tick()
    assert last_line(err) == "starting 0 s · 99/100 nodes · waiting for n100"


def test_a_status_line_is_removed_before_anything_else_is_printed() -> None:
    screen, err = on_terminal()
    screen.begin(StartStep.CONNECTING, HOSTS)
    screen.close()
    screen.tick()
    assert err.getvalue().endswith("\r\x1b[K")


def test_equal_lines_of_ranks_are_folded_with_their_ranks() -> None:
    out = io.StringIO()
    screen = TerminalView(out, io.StringIO(), nodes=HOSTS, options=FOLDED, clock=lambda: 0.0)
    screen.follow(4, None)
    for rank in range(4):
        screen.line(line("all", rank))
    for rank in (0, 2, 3):
        screen.line(line("some", rank))
    screen.line(line("one", 1))
    screen.close()
    assert out.getvalue() == "[4 ranks]│all\n[0,2-3]│some\nnode01:1│one\n"


def test_equal_lines_of_many_ranks_are_folded_although_their_nodes_send_them_later() -> None:
    out, now = io.StringIO(), 0.0
    screen = TerminalView(out, io.StringIO(), nodes=HOSTS, options=FOLDED, clock=lambda: now)
    screen.follow(10_000, None)
    for rank in range(3):
        now = output_interval(10_000) * rank / 2
        screen.line(line("equal", rank))
        screen.tick()
    screen.close()
    assert out.getvalue() == "[0-2]│equal\n"


def test_a_run_shows_not_more_lines_than_can_be_folded_but_all_of_rank_0() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = TerminalView(out, err, nodes=HOSTS, options=FOLDED, clock=lambda: 0.0)
    screen.plan(PLAN, Path("run"))
    many = "\n".join(map(str, range(MOST_SHOWN)))
    for rank, text in ((1, many), (2, "left\nout"), (0, "shown")):
        screen.block(LineBlock(0.0, "node01", rank, "stdout", text))
    screen.close()
    shown = out.getvalue()
    assert shown.count("\n") == MOST_SHOWN + 1
    assert "left" not in shown
    assert "shown" in shown
    assert "dslaunch: 2 lines of output not shown" in err.getvalue()


def test_a_restart_with_another_node_does_not_wait_for_the_one_it_replaces(tmp_path: Path) -> None:
    view, err = on_terminal(columns=200)
    view.event(happened("restarting"))
    nodes = tuple(NodePlan(host, n, (0,), n, "/", (), ()) for n, host in enumerate(("a", "spare")))
    view.plan(replace(PLAN, nodes=nodes), tmp_path)
    view.event(happened("started", "a"))
    assert last_line(err).endswith("1/2 nodes · waiting for spare")


def test_many_ranks_that_are_no_range_are_counted() -> None:
    out = io.StringIO()
    screen = TerminalView(out, io.StringIO(), nodes=HOSTS, options=FOLDED, clock=lambda: 0.0)
    screen.follow(64, None)
    for rank in range(0, 64, 2):
        screen.line(line("even", rank))
    screen.close()
    assert out.getvalue() == "[32 of 64 ranks]│even\n"


def test_equal_lines_of_launchers_are_folded_with_their_nodes() -> None:
    out = io.StringIO()
    screen = TerminalView(out, io.StringIO(), nodes=HOSTS, options=FOLDED, clock=lambda: 0.0)
    for host in HOSTS[:2]:
        screen.line(Line(0.0, host, None, "stdout", "banner"))
    for host in HOSTS:
        screen.line(Line(0.0, host, None, "stdout", "every"))
    screen.close()
    assert out.getvalue() == "[node[01-02]]│banner\n[16 nodes]│every\n"


def test_folded_lines_are_shown_before_the_event_that_followed_them() -> None:
    both = io.StringIO()
    screen = TerminalView(both, both, nodes=HOSTS, options=FOLDED)
    screen.line(line("before"))
    screen.event(happened("stopping", code=EndCode.RANK_FAILED))
    assert both.getvalue().startswith("node01:0│before\ndslaunch: ")


def test_the_states_of_a_progress_bar_are_in_the_status_line_only() -> None:
    screen, err = on_terminal(80)
    screen.follow(2, NOW)
    for rank in (1, 0, 1):
        screen.line(Line(0.0, "node01", rank, "stderr", f"step {rank + 5}/10", partial=True))
    assert last_line(err).endswith("2 ranks")
    screen.event(happened("joined", "node01"))
    assert last_line(err).endswith("2 ranks · step 5/10")
    assert "│" not in err.getvalue()


def test_prefixes_are_aligned_and_colored_by_node_on_a_terminal() -> None:
    out = Terminal()
    screen = TerminalView(out, io.StringIO(), nodes=HOSTS, options=ViewOptions(color=True))
    screen.line(line("a", 10))
    screen.line(line("b", 9))
    screen.line(Line(0.0, "node02", 9, "stdout", "c"))
    first, second, third = out.getvalue().splitlines()
    assert first == "\x1b[36mnode01:10│\x1b[0ma"
    assert second == "\x1b[36mnode01:9 │\x1b[0mb"
    assert third == "\x1b[33mnode02:9 │\x1b[0mc"


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
    assert err.getvalue().count("stopping all nodes") == 1


def test_nothing_moves_where_there_is_no_terminal() -> None:
    err = io.StringIO()
    screen = TerminalView(io.StringIO(), err, nodes=HOSTS)
    screen.event(happened("connected", "node01"))
    assert err.getvalue() == ""


def test_decisions_are_continued_below_their_values_on_a_terminal_only() -> None:
    storage = decision(DecisionCode.STORAGE_SHARED, path="/a")
    first, *more = decision_rows((storage,), 40)
    assert first.startswith("  storage    /a is shared  (")
    assert more
    assert all(row.startswith(" " * 13) and len(row) <= 40 for row in more)
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
    assert "  the same on ranks 1-2,4 on n[1-2]" in rows


def test_a_rank_that_ended_as_the_cause_did_is_not_called_a_consequence(tmp_path: Path) -> None:
    cause = Event(0.0, "exit", "n1", 0, code=1)
    secondary = (SecondaryFailure("n1", 1, code=1), SecondaryFailure("n1", 2, signal=6))
    reason = EndReason(EndCode.RANK_FAILED, "n1", 0, exit_code=1)
    failed = Outcome("failed", 1, reason, cause, secondary=secondary)
    rows = outcome_rows(failed, tmp_path, brief=False)
    assert "  the same on rank 1 on n1" in rows
    assert [row for row in rows if "consequence" in row] == [
        "  failed as a consequence: rank 2 on n1: killed by SIGABRT (exit code 134), native code "
        "aborted; the last output says why"
    ]


def test_of_a_very_long_last_line_the_beginning_is_shown(tmp_path: Path) -> None:
    cause = Event(0.0, "exit", "n1", 0, code=1)
    reason = EndReason(EndCode.RANK_FAILED, "n1", 0, exit_code=1)
    last_lines = ("\x1b[31m" + "x" * 65_536, "the last one")
    failed = Outcome("failed", 1, reason, cause, last_lines=last_lines)
    rows = outcome_rows(failed, tmp_path, brief=False)
    at = rows.index("  last output:")
    assert rows[at + 1 : at + 3] == [f"    {'x' * LONGEST_LINE}...", "    the last one"]


def test_a_full_disk_is_reported_once_and_the_run_continues(tmp_path: Path) -> None:
    out, err = Broken(OSError(28, "No space left on device")), io.StringIO()
    screen = TerminalView(out, err, nodes=HOSTS)
    screen.line(line("one"))
    screen.line(line("two"))
    screen.outcome(WELL, tmp_path)
    assert out.calls == 1
    told, outcome = err.getvalue().splitlines()
    assert "No space left on device" in told
    assert outcome == f"dslaunch: {WELL.message} · logs: {tmp_path / 'logs'}"


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


def test_a_job_of_slurm_is_pending_until_it_has_a_start() -> None:
    screen, err = on_terminal()
    screen.follow(64, None)
    screen.job((), started=None)
    assert last_line(err) == "pending 0 s"
    screen.job(HOSTS, started=NOW - 751.5)
    assert last_line(err) == "running 12:31 · 16/16 nodes · 64 ranks"
    screen.canceling()
    assert last_line(err) == "stopping 0 s · waiting for node[01-16]"


def test_the_end_of_a_job_has_the_time_between_its_start_and_its_end() -> None:
    screen, err = on_terminal()
    screen.follow(64, None)
    screen.job(HOSTS, started=1000.0, ended=1751.0)
    screen.outcome(Outcome("ok", 0, EndReason(EndCode.SLURM_JOB, job="job 7 succeeded")), None)
    shown = "dslaunch: job 7 succeeded: 64 ranks on 16 nodes finished after 12:31"
    assert err.getvalue().splitlines()[-1].rpartition("\x1b[K")[2] == shown
