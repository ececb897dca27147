"""What ranks of several nodes have written, put into the order of time."""

from __future__ import annotations

import base64
import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from queue import Empty
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.errors import Interrupted, NodeError, NodeFailure
from dslaunch.node import frames
from dslaunch.protocol.messages import ProtocolError
from dslaunch.protocol.queries import JOURNAL, Answers, Questions, parse_answers
from dslaunch.run import journal_tail
from dslaunch.run.events import Event, Line
from dslaunch.run.follow import Follower, read_kept
from dslaunch.run.interrupts import never
from dslaunch.run.journal_tail import (
    FIRST_WINDOW,
    LARGEST_TOGETHER,
    LARGEST_WINDOW,
    Chains,
    first_frame,
    largest_window,
    show_last_lines,
)
from dslaunch.run.log_selection import LogSelection, SelectedLines
from dslaunch.run.reach import ReachedNodes, ask
from dslaunch.run.session import Session
from dslaunch.run.view import View as AnyView
from dslaunch.run.view import ignore
from dslaunch.run.watch import Watch
from dslaunch.transport.future import Future
from dslaunch.transport.wire import LostError


@dataclass
class View(AnyView):
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
    newest: int = 0
    """The number of its newest frame, as its agent says."""

    @property
    def hello(self) -> Future[SimpleNamespace]:
        greeting: Future[SimpleNamespace] = Future()
        greeting.set_result(SimpleNamespace(last=self.newest))
        return greeting

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


class Lost(Node):
    """A session whose connection breaks."""

    def ask(self, questions: Questions) -> Future[Answers]:
        answer: Future[Answers] = Future()
        answer.set_exception(LostError(NodeFailure(self.host, "lost", "connection lost")))
        return answer


class Growing(Node):
    """A session with a node whose ranks write faster than is read."""

    def ask(self, questions: Questions) -> Future[Answers]:
        answer = super().ask(questions)
        self.kept += b"x" * 1000
        return answer


def wrote(rank: int, *lines: tuple[float, str]) -> bytes:
    bodies = [frames.output_body(rank, 1, when, f"{text}\n".encode()) for when, text in lines]
    told = [frames.frame(frames.OUTPUT, body, number) for number, body in enumerate(bodies, 1)]
    end = {"event": "exit", "rank": rank, "code": 0, "time": lines[-1][0]}
    return b"".join([*told, frames.frame(frames.MESSAGE, frames.message_body(end), len(told) + 1)])


def test_what_nodes_have_kept_is_merged_by_our_clock() -> None:
    nodes = [
        Node("n1", 0.0, wrote(0, (1.0, "a"), (3.0, "c"))),
        Node("n2", 3600.0, wrote(1, (3602.0, "b"), (3604.0, "d"))),
    ]
    assert kept_lines(nodes, most=7) == ["0: a", "1: b", "0: c", "0: exit", "1: d", "1: exit"]
    assert [node.skipped for node in nodes] == [3, 3]


def kept_lines(
    nodes: list[Node], failed: list[NodeFailure] | None = None, most: int | None = None
) -> list[str]:
    """What is shown of these journals; nodes whose journal cannot be read are added to
    `failed`."""
    screen = View()
    sessions = cast("list[Session]", nodes)
    note_failure = (failed if failed is not None else []).append
    watch = Watch(screen)
    read_kept(sessions, "r", watch, note_failure=note_failure, most=most)
    watch.flush_all()
    return screen.shown


def test_a_journal_that_is_damaged_in_the_middle_is_shown_up_to_there() -> None:
    failed: list[NodeFailure] = []
    damaged = wrote(0, (1.0, "a"), (3.0, "lost"))
    damaged = damaged[: damaged.index(b"a\n") + 2] + ZEROS
    nodes = [
        Node("n1", 0.0, damaged, newest=9),
        Node("n2", 0.0, wrote(1, (2.0, "b"), (4.0, "d"))),
    ]
    assert kept_lines(nodes, failed) == ["0: a", "1: b", "1: d", "1: exit"]
    assert [(failure.host, failure.kind) for failure in failed] == [("n1", "protocol")]
    assert [node.skipped for node in nodes] == [9, 3]


def test_a_node_that_is_lost_while_its_journal_is_read_is_a_failure_of_its_own() -> None:
    failed: list[NodeFailure] = []
    lost = Lost("n1", 0.0, wrote(0, (1.0, "a"), (3.0, "c")))
    nodes = [lost, Node("n2", 0.0, wrote(1, (2.0, "b")))]
    assert kept_lines(nodes, failed) == ["1: b", "1: exit"]
    assert [(failure.host, failure.kind) for failure in failed] == [("n1", "lost")]


def test_what_is_written_while_a_journal_is_read_is_left_to_whoever_follows() -> None:
    node = Growing("n1", 0.0, wrote(0, (1.0, "a"), (2.0, "b")))
    assert kept_lines([cast("Node", node)], most=20)[:2] == ["0: a", "0: b"]
    assert node.asked < len(node.kept)


# ---------------------------------------------------------------- the last lines


def last_lines(
    nodes: list[Node], failed: list[NodeFailure] | None = None, **conditions: object
) -> list[str]:
    """What is shown of the end of these journals; nodes whose journal cannot be read are added to
    `failed`."""
    screen = View()
    selection = LogSelection(**conditions)  # type: ignore[arg-type]
    chosen = SelectedLines(screen, selection)
    sessions = cast("list[Session]", nodes)
    note_failure = (failed if failed is not None else []).append
    show_last_lines(sessions, "r", chosen, never, note_failure).flush_all()
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


# ---------------------------------------------------------------- hostile journals

ZEROS = bytes(1 << 20)
RESEMBLING = frames.HEADER.pack(0, frames.OUTPUT, 1)
HOSTILE = {
    "zeros": ZEROS,
    "the same header again and again": RESEMBLING * 50_000,
    "a header that promises 4 GiB": frames.HEADER.pack(0xFFFF_FFFF, frames.OUTPUT, 1) + ZEROS,
    "headers within headers": b"\0\0\0\0\x01\0" * 100_000,
    "numbers that end": b"".join(frames.HEADER.pack(0, frames.OUTPUT, n) for n in range(1, 50_000))
    + b"\xff" * 20,
}


@pytest.mark.parametrize("kept", HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_journal_is_the_failure_of_its_node_alone(kept: bytes) -> None:
    failed: list[NodeFailure] = []
    nodes = [Node("n1", 0.0, long_journal(0, 1.0)), Node("n2", 0.0, kept, newest=7)]
    assert last_lines(nodes, failed, tail=MANY + 1) == [f"0: 0 wrote {n}" for n in range(MANY)]
    assert [(failure.host, failure.kind) for failure in failed] == [("n2", "protocol")]
    assert [node.skipped for node in nodes] == [MANY + 1, 7]
    failed.clear()
    shown = kept_lines(nodes, failed)
    assert shown == [*(f"0: 0 wrote {n}" for n in range(MANY)), "0: exit"]
    assert [(failure.host, failure.kind) for failure in failed] == [("n2", "protocol")]


def test_a_journal_that_is_damaged_on_all_nodes_is_an_error() -> None:
    with pytest.raises(NodeError) as damaged:
        last_lines([Node("n1", 0.0, ZEROS), Node("n2", 0.0, ZEROS)], tail=1)
    assert [failure.host for failure in damaged.value.failures] == ["n1", "n2"]
    with pytest.raises(NodeError) as unreadable:
        kept_lines([Node("n1", 0.0, ZEROS), Node("n2", 0.0, ZEROS)])
    assert [failure.host for failure in unreadable.value.failures] == ["n1", "n2"]


@pytest.mark.parametrize("nodes", [1, 16, 1000, 1_000_000])
def test_the_bytes_of_all_nodes_that_are_searched_are_limited(nodes: int) -> None:
    size = largest_window(nodes)
    assert FIRST_WINDOW <= size <= LARGEST_WINDOW
    assert size == FIRST_WINDOW or nodes * size <= LARGEST_TOGETHER


def test_of_a_node_with_a_huge_journal_only_its_end_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_tail, "LARGEST_WINDOW", 2 * FIRST_WINDOW)
    node = Node("n1", 0.0, long_journal(0, 1.0))
    assert len(last_lines([node], tail=10 * MANY)) < MANY
    assert node.asked < 4 * FIRST_WINDOW
    assert node.skipped == MANY + 1


@pytest.mark.parametrize("piece", [RESEMBLING, b"\0", b"\x01\0", b"\0\0\0\0\x01\0"])
def test_the_search_for_the_first_frame_grows_with_the_bytes(piece: bytes) -> None:
    def calls(size: int) -> int:
        """Return how many calls the search makes."""
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            with contextlib.suppress(ProtocolError):
                first_frame(piece * (size // len(piece)))
        finally:
            sys.setprofile(None)
        return count

    assert calls(80_000) <= 5 * calls(20_000)


def test_chains_that_meet_are_followed_once() -> None:
    chain = b"".join(frames.HEADER.pack(0, frames.OUTPUT, n) for n in range(1, 3_000))
    chains = Chains(chain + b"\xff" * 20)
    assert not chains.leads_on(0)
    assert len(chains.wrong) == 2_999
    chains.data = chain[: 3 * frames.HEADER.size]
    assert not chains.leads_on(0)


def test_the_search_for_the_first_frame_can_be_interrupted() -> None:
    calls = iter((False, True))
    with pytest.raises(Interrupted):
        first_frame(b"\x01\0" * 100_000, lambda: next(calls))


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
    hanging = cast("Session", Hanging())
    reached = ReachedNodes({"n1": hanging})
    calls = iter((False, False))
    with pytest.raises(Interrupted):  # a timeout would be a failure of the node
        ask(reached, until=lambda: next(calls, True))
    with pytest.raises(Interrupted):
        read_kept([hanging], "r", Watch(View()), note_failure=ignore, until=lambda: True)


@dataclass
class Following:
    """A session with a node that is followed."""

    host: str
    caught_up: bool = False
    offset: float = 0.0

    def follow(self, *, hold: bool) -> None:
        pass

    def has_caught_up(self) -> bool:
        return self.caught_up


@dataclass
class SlowInbox:
    """Gives a line 0.3 seconds after the one before, and then nothing."""

    lines: Iterator[tuple[Following, str]]
    now: float = 0.0
    """The time by its clock."""

    def get(self, timeout: float) -> tuple[Following, frames.Output]:
        self.now += 0.3
        for session, text in self.lines:
            return session, frames.Output(0, 1, self.now, f"{text}\n".encode())
        raise Empty

    def empty(self) -> bool:
        return True

    def qsize(self) -> int:
        return 0


def shown_of(sessions: list[Following], lines: Iterator[tuple[Following, str]]) -> list[str]:
    """What is received of these sessions, of which some have not caught up."""
    screen, inbox = View(), SlowInbox(lines)
    reached = SimpleNamespace(sessions={each.host: each for each in sessions}, inbox=inbox)
    watch = Watch(screen)
    Follower(cast("ReachedNodes", reached), watch, clock=lambda: inbox.now).catch_up()
    watch.flush_all()
    return screen.shown


def test_a_node_that_sends_slowly_is_received_to_its_end() -> None:
    node = Following("n1")
    assert shown_of([node], iter([(node, text) for text in "abcd"])) == [
        "0: a",
        "0: b",
        "0: c",
        "0: d",
    ]


def test_a_node_that_writes_without_end_does_not_keep_one_that_sends_nothing() -> None:
    writing, silent = Following("n1", caught_up=True), Following("n2")
    assert shown_of([writing, silent], ((writing, "x") for _ in count())) == ["0: x", "0: x"]
