"""When a rehearsal is over, by what its ranks have recorded."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from dslaunch.launch.plan import Plan, Rendezvous
from dslaunch.protocol.rehearsal import REHEARSAL
from dslaunch.protocol.values import parse
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.rehearsal import RehearsalLimits, RehearsalMonitor
from dslaunch.run.session import Session

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


def end_of(*ranks: list[dict[str, Any]]) -> EndReason | None:
    """Return why a rehearsal of ranks with these records is over; None: it is not."""
    plan = Plan("test", "direct", len(ranks), Rendezvous("n1", 29500), ())
    monitor = RehearsalMonitor(RehearsalLimits(), plan)
    sessions = [cast(Session, Answering(*ranks))]
    assert monitor.look(sessions) is None  # it asks
    return monitor.look(sessions)


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
