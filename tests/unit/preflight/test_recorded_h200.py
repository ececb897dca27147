"""What a real node with an H200 answered (driver 580.159.04, CUDA 13.0): sound, but for programs
that had written to wrong addresses before."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslaunch.api import replay_preflight
from dslaunch.preflight import recording
from dslaunch.preflight.checks import built_in

ANSWERS = recording.read(Path(__file__).with_name("recorded_h200.json"))
CHECKS = [name for name in built_in() if name.startswith(("gpu.", "topo."))]
NOTHING_TO_CHECK = {
    "gpu.fabric",
    "gpu.nvlink",
    "gpu.nvlink-errors",
    "gpu.p2p",
    "gpu.peermem",
    "gpu.retired-pages",
    "gpu.vendors",
    "topo.gpu-links",
    "topo.nic-affinity",
    "topo.uniform",
}
"""Checks that do not apply: of several GPUs, NVLink, NICs, or what this GPU does not report."""


def levels(check: str) -> set[str]:
    report = replay_preflight(ANSWERS, only=(check,))
    return {finding.level for finding in report.findings if finding.check == check}


@pytest.mark.parametrize("check", [*CHECKS, "sw.cuda-toolkit", "sw.torch-build"])
def test_a_sound_gpu_has_no_fault(check: str) -> None:
    expected = {"pass", "skip"} if check in NOTHING_TO_CHECK else {"pass"}
    if check == "gpu.xid":
        expected = {"pass", "info"}
    assert levels(check) <= expected


def test_errors_of_programs_are_no_errors_of_the_hardware() -> None:
    report = replay_preflight(ANSWERS, only=("gpu.xid",))
    (info,) = (finding for finding in report.findings if finding.level == "info")
    assert "Xid 31" in info.found
    assert "Xid 43" in info.found
