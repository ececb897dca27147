"""What is assumed when no node was asked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Cluster, Network, Node, Storage
from dslaunch.launch.assume import assume
from dslaunch.launch.decisions import DecisionCode

PAIR = (Node("gpu01", (0,)), Node("gpu02", (0,)))
CLUSTER = Cluster("pair", PAIR)


def allocation(cluster: Cluster) -> Allocation:
    return Allocation.of([(node, node.slots) for node in cluster.nodes])


def test_the_first_nodes_name_and_the_usual_port_are_assumed() -> None:
    decided = assume(CLUSTER, allocation(CLUSTER), "/here")
    assert (decided.rendezvous.address, decided.rendezvous.port) == ("gpu01", 29500)
    assert decided.workdir == "/here"


def test_what_the_file_names_is_taken() -> None:
    cluster = replace(
        CLUSTER,
        nodes=(replace(PAIR[0], address="10.0.0.1"), PAIR[1]),
        network=Network(interface="ib0", master_port=4000),
        storage=Storage(workdir="project"),
    )
    decided = assume(cluster, allocation(cluster), "/here")
    assert (decided.rendezvous.address, decided.rendezvous.port) == ("10.0.0.1", 4000)
    assert decided.rendezvous.interfaces == (("gpu01", "ib0"), ("gpu02", "ib0"))
    assert decided.workdir == "project"


def test_nodes_that_are_this_machine_meet_at_loopback() -> None:
    cluster = replace(CLUSTER, transport="local")
    assert assume(cluster, allocation(cluster), "/here").rendezvous.address == "127.0.0.1"


def test_every_decision_is_marked_as_assumed_and_says_why() -> None:
    decisions = assume(CLUSTER, allocation(CLUSTER), "/here").decisions
    assert [d.code for d in decisions] == [
        DecisionCode.MASTER_BY_NAME,
        DecisionCode.WORKDIR_HERE,
    ]
    assert all(d.assumed for d in decisions)


@pytest.mark.parametrize(
    ("host", "address"),
    [("localhost", None), ("a", "127.0.0.1"), ("a", "::1"), ("127.1.2.3", None)],
)
def test_a_master_name_that_resolves_to_loopback_is_reported(
    host: str, address: str | None
) -> None:
    cluster = replace(CLUSTER, nodes=(Node(host, (0,), address=address), PAIR[1]))
    (master, _) = assume(cluster, allocation(cluster), "/here").decisions
    assert master.values["means_itself"] is True


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster("one", (Node("localhost", (0,)),)),
        Cluster("here", (Node("localhost", (0,)), Node("b", (0,))), transport="local"),
        CLUSTER,
    ],
    ids=["alone", "local", "named"],
)
def test_a_master_that_all_reach_is_not_doubted(cluster: Cluster) -> None:
    (master, _) = assume(cluster, allocation(cluster), "/here").decisions
    assert master.values["means_itself"] is False
