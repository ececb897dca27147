"""What is read of a run's output and usage: steps, paces, curves; bounded and without damage."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.report.recorded_runs import LENGTH, START, hosts_of, usage_of
from tests.unit.run.usage_samples import node
from tests.unit.run.usage_samples import rank as rank_sample

from dslaunch.run.events import Event, Line
from dslaunch.run.json_lines import SkippedLines
from dslaunch.run.progress_history import (
    MOST_POINTS,
    ProgressCollector,
    RankPace,
    slowest_ranks,
)
from dslaunch.run.recorded_events import read_events, read_last_attempt
from dslaunch.run.recorded_output import sample_output
from dslaunch.run.run_directory import EVENTS, RunDirectory
from dslaunch.run.usage import USAGE, NodeUsage, read_usage
from dslaunch.run.usage_history import MOST_BUCKETS, Measure, UsageHistory


def collected(*lines: tuple[float, int, str]) -> ProgressCollector:
    collector = ProgressCollector()
    for when, rank, text in lines:
        collector.line(Line(when, f"n{rank}", rank, "stdout", text))
    return collector


def steps(rank: int, seconds: float, count: int = 10) -> list[tuple[float, int, str]]:
    return [
        (step * seconds, rank, f"step {step} loss {1 / (step + 1):.3f}") for step in range(count)
    ]


def test_loss_is_that_of_the_lowest_rank_that_prints_it() -> None:
    history = collected(*steps(3, 1.0), *steps(1, 1.0)).history()
    assert history.rank == 1
    assert [point.loss for point in history.points[:3]] == [1.0, 0.5, 0.333]


def test_paces_are_medians_of_each_rank() -> None:
    history = collected(*steps(0, 1.0), *steps(1, 2.0), (100.0, 1, "step 10")).history()
    assert [(pace.rank, pace.seconds_per_step) for pace in history.paces] == [(1, 2.0), (0, 1.0)]


def test_steps_that_begin_again_are_another_attempt() -> None:
    history = collected(*steps(0, 1.0), (50.0, 0, "step 0"), (51.0, 0, "step 1")).history()
    assert history.paces[0].seconds_per_step == 1.0


def test_lines_that_arrive_together_have_no_rate_of_their_own() -> None:
    history = collected((1.0, 0, "step 1"), (1.0, 0, "step 2"), (3.0, 0, "step 5")).history()
    assert history.paces[0].seconds_per_step == 0.5


def test_points_are_thinned_out() -> None:
    history = collected(*steps(0, 1.0, 10_000)).history()
    assert len(history.points) <= MOST_POINTS
    assert history.points[-1].step > 9_900


def test_output_without_steps_has_no_history() -> None:
    assert collected((1.0, 0, "hello")).history().rank is None


def test_slow_ranks_are_those_notably_above_the_median() -> None:
    paces = [RankPace(rank, "n", 2.0 if rank == 5 else 1.0, 9) for rank in range(8)]
    assert [(each.pace.rank, each.slower) for each in slowest_ranks(paces)] == [(5, 2.0)]


# ---------------------------------------------------------------- usage


def test_curves_have_the_median_and_the_range_of_the_nodes() -> None:
    history = UsageHistory.of(usage_of(hosts_of(4)), START, START + LENGTH)
    curves = {each.measure: each for each in history.curves()}
    busy = curves[Measure.GPU_BUSY]
    assert (busy.nodes, busy.lowest) == (4, "node004")
    assert (busy.points[0].low, busy.points[0].middle) == (0.55, 0.9)
    assert Measure.DISK_READ not in curves


def test_curves_are_bounded() -> None:
    history = UsageHistory.of(usage_of(hosts_of(1), samples=2000), START, START + LENGTH)
    assert {len(curve.points) for curve in history.curves()} == {MOST_BUCKETS}


def test_samples_far_outside_of_the_run_are_ignored() -> None:
    (sample,) = usage_of(hosts_of(1), samples=1)
    assert UsageHistory.of([sample], START + 10 * LENGTH, START + 11 * LENGTH).curves() == ()


def test_ranks_that_were_late_most_of_the_time_are_listed() -> None:
    shares = {0: [0.0, 0.0, 0.0], 1: [0.0, 0.2, 0.1], 2: [0.3, 0.0, 0.0], 3: [0.2, 0.3, 0.4]}
    usage = [
        node(
            "n1",
            ranks=tuple(
                rank_sample(number, late=late[at]).usage for number, late in shares.items()
            ),
        )
        for at in range(3)
    ]
    late = UsageHistory.of(usage, 0.0, 1.0).notably_late()
    assert [(each.rank, each.late) for each in late] == [(3, 0.3), (1, 0.1)]
    never_late = [node("n1", ranks=(rank_sample(0).usage,))]
    assert UsageHistory.of(never_late, 0.0, 1.0).notably_late() == ()


def test_damaged_lines_of_usage_are_skipped(tmp_path: Path) -> None:
    good = NodeUsage(1.0, "n1", 0.5, 1.0, 10, 20)
    lines = [
        json.dumps(good.as_data()),
        "{",
        '{"time": "x"}',
        "[" * 5000,
        json.dumps(good.as_data()),
    ]
    (tmp_path / USAGE).write_text("\n".join(lines))
    assert list(read_usage(tmp_path)) == [good, good]


# ---------------------------------------------------------------- records


def test_damaged_events_are_skipped_and_counted(tmp_path: Path) -> None:
    late, early = Event(5.0, "ended", "n1"), Event(1.0, "started", "n1", rank=0)
    lines = [json.dumps(late.as_data()), "{}", "\x00", '{"time": 1e400, "kind": "ended"}']
    (tmp_path / EVENTS).write_text("\n".join([*lines, json.dumps(early.as_data()), "{unfinish"]))
    skipped = SkippedLines()
    assert read_events(tmp_path, skipped) == [late, early]
    assert skipped.count == 3


def test_events_that_are_missing_are_none(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
    assert read_last_attempt(tmp_path) == []


def test_the_last_attempt_begins_with_its_restart(tmp_path: Path) -> None:
    earlier, restart = Event(1.0, "started", "n1", rank=0), Event(2.0, "restarting")
    later = Event(3.0, "lost", "n1", error='it printed "restarting"')
    text = "".join(json.dumps(event.as_data()) + "\n" for event in (earlier, restart, later))
    (tmp_path / EVENTS).write_text(f'{text}{{"kind": "restarting"}}\n{{unfinish')
    assert read_last_attempt(tmp_path) == [restart, later]
    (tmp_path / EVENTS).write_text(json.dumps(later.as_data()) + "\n")
    assert read_last_attempt(tmp_path) == [later]


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """Two ranks that write 1,000 lines each, one line at a time."""
    record = RunDirectory(tmp_path / "runs" / "r")
    for number in range(1000):
        for rank in range(2):
            record.output("n1", rank, f"step {number:04}\n".encode(), float(number), 1)
    record.let_go()
    return record.directory


def test_short_output_is_read_as_a_whole(long_run: Path) -> None:
    pieces = list(sample_output(long_run, most=1 << 20))
    assert len(pieces) == 2000
    assert not any(piece.after_gap for piece in pieces)


def test_long_output_is_sampled_evenly_with_its_end(long_run: Path) -> None:
    pieces = [piece for piece in sample_output(long_run, most=4000) if piece.rank == 0]
    numbers = [int(piece.data.split()[1]) for piece in pieces]
    assert sum(len(piece.data) for piece in pieces) < 4000
    assert numbers[-1] == 999
    assert max(b - a for a, b in pairwise(numbers)) < 100
    assert any(piece.after_gap for piece in pieces)
