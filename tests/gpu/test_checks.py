"""What preflight and topo say of a machine with GPUs, beside what PyTorch sees there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from dslaunch.preflight import recording
from dslaunch.preflight.checks._nvidia import QUERY
from dslaunch.preflight.checks._query import read

if TYPE_CHECKING:
    from tests.gpu.machine import Device, Machine

pytestmark = pytest.mark.gpu
GPU_CHECKS = ("--only", "gpu", "--only", "topo", "--only", "sw.cuda-toolkit")
HOLD = """
import sys, torch
held = [torch.empty(int(size), dtype=torch.uint8, device=f"cuda:{n}")
        for n, size in enumerate(sys.argv[1:])]
print("ready", flush=True)
sys.stdin.read()
"""
MIB = 2**20


def levels(findings: list[dict[str, Any]], check: str) -> set[str]:
    """Return the levels of a check's findings."""
    return {finding["level"] for finding in findings if finding["check"] == check}


def test_every_gpu_check_is_answered(machine: Machine) -> None:
    unanswered = {
        finding["check"]: finding["found"]
        for finding in machine.findings(*GPU_CHECKS)
        if finding["level"] == "unknown"
    }
    if not kernel_log_is_readable():
        unanswered.pop("gpu.xid", None)
    assert unanswered == {}


def kernel_log_is_readable() -> bool:
    return subprocess.run(["dmesg"], capture_output=True, check=False).returncode == 0


def test_the_driver_is_up_and_every_slot_has_a_gpu(machine: Machine) -> None:
    findings = machine.findings("--tier", "gate")
    assert levels(findings, "gpu.driver-up") == {"pass"}
    assert levels(findings, "gpu.count") == {"pass"}


def test_a_slot_without_a_gpu_is_an_error(machine: Machine, devices: tuple[Device, ...]) -> None:
    machine.describe(len(devices) + 1)
    assert levels(machine.findings("--only", "gpu.count"), "gpu.count") == {"fail"}


def test_gpus_are_the_ones_that_pytorch_sees(machine: Machine, devices: tuple[Device, ...]) -> None:
    machine.findings("--only", "gpu", "--save", "saved.json")
    answers = recording.read(machine.directory / "saved.json").nodes["node1"].answers
    found = read(answers[QUERY.key]["value"]["out"]).gpus
    assert [gpu.text("name") for gpu in found] == [device.name for device in devices]
    assert [gpu.text("uuid") for gpu in found] == [f"GPU-{device.uuid}" for device in devices]
    for gpu, device in zip(found, devices, strict=True):
        # the driver keeps some of the memory for itself
        assert device.memory <= gpu.number("memory.total") * MIB < 1.05 * device.memory


def test_saved_answers_give_the_same_findings(machine: Machine) -> None:
    asked = machine.findings(*GPU_CHECKS, "--save", "saved.json")
    assert machine.findings("--from", "saved.json") == asked


@pytest.fixture
def holder(devices: tuple[Device, ...]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds 3 percent of the memory of each GPU."""
    sizes = [str(device.memory * 3 // 100) for device in devices]
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, *sizes]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate("")


def test_a_process_that_uses_gpus_is_found(machine: Machine, holder: subprocess.Popen[str]) -> None:
    findings = machine.findings("--only", "gpu.leftover")
    assert "warn" in levels(findings, "gpu.leftover")
    listed = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    if str(holder.pid) in listed:  # not in a container with process numbers of its own
        assert any(str(holder.pid) in finding["fix"] for finding in findings)


def test_topo_reads_the_matrix_whole(machine: Machine, devices: tuple[Device, ...]) -> None:
    told = json.loads(machine.call("topo", "cluster.yaml", "--json"))
    node = told["nodes"]["node1"]
    assert node["status"] == "ok"
    assert [gpu["name"] for gpu in node["gpus"]] == [device.name for device in devices]


def test_a_recorded_matrix_is_read_as_the_asked_one(machine: Machine) -> None:
    recorded = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True
    ).stdout
    (machine.directory / "node1.txt").write_text(recorded)
    asked = json.loads(machine.call("topo", "cluster.yaml", "--json"))["nodes"]["node1"]
    read = json.loads(machine.call("topo", "node1.txt", "--json"))["nodes"]["node1"]
    assert read["links"] == asked["links"]


def test_the_smoke_job_runs_over_nccl(machine: Machine) -> None:
    found = machine.findings("--tier", "deep", "--only", "sw.dist-smoke")
    assert levels(found, "sw.dist-smoke") == {"pass"}
    assert any("nccl" in finding["found"] for finding in found)


def test_nvidia_smi_is_asked_nothing_that_it_does_not_know(machine: Machine) -> None:
    """An old driver that does not know all fields is asked group by group; none may be lost."""
    machine.findings("--only", "gpu", "--save", "saved.json")
    answers = recording.read(machine.directory / "saved.json").nodes["node1"].answers
    assert answers[QUERY.key]["value"]["code"] == 0
    assert os.linesep + os.linesep not in answers[QUERY.key]["value"]["out"].strip()
