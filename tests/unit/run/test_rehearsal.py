"""When a rehearsal is over, by what its ranks have recorded."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dslaunch.launch.plan import Plan, Rendezvous
from dslaunch.protocol.rehearsal import REHEARSAL
from dslaunch.protocol.values import parse
from dslaunch.run.hang_verdict import HangCode, HangVerdict
from dslaunch.run.hang_watch import Stall
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.rehearsal import RENDEZVOUS_WAIT, RehearsalLimits, RehearsalMonitor
from dslaunch.run.session import Session
from dslaunch.transport.future import Future

START: dict[str, Any] = {
    "kind": "start",
    "pid": 7,
    "world": 2,
    "python": "3.11.7",
    "cpus": 8,
    "threads": 1,
    "cwd": "/work",
}
SPAWN: dict[str, Any] = {"kind": "spawn", "processes": 2, "waits": True}
JOINS: dict[str, Any] = {"kind": "spawned-joins"}
HELD: dict[str, Any] = {"kind": "held"}
RENDEZVOUS: dict[str, Any] = {"kind": "rendezvous", "world": 2, "address": "n1"}
GROUP: dict[str, Any] = {
    "kind": "process-group",
    "backend": "gloo",
    "world": 2,
    "rank": 0,
    "method": None,
    "timeout": None,
}
STEP: dict[str, Any] = {
    "kind": "step",
    "step": 1,
    "seconds": 0.5,
    "lr": [0.1],
    "loss": 2.0,
    "finite": True,
    "backwards": 1,
    "collectives": 0,
    "fingerprint": [1.0],
    "memory": 1000,
    "gpus": 0,
}


class Answering:
    """A node whose ranks have made these records."""

    def __init__(self, *ranks: list[dict[str, Any]]) -> None:
        self.host, self.ranks = "n1", tuple(range(len(ranks)))
        self._told = {
            str(rank): {"records": records, "position": 1} for rank, records in enumerate(ranks)
        }

    def request(self, *_: object, **__: object) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(parse(REHEARSAL, self._told))
        return answer


def watched(
    *ranks: list[dict[str, Any]], hang_timeout: float | None = None
) -> tuple[RehearsalMonitor, EndReason | None]:
    """Return the monitor of ranks with these records, and why it is over; None: it is not."""
    plan = Plan("test", "direct", len(ranks), Rendezvous("n1", 29500), ())
    monitor = RehearsalMonitor(RehearsalLimits(), plan, hang_timeout)
    sessions = [cast(Session, Answering(*ranks))]
    assert monitor.look(sessions) is None  # it asks
    return monitor, monitor.look(sessions)


def end_of(*ranks: list[dict[str, Any]]) -> EndReason | None:
    """Return why a rehearsal of ranks with these records is over; None: it is not."""
    return watched(*ranks)[1]


def stall(verdict: HangVerdict, seconds: float = 10.0) -> Stall:
    return Stall(verdict, seconds, over=True, stacks={}, collectives={})


def test_a_rehearsal_is_over_once_a_process_that_a_rank_has_started_trains_in_its_place() -> None:
    assert end_of([START, SPAWN], [START, SPAWN]) is None
    assert end_of([START, SPAWN, JOINS], [START]) == EndReason(EndCode.REHEARSAL_SPAWNS)


@pytest.mark.parametrize(
    "records",
    [
        [START, JOINS],
        [START, SPAWN | {"waits": False}, JOINS],
        [START, GROUP, SPAWN, JOINS],
        [START, STEP, SPAWN, JOINS],
    ],
    ids=["another-program", "in-the-background", "has-joined-itself", "trains-itself"],
)
def test_processes_beside_a_rank_that_trains_itself_are_no_reason(
    records: list[dict[str, Any]],
) -> None:
    assert end_of(records, [START]) is None


def test_ranks_that_wait_for_a_held_rank_have_made_their_steps() -> None:
    verdict = HangVerdict(HangCode.BUSY, ranks=(("n1", 1),), waiting=(0,))
    monitor, _ = watched([START], [START, HELD])
    assert monitor.reason_of_stall(stall(verdict)) == EndReason(
        EndCode.REHEARSED, steps=2, hang=verdict
    )
    monitor, _ = watched([START], [START])
    assert monitor.reason_of_stall(stall(verdict)) is None


@pytest.mark.parametrize(("final", "is_over"), [(True, True), (False, False), (None, False)])
def test_ranks_that_are_blocked_forever_end_the_rehearsal(
    final: bool | None, is_over: bool
) -> None:
    verdict = HangVerdict(HangCode.MISMATCH, final=final)
    monitor, _ = watched([START], [START])
    reason = monitor.reason_of_stall(stall(verdict))
    expected = EndReason(EndCode.HANG, seconds=10.0, hang=verdict)
    assert reason == (expected if is_over else None)


@pytest.mark.parametrize(("world", "is_over"), [(2, False), (3, True)])
def test_a_rendezvous_ends_the_rehearsal_if_it_waits_for_ranks_that_there_are_not(
    world: int, is_over: bool
) -> None:
    begun = [START, RENDEZVOUS | {"world": world}]
    monitor, _ = watched(begun, begun)
    reason = monitor.reason_of_stall(stall(HangVerdict(HangCode.RENDEZVOUS)))
    assert (reason is not None) == is_over


@pytest.mark.parametrize(
    ("records", "seconds", "is_over"),
    [([START], 31.0, True), ([START], 30.0, False), ([START, HELD], 31.0, False)],
    ids=["too-long", "not-yet", "held"],
)
def test_a_stall_of_a_rehearsal_ends_it_after_the_timeout_unless_ranks_are_held(
    records: list[dict[str, Any]], seconds: float, is_over: bool
) -> None:
    monitor, _ = watched(records, hang_timeout=30.0)
    reason = monitor.reason_of_stall(stall(HangVerdict(HangCode.SLOW), seconds))
    assert (reason is not None) == is_over


@pytest.mark.parametrize(
    ("hang_timeout", "quiet", "next_at"),
    [(None, 0.0, 10.0), (None, 10.0, 20.0), (25.0, 10.0, 20.0), (25.0, 20.0, 25.0), (5.0, 5.0, 15)],
)
def test_the_ranks_of_a_rehearsal_are_inspected_again_and_at_the_timeout(
    hang_timeout: float | None, quiet: float, next_at: float
) -> None:
    monitor, _ = watched([START], hang_timeout=hang_timeout)
    assert monitor.next_inspection(quiet) == next_at


def test_the_time_limit_does_not_count_the_building_of_kernels() -> None:
    plan = Plan("test", "direct", 1, Rendezvous("n1", 29500), ())
    monitor = RehearsalMonitor(RehearsalLimits(time_limit=0.0), plan)
    sessions = [cast(Session, Answering([START, {"kind": "build-begins", "name": "cpu_adam"}]))]
    before = monitor.seconds
    # all but the time until the first answer counts as building
    assert monitor.look(sessions) is not None
    assert monitor.look(sessions) is not None
    monitor.limits = RehearsalLimits(time_limit=monitor.seconds)
    assert before < monitor.limits.time_limit
    for _ in range(3):
        assert monitor.look(sessions) is None


@pytest.mark.parametrize(("resolves", "over"), [(False, EndCode.HANG), (True, None)])
def test_ranks_that_never_find_the_master_are_ended_though_they_write_of_each_attempt(
    resolves: bool, over: EndCode | None
) -> None:
    now = [0.0]
    plan = Plan("test", "direct", 2, Rendezvous("n1", 29500), ())
    monitor = RehearsalMonitor(RehearsalLimits(), plan, clock=lambda: now[0])
    joining = [START, {**RENDEZVOUS, "resolves": resolves}]
    sessions = [cast(Session, Answering(joining, joining))]
    monitor.look(sessions)  # it asks
    assert monitor.look(sessions) is None
    now[0] = RENDEZVOUS_WAIT + 1
    reason = monitor.look(sessions)
    assert (reason.code if reason is not None else None) == over
