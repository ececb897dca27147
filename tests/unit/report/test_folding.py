"""Equal lines of several ranks become one, none is lost, and each rank's order is kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.report.folding import MOST_WAITING, FoldedLine, LineFolder
from dslaunch.run.events import Line
from dslaunch.run.reasons import RankSource


def line(rank: int | None, text: str, host: str = "n1") -> Line:
    return Line(0.0, host, rank, "stdout", text)


def pairs(groups: Iterable[FoldedLine]) -> list[tuple[RankSource, str]]:
    """Return every line of every group, in the order in which they are shown."""
    return [(source, group.line.text) for group in groups for source in group.sources]


ARRIVALS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 3)),
        st.sampled_from(("a", "b", "c")),
        st.floats(0, 0.3),
    ),
    max_size=60,
)
"""Rank, text, and seconds since the line before."""


def test_recorded_lines_are_not_folded_with_those_of_another_time() -> None:
    folder = LineFolder()
    folder.add(Line(1.0, "n1", 1, "stdout", "saving"), 0.0)
    folder.add(Line(3.0, "n1", 0, "stdout", "step 5"), 0.0)
    folder.add(Line(3.5, "n1", 0, "stdout", "saving"), 0.0)
    folder.add(Line(3.6, "n1", 1, "stdout", "saving"), 0.0)
    folder.add(Line(3.7, "n1", 2, "stdout", "saving"), 0.0)
    shown = [(group.line.text, len(group.sources)) for group in folder.rest()]
    assert shown == [("saving", 1), ("step 5", 1), ("saving", 3)]


@given(ARRIVALS)
def test_folding_keeps_every_line_and_the_order_of_each_rank(
    arrivals: list[tuple[int | None, str, float]],
) -> None:
    folder, shown, now = LineFolder(), [], 0.0
    for rank, text, later in arrivals:
        now += later
        shown += folder.due(now)
        folder.add(line(rank, text), now)
    shown += folder.rest()
    written: dict[RankSource, list[str]] = defaultdict(list)
    for rank, text, _ in arrivals:
        written["n1", rank].append(text)
    seen: dict[RankSource, list[str]] = defaultdict(list)
    for source, text in pairs(shown):
        seen[source].append(text)
    assert seen == written
    assert all(max(Counter(group.sources).values()) == 1 for group in shown)
    assert not folder


@given(ARRIVALS)
def test_no_line_waits_longer_than_twice_the_window(
    arrivals: list[tuple[int | None, str, float]],
) -> None:
    folder, now = LineFolder(window=0.25), 0.0
    for rank, text, later in arrivals:
        now += later
        list(folder.due(now))
        assert all(now - group.arrived < 0.5 for group in deepcopy(folder).rest())
        folder.add(line(rank, text), now)


def test_equal_lines_of_all_ranks_are_one_group() -> None:
    folder = LineFolder()
    for rank in range(64):
        folder.add(line(rank, "loading", f"n{rank // 8}"), 0.0)
    (group,) = folder.due(1.0)
    assert len(group.sources) == 64


def test_equal_lines_are_one_group_though_each_rank_has_written_its_number_before() -> None:
    folder = LineFolder()
    for rank in range(64):
        for text in (f"rank {rank}: loading", "1.3 B parameters", "16 layers"):
            folder.add(line(rank, text), 0.0)
    shown = [(group.line.text, len(group.sources)) for group in folder.rest()]
    assert shown[:64] == [(f"rank {rank}: loading", 1) for rank in range(64)]
    assert shown[64:] == [("1.3 B parameters", 64), ("16 layers", 64)]


def test_a_rank_that_writes_a_line_twice_begins_a_second_group_which_others_join() -> None:
    folder = LineFolder()
    for rank in (0, 0, 1, 1):
        folder.add(line(rank, "again"), 0.0)
    assert [group.sources for group in folder.rest()] == [[("n1", 0), ("n1", 1)]] * 2


@pytest.mark.parametrize(
    "text",
    [
        "[2026-11-25 10:00:0{0},12{0}] [INFO] [real_accelerator.py:260:get_accelerator] cpu",
        "2026-11-25T10:00:0{0} - INFO - loading",
        "11/25/2026 10:00:0{0} - WARNING - __main__ - distributed training: True",
        "[W1125 10:00:00.30{0}512116 Utils.hpp:137] Warning: deprecated",
        "W1125 10:00:00.34{0}000 354{0} torch/distributed/run.py:874] Setting OMP_NUM_THREADS",
    ],
)
def test_equal_lines_are_one_group_though_each_begins_with_its_time(text: str) -> None:
    folder = LineFolder()
    for rank in range(4):
        folder.add(line(rank, text.format(rank)), 0.0)
    (group,) = folder.rest()
    assert (group.line.text, len(group.sources)) == (text.format(0), 4)


@pytest.mark.parametrize("text", ["2026-11-25 10:00:0{0}", "10:00:0{0} up", "step {0}"])
def test_other_numbers_keep_lines_apart(text: str) -> None:
    folder = LineFolder()
    for rank in range(4):
        folder.add(line(rank, text.format(rank)), 0.0)
    assert [len(group.sources) for group in folder.rest()] == [1, 1, 1, 1]


def test_lines_of_other_streams_texts_and_launchers_stay_apart() -> None:
    folder = LineFolder()
    folder.add(line(0, "a"), 0.0)
    folder.add(Line(0.0, "n1", 1, "stderr", "a"), 0.0)
    folder.add(line(2, "b"), 0.0)
    folder.add(line(None, "a"), 0.0)
    assert [len(group.sources) for group in folder.rest()] == [1, 1, 1, 1]


def test_few_groups_wait_however_fast_ranks_write() -> None:
    folder = LineFolder()
    for number in range(MOST_WAITING):
        folder.add(line(0, f"line {number}"), 0.0)
    assert list(folder.due(0.0)) == []
    folder.add(line(0, "one more"), 0.0)
    released = [group.line.text for group in folder.due(0.0)]
    assert released == [f"line {number}" for number in range(MOST_WAITING // 2 + 1)]
