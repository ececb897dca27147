"""Why a detached run hung, by what its nodes have recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from dslaunch.protocol.queries import Answers, Questions, parse_answers
from dslaunch.run.events import Event
from dslaunch.run.hang_verdict import GpuError, HangCode
from dslaunch.run.kept_hang import with_hang_verdict
from dslaunch.run.outcome import Outcome
from dslaunch.run.reach import ReachedNodes
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.session import Session
from dslaunch.transport.clock import Clock
from dslaunch.transport.future import Future

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("recorded_hangs.json").read_text("utf-8")
)
HUNG = Outcome("failed", 1, EndReason(EndCode.HANG, seconds=30.0))
RANKS = {"node1": (0, 1), "node2": (2, 3)}


class Ended:
    """A node whose agent has exited, and that has kept what its ranks did."""

    def __init__(self, host: str, kept: dict[str, Any] | None) -> None:
        self.host, self.kept, self.offset = host, kept, 0.0

    def measure_clock(self) -> Future[Clock]:
        measured: Future[Clock] = Future()
        measured.set_result(Clock(0.0, 0.0))
        return measured

    def ask(self, questions: Questions) -> Future[Answers]:
        answer: Future[Answers] = Future()
        told = {query.name: {"value": self.kept} for query in questions}
        answer.set_result(parse_answers(self.host, questions, told))
        return answer


def kept(how: str, ranks: tuple[int, ...]) -> dict[str, Any]:
    """Return what a node with these ranks has kept of a recorded hang."""
    recorded = RECORDED[how]
    names = [str(rank) for rank in ranks]
    return {
        "time": recorded["time"],
        "collectives": {name: recorded["collectives"][name] for name in names},
        "stacks": {name: recorded["stacks"][name] for name in names},
    }


def explained(how: str, *, nodes: dict[str, Any], events: tuple[Event, ...] = ()) -> Outcome:
    sessions = {host: cast(Session, Ended(host, told)) for host, told in nodes.items()}
    reached = ReachedNodes(sessions)
    return with_hang_verdict(HUNG, "r1", reached, ranks=RANKS, events=events)


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    # what the ranks do when they are ended says nothing about the hang
    ended = Event(RECORDED["busy"]["time"] + 1, "exit", "node1", 0, signal=15, asked=True)
    nodes = {host: kept("busy", ranks) for host, ranks in RANKS.items()}
    found = explained("busy", nodes=nodes, events=(ended,))
    hang = found.reason.hang
    assert hang is not None
    assert (hang.code, hang.ranks) == (HangCode.BUSY, (("node2", 3),))
    assert hang.waiting == (0, 1, 2)
    assert set(found.stacks) == set(RANKS)
    assert found.hint is not None


def test_a_rank_that_ended_before_is_what_the_others_wait_for() -> None:
    ended = Event(RECORDED["dead"]["time"] - 5, "exit", "node2", 3, code=0, asked=False)
    nodes = {"node1": kept("dead", (0, 1)), "node2": kept("dead", (2,))}
    hang = explained("dead", nodes=nodes, events=(ended,)).reason.hang
    assert hang is not None
    assert (hang.code, hang.ranks, hang.exit_code) == (HangCode.DEAD, (("node2", 3),), 0)


def test_what_a_node_says_of_the_ranks_of_others_is_not_used() -> None:
    nodes = {"node1": kept("busy", (0, 1, 2, 3)), "node2": None}
    found = explained("busy", nodes=nodes)
    assert {rank for ranks in found.stacks.values() for rank in ranks} == {"0", "1"}


def test_an_error_of_a_gpu_that_the_node_has_logged_is_the_reason() -> None:
    nodes = {host: kept("busy", ranks) for host, ranks in RANKS.items()}
    log = (
        "uptime 1000.0\nlog\n[  990.0] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off\n"
    )
    nodes["node2"]["seconds"] = 60.0
    nodes["node2"]["answers"] = {
        "run": {"value": {"code": 0, "out": log, "err": ""}},
        "nccl_ras": {"value": None},
    }
    hang = explained("busy", nodes=nodes).reason.hang
    assert hang is not None
    assert (hang.code, hang.ranks) == (HangCode.GPU, (("node2", 3),))
    assert hang.gpus == (GpuError("node2", 79, "0000:9b:00", 1),)


def test_an_answer_about_gpus_that_is_invalid_is_not_used() -> None:
    nodes = {host: kept("busy", ranks) for host, ranks in RANKS.items()}
    nodes["node2"]["answers"] = {"run": {"value": {"code": "x"}}, "nccl_ras": {"value": None}}
    hang = explained("busy", nodes=nodes).reason.hang
    assert hang is not None
    assert (hang.code, hang.ranks) == (HangCode.BUSY, (("node2", 3),))


def test_without_records_of_any_node_the_reason_is_unknown() -> None:
    hang = explained("busy", nodes={"node1": None, "node2": None}).reason.hang
    assert hang is not None
    assert hang.code is HangCode.UNKNOWN
