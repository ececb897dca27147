"""The recorded output of a run: in the order of time, or of arrival, or only its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dslaunch.run.events import Event, Line
from dslaunch.run.log_selection import LogSelection
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.recorded_events import read_events
from dslaunch.run.replay import FIRST_WINDOW, attach_record, replay
from dslaunch.run.run_directory import EVENTS, MOST_LOGS, RunDirectory, arrival, arrivals
from dslaunch.run.view import View as AnyView

Wrote = tuple[str, int | None, bytes, float]
"""Host, rank, bytes, and when they were written."""


@dataclass
class View(AnyView):
    """Keeps what it is shown."""

    shown: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def line(self, line: Line) -> None:
        self.shown.append(f"{line.rank}: {line.text}")
        self.lines.append(line)

    def event(self, event: Event) -> None:
        self.shown.append(f"{event.rank}: {event.kind}")


def recorded(directory: Path, *pieces: Wrote) -> Path:
    """A record of this output."""
    record = RunDirectory(directory / "run")
    for host, rank, data, when in pieces:
        record.output(host, rank, data, when, 1)
    record.let_go()
    return record.directory


def shown(directory: Path, *, follow: bool = False, **conditions: object) -> list[str]:
    """What is shown of a record."""
    view = View()
    replay(directory, view, LogSelection(**conditions), follow=follow)  # type: ignore[arg-type]
    return view.shown


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    return recorded(
        tmp_path,
        ("n1", 0, b"a\nfirst ha", 1.0),
        ("n1", 0, b"lf\n", 4.0),
        ("n2", 1, b"b\n", 2.0),
        ("n2", 1, b"clock set back\n", 0.5),
        ("n1", 0, b"c\n", 5.0),
        ("n2", 1, b"d\n", 4.5),
    )


BY_TIME = ["0: a", "1: b", "1: clock set back", "0: first half", "1: d", "0: c"]


def test_a_record_is_shown_in_the_order_of_time_and_each_rank_as_it_wrote(two_nodes: Path) -> None:
    assert shown(two_nodes) == BY_TIME


def test_a_record_that_is_followed_is_shown_as_it_arrived(two_nodes: Path) -> None:
    assert shown(two_nodes, follow=True) == [
        "0: a", "0: first half", "1: b", "1: clock set back", "0: c", "1: d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "lines"),
    [
        ({"ranks": frozenset((1,))}, ["1: b", "1: clock set back", "1: d"]),
        ({"hosts": frozenset(("n1",))}, ["0: a", "0: first half", "0: c"]),
        ({"since": 3.0}, ["0: first half", "1: d", "0: c"]),
        ({"until": 2.0}, ["0: a", "1: b", "1: clock set back", "0: first ha"]),
        ({"since": 2.0, "until": 4.2}, ["1: b", "0: first half"]),
        ({"matching": re.compile("a")}, ["0: a", "1: clock set back", "0: first half"]),
        ({"tail": 2}, ["1: d", "0: c"]),
        ({"tail": 0}, []),
        ({"tail": 100}, BY_TIME),
        ({"tail": 2, "ranks": frozenset((1,))}, ["1: clock set back", "1: d"]),
        ({"tail": 1, "since": 3.0, "until": 4.2}, ["0: first half"]),
        ({"tail": 1, "matching": re.compile("a")}, ["0: first half"]),
    ],
)
def test_conditions_select_lines_and_tail_the_last_of_these(
    two_nodes: Path, conditions: dict[str, object], lines: list[str]
) -> None:
    assert shown(two_nodes, **conditions) == lines


def test_a_last_line_without_an_end_has_the_time_at_which_it_was_written(tmp_path: Path) -> None:
    directory = recorded(tmp_path, ("n1", 0, b"a\nunfinished", 3.0))
    view = View()
    replay(directory, view, follow=False)
    assert [(line.text, line.time) for line in view.lines] == [("a", 3.0), ("unfinished", 3.0)]


LINES = 6000


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record that is much larger than what is read first, of two ranks, in torn pieces."""
    pieces: list[Wrote] = []
    for number in range(LINES):
        text = b"line %d of rank %d\n" % (number, number % 2)
        pieces += [
            ("n1", number % 2, text[:4], float(number)),
            ("n1", number % 2, text[4:], number + 0.5),
        ]
    return recorded(tmp_path_factory.mktemp("long"), *pieces)


@pytest.mark.parametrize("tail", [1, 7, 2000, LINES - 1, LINES, LINES + 1])
def test_the_last_lines_are_the_same_as_at_the_end_of_all_lines(long_run: Path, tail: int) -> None:
    assert shown(long_run, tail=tail) == shown(long_run)[-tail:]


def test_the_last_lines_that_match_are_found_however_early_they_are(long_run: Path) -> None:
    assert shown(long_run, tail=3, matching=re.compile("line 7 ")) == ["1: line 7 of rank 1"]


def bytes_read() -> int:
    """What this process has read so far, by its system calls (proc(5), `rchar`)."""
    (count,) = re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    return int(count)


def test_the_last_lines_are_found_without_reading_the_others(tmp_path: Path) -> None:
    block = b"x" * 65535 + b"\n"
    directory = recorded(tmp_path, *[("n1", 0, block, 1.0)] * 800, ("n1", 0, b"a\nb\n", 2.0))
    before = bytes_read()
    assert shown(directory, tail=2) == ["0: a", "0: b"]
    assert bytes_read() - before < 40 * FIRST_WINDOW


def test_what_follows_the_last_lines_is_shown_without_a_gap(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "run")
    record.output("n1", 0, b"old\nlast\nhalf ", 1.0, 1)
    view = View()
    looks: Iterator[Callable[[], None]] = iter(
        (
            lambda: record.output("n1", 0, b"done\nnew\n", 2.0, 1),
            lambda: record.output("n2", 1, b"other node\n", 3.0, 1),
            record.let_go,
        )
    )

    class Looking(View):
        def line(self, line: Line) -> None:
            view.line(line)

    def write_more() -> bool:
        if view.shown:
            next(looks, lambda: None)()
        return False

    replay(record.directory, Looking(), LogSelection(tail=1), follow=True, until=write_more)
    assert view.shown == ["0: last", "0: half done", "0: new", "1: other node"]


@pytest.mark.parametrize("damage", ["sources", "logs/n1.0.log", "order"])
def test_a_record_that_lacks_a_file_is_shown_as_far_as_it_is_there(
    two_nodes: Path, damage: str
) -> None:
    (two_nodes / damage).unlink()
    expected = [line for line in BY_TIME if damage.startswith("logs") and line.startswith("1")]
    assert shown(two_nodes) == expected
    assert shown(two_nodes, tail=10) == expected


@given(
    when=st.floats(0, 1e10),
    log=st.integers(0, MOST_LOGS - 1),
    stream=st.sampled_from((1, 2)),
    size=st.integers(0, 1 << 20),
)
@example(when=1.0, log=(1 << 16) - 1, stream=2, size=1)
@example(when=1.0, log=1 << 16, stream=2, size=1)
def test_a_piece_of_any_of_four_million_logs_is_found_again(
    when: float, log: int, stream: int, size: int
) -> None:
    assert list(arrivals(arrival(when, log, stream, size))) == [(when, log, stream, size)]


def test_a_log_that_has_no_number_is_refused() -> None:
    with pytest.raises(OSError, match="logs"):
        arrival(1.0, MOST_LOGS, 1, 1)


@given(cut=st.binary(max_size=40))
def test_an_order_of_any_bytes_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: bytes
) -> None:
    directory = recorded(tmp_path_factory.mktemp("run"), ("n1", 0, b"a\nb\n", 1.0))
    (directory / "order").write_bytes(cut)
    shown(directory)
    shown(directory, tail=5)


# ---------------------------------------------------------------- events


REASON = EndReason(EndCode.RANK_FAILED, "n1", 0, exit_code=3)
EVENTS_OF_A_RUN = [
    Event(1.0, "connected", "n1"),
    Event(2.0, "started", "n1", 0, pid=12),
    Event(3.0, "away", "n1", error="no route"),
    Event(4.0, "exit", "n1", 0, code=3),
    Event(5.0, "stopping", reason=REASON),
]


def test_recorded_events_are_read_back_the_same_and_damaged_ones_left_out(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "run")
    for event in EVENTS_OF_A_RUN:
        record.event(event)
    record.let_go()
    with (record.directory / EVENTS).open("ab") as file:
        file.write(b'{"kind": "no such kind"}\n[]\n\xff\n{"time": 1')
    assert read_events(record.directory) == EVENTS_OF_A_RUN
    assert read_events(tmp_path) == []


def test_attach_shows_the_events_so_far_the_last_lines_and_the_end(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "run")
    for event in EVENTS_OF_A_RUN[:3]:
        record.event(event)
    record.output("n1", 0, b"1\n2\n3\n", 2.5, 1)
    view = View()

    ended = False

    def ends() -> bool:
        nonlocal ended
        if view.shown and not ended:
            ended = True
            record.output("n1", 0, b"4\n", 4.0, 1)
            record.event(EVENTS_OF_A_RUN[3])
            record.close({})
        return False

    attach_record(record.directory, view, LogSelection(tail=1), until=ends)
    assert view.shown == ["None: connected", "0: started", "0: 3", "0: 4", "0: exit"]
