"""What ranks of several nodes have written, put into the order of time."""

from __future__ import annotations

import base64
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from dslaunch.node import frames
from dslaunch.protocol.queries import JOURNAL, Answers, Questions, parse_answers
from dslaunch.run.events import Event, Line
from dslaunch.run.follow import read_kept, replay
from dslaunch.run.reach import ReachedNodes
from dslaunch.run.run_directory import RunDirectory
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


def recorded(tmp_path: Path) -> Path:
    record = RunDirectory(tmp_path / "run")
    for host, rank, text, when in (
        ("n1", 0, b"a\nfirst ha", 1.0),
        ("n1", 0, b"lf\n", 4.0),
        ("n2", 1, b"b\n", 2.0),
        ("n2", 1, b"clock set back\n", 0.5),
        ("n1", 0, b"c\n", 5.0),
        ("n2", 1, b"d\n", 4.5),
    ):
        record.output(host, rank, text, when, 1)
    record.let_go()
    return record.directory


def test_a_record_is_shown_in_the_order_of_time_and_each_rank_as_it_wrote(tmp_path: Path) -> None:
    screen = View()
    replay(recorded(tmp_path), Watch(screen), follow=False)
    assert screen.shown == [
        "0: a", "1: b", "1: clock set back", "0: first half", "1: d", "0: c",
    ]  # fmt: skip


def test_a_record_that_is_followed_is_shown_as_it_arrived(tmp_path: Path) -> None:
    screen = View()
    replay(recorded(tmp_path), Watch(screen), follow=True)
    assert screen.shown == [
        "0: a", "0: first half", "1: b", "1: clock set back", "0: c", "1: d",
    ]  # fmt: skip


@dataclass
class Node:
    """A session with a node that has kept this."""

    host: str
    offset: float
    kept: bytes
    ranks: range = range(2)

    def ask(self, questions: Questions) -> Future[Answers]:
        journal = questions[JOURNAL]
        start = journal["position"]
        data = base64.b64encode(self.kept[start : start + journal["most"]]).decode()
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
