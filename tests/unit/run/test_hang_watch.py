"""When a run counts as hung or stalled, by what its node answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from dslaunch.protocol.queries import Answers, Questions, parse_answers
from dslaunch.protocol.values import parse
from dslaunch.run.hang_verdict import HangCode
from dslaunch.run.hang_watch import STALL_NOTICE, Continued, HangWatch, Stall
from dslaunch.run.session import Session
from dslaunch.transport.future import Future

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("recorded_hangs.json").read_text("utf-8")
)
SHORT = 0.6
"""Seconds of a timeout in these tests."""


class ScriptedNode:
    """A node whose 4 ranks answer as was recorded."""

    host, ranks, offset = "node1", range(4), 0.0

    def __init__(self, how: str) -> None:
        self.told = RECORDED[how]
        self.now = 1000.0
        """The time on the clock of the watch."""
        self.idle = 0.0
        self.asked: list[str] = []
        self.completed = 0
        """Collectives of a run that makes progress."""
        self.starved = False
        """Whether the ranks wait for a CPU all the time."""
        self.compiles = False
        """Whether each rank compiles, and uses the CPU for that."""
        self.state = "answered"
        self.log = "uptime 5000.00\n"
        """Of the kernel; as for a user who may not read it."""

    def request(self, operation: str, adapter: TypeAdapter[Any], **message: Any) -> Future[Any]:
        """Answer at once."""
        self.asked.append(message.get("what", operation))
        future: Future[Any] = Future()
        if operation == "stacks":
            future.set_result(parse(adapter, self.told["stacks"]))
        elif self.state == "absent":
            future.set_result(parse(adapter, {"0": {"state": "absent", "pid": 1}}))
        elif message["what"] == "status":
            future.set_result(parse(adapter, self._status()))
        else:
            future.set_result(parse(adapter, self.told["collectives"]))
        return future

    def ask(self, questions: Questions) -> Future[Answers]:
        """Answer with what the kernel has logged; NCCL does not listen."""
        answer: Future[Answers] = Future()
        known: dict[str, Any] = {"run": {"code": 0, "out": self.log, "err": ""}}
        told = {query.name: {"value": known.get(query.name)} for query in questions}
        answer.set_result(parse_answers(self.host, questions, told))
        return answer

    def _status(self) -> dict[str, Any]:
        moving = self.completed
        if self.completed:
            self.completed += 1
        groups = [{"id": 0, "enqueued": 4 + moving, "completed": 3 + moving}]
        waited = self.now if self.starved else 0.0
        told = {"initialized": True, "groups": groups}
        answer = {"state": "answered", "pid": 9, "waited": waited, "told": told}
        if self.compiles:
            answer["compiled"] = self.now
        return dict.fromkeys("0123", answer)


def watch_of(node: ScriptedNode, limit: float | None, notice: float = STALL_NOTICE) -> HangWatch:
    return HangWatch(limit=limit, notice=notice, clock=lambda: node.now)


def look(
    watch: HangWatch, node: ScriptedNode, seconds: float = 4.0, until: type = Stall
) -> Stall | Continued | None:
    """Look again and again, as the supervisor does, until something is new."""
    end = node.now + seconds
    while node.now < end:
        found = watch.look([cast(Session, node)], {})
        if isinstance(found, until):
            return found
        node.now += 0.05
    return None


def test_a_rank_that_the_others_wait_for_is_a_hang_after_the_timeout() -> None:
    node = ScriptedNode("busy")
    found = look(watch_of(node, limit=SHORT), node)
    assert isinstance(found, Stall)
    assert (found.over, found.verdict.code) == (True, HangCode.BUSY)
    assert found.seconds > SHORT


def test_ranks_that_wait_for_a_cpu_are_shown_after_the_timeout_and_have_more_time() -> None:
    node = ScriptedNode("busy")
    node.starved = True
    watch = watch_of(node, limit=2.0)
    shown = look(watch, node, seconds=12.0)
    assert isinstance(shown, Stall)
    assert (shown.over, shown.verdict.ranks) == (False, (("node1", 3),))
    assert 2.0 < shown.seconds < 4.0
    found = look(watch, node, seconds=12.0)
    assert isinstance(found, Stall)
    assert found.over
    # the last second or so has not been compared yet
    assert 4.0 < found.seconds < 12.0


FELL_OFF = """\
uptime 5000.00
log
[ 1200.000000] NVRM: Xid (PCI:0000:0f:00): 79, pid=77, name=python3, GPU has fallen off the bus.
[ 4999.900000] NVRM: Xid (PCI:0000:9b:00): 79, pid=2380, name=python3, GPU has fallen off the bus.
[ 4999.950000] NVRM: Xid (PCI:0000:9b:00): 31, pid=2380, name=python3, Ch 00000008
"""


def test_a_gpu_that_failed_since_the_start_is_the_reason() -> None:
    node = ScriptedNode("busy")
    node.log = FELL_OFF
    found = look(watch_of(node, limit=SHORT), node)
    assert isinstance(found, Stall)
    assert found.verdict.code is HangCode.GPU
    assert [(gpu.xid, gpu.bus) for gpu in found.verdict.gpus] == [(79, "0000:9b:00")]
    assert (found.verdict.ranks, found.verdict.waiting) == ((("node1", 3),), (0, 1, 2))


def test_collectives_that_complete_are_progress() -> None:
    node = ScriptedNode("busy")
    node.completed = 1
    assert look(watch_of(node, limit=1.5), node, seconds=3.0) is None
    assert set(node.asked) == {"status"}


def test_a_compilation_is_progress() -> None:
    node = ScriptedNode("busy")
    node.compiles = True
    watch = watch_of(node, limit=1.5)
    assert look(watch, node, seconds=6.0) is None
    node.compiles = False
    assert isinstance(look(watch, node, seconds=6.0), Stall)


def test_output_is_progress() -> None:
    node = ScriptedNode("busy")
    watch = watch_of(node, limit=1.0)
    for _ in range(40):
        watch.heard()
        assert watch.look([cast(Session, node)], {}) is None
        node.now += 0.05


def test_without_a_recorder_the_use_of_the_cpu_counts() -> None:
    node = ScriptedNode("not-entered")
    node.state = "absent"
    watch = watch_of(node, limit=SHORT)
    assert look(watch, node, seconds=1.5) is None
    node.idle = 2 * SHORT
    found = look(watch, node)
    assert isinstance(found, Stall)
    assert (found.over, found.verdict.ranks) == (True, (("node1", 3),))


def test_a_stall_is_shown_once_and_its_end_too() -> None:
    node = ScriptedNode("not-entered")
    watch = watch_of(node, limit=None, notice=SHORT)
    found = look(watch, node)
    assert isinstance(found, Stall)
    assert (found.over, found.verdict.code) == (False, HangCode.NOT_ENTERED)
    assert look(watch, node, seconds=2.0) is None
    node.completed = 1
    continued = look(watch, node, until=Continued)
    assert isinstance(continued, Continued)
    assert continued.seconds > SHORT


def test_a_run_that_has_entered_no_collective_is_not_stalled() -> None:
    node = ScriptedNode("not-entered")
    node.state, node.idle = "absent", 3600.0
    assert look(watch_of(node, limit=None, notice=SHORT), node, seconds=2.0) is None
    assert set(node.asked) == {"status"}


def test_ranks_that_compute_for_long_without_waiting_are_not_stalled() -> None:
    node = ScriptedNode("slow")
    assert look(watch_of(node, limit=None, notice=SHORT), node, seconds=2.0) is None
