"""The screen of `top`: which columns and rows fit, in which order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.hostile.laden_text import harmful, laden
from tests.unit.run.usage_samples import gpu, rank, sample

from dslaunch.report.usage_table import Choice, Size, chosen_nodes, chosen_ranks, page
from dslaunch.run.progress import Progress
from dslaunch.run.slower_rank import Evidence, Reason, SlowerRank
from dslaunch.run.usage_monitor import RankSample, UsageSample


def many(nodes: int, slots: int) -> UsageSample:
    ranks = [
        replace(
            rank(number, f"node{number // slots + 1:02}", gpu=gpu(number % slots), cpu=number / 7),
            progress=Progress(step=1240, loss=2.113),
            step_seconds=0.32,
            last_line=f"step 1240 loss 2.113 \x1b[31mred\x1b[0m {'x' * 300}",
        )
        for number in range(nodes * slots)
    ]
    network = {"received": 1.2e9, "sent": 3.4e8, "disk_read": 0.0, "disk_written": 5e6}
    hosts = dict.fromkeys(each.host for each in ranks)
    found = sample(*ranks, **dict.fromkeys(hosts, network))
    return replace(found, progress=Progress(step=1240, last_step=5000, loss=2.113))


def lines(found: UsageSample, size: Size, choice: Choice | None = None) -> list[str]:
    slow = (SlowerRank(1, "node01", Evidence.CPU, (Reason.CPU_LIMIT,)),)
    return page("1123-train", found, slow, choice or Choice(), size)


@pytest.mark.parametrize("width", [20, 60, 80, 200])
@pytest.mark.parametrize("height", [10, 23, 50])
@pytest.mark.parametrize(("nodes", "slots"), [(1, 1), (4, 2), (64, 8)])
def test_the_page_fits_the_terminal(width: int, height: int, nodes: int, slots: int) -> None:
    shown = lines(many(nodes, slots), Size(width, height))
    assert len(shown) <= height
    assert max(map(len, shown)) <= width
    assert not any("\x1b" in line for line in shown)


def test_every_text_of_others_is_escaped_and_stays_on_its_line() -> None:
    found = replace(many(2, 2), unanswered=("node03",))
    slow = (SlowerRank(1, "node01", Evidence.CPU),)
    plain = page("run-1", found, slow, Choice(), Size())
    evil = "\x1b]0;t\x07\x9b2J\u202e\nanother line\rthird\u2028"
    shown = page(laden("run-1", evil), laden(found, evil), laden(slow, evil), Choice(), Size())
    assert len(shown) == len(plain)
    assert harmful("".join(shown)) == set()
    assert not any("\n" in line for line in shown)


def heads(shown: list[str]) -> list[str]:
    return [line for line in shown if "NODE" in line]


def test_a_narrow_terminal_has_fewer_columns() -> None:
    nodes, ranks = heads(lines(many(4, 2), Size(60, 40)))
    assert nodes.split() == ["NODE", "GPU", "GPU", "MEM", "POWER", "TEMP", "CPU", "MEMORY"]
    assert "STEP" in ranks
    wide, _ = heads(lines(many(4, 2), Size(200, 40)))
    assert {"NET", "DISK", "LOAD", "TEMP"} <= set(wide.split())


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_the_head_of_the_page_lacks_whole_parts_on_a_narrow_terminal(width: int) -> None:
    whole = lines(many(4, 2), Size(200, 40))[0].split(" · ")
    narrow = lines(many(4, 2), Size(width, 40))[0].split(" · ")
    assert narrow == whole[: len(narrow)]
    assert len(narrow) < len(whole) or width == 80


def test_columns_without_a_value_are_left_out() -> None:
    nodes, ranks = heads(lines(sample(rank(0), rank(1)), Size(200, 40)))
    assert nodes.split() == ["NODE", "CPU", "LOAD", "MEMORY"]
    assert ranks.split() == ["RANK", "NODE", "CPU", "BUSY", "MEMORY"]


def test_ranks_have_their_lateness_where_it_is_known() -> None:
    found = sample(rank(0, late=-0.02), rank(1, late=0.093))
    first, second = lines(found, Size(200, 40))[-2:]
    assert (first.split()[-2:], second.split()[-2:]) == (["0", "%"], ["9", "%"])


def test_rows_that_do_not_fit_are_counted() -> None:
    shown = lines(many(64, 8), Size(80, 23))
    assert [line for line in shown if "more" in line] == ["... 57 nodes more", "... 504 ranks more"]
    assert len(lines(many(64, 8), Size(80))) == 2 + 2 + 65 + 513


def test_rows_are_sorted_and_filtered() -> None:
    found = many(4, 2)
    assert [each.host for each in chosen_nodes(found, Choice(words="03"))] == ["node03"]
    assert [each.rank for each in chosen_ranks(found, Choice(words="node03"))] == [4, 5]
    assert [each.rank for each in chosen_ranks(found, Choice(words="6"))] == [6]
    assert chosen_ranks(found, Choice("cpu"))[0].rank == 7
    assert [each.rank for each in chosen_ranks(found, Choice())] == list(range(8))


def test_output_of_ranks_cannot_control_the_terminal() -> None:
    hostile: RankSample = replace(rank(0, "a\x1b[2J"), last_line="\x1b]0;title\x07\u202e")
    shown = lines(sample(hostile, rank(1)), Size(200, 40))
    assert not any(character in line for line in shown for character in "\x1b\x07\u202e")
