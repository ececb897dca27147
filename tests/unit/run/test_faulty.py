"""Which nodes the next attempt does without, by evidence of the attempts before."""

from __future__ import annotations

import pytest

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.select import Selection, select
from dslaunch.launch.replacement import enough_without
from dslaunch.registry import LAUNCHERS
from dslaunch.run.events import Event
from dslaunch.run.faulty import faulty_nodes
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason

LOST = Outcome("failed", 5, EndReason(EndCode.NODE_LOST), Event(1, "lost", "n2"))
NO_HOST = Outcome("failed", 1, EndReason(EndCode.HANG, seconds=9))


def failed(host: str, ending: str | None = None) -> Outcome:
    reason = EndReason(EndCode.RANK_FAILED, host, 0, exit_code=1)
    return Outcome("failed", 1, reason, Event(1, "exit", host, 0, 1), ending=ending)


@pytest.mark.parametrize(
    ("outcomes", "nodes"),
    [
        ((), ()),
        ((failed("n1"),), ()),
        ((LOST,), ("n2",)),
        ((failed("n3", "ecc"),), ("n3",)),
        ((failed("n3", "gpu-memory"),), ()),
        ((failed("n1"), failed("n1")), ("n1",)),
        ((failed("n1"), failed("n2")), ()),
        ((failed("n1"), NO_HOST, failed("n1")), ()),
        ((failed("n3", "gpu-lost"), LOST, LOST), ("n3", "n2")),
    ],
)
def test_a_node_is_faulty_when_lost_or_by_its_hardware_or_twice_in_a_row(
    outcomes: tuple[Outcome, ...], nodes: tuple[str, ...]
) -> None:
    assert faulty_nodes(outcomes) == nodes


def test_a_faulty_node_is_left_out_only_where_enough_are_left() -> None:
    cluster = parse_cluster("nodes: [{host: 'n[1-3]', slots: 1}]", "c.yaml")
    allocation = select(cluster, Selection())
    assert enough_without(cluster, allocation, {"n2"}, min_nodes=2)
    assert not enough_without(cluster, allocation, {"n2"}, min_nodes=3)


@pytest.mark.parametrize(
    ("nodes", "least", "restarts"), [(4, None, 0), (4, 4, 0), (4, 3, 2), (4, 2, 4)]
)
def test_an_elastic_run_may_restart_for_each_node_that_it_can_lose(
    nodes: int, least: int | None, restarts: int
) -> None:
    assert LAUNCHERS.get("elastic").default_restarts(nodes, least) == restarts
