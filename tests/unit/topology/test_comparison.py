"""Many nodes: who is odd, in what, and who could not be compared."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.topology.printed import BRIDGED, H100, Wiring, gpu_list, topo_m

from dslaunch.topology.answers import read
from dslaunch.topology.comparison import (
    INCOMPLETE,
    Aspect,
    Difference,
    NodeDifference,
    compare,
)
from dslaunch.topology.model import Topology


def node(wiring: Wiring = H100, name: str | None = "NVIDIA H100 80GB HBM3") -> Topology:
    names = {"gpu_list": gpu_list([name] * wiring.gpus)} if name else {}
    return read({"topo_m": topo_m(wiring), **names})


def among_others(odd: Topology) -> tuple[NodeDifference, ...]:
    return compare({"n1": node(), "n2": odd, "n3": node()}).odd


def changed(**links: str) -> Wiring:
    """H100 with some links changed, such as `a3_5="PHB"`."""
    new = {(int(pair[1]), int(pair[3:])): link for pair, link in links.items()}
    return replace(H100, links={**H100.links, **new})


def test_nodes_that_are_alike_are_equal():
    found = compare({"n1": node(), "n2": node()})
    assert found.equal
    assert [hosts for _, hosts in found.groups] == [("n1", "n2")]


def test_a_link_that_is_different_names_the_node_and_the_link():
    assert among_others(node(changed(a3_5="PHB"))) == (
        NodeDifference("n2", Aspect.GPU_LINKS, (Difference("PHB", "NV18", "GPU3-GPU5"),)),
    )


def test_many_differences_are_counted():
    links = changed(a0_1="PHB", a0_2="PHB", a0_3="PHB", a0_4="PHB", a0_5="PHB")
    (odd,) = among_others(node(links))
    assert [each.place for each in odd.differences] == [f"GPU0-GPU{at}" for at in range(1, 6)]
    assert odd.text.endswith("; and 2 more")


def test_a_gpu_less_is_that_and_not_a_list_of_links():
    fewer = Wiring(7, H100.nics, H100.links)
    assert among_others(node(fewer)) == (
        NodeDifference("n2", Aspect.GPUS, (Difference("7", "8"),)),
    )


def test_another_model_is_named():
    odd = among_others(node(name="NVIDIA H100 PCIe"))
    assert [(each.host, each.aspect) for each in odd] == [("n2", Aspect.GPU_MODELS)]
    assert odd[0].differences[0] == Difference("H100 PCIe", "H100 80GB", "GPU0")


def test_a_nic_that_hangs_elsewhere_is_named():
    assert among_others(node(changed(a2_10="SYS")))[0] == NodeDifference(
        "n2", Aspect.NIC_LINKS, (Difference("SYS", "PIX", "GPU2"),)
    )


def test_other_names_of_nics_are_named():
    other = replace(H100, nics=tuple(f"rocep{at}s0" for at in range(8)))
    assert [each.aspect for each in among_others(node(other))] == [Aspect.NIC_NAMES]


def test_a_value_that_a_node_did_not_report_is_not_compared():
    assert among_others(node(name=None)) == ()


def test_two_nodes_that_differ_are_both_named():
    found = compare({"n1": node(), "n2": node(changed(a3_5="PHB"))})
    assert found.odd == ()
    assert found.undecided == ((Aspect.GPU_LINKS, (("n1",), ("n2",))),)
    assert not found.equal


def test_nodes_that_could_not_be_read_are_not_compared():
    text = topo_m(H100)
    found = compare(
        {
            "n1": node(),
            "n2": read({"topo_m": "No devices were found\n"}),
            "n3": read({"topo_m": text[: len(text) // 3]}),
            "n4": node(),
        }
    )
    unread = [(each.host, each.code) for each in found.unread]
    assert unread == [("n2", "no_devices"), ("n3", INCOMPLETE)]
    assert found.odd == ()


def test_two_hundred_nodes_are_compared_at_once():
    nodes = {f"n{at}": node(BRIDGED if at == 7 else H100, None) for at in range(200)}
    assert {each.host for each in compare(nodes).odd} == {"n7"}


def test_nothing_is_odd_among_no_nodes():
    assert compare({}).equal
