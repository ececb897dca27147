"""The texts of `ps` and `status`: columns that fit, equal nodes in one row, the end as it was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dslaunch.report.status import (
    DROPPED,
    RUNS_HEAD,
    exit_text,
    head,
    node_rows,
    run_row,
    run_rows,
    why_rows,
)
from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome
from dslaunch.run.progress import Progress
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.slower_rank import Evidence, SlowerRank
from dslaunch.run.status import RunStatus, last_end, recorded_nodes, slower_ranks

HOSTS = tuple(f"node{number:02}" for number in range(64))
RECORD = RunRecord(
    program="jobs/train.py",
    cluster="pod",
    launcher="direct",
    hosts=HOSTS,
    world_size=512,
    detached=False,
    agents="run",
    started=100.0,
)
KILLED = Event(90.0, "exit", "node07", 57, signal=9)
FAILED = Outcome(
    "failed", 137, EndReason(EndCode.RANK_FAILED, "node07", 57, signal=9), cause=KILLED
)


def events_of(host: str, first: int, killed: int | None = None) -> list[Event]:
    """What a node with 8 ranks reports; one of them may have been killed, the others stopped."""
    started = [Event(101.0, "started", host, rank) for rank in range(first, first + 8)]
    exits = [
        Event(110.0, "exit", host, rank, signal=9 if rank == killed else 15)
        for rank in range(first, first + 8)
    ]
    return [*started, *exits, Event(111.0, "ended", host)]


@pytest.fixture
def failed() -> RunStatus:
    """A run on 64 nodes of which one rank was killed."""
    events = [e for at, host in enumerate(HOSTS) for e in events_of(host, 8 * at, killed=57)]
    nodes = recorded_nodes(RECORD, events)
    return RunStatus("run", State.FAILED, RECORD, nodes, result=FAILED, ended=851.0)


def test_equal_nodes_are_one_row_and_the_node_that_failed_another(failed: RunStatus) -> None:
    _, *rows = node_rows(failed)
    assert [row[:4] for row in rows] == [
        ("node[00-06,08-63]", "ended", "0-55,64-511", "SIGTERM"),
        ("node07", "ended", "56-63", "SIGTERM: rank 56,58-63, SIGKILL: rank 57"),
    ]
    assert last_end(failed.nodes.values()) == 111.0


def test_a_node_without_events_and_one_that_was_lost_are_in_the_table_of_nodes() -> None:
    nodes = recorded_nodes(RECORD, [Event(121.0, "lost", "node01", error="no route")])
    assert (nodes["node00"].ranks, nodes["node00"].events) == ((), ())
    assert (nodes["node01"].state, nodes["node01"].why) == ("unreachable", "no route")


def test_slow_ranks_are_named(failed: RunStatus) -> None:
    slow = SlowerRank(1, "node00", Evidence.CPU)
    found = slower_ranks([Event(91.0, "slow", "node00", slower=(slow,))])
    assert found == (slow,)
    last = head(replace(failed, slower=found)).splitlines()[-1]
    assert last.startswith("slow: rank 1 on node00")


def test_the_first_lines_of_a_status_are_wrapped_between_words(failed: RunStatus) -> None:
    whole, narrow = head(failed), head(failed, 40)
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.split() == whole.split()
    assert len(whole.splitlines()) == 1


def test_a_list_has_the_exit_the_duration_and_the_step(failed: RunStatus) -> None:
    shown = dict(zip(RUNS_HEAD, run_row(replace(failed, progress=Progress(7, 9))), strict=True))
    del shown["AGE"]
    assert shown == {
        "RUN": "run", "STATE": "failed", "TIME": "12:31", "EXIT": "SIGKILL", "STEP": "7/9",
        "NODES": "node[00-63]", "RANKS": "512", "SCRIPT": "train.py",
    }  # fmt: skip


def test_a_run_that_goes_on_has_no_exit_yet(failed: RunStatus) -> None:
    going_on = replace(failed, state=State.RUNNING, ended=None)
    assert exit_text(going_on) == ""
    assert going_on.duration is not None
    assert replace(going_on, state=State.UNKNOWN).duration is None


@pytest.mark.parametrize("room", [30, 40, 50, 60, 80, 200, None])
def test_a_narrow_terminal_lacks_columns_in_the_order_of_their_importance(
    failed: RunStatus, room: int | None
) -> None:
    head, row = run_rows([replace(failed, run="1123-223104-train-ab12")], room)
    lacking = [name for name in RUNS_HEAD if name not in head]
    assert set(lacking) == set(DROPPED[: len(lacking)])
    width = sum(max(len(a), len(b)) for a, b in zip(head, row, strict=True)) + 2 * (len(row) - 1)
    assert room is None or width <= room or len(lacking) == len(DROPPED)
    assert bool(lacking) == (room is not None and room <= 80)


def test_the_end_of_a_run_is_told_as_at_its_end(failed: RunStatus) -> None:
    rows = why_rows(replace(failed, directory="/runs/run", output=("/runs/run/logs",)))
    assert rows[0] == FAILED.message
    assert rows.count("logs: /runs/run/logs") == 1
    assert not [row for row in rows if row.startswith("dslaunch:")]


def test_a_successful_run_names_its_logs_once(failed: RunStatus) -> None:
    well = Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
    status = replace(failed, state=State.SUCCEEDED, result=well, directory="/runs/run")
    rows = why_rows(replace(status, output=("/runs/run/logs",)))
    assert rows == [well.message, "logs: /runs/run/logs"]


def test_the_json_of_a_status_has_the_values_of_the_list(failed: RunStatus) -> None:
    data = replace(failed, progress=Progress(step=7)).as_data()
    chosen = ("state", "ended", "duration", "exit_code", "signal")
    assert [data[key] for key in chosen] == ["failed", 851.0, 751.0, 137, 9]
    assert data["progress"]["step"] == 7
