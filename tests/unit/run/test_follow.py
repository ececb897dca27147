"""What ranks of several nodes have written, put into the order of time."""

from __future__ import annotations

import base64
import re
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.errors import Interrupted
from dslaunch.node import frames
from dslaunch.protocol.queries import JOURNAL, Answers, Questions, parse_answers
from dslaunch.run.events import Event, Line
from dslaunch.run.follow import read_kept
from dslaunch.run.journal_tail import first_frame, show_last_lines
from dslaunch.run.log_selection import LogSelection, SelectedLines
from dslaunch.run.reach import ANSWER_TIMEOUT, ReachedNodes, ask
from dslaunch.run.session import Session
from dslaunch.run.watch import Watch


@dataclass
class View:
    """Keeps what it is shown."""

    shown: list[str] = field(default_factory=list)

    def line(self, line: Line) -> None:
        self.shown.append(f"{line.rank}: {line.text}")

    def event(self, event: Event) -> None:
        self.shown.append(f"{event.rank}: {event.kind}")


@dataclass
class Node:
    """A session with a node that has kept this."""

    host: str
    offset: float
    kept: bytes
    ranks: range = range(2)
    skipped: int = 0
    asked: int = 0
    """Bytes that were sent of the journal."""

    def skip(self, number: int) -> None:
        self.skipped = number

    def ask(self, questions: Questions) -> Future[Answers]:
        journal = questions[JOURNAL]
        start = journal["position"]
        sent = self.kept[start : start + journal["most"]]
        self.asked += len(sent)
        data = base64.b64encode(sent).decode()
        piece = {"data": data, "size": len(self.kept)}
        answer: Future[Answers] = Future()
        answer.set_result(parse_answers(self.host, questions, {"journal": {"value": piece}}))
        return answer


def wrote(rank: int, *lines: tuple[float, str]) -> bytes:
    bodies = [frames.output_body(rank, 1, when, f"{text}\n".encode()) for when, text in lines]
    told = [frames.frame(frames.OUTPUT, body, number) for number, body in enumerate(bodies, 1)]
    end = {"event": "exit", "rank": rank, "code": 0, "time": lines[-1][0]}
    return b"".join([*told, frames.frame(frames.MESSAGE, frames.message_body(end), len(told) + 1)])


def test_what_nodes_have_kept_is_merged_by_our_clock() -> None:
    nodes = {
        "n1": Node("n1", 0.0, wrote(0, (1.0, "a"), (3.0, "c"))),
        "n2": Node("n2", 3600.0, wrote(1, (3602.0, "b"), (3604.0, "d"))),
    }
    screen = View()
    read_kept(ReachedNodes(cast("dict[str, Session]", nodes)), "r", Watch(screen), most=7)
    assert screen.shown == ["0: a", "1: b", "0: c", "0: exit", "1: d", "1: exit"]


# ---------------------------------------------------------------- the last lines


def last_lines(nodes: list[Node], **conditions: object) -> list[str]:
    """What is shown of the end of these journals."""
    screen = View()
    selection = LogSelection(**conditions)  # type: ignore[arg-type]
    chosen = SelectedLines(screen, selection)
    sessions = cast("list[Session]", nodes)
    show_last_lines(sessions, "r", chosen, lambda: False).flush_all()
    chosen.release()
    return screen.shown


MANY = 5000


def long_journal(rank: int, first: float) -> bytes:
    """A journal with a line each second, much larger than what is read first."""
    return wrote(rank, *((first + number, f"{rank} wrote {number}") for number in range(MANY)))


@pytest.fixture(scope="module")
def journals() -> list[Node]:
    """Two nodes that write in turn; the clock of the second is an hour ahead."""
    return [
        Node("n1", 0.0, long_journal(0, 1.0)),
        Node("n2", 3600.0, long_journal(1, 3601.5)),
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 101, 2 * MANY, 2 * MANY + 5])
def test_the_last_lines_of_all_nodes_together_are_those_of_the_latest_times(
    journals: list[Node], count: int
) -> None:
    by_time = [f"{rank}: {rank} wrote {n}" for n in range(MANY) for rank in range(2)]
    assert last_lines(journals, tail=count) == by_time[max(0, len(by_time) - count) :]
    assert [node.skipped for node in journals] == [MANY + 1, MANY + 1]


def test_of_large_journals_little_is_read_for_a_few_lines() -> None:
    node = Node("n1", 0.0, long_journal(0, 1.0))
    assert last_lines([node], tail=20)[-1] == f"0: 0 wrote {MANY - 1}"
    assert node.asked < len(node.kept) / 2


def test_the_last_lines_of_one_rank_are_found_before_those_of_another() -> None:
    node = Node("n1", 0.0, wrote(1, (1.0, "early")))
    node.kept = wrote(1, (1.0, "early"), *((2.0, "x" * 50) for _ in range(5000)))
    assert last_lines([node], tail=1, matching=re.compile("early")) == ["1: early"]


@given(st.data())
def test_the_first_frame_is_found_wherever_a_journal_is_cut(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.binary(max_size=60), min_size=4, max_size=10))
    bodies = [frames.output_body(0, 1, 1.0, text) for text in texts]
    told = [frames.frame(frames.OUTPUT, body, number) for number, body in enumerate(bodies, 1)]
    starts = [len(b"".join(told[:index])) for index in range(len(told))]
    cut = data.draw(st.integers(0, starts[-2]))
    following = min(start for start in starts if start >= cut)
    assert first_frame(b"".join(told)[cut:]) == following - cut


@given(st.binary(max_size=300))
def test_bytes_that_are_no_journal_raise_nothing(data: bytes) -> None:
    first_frame(data)


# ---------------------------------------------------------------- nodes that hang


@dataclass
class Hanging:
    """A session with a node that has greeted and answers nothing."""

    host: str = "n1"
    ranks: range = range(2)

    def ask(self, questions: Questions) -> Future[Answers]:
        return Future()

    def measure_clock(self) -> Future[object]:
        return Future()


def test_ctrl_c_ends_the_wait_for_the_answers_of_a_node_that_hangs() -> None:
    reached = ReachedNodes(cast("dict[str, Session]", {"n1": Hanging()}))
    calls = iter((False, False))
    began = time.monotonic()
    with pytest.raises(Interrupted):
        ask(reached, until=lambda: next(calls, True))
    with pytest.raises(Interrupted):
        read_kept(reached, "r", Watch(View()), until=lambda: True)
    assert time.monotonic() - began < ANSWER_TIMEOUT / 2
