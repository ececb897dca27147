"""What the ranks run on, as decided from what the nodes have."""

from __future__ import annotations

from typing import get_args

import pytest

from dslaunch.cluster.model import Allocation, Node
from dslaunch.errors import ErrorCode, PreflightError
from dslaunch.launch.decisions import DecisionCode
from dslaunch.launch.devices import NAMES, check_devices, has_accelerator
from dslaunch.launch.facts import Accelerators, Facts, NodeFacts, PortFact
from dslaunch.node.accelerators import NUMBERED, ON_BUS
from dslaunch.preflight.checks._builds import BUILDS
from dslaunch.protocol.values import Vendor


def node(host: str = "n1", **more: object) -> NodeFacts:
    return NodeFacts(host=host, machine=host, home="/root", **more)  # type: ignore[arg-type]


def facts(*nodes: NodeFacts) -> Facts:
    return Facts(nodes, PortFact(20000))


def places(*slots: int) -> Allocation:
    nodes = [Node(f"n{at}", tuple(range(count))) for at, count in enumerate(slots, start=1)]
    return Allocation.of([(node, node.slots) for node in nodes])


def test_fewer_gpus_than_slots_are_refused_and_counted_in_english() -> None:
    with pytest.raises(PreflightError) as raised:
        check_devices(places(2, 3), facts(node("n1", gpus=1), node("n2", gpus=2)))
    assert raised.value.error_code is ErrorCode.TOO_FEW_DEVICES
    assert raised.value.values["lines"] == (
        "n1: slot 1 in use, 1 GPU found by nvidia-smi",
        "n2: slot 2 in use, 2 GPUs found by nvidia-smi",
    )


def test_nodes_without_any_accelerator_train_on_cpu() -> None:
    (decision,) = check_devices(places(1, 1), facts(node("n1"), node("n2")))
    assert decision.code is DecisionCode.DEVICES_CPU


@pytest.mark.parametrize(
    ("vendor", "words"),
    [
        ("amd", "8 AMD GPUs"),
        ("intel", "8 Intel XPUs"),
        ("ascend", "8 Ascend NPUs"),
        ("gaudi", "8 Intel Gaudis"),
    ],
)
def test_other_vendors_are_no_cpu_nodes(vendor: str, words: str) -> None:
    found = node(accelerators=(Accelerators(vendor, 8, 8),))
    assert has_accelerator(found)
    (decision,) = check_devices(places(8), facts(found))
    assert decision.values["devices"] == (words,)


@pytest.mark.parametrize("vendor", ["amd", "ascend", "gaudi"])
def test_fewer_devices_of_another_vendor_than_slots_are_refused(vendor: str) -> None:
    found = node(accelerators=(Accelerators(vendor, 1, 1),))
    with pytest.raises(PreflightError) as caught:
        check_devices(places(2), facts(found))
    assert caught.value.error_code is ErrorCode.TOO_FEW_DEVICES


def test_a_card_of_intel_may_be_two_devices() -> None:
    found = node(accelerators=(Accelerators("intel", 6, 6),))
    assert check_devices(places(12), facts(found))


def test_an_accelerator_without_a_driver_is_no_cpu_node() -> None:
    found = node(accelerators=(Accelerators("amd", 0, 8),))
    assert has_accelerator(found)
    (decision,) = check_devices(places(8), facts(found))
    assert decision.code is DecisionCode.DEVICES_FOUND


def test_device_files_of_nvidia_count_where_nvidia_smi_is_missing() -> None:
    assert has_accelerator(node(accelerators=(Accelerators("nvidia", 8, 8),)))


def test_every_vendor_that_a_node_may_name_has_words_and_a_build_of_torch() -> None:
    known = set(get_args(Vendor))
    assert set(NAMES) == set(BUILDS) == known
    assert known == {*NUMBERED, *(vendor for vendor, _ in ON_BUS.values())}
