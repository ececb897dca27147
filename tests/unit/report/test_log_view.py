"""How `logs` prints the lines of ranks."""

from __future__ import annotations

import io
import json
import time

import pytest
from tests.unit.report.terminal import Terminal

from dslaunch.errors import DslaunchError
from dslaunch.report.log_view import JsonLogView, LogView
from dslaunch.run.events import Line, LineBlock


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def line(text: str, rank: int | None, when: float = 0.0, *, partial: bool = False) -> Line:
    return Line(when, "n1", rank, "stdout", text, partial=partial)


def shown(*lines: Line, **options: bool) -> list[str]:
    """Return what is printed of the lines of a run with 3 ranks."""
    out = io.StringIO()
    view = LogView(out, ranks=3, hosts=("n1",), **options)
    for each in lines:
        view.line(each)
    view.close()
    return out.getvalue().splitlines()


def test_equal_lines_of_ranks_are_folded_as_in_the_view_of_a_run() -> None:
    lines = [line("all", rank) for rank in range(3)] + [line("some", rank) for rank in (0, 2)]
    assert shown(*lines, fold=True) == ["[3 ranks]│all", "[0,2]│some"]
    assert shown(*lines) == ["n1:0│all", "n1:1│all", "n1:2│all", "n1:0│some", "n1:2│some"]


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("fold", [False, True])
def test_lines_that_come_together_are_printed_as_one_by_one(timestamps: bool, fold: bool) -> None:
    block = LineBlock(0.0, "n1", 0, "stdout", "a\n\n\x1b[31mred\x1b[0m")
    out = io.StringIO()
    view = LogView(out, fold=fold, timestamps=timestamps)
    view.block(block)
    view.close()
    assert out.getvalue().splitlines() == shown(*block, fold=fold, timestamps=timestamps)


def test_programs_get_an_object_for_each_of_the_lines_that_come_together() -> None:
    block = LineBlock(0.0, "n1", 0, "stdout", "a\nb")
    out = io.StringIO()
    JsonLogView(out).block(block)
    assert list(map(json.loads, out.getvalue().splitlines())) == [each.as_data() for each in block]


def test_lines_that_were_written_at_different_times_are_not_folded_however_fast_they_come() -> None:
    lines = (line("a", 0, 1.0), line("a", 1, 1.2), line("a", 2, 9.0))
    assert shown(*lines, fold=True) == ["[0-1]│a", "n1:2│a"]


def test_a_clock_in_the_future_does_not_hold_back_the_lines_of_other_nodes() -> None:
    out = io.StringIO()
    view = LogView(out, fold=True)
    view.line(line("wrong", 0, time.time() + 1e6))
    view.line(line("right", 1, time.time()))
    view.tick()
    view.tick()
    assert out.getvalue().splitlines() == ["n1:0│wrong", "n1:1│right"]


def test_a_line_waits_for_equal_ones_until_none_arrive() -> None:
    out = io.StringIO()
    view = LogView(out, fold=True, ranks=3)
    view.line(line("a", 0, 1.0))
    view.tick()
    assert out.getvalue() == ""
    view.tick()
    assert out.getvalue() == "n1:0│a\n"


def test_waiting_lines_are_shown_in_the_background_while_nothing_arrives() -> None:
    out = io.StringIO()
    view = LogView(out, fold=True)
    view.tick_in_background()
    view.line(line("a", 0, 1.0))
    deadline = time.monotonic() + 300
    while not out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    view.close()
    assert out.getvalue() == "n1:0│a\n"


def test_a_folded_line_has_the_time_of_the_first_of_its_lines() -> None:
    lines = (line("a", 0, 1.0), line("a", 1, 1.2))
    assert shown(*lines, fold=True, timestamps=True) == ["1970-01-01T00:00:01.000Z [0-1]│a"]


def test_colors_of_ranks_and_nodes_are_shown_only_if_they_are_wanted() -> None:
    red = line("\x1b[31mred\x1b[0m", 0)
    assert shown(red) == ["n1:0│red"]
    assert "\x1b[31mred" in shown(red, color=True)[0]


def test_prefixes_are_aligned_on_a_terminal_only() -> None:
    out = Terminal()
    view = LogView(out, ranks=11, hosts=("n1",))
    view.line(line("b", 9))
    view.line(line("a", 10))
    assert out.getvalue().splitlines() == ["n1:9 │b", "n1:10│a"]
    assert shown(line("a", 10), line("b", 9)) == ["n1:10│a", "n1:9│b"]


def test_states_of_a_progress_bar_are_left_out() -> None:
    assert shown(line("10%", 0, partial=True), line("100%", 0)) == ["n1:0│100%"]


def test_lines_for_programs_are_json_objects() -> None:
    out = io.StringIO()
    view = JsonLogView(out)
    view.line(line("10%", 0, partial=True))
    view.line(line("a", 0, 1.5))
    assert [json.loads(each)["text"] for each in out.getvalue().splitlines()] == ["a"]


@pytest.mark.parametrize("kind", [LogView, JsonLogView])
def test_a_reader_that_exits_ends_the_command_as_a_closed_pipe_does(
    kind: type[LogView] | type[JsonLogView],
) -> None:
    with pytest.raises(SystemExit) as left:
        kind(Broken(BrokenPipeError())).line(line("a", 0))
    assert left.value.code == 141


@pytest.mark.parametrize("kind", [LogView, JsonLogView])
def test_a_full_disk_is_an_error(kind: type[LogView] | type[JsonLogView]) -> None:
    with pytest.raises(DslaunchError, match="No space left"):
        kind(Broken(OSError(28, "No space left on device"))).line(line("a", 0))
