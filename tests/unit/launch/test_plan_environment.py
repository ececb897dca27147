from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Rendezvous, node_environment
from dslaunch.launch.planner import make_plan
from dslaunch.registry import LAUNCHERS

THERE = Rendezvous("10.0.0.1", 29500, (("n", "eth0"),))


def environment(node: Node, job: Job, slots: tuple[int, ...] | None = None) -> dict[str, str]:
    (placement,) = Allocation.of([(node, slots or node.slots)]).placements
    return dict(node_environment(placement, job, THERE))


def test_a_node_wins_over_the_cluster_and_the_command_line_over_both() -> None:
    node = Node("n", (0,), env=(("A", "node"), ("B", "node")))
    job = Job("t.py", env=(("A", "file"), ("C", "file")), overrides=(("B", "line"),))
    found = environment(node, job)
    assert (found["A"], found["B"], found["C"]) == ("node", "line", "file")


def test_the_interface_is_set_unless_the_user_sets_it() -> None:
    found = environment(Node("n", (0,)), Job("t.py", env=(("NCCL_SOCKET_IFNAME", "ib0"),)))
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("eth0", "ib0")


def test_gpus_are_hidden_only_where_some_are_not_used() -> None:
    node = Node("n", (0, 1, 2, 3))
    assert "CUDA_VISIBLE_DEVICES" not in environment(node, Job("t.py"))
    assert environment(node, Job("t.py"), (2, 3))["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_gpus_that_slurm_gave_are_named_as_it_may_not_hide_the_others() -> None:
    node = Node("n", (0, 1), step_gpus=2)
    assert environment(node, Job("t.py"))["CUDA_VISIBLE_DEVICES"] == "0,1"


class Counted(tuple[Any, ...]):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).times += 1
        return super().__iter__()


@pytest.mark.parametrize("launcher", LAUNCHERS.names())
def test_no_node_of_a_plan_has_all_the_others_gone_through(launcher: str) -> None:
    nodes = [Node(f"n{i}", (0, 1)) for i in range(100)]
    allocation = Allocation.of([(node, node.slots) for node in nodes])

    class Seen(Counted):
        pass

    allocation = replace(allocation, placements=Seen(allocation.placements))
    pairs = Seen((node.host, "eth0") for node in nodes)
    decided = Decided(Rendezvous("10.0.0.1", 29500, pairs, pairs), "/w")
    plan = make_plan(allocation, Job("t.py", launcher=launcher), decided, cluster="c")
    assert len(plan.nodes) == 100
    assert Seen.times < 10
