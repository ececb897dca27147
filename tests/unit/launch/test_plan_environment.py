from __future__ import annotations

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Rendezvous, node_environment

THERE = Rendezvous("10.0.0.1", 29500, (("n", "eth0"),))


def environment(node: Node, job: Job, slots: tuple[int, ...] | None = None) -> dict[str, str]:
    (placement,) = Allocation.of([(node, slots or node.slots)]).placements
    return dict(node_environment(placement, job, THERE))


def test_a_node_wins_over_the_cluster_and_the_command_line_over_both() -> None:
    node = Node("n", (0,), env=(("A", "node"), ("B", "node")))
    job = Job("t.py", env=(("A", "file"), ("C", "file")), overrides=(("B", "line"),))
    found = environment(node, job)
    assert (found["A"], found["B"], found["C"]) == ("node", "line", "file")


def test_the_interface_is_set_where_nobody_set_it() -> None:
    found = environment(Node("n", (0,)), Job("t.py", env=(("NCCL_SOCKET_IFNAME", "ib0"),)))
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("eth0", "ib0")


def test_gpus_are_hidden_only_where_some_are_not_used() -> None:
    node = Node("n", (0, 1, 2, 3))
    assert "CUDA_VISIBLE_DEVICES" not in environment(node, Job("t.py"))
    assert environment(node, Job("t.py"), (2, 3))["CUDA_VISIBLE_DEVICES"] == "2,3"
