"""Advice: what is said for which machine, and that healthy machines get none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.topology.printed import BRIDGED, CUBE, H100, Wiring, gpu_list, mesh, topo_m

from dslaunch.topology.advice import advise, slots
from dslaunch.topology.advice_codes import Advice, AdviceCode
from dslaunch.topology.answers import read
from dslaunch.topology.model import Topology


def node(wiring: Wiring = H100, **answers: str) -> Topology:
    return read({"topo_m": topo_m(wiring), **answers})


def found(**by_host: Topology) -> dict[str, Advice]:
    return {each.what: each for each in advise(by_host)}


def ports(*states: tuple[str, str, int]) -> str:
    """What sysfs says of mlx5_0, mlx5_1 ...: state, kind, Gb/s."""
    return "".join(
        f"/sys/class/infiniband/mlx5_{at}/ports/1/state:{state}\n"
        f"/sys/class/infiniband/mlx5_{at}/ports/1/link_layer:{layer}\n"
        f"/sys/class/infiniband/mlx5_{at}/ports/1/rate:{rate} Gb/sec\n"
        for at, (state, layer, rate) in enumerate(states)
    )


UP, DOWN = ("4: ACTIVE", "InfiniBand", 400), ("1: DOWN", "InfiniBand", 40)
ROUTE = "10.0.0.2 dev {} src 10.0.0.1"


def test_a_machine_with_nvswitch_and_a_nic_for_each_gpu_needs_nothing():
    answers = {"ib": ports(*[UP] * 8), "virtual": "physical\n", "iommu": "iommus:\nquiet\n"}
    assert advise({"n1": node(**answers), "n2": node(**answers)}) == ()


def test_machines_that_were_not_read_get_no_advice_on_their_wiring():
    text = topo_m(BRIDGED)
    assert advise({"n1": read({}), "n2": read({"topo_m": text[:120]})}) == ()


def test_jobs_of_two_gpus_are_put_on_bridged_pairs():
    said = found(n1=node(BRIDGED))
    assert said["slots of a two-GPU job"].value == "0,2 or 1,3"
    assert said["slots of a two-GPU job"].values == (("worst", "NODE"),)
    assert said["CUDA_VISIBLE_DEVICES"].value == "0,2,1,3"
    assert said["CUDA_VISIBLE_DEVICES"].where == ""


def test_in_an_uneven_mesh_the_pairs_with_most_links_are_taken():
    assert found(n1=node(CUBE))["slots of a two-GPU job"].value == "0,3 or 1,2 or 4,7 or 5,6"


def test_one_interface_for_all_is_for_the_cluster_file():
    said = found(n1=node(route=ROUTE.format("ib0")), n2=node(route=ROUTE.format("ib0")))
    assert (said["network.interface"].value, said["network.interface"].where) == (
        "ib0",
        "interface",
    )
    assert said["network.interface"].hosts == ("n1", "n2")


def test_interfaces_that_differ_are_for_each_node():
    by_host = {"n1": node(route=ROUTE.format("eth0")), "n2": node(route=ROUTE.format("ens3"))}
    said = {(each.what, each.value, each.hosts) for each in advise(by_host)}
    assert said == {
        ("NCCL_SOCKET_IFNAME", "=eth0", ("n1",)),
        ("GLOO_SOCKET_IFNAME", "eth0", ("n1",)),
        ("NCCL_SOCKET_IFNAME", "=ens3", ("n2",)),
        ("GLOO_SOCKET_IFNAME", "ens3", ("n2",)),
    }


@pytest.mark.parametrize("name", ["docker0", "tun0", "virbr0", "wlp3s0", "lo"])
def test_an_interface_that_is_no_network_is_not_to_be_set(name: str):
    said = found(n1=node(route=ROUTE.format(name)))
    assert said["routes"].value is None
    assert said["routes"].code is AdviceCode.ROUTE_NOT_PHYSICAL
    assert said["routes"].values == (("interface", name),)


def test_a_bond_is_left_out_exactly():
    wiring = Wiring(2, ("mlx5_1", "mlx5_bond_0"), {(0, 1): "NV4", (0, 2): "PIX", (1, 2): "PIX"})
    said = found(n1=node(wiring))["NCCL_IB_HCA"]
    assert (said.value, said.where) == ("=mlx5_1", "env")
    assert said.code is AdviceCode.DEVICES_EXCLUDED
    assert said.values == (("excluded", "mlx5_bond_0 (a bond)"),)


def test_ports_that_are_down_and_ethernet_beside_infiniband_are_left_out():
    wiring = Wiring(
        1, ("mlx5_0", "mlx5_1", "mlx5_2"), {(0, 1): "PIX", (0, 2): "PIX", (0, 3): "PIX"}
    )
    said = found(n1=node(wiring, ib=ports(UP, DOWN, ("4: ACTIVE", "Ethernet", 25))))["NCCL_IB_HCA"]
    assert said.value == "=mlx5_0"
    excluded = dict(said.values)["excluded"]
    assert excluded == "mlx5_1 (down), mlx5_2 (Ethernet next to InfiniBand)"


def test_names_that_differ_are_for_each_node():
    one = Wiring(1, ("mlx5_0", "mlx5_bond_0"), {(0, 1): "PIX"})
    other = replace(one, nics=("rocep1s0", "mlx5_bond_0"))
    said = [a for a in advise({"n1": node(one), "n2": node(other)}) if a.what == "NCCL_IB_HCA"]
    assert [(a.value, a.hosts) for a in said] == [("=mlx5_0", ("n1",)), ("=rocep1s0", ("n2",))]


def test_nics_without_names_are_not_named():
    text = topo_m(H100).split("NIC Legend")[0]
    assert "NCCL_IB_HCA" not in found(n1=read({"topo_m": text}))


def test_nics_that_are_too_far_for_direct_access_are_reported():
    said = found(n1=node(BRIDGED))["GPUDirect RDMA"]
    assert said.code is AdviceCode.NIC_FAR
    assert dict(said.values) == {"far": 4, "gpus": 4, "links": "SYS"}
    assert said.value is None


P2P = " GPU0   X       CNS\n GPU1   CNS     X\n"
QUERY = "index, name, driver_version\n" + "".join(
    f"{at}, NVIDIA GeForce RTX 4090, {{0}}\n" for at in range(2)
)


def test_gpus_without_p2p_are_reported_and_no_value_is_set():
    said = found(n1=node(Wiring(2), p2p=P2P))["P2P"]
    assert said.value is None
    assert said.code is AdviceCode.P2P_DENIED
    assert dict(said.values) == {"pairs": 1, "statuses": "CNS"}


def test_an_old_driver_of_cards_without_p2p_hangs():
    said = found(n1=node(Wiring(2), gpu_query=QUERY.format("535.183.01")))["NCCL_P2P_DISABLE"]
    assert (said.value, said.where) == ("1", "env")
    new = found(n1=node(Wiring(2), gpu_query=QUERY.format("550.54.14")))
    assert "NCCL_P2P_DISABLE" not in new
    assert new["P2P"].value is None


def test_access_control_between_gpus_of_one_switch_is_reported():
    switched = Wiring(2, (), {(0, 1): "PIX"})
    on = "ACSCtl: SrcValid+\nACSCtl: SrcValid-\n"
    assert found(n1=node(switched, acs=on))["ACS"].values == (("bridges", 1),)
    assert "ACS" not in found(n1=node(Wiring(2), acs=on))


def test_an_iommu_is_reported_if_access_control_is_unknown():
    switched = Wiring(2, (), {(0, 1): "PXB"})
    assert "IOMMU" in found(n1=node(switched, iommu="iommus: dmar0\nquiet\n"))
    assert found(n1=node(switched, iommu="iommus: dmar0\niommu=pt\n")) == {}


FICTION = Wiring(2, ("mlx5_0",), {(0, 1): "PHB", (0, 2): "PHB", (1, 2): "PHB"})


def test_advice_for_a_virtual_machine_without_the_file_is_to_set_it():
    said = found(n1=node(FICTION, virtual="virtual\nMicrosoft Corporation\n"))["NCCL_TOPO_FILE"]
    assert said.value is None
    assert "GPUDirect RDMA" not in found(n1=node(FICTION, virtual="virtual\n"))


def test_a_virtual_machine_that_has_its_file_is_fine():
    machine = node(FICTION, virtual="virtual\n", settings="NCCL_TOPO_FILE=/x.xml")
    assert "NCCL_TOPO_FILE" not in found(n1=machine)


def test_a_slow_fabric_is_no_place_for_stage_three():
    slow = node(route=ROUTE.format("eth0"), speeds="/sys/class/net/eth0/speed:25000\n")
    said = found(n1=slow, n2=slow)["ZeRO stage"]
    assert said.value == "2, or 3 with zero_hpz_partition_size 8"
    assert dict(said.values) == {"gigabits": 25, "enough": 100}
    assert "ZeRO stage" not in found(n1=slow)


def test_the_speeds_of_rdma_ports_add_up():
    one = node(Wiring(2, ("mlx5_0", "mlx5_1"), mesh(2, "NV4")), ib=ports(*[(*UP[:2], 50)] * 2))
    assert "ZeRO stage" not in found(n1=one, n2=one)


def test_mixed_models_are_counted_as_nvidia_smi_does():
    names = gpu_list(["NVIDIA T1000", "Tesla V100-PCIE-16GB"])
    said = found(n1=node(Wiring(2), gpu_list=names))["CUDA_DEVICE_ORDER"]
    assert (said.value, said.where) == ("PCI_BUS_ID", "env")


def test_slots_without_gpus_are_reported():
    (said,) = slots(
        {"n1": tuple(range(8)), "n2": (0, 2)}, {"n1": node(BRIDGED), "n2": node(BRIDGED)}
    )
    assert (said.value, said.hosts, said.where) == ("0,1,2,3", ("n1",), "slots")
    assert said.code is AdviceCode.SLOTS_WITHOUT_GPU
    assert dict(said.values) == {"slots": "4,5,6,7", "gpus": 4}


def test_all_advice_has_a_reason_and_a_source():
    for each in advise({"n1": node(BRIDGED), "n2": node(CUBE), "n3": node(FICTION)}):
        assert each.reason
        assert each.source


GRACE = Wiring(1, ("mlx5_0",), {(0, 1): "NODE"})


def test_on_grace_machines_a_nic_at_the_gpus_own_cpu_is_near() -> None:
    text = topo_m(GRACE).replace("0-31\t0\t\tN/A", "0-71\t0\t\t1")
    assert found(n1=read({"topo_m": text}))["GPUDirect RDMA"].code is AdviceCode.NIC_OVER_C2C
    named = read({"topo_m": topo_m(GRACE), "gpu_list": gpu_list(["NVIDIA GH200 480GB"])})
    assert found(n1=named)["GPUDirect RDMA"].code is AdviceCode.NIC_OVER_C2C


def test_on_grace_machines_a_nic_at_another_cpu_is_far() -> None:
    text = topo_m(Wiring(1, ("mlx5_0",), {(0, 1): "SYS"})).replace("0-31\t0\t\tN/A", "0-71\t0\t\t1")
    said = found(n1=read({"topo_m": text}))["GPUDirect RDMA"]
    assert said.code is AdviceCode.NIC_AT_OTHER_CPU


def test_advice_on_far_nics_is_unchanged_for_other_machines() -> None:
    said = found(n1=node(GRACE))["GPUDirect RDMA"]
    assert said.code is AdviceCode.NIC_FAR
    assert dict(said.values)["links"] == "NODE"


SWITCHED = Wiring(4, (), {(0, 1): "PIX", (2, 3): "PIX"})


def test_advice_without_nvlink_has_near_pairs_and_the_limit_of_p2p() -> None:
    said = found(n1=node(SWITCHED, virtual="physical\n"))
    assert said["slots of a two-GPU job"].value == "0,1 or 2,3"
    assert said["NCCL_P2P_LEVEL"].value is None
    values = dict(said["NCCL_P2P_LEVEL"].values)
    assert (values["level"], values["far"], values["pairs"]) == ("SYS", 4, 6)


def test_machines_whose_gpus_are_all_below_one_switch_need_no_level() -> None:
    assert "NCCL_P2P_LEVEL" not in found(n1=node(Wiring(2, (), {(0, 1): "PIX"})))


def test_nvlink_machines_get_no_advice_on_pcie() -> None:
    assert "NCCL_P2P_LEVEL" not in found(n1=node(BRIDGED))
