"""What NVML says of the machine's GPUs, beside what nvidia-smi says."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dslaunch.node import gpu_sources, nvml

if TYPE_CHECKING:
    from tests.gpu.machine import Device

pytestmark = pytest.mark.gpu
MIB = 2**20


def test_nvml_reads_every_gpu_as_nvidia_smi_does(devices: tuple[Device, ...]) -> None:
    program = shutil.which("nvidia-smi")
    assert program is not None
    read, printed = nvml.Nvml().read(), gpu_sources.from_nvidia_smi(program)
    assert [gpu["index"] for gpu in read] == list(range(len(devices)))
    assert [gpu["index"] for gpu in printed] == list(range(len(devices)))
    for one, other in zip(read, printed, strict=True):
        assert abs(one["memory_total"] - other["memory_total"]) <= MIB
        assert one["power"] > 0
        assert 0 < one["temperature"] < 120
        assert one["clock"] > 0
