"""A node's answers together: what each adds, and what is left when one is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.topology.printed import BRIDGED, CUBE, H100, Wiring, gpu_list, mesh, topo_m

from dslaunch.notes import note
from dslaunch.topology.answers import answers_in, read
from dslaunch.topology.inventory import gpu_list as gpu_list_of
from dslaunch.topology.inventory import gpu_query, p2p
from dslaunch.topology.layout import islands, nearest, ring, summary
from dslaunch.topology.model import Topology
from dslaunch.topology.notes import MatrixNote
from dslaunch.topology.nvlink import nvlink_status

H100_QUERY = "index, name, memory.total [MiB], pci.bus_id, driver_version\n" + "".join(
    f"{at}, NVIDIA H100 80GB HBM3, 81559 MiB, 00000000:{at}B:00.0, 570.86.15\n" for at in range(8)
)
PORTS = "".join(
    f"/sys/class/infiniband/mlx5_{at}/ports/1/state:{'1: DOWN' if at == 3 else '4: ACTIVE'}\n"
    f"/sys/class/infiniband/mlx5_{at}/ports/1/rate:400 Gb/sec (4X NDR)\n"
    f"/sys/class/infiniband/mlx5_{at}/ports/1/link_layer:InfiniBand\n"
    for at in range(8)
)
ANSWERS = {
    "topo_m": topo_m(H100),
    "gpu_list": gpu_list(["NVIDIA H100 80GB HBM3"] * 8),
    "gpu_query": H100_QUERY,
    "nvlink": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n"
    + "".join(f"\t Link {at}: 26.562 GB/s\n" for at in range(17))
    + "\t Link 17: <inactive>\n",
    "ib": PORTS,
    "ib_net": "/sys/class/infiniband/mlx5_0/device/net/ib0\n",
    "speeds": "/sys/class/net/eth0/speed:25000\n/sys/class/net/lo/speed:-1\n",
    "numa": "/sys/devices/system/node/node0/cpulist:0-51\n"
    "/sys/devices/system/node/node1/cpulist:52-103\n"
    "/sys/devices/system/node/node2/cpulist:\n",
    "virtual": "physical\nSupermicro\nSYS-821GE\n",
    "iommu": "iommus: dmar0 dmar1\nBOOT_IMAGE=/vmlinuz iommu=pt quiet\n",
    "acs": "\t\tACSCtl:\tSrcValid+ TransBlk-\n\t\tACSCtl:\tSrcValid- TransBlk-\n",
    "route": "10.0.0.2 dev eth0 src 10.0.0.1 uid 0 \\    cache \n",
    "settings": "NCCL_DEBUG=WARN\ncat: /etc/nccl.conf: No such file or directory\n",
}


def test_all_answers_together_are_the_machine():
    found = read(ANSWERS)
    assert summary(found) == "8x H100 80GB, NV18 full mesh, GPU-NIC PIX 7/8 SYS 1/8, 2 NUMA nodes"
    assert (found.gpus[1].memory, found.gpus[1].bus) == (81559, "00000000:1B:00.0")
    assert found.gpus[0].nvlinks == (17, 18)
    assert found.nics[0].interfaces == ("ib0",)
    assert (found.nics[0].active, found.nics[0].rate) == (True, 400.0)
    assert found.nics[3].active is False
    host = found.host
    assert (host.numa_nodes, host.virtual) == (2, False)
    assert (host.iommu, host.acs) == (False, 1)
    assert (host.interface, host.address) == ("eth0", "10.0.0.1")
    assert host.speeds == (("eth0", 25000),)
    assert host.settings == (("NCCL_DEBUG", "WARN"),)
    assert found.notes == (note(MatrixNote.NVLINKS_INACTIVE, gpu="GPU0", active=17, links=18),)


@pytest.mark.parametrize("without", sorted(set(ANSWERS) - {"topo_m"}))
def test_an_answer_that_is_missing_costs_only_itself(without: str):
    found = read({name: text for name, text in ANSWERS.items() if name != without})
    assert found.status == "ok"
    assert found.link("GPU0", "GPU7") == "NV18"


def test_a_shell_that_finds_no_nvidia_smi_is_understood():
    for said in ("sh: 1: nvidia-smi: not found", "bash: line 1: nvidia-smi: command not found"):
        found = read({"topo_m": said + "\n"})
        assert found.trouble
        assert found.trouble.kind == "no_nvidia_smi"


def test_no_answers_are_a_machine_of_which_nothing_is_known():
    found = read({})
    assert found.trouble
    assert (found.status, found.trouble.kind) == ("none", "no_answer")
    assert summary(found).startswith("unknown: ")


def test_gpus_that_are_listed_are_known_without_a_matrix():
    found = read({"topo_m": "", "gpu_list": gpu_list(["NVIDIA L40S", "NVIDIA L40S"])})
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA L40S"] * 2


def test_a_text_of_several_commands_is_taken_apart():
    found = read(answers_in("".join(ANSWERS.values())))
    assert (found.gpus[0].name, found.nics[0].rate) == ("NVIDIA H100 80GB HBM3", 400.0)
    assert found.host.interface == "eth0"


def test_other_counts_of_gpus_are_noted():
    found = read({"topo_m": topo_m(BRIDGED), "gpu_list": gpu_list(["NVIDIA A30"] * 2)})
    assert found.notes == (note(MatrixNote.GPUS_DIFFER, listed=2, gpus=4),)


def test_mig_devices_are_counted():
    listed = gpu_list(["NVIDIA H200"]) + "  MIG 3g.71gb     Device  0: (UUID: MIG-1)\n" * 2
    assert read({"topo_m": topo_m(Wiring(1)), "gpu_list": listed}).gpus[0].mig == 2


P2P = "        GPU0    GPU1\n GPU0   X       CNS\n GPU1   CNS     X\n\nLegend:\n\n  X    = Self\n"


def test_pairs_without_p2p_are_known():
    found = read({"topo_m": topo_m(Wiring(2)), "p2p": P2P})
    assert (found.p2p, found.p2p_known) == ((("GPU0", "GPU1", "CNS"),), True)


@pytest.mark.parametrize("line", [1, 2])
def test_a_p2p_matrix_with_a_line_missing_is_not_read(line: int):
    lines = P2P.split("\n")
    assert p2p("\n".join(lines[:line] + lines[line + 1 :])) is None


def topology(wiring: Wiring) -> Topology:
    return read({"topo_m": topo_m(wiring)})


def test_islands_are_gpus_that_reach_each_other_over_nvlink():
    assert islands(topology(H100)) == (tuple(range(8)),)
    assert islands(topology(CUBE)) == (tuple(range(8)),)
    assert islands(topology(BRIDGED)) == ((0, 2), (1, 3))
    assert islands(topology(Wiring(2))) == ((0,), (1,))


def test_each_gpu_has_its_nearest_nic():
    near = nearest(topology(H100))
    assert [(each.link, [nic.shown for nic in each.nics]) for each in near[:2]] == [
        ("PIX", ["mlx5_0"]),
        ("PIX", ["mlx5_1"]),
    ]


def test_the_ring_is_found_whose_worst_link_is_nearest():
    cube, bridged = ring(topology(CUBE)), ring(topology(BRIDGED))
    assert cube
    assert bridged
    assert (cube.worst, bridged.worst) == ("NV2", "NODE")
    assert sorted(cube.order) == list(range(8))
    assert ring(topology(Wiring(1))) is None


def test_sixteen_gpus_are_no_long_search():
    found = ring(topology(Wiring(16, (), mesh(16, "NV6"))))
    assert found
    assert found.worst == "NV6"


SUMMARIES = [
    (H100, "8x GPU, NV18 full mesh, GPU-NIC PIX 8/8, 2 NUMA nodes"),
    (CUBE, "8x GPU, NVLink mesh, SYS elsewhere, no RDMA NIC, 1 NUMA node"),
    (BRIDGED, "4x GPU, NV12 islands 2+2, NODE/SYS between, GPU-NIC SYS 4/4, 2 NUMA nodes"),
    (Wiring(2, (), {(0, 1): "NV4"}), "2x GPU, NV4 bridge, no RDMA NIC, 1 NUMA node"),
    (Wiring(2), "2x GPU, SYS between GPUs, no NVLink, no RDMA NIC, 1 NUMA node"),
    (Wiring(1), "1x GPU, no RDMA NIC, 1 NUMA node"),
]


@pytest.mark.parametrize(("wiring", "line"), SUMMARIES, ids=[line for _, line in SUMMARIES])
def test_a_machine_is_summarized_in_one_line(wiring: Wiring, line: str):
    assert summary(topology(wiring)) == line


def test_a_machine_that_was_read_in_part_says_so_and_no_more():
    text = topo_m(H100)
    found = read({"topo_m": text[: text.index("GPU3\tNV18")]})
    assert summary(found) == "8x GPU, NV18 where known, GPU-NIC PIX 3/8, incomplete"


def test_models_keep_their_distinctive_parts():
    names = ["NVIDIA A100-SXM4-40GB", "Tesla V100-PCIE-16GB", "NVIDIA L40S"]
    query = "index, name, memory.total [MiB]\n2, NVIDIA L40S, 46068 MiB\n"
    found = read({"topo_m": topo_m(Wiring(3)), "gpu_list": gpu_list(names), "gpu_query": query})
    assert summary(found).startswith("1x A100-SXM4-40GB + 1x V100-PCIE-16GB + 1x L40S 45GiB,")


HEADER = "\tGPU0\tGPU1\tCPU Affinity\n"
HOSTILE = {
    "a number of 5,000 digits as an index": HEADER + "GPU" + "9" * 5000 + "\t X \tSYS\t0\n",
    "a number of 5,000 digits as a CPU": HEADER + "GPU0\t X \tSYS\t" + "9" * 5000 + "\n",
    "digits of another script": HEADER.replace("1", "\u0661") + "GPU\u0661\tSYS\t X \t0\n",
    "a quote that is not closed": "index, name\n0, " + '"' * 200_000,
    "a rate that is no number": "/sys/class/infiniband/mlx5_0/ports/1/rate:1..2 Gb/sec\n" + P2P,
    "lines of nothing": "\n" * 50_000,
    "words without end": "dev x " * 20_000,
    "the same row again and again": HEADER + "GPU0\t X \tSYS\t0\n" * 5000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_read_in_no_time_and_name_no_second_gpu(name: str):
    found = read(answers_in(HOSTILE[name]))
    assert found.status != "ok"
    assert {gpu.index for gpu in found.gpus} <= {0, 1}


OUTPUTS = Path(__file__).resolve().parents[3].parent / "shared" / "corpus" / "outputs"
OTHERS = pytest.mark.skipif(not OUTPUTS.exists(), reason="no recorded texts beside the checkout")


@OTHERS
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("nv_L_a100_pcie2", ["NVIDIA A100-PCIE-40GB"] * 2),
        ("nv_L_mixed_t1000_v100", ["NVIDIA T1000", "Tesla V100-PCIE-16GB"]),
        ("nv_L_h100_mig", ["NVIDIA H100 80GB HBM3"]),
        ("nv_L_unparsable", []),
    ],
)
def test_recorded_lists_of_gpus_are_read(name: str, names: list[str]):
    found = gpu_list_of((OUTPUTS / f"{name}.txt").read_text("utf-8"))
    assert [gpu.name for gpu in found.values()] == names
    assert [gpu.mig for gpu in found.values()] == ([4] if "mig" in name else [0] * len(names))


def test_nodes_that_differ_in_the_uuids_of_their_gpus_alone_share_one_topology():
    listed = gpu_list(["NVIDIA H100"] * 8)
    first = read({"topo_m": topo_m(H100), "gpu_list": listed})
    other = read({"topo_m": topo_m(H100), "gpu_list": listed.replace("GPU-0", "GPU-f")})
    lost = read({"topo_m": topo_m(H100), "gpu_list": gpu_list(["NVIDIA H100"] * 7)})
    assert first is other
    assert lost != first


@OTHERS
def test_recorded_nvlinks_and_p2p_are_read():
    links = nvlink_status((OUTPUTS / "nv_nvlink_a100x8.txt").read_text()).gpus
    assert list(links) == list(range(8))
    assert all(len(speeds) == 12 and all(speeds.values()) for speeds in links.values())
    assert not any(nvlink_status((OUTPUTS / "nv_nvlink_l40s.txt").read_text()).gpus.values())
    assert p2p((OUTPUTS / "nv_p2p_l4x2_cns.txt").read_text()) == {("GPU0", "GPU1"): "CNS"}
    assert set((p2p((OUTPUTS / "nv_p2p_h100x8_ok.txt").read_text()) or {}).values()) == {"OK"}


@OTHERS
def test_recorded_queries_are_read_by_the_names_of_their_columns():
    query = gpu_query((OUTPUTS / "nv_csv_a100_head_units.txt").read_text())
    assert query[0]["name"] == "NVIDIA A100-SXM4-80GB"
    assert query[0]["memory.total"] == "81920 MiB"
