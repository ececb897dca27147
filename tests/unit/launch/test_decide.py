from __future__ import annotations

import pytest
from msgspec import json
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Cluster, Network, Node, Storage
from dslaunch.errors import ErrorCode, PlanError, PreflightError
from dslaunch.launch import decide
from dslaunch.launch.decisions import DecisionCode
from dslaunch.launch.facts import (
    Dialled,
    Directory,
    Facts,
    Interface,
    NodeFacts,
    PortFact,
    facts_pieces,
)  # fmt: skip

LO = Interface("lo", "127.0.0.1", loopback=True)


def node(index: int, **more: object) -> NodeFacts:
    address = f"10.0.0.{index}"
    facts = NodeFacts(
        host=f"n{index}",
        machine=f"m{index}",
        home="/root",
        interfaces=(LO, Interface("eth0", address)),
        interpreter="/usr/bin/python3",
        dialled=(Dialled("10.0.0.1", address), Dialled("127.0.0.1", error="refused")),
        directories=(Directory("/w", "/w", first=f"n{index}"),),
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def facts(*nodes: NodeFacts, port: PortFact = PortFact(20000)) -> Facts:  # noqa: B008 - frozen
    return Facts(nodes or (node(1), node(2)), port)


CLUSTER = Cluster("c", (Node("n1", (0,)), Node("n2", (0,))))
PLACES = Allocation.of([(n, n.slots) for n in CLUSTER.nodes])


def test_the_master_is_at_an_address_that_every_other_node_reached() -> None:
    rendezvous, decisions = decide.decide_rendezvous(CLUSTER, facts())
    assert (rendezvous.address, rendezvous.port) == ("10.0.0.1", 20000)
    assert rendezvous.interfaces == (("n1", "eth0"), ("n2", "eth0"))
    assert decisions[0].code is DecisionCode.MASTER_REACHED
    values = decisions[0].values
    assert (values["host"], values["others"], values["port_origin"]) == ("n1", 1, "free")


def test_a_loopback_address_is_never_taken_for_several_machines() -> None:
    both = (Dialled("127.0.0.1", "127.0.0.1"), Dialled("10.0.0.1", "10.0.0.2"))
    found = facts(node(1, dialled=both), node(2, dialled=both))
    assert decide.choose_route(found).address == "10.0.0.1"


def test_one_machine_meets_at_its_loopback_address() -> None:
    both = (Dialled("10.0.0.1", "10.0.0.1"), Dialled("127.0.0.1", "127.0.0.1"))
    found = facts(node(1, dialled=both), node(2, dialled=both, machine="m1"))
    assert decide.choose_route(found).address == "127.0.0.1"


def test_a_master_that_one_node_cannot_reach_is_an_error_with_its_reason() -> None:
    cut = (Dialled("10.0.0.1", error="timed out"),)
    with pytest.raises(PreflightError) as caught:
        decide.choose_route(facts(node(1), node(2, dialled=cut)))
    assert caught.value.error_code is ErrorCode.MASTER_UNREACHABLE
    assert caught.value.values["lines"] == ("n2: 10.0.0.1: timed out",)


def test_a_master_without_an_address_is_an_error_with_its_interfaces() -> None:
    with pytest.raises(PreflightError) as caught:
        decide.choose_route(facts(node(1, dialled=()), node(2)))
    assert caught.value.error_code is ErrorCode.NO_ADDRESS
    assert caught.value.values["interfaces"] == ("lo 127.0.0.1", "eth0 10.0.0.1")


TWO = (LO, Interface("eth0", "10.0.0.1"), Interface("ib0", "10.1.0.1"))


@pytest.mark.parametrize(
    ("wanted", "address", "named"),
    [
        ("ib0", "10.0.0.1", "eth0"),
        ("ib1", "10.0.0.1", "no interface 'ib1'"),
        ("eth0", "10.1.0.1", "ib0"),
    ],
)
def test_an_interface_that_the_named_address_is_not_on_is_refused(
    wanted: str, address: str, named: str
) -> None:
    nodes = (Node("n1", (0,), address=address), Node("n2", (0,)))
    cluster = replace(CLUSTER, nodes=nodes, network=Network(wanted))
    answered = (Dialled(address, address),)
    found = facts(*(node(i, interfaces=TWO, dialled=answered) for i in (1, 2)))
    with pytest.raises(PreflightError) as caught:
        decide.decide_rendezvous(cluster, found)
    assert caught.value.error_code is ErrorCode.WRONG_INTERFACE
    assert named in str(caught.value.values["lines"])


def test_an_interface_that_another_node_lacks_is_refused_with_that_node() -> None:
    cluster = replace(CLUSTER, network=Network("eth0"))
    other = (LO, Interface("ens5", "10.0.0.2"))
    with pytest.raises(PreflightError) as caught:
        decide.decide_rendezvous(cluster, facts(node(1), node(2, interfaces=other)))
    assert caught.value.error_code is ErrorCode.WRONG_INTERFACE
    assert "ens5, lo" in str(caught.value.values["lines"])


def test_an_interface_that_the_named_address_is_on_is_used() -> None:
    nodes = (Node("n1", (0,), address="10.0.0.1"), Node("n2", (0,)))
    cluster = replace(CLUSTER, nodes=nodes, network=Network("eth0"))
    assert decide.decide_rendezvous(cluster, facts())[0].interfaces[0] == ("n1", "eth0")


def test_the_file_decides_which_address_and_port_are_tried() -> None:
    cluster = replace(CLUSTER, network=Network("ib0", 23456))
    assert decide.ports_to_try(cluster, 7) == [23456]
    interfaces = (Interface("eth0", "10.0.0.1"), Interface("ib0", "10.1.0.1"))
    place = PLACES.placements[0]
    assert decide.master_addresses(cluster, place, interfaces, []) == ["10.1.0.1"]
    given = replace(place, node=replace(place.node, address="192.0.2.7"))
    assert decide.master_addresses(CLUSTER, given, interfaces, []) == ["192.0.2.7"]


def test_what_the_others_resolve_comes_before_the_fastest_interface() -> None:
    interfaces = (
        LO,
        Interface("eth0", "10.0.0.1", speed=1000),
        Interface("ib0", "10.1.0.1", speed=9),
    )
    place = PLACES.placements[0]
    found = decide.master_addresses(CLUSTER, place, interfaces, ["127.0.1.1", "10.1.0.1"])
    assert found == ["10.1.0.1", "10.0.0.1", "127.0.0.1"]


def test_ports_are_below_those_that_clients_take() -> None:
    assert all(20000 <= p < 30000 for p in decide.ports_to_try(CLUSTER, 123456789))


def test_a_taken_port_is_named() -> None:
    taken = PortFact(None, ((29500, "Address already in use"),))
    with pytest.raises(PreflightError) as caught:
        decide.choose_port(facts(port=taken))
    assert caught.value.error_code is ErrorCode.PORT_TAKEN
    expected = {"host": "n1", "port": 29500, "error": "address already in use"}
    assert caught.value.values == expected


def everyone(host: str) -> NodeFacts:
    return node(int(host[1]), directories=(Directory("/w", "/w", first="n1"),))


def test_shared_is_what_every_node_sees() -> None:
    shared, decision = decide.decide_shared(CLUSTER, facts(everyone("n1"), everyone("n2")), "/w")
    assert (shared, decision.code) == (True, DecisionCode.STORAGE_SHARED)
    shared, decision = decide.decide_shared(CLUSTER, facts(), "/w")
    assert (shared, decision.code) == (False, DecisionCode.STORAGE_NOT_SHARED)


def test_a_file_that_says_otherwise_is_contradicted() -> None:
    cluster = replace(CLUSTER, storage=Storage(shared=True))
    with pytest.raises(PlanError) as caught:
        decide.decide_shared(cluster, facts(), "/w")
    assert caught.value.error_code is ErrorCode.STORAGE_DIFFERS


def test_a_directory_that_cannot_be_written_is_not_judged_unless_it_is_named() -> None:
    denied = (Directory("/w", "/w", error="Permission denied"),)
    found = facts(node(1), node(2, directories=denied))
    shared, decision = decide.decide_shared(CLUSTER, found, "/w")
    assert (shared, decision.assumed) == (None, True)
    assert decision.code is DecisionCode.STORAGE_NOT_TESTED
    cluster = replace(CLUSTER, storage=Storage(checkpoints="/w"))
    with pytest.raises(PlanError) as caught:
        decide.decide_shared(cluster, found, "/w")
    assert caught.value.error_code is ErrorCode.CHECKPOINTS_NOT_WRITABLE
    assert caught.value.values["lines"] == ("n2: /w: Permission denied",)


def test_a_missing_interpreter_names_its_node() -> None:
    with pytest.raises(PreflightError) as caught:
        decide.check_interpreters(PLACES, facts(node(1), node(2, interpreter=None)))
    assert caught.value.error_code is ErrorCode.NO_INTERPRETER
    assert caught.value.values["lines"] == ("n2: python3",)


def test_a_script_that_differs_between_nodes_is_refused() -> None:
    one, other = node(1, different=(("t.py", "a"),)), node(2, different=(("t.py", "b"),))
    with pytest.raises(PlanError) as caught:
        decide.check_program(facts(one, other), "t.py", program="d/t.py", similar="")
    assert caught.value.error_code is ErrorCode.SCRIPT_DIFFERS


def test_facts_are_read_back_as_they_were_written() -> None:
    assert json.decode("".join(facts_pieces(facts())), type=Facts) == facts()
