"""`dslaunch preflight` on four nodes with eight H100 each: a fault of one node is found there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.testbed.gpus import NEW, Machine, h100s, uuid
from tests.testbed.vcluster import VirtualCluster

PATH = "/usr/local/bin"
HEALTHY = Machine()
XID = "[99999999.000001] NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU lost"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"


@dataclass
class Cluster:
    """Nodes with the programs of machines."""

    nodes: VirtualCluster
    has: dict[str, Machine]

    def give(self, node: str, machine: Machine) -> None:
        """Let a node be that machine."""
        if self.has.get(node) != machine:
            for name, text in machine.programs().items():
                self.nodes.put(node, f"{PATH}/{name}", text)
            self.has[node] = machine

    def preflight(self, *words: str) -> list[dict[str, Any]]:
        """What the checks of GPUs and wiring find, but for what passed."""
        command = [sys.executable, "-m", "dslaunch", "preflight", "c.yaml", "--json", *words]
        only = [] if "--only" in words or "--tier" in words else ["--only", "gpu,topo,ib"]
        done = self.nodes.run("control", [*command, *only], cwd="/root/gpus", timeout=300)
        assert done.returncode in (0, 4), done.stdout + done.stderr
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [f for f in findings if f["level"] not in ("pass", "skip")]


@pytest.fixture(scope="module")
def machines(session_cluster4: VirtualCluster) -> Iterator[Cluster]:
    session_cluster4.put(
        "control",
        "/root/gpus/c.yaml",
        f"nodes: [{{host: 'node[1-4]', slots: 8}}]\npython: {sys.executable}\n",
        mode=0o644,
    )
    yield Cluster(session_cluster4, {})
    for node in session_cluster4.names:
        if node != "control":
            words = ["rm", "-f", f"{PATH}/nvidia-smi", f"{PATH}/dmesg"]
            session_cluster4.run(node, words, user="root")


@pytest.fixture
def healthy(machines: Cluster, cluster4: VirtualCluster) -> Cluster:
    """All four nodes healthy."""
    del cluster4
    for node in ("node1", "node2", "node3", "node4"):
        machines.give(node, HEALTHY)
    return machines


def test_healthy_gpus_give_no_word_of_warning(healthy: Cluster) -> None:
    assert healthy.preflight() == []


ECC = "ecc.errors.uncorrected.volatile.total"
HOT = "0x0000000000000041"
MIG = HEALTHY.cell(4, "mig.mode.current", "Enabled").cell(4, "mig.mode.pending", "Enabled")
BUSY = replace(HEALTHY, apps=f"{uuid(1)}, 1, 2296, python3\n")
FAULTS = {
    "one GPU less": (Machine(gpus=h100s(7)), "gpu.count", "fail"),
    "memory error": (HEALTHY.cell(3, ECC, "1"), "gpu.ecc-uncorrected", "fail"),
    "row waits": (HEALTHY.cell(3, "remapped_rows.pending", "Yes"), "gpu.row-remap", "fail"),
    "other driver": (HEALTHY.every("driver_version", "550.54.15"), "gpu.driver-skew", "fail"),
    "no NVLink": (Machine(links={(0, 1): "PHB"}), "topo.gpu-links", "fail"),
    "card far away": (Machine(links={(2, 10): "SYS"}), "topo.nic-affinity", "warn"),
    "card elsewhere": (Machine(links={(2, 10): "PXB"}), "topo.uniform", "warn"),
    "NVLink down": (Machine(inactive={5: (3,)}), "gpu.nvlink", "fail"),
    "hot": (HEALTHY.cell(0, "clocks_event_reasons.active", HOT), "gpu.throttle", "fail"),
    "half the lanes": (HEALTHY.cell(2, "pcie.link.width.current", "8"), "gpu.pcie", "fail"),
    "reset wanted": (HEALTHY.cell(7, "gpu_recovery_action", "Reset"), "gpu.recovery", "fail"),
    "MIG": (MIG, "gpu.mig", "fail"),
    "less power": (HEALTHY.every("enforced.power.limit [W]", "500.00"), "gpu.power-limit", "warn"),
    "fabric": (HEALTHY.every("fabric.state", "In Progress"), "gpu.fabric", "fail"),
    "no persistence": (HEALTHY.every("persistence_mode", "Disabled"), "gpu.persistence", "warn"),
    "own process": (BUSY, "gpu.leftover", "warn"),
    "Xid": (replace(HEALTHY, kernel=XID), "gpu.xid", "fail"),
    "mismatch": (replace(HEALTHY, says=(18, MISMATCH)), "gpu.driver-up", "fail"),
}
ROUNDS = [list(FAULTS)[at : at + 3] for at in range(0, len(FAULTS), 3)]
"""Three at a time, on a node each, since a preflight takes longer than its judging."""


@pytest.mark.parametrize("faults", ROUNDS, ids="+".join)
def test_each_fault_is_found_on_its_node_and_nothing_else(
    healthy: Cluster, faults: list[str]
) -> None:
    wanted = set()
    for node, fault in zip(("node1", "node3", "node4"), faults, strict=True):
        machine, check, level = FAULTS[fault]
        healthy.give(node, machine)
        wanted.add((check, level, node))
    found = healthy.preflight()
    assert {(f["check"], f["level"], *f["hosts"]) for f in found} == wanted


def test_an_old_driver_is_asked_group_by_group(healthy: Cluster) -> None:
    for node in ("node1", "node2", "node3", "node4"):
        healthy.give(node, replace(HEALTHY.cell(6, ECC, "2"), unknown=NEW))
    found = [(f["check"], f["level"]) for f in healthy.preflight()]
    assert found == [("gpu.ecc-uncorrected", "fail")]


def test_the_gate_finds_what_would_stop_a_run(healthy: Cluster) -> None:
    healthy.give("node2", Machine(gpus=h100s(7)))
    found = healthy.preflight("--tier", "gate")
    mine = [(f["check"], f["hosts"]) for f in found if str(f["check"]).startswith(("gpu", "sw"))]
    assert mine[0] == ("gpu.count", ["node2"])
    # the torch of these tests is one for CPUs, where there is one
    assert {check for check, _ in mine[1:]} <= {"sw.torch-build", "sw.packages"}


@pytest.mark.torch
def test_a_torch_for_cpus_on_nodes_with_gpus_is_not_fit(healthy: Cluster) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("the torch of this machine is built for CUDA")
    (found,) = [f for f in healthy.preflight("--tier", "gate") if f["check"] == "sw.torch-build"]
    assert (found["level"], found["hosts"]) == ("fail", ["node1", "node2", "node3", "node4"])
    assert torch.__version__ in found["found"]
