"""GPUs read by NVML, nvidia-smi and the files of amdgpu, and the process that reads them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dslaunch.node import gpu_sources, nvml

LIBRARY = """\
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
typedef void *device;
struct utilization { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { if (getenv("HANGS")) for (;;) pause(); return getenv("NO_DRIVER") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    if (index == 2) return 15; /* NVML_ERROR_GPU_IS_LOST */
    *found = (device)(size_t)(index + 1);
    return 0;
}
int nvmlDeviceGetUtilizationRates(device gpu, struct utilization *used) {
    if ((size_t)gpu == 2) return 3; /* NVML_ERROR_NOT_SUPPORTED, as with MIG */
    used->gpu = 97;
    used->memory = 40;
    return 0;
}
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *memory) {
    memory->total = 85899345920ULL;
    memory->used = (size_t)gpu * 1073741824ULL;
    memory->free = memory->total - memory->used;
    return 0;
}
int nvmlDeviceGetPowerUsage(device gpu, unsigned *milliwatts) { *milliwatts = 631950; return 0; }
int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *degrees) {
    *degrees = sensor == 0 ? 59 : 0;
    return 0;
}
int nvmlDeviceGetClockInfo(device gpu, unsigned clock, unsigned *mhz) {
    *mhz = clock == 1 ? 1980 : 2619;
    return 0;
}
int REASONS(device gpu, unsigned long long *reasons) {
    *reasons = (size_t)gpu == 1 ? 0x4 : 0x48;
    return 0;
}
"""
FIRST = {
    "index": 0,
    "busy": 0.97,
    "memory_used": 1 << 30,
    "memory_total": 80 << 30,
    "power": 631.95,
    "temperature": 59,
    "clock": 1980,
    "throttled": ["power"],
}
SMI = """\
#!/bin/sh
case "$1" in *clocks_event_reasons*)
    echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
esac
echo '0, 100, 19818, 81559, 631.95, 59, 1980, 0x0000000000000020'
echo '1, [N/A], [N/A], 81559, [Not Supported], 32, 345, [N/A]'
"""
READ = """\
import json, sys
from dslaunch.node.gpu_meter import GpuMeter
meter = GpuMeter(timeout=float(sys.argv[1]))
print(json.dumps(meter.read()))
meter.end()
"""


@pytest.fixture(scope="session", params=["ClocksEvent", "ClocksThrottle"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a library that has the symbols and structures of NVML, by both names of
    the function that was renamed."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed")
    directory = tmp_path_factory.mktemp("driver")
    name = f"nvmlDeviceGetCurrent{request.param}Reasons"
    (directory / "nvml.c").write_text(LIBRARY.replace("REASONS", name))
    library = directory / nvml.LIBRARY
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(directory / "nvml.c")]
    subprocess.run(command, check=True)
    return directory


def read(*, timeout: float = 60, **environment: str) -> dict[str, Any]:
    """What the process that reads GPUs says, in a program with these variables."""
    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(timeout)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def smi(directory: Path) -> str:
    """A PATH on which nvidia-smi is an old one."""
    program = directory / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def test_nvml_gives_all_fields_and_skips_what_a_gpu_does_not_have(driver: Path) -> None:
    gpus = read(LD_LIBRARY_PATH=str(driver))["gpus"]
    assert gpus[0] == FIRST
    assert (gpus[1]["busy"], gpus[1]["memory_used"]) == (None, 2 << 30)
    assert gpus[1]["throttled"] == ["thermal"]
    assert gpus[2] == {"index": 2}


def test_a_driver_that_hangs_is_an_error_and_blocks_nobody(driver: Path) -> None:
    found = read(timeout=2, LD_LIBRARY_PATH=str(driver), HANGS="1")
    assert found == {"error": "the GPU driver does not answer"}


def test_nvidia_smi_is_used_where_nvml_cannot_be_initialized(driver: Path, tmp_path: Path) -> None:
    found = read(LD_LIBRARY_PATH=str(driver), NO_DRIVER="1", PATH=smi(tmp_path))
    first, second = found["gpus"]
    assert (first["busy"], first["power"], first["throttled"]) == (1.0, 631.95, ["thermal"])
    assert (first["memory_used"], first["clock"]) == (19818 << 20, 1980)
    assert (second["busy"], second["memory_used"], second["power"]) == (None, None, None)
    assert (second["memory_total"], second["throttled"]) == (81559 << 20, [])


ENDS = """\
import os, sys
from dslaunch.node.gpu_meter import GpuMeter
meter = GpuMeter(timeout=float(sys.argv[1]))
print(meter.read())
meter.end()
print(os.waitpid(-1, 0)[1])
"""


@pytest.mark.parametrize(("hangs", "status"), [("1", signal.SIGKILL), ("", 0)])
def test_the_process_ends_with_its_agent_also_if_the_driver_hangs(
    driver: Path, hangs: str, status: int
) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    env |= {"HANGS": hangs} if hangs else {}
    command = [sys.executable, "-c", ENDS, "2" if hangs else "60"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(int(status))


def test_without_a_driver_the_error_says_what_was_tried(driver: Path) -> None:
    found = read(LD_LIBRARY_PATH=str(driver), NO_DRIVER="1", PATH="/nonexistent")
    assert found == {"error": "nvmlInit_v2: error 9"}


@pytest.mark.parametrize(
    ("reasons", "names"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x2, ()),
        (0x4, ("power",)),
        (0x20, ("thermal",)),
        (0x40 | 0x8, ("thermal",)),
        (0x80 | 0x8, ("power-brake",)),
        (0x8, ("hardware",)),
        (0x1FF, ("thermal", "power", "power-brake")),
    ],
)
def test_reasons_of_a_reduced_clock(reasons: int, names: tuple[str, ...]) -> None:
    assert nvml.throttled(reasons) == names


def test_lines_of_nvidia_smi_in_another_form_are_left_out() -> None:
    assert gpu_sources.parse_csv("Unable to determine the device handle\n0, 1\n") == []


def test_amdgpu_is_read_from_the_files_of_the_driver(tmp_path: Path) -> None:
    files = {
        "card1/device/vendor": "0x1002",
        "card1/device/mem_info_vram_total": "68702699520",
        "card1/device/mem_info_vram_used": "1048576",
        "card1/device/gpu_busy_percent": "42",
        "card1/device/hwmon/hwmon4/power1_average": "301000000",
        "card1/device/hwmon/hwmon4/temp1_input": "41000",
        "card1/device/hwmon/hwmon4/temp2_input": "55000",
        "card1/device/hwmon/hwmon4/freq1_input": "1700000000",
        "card0/device/vendor": "0x1a03",
        "card1-DP-1/status": "connected",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (gpu,) = gpu_sources.from_amdgpu(str(tmp_path))
    assert gpu == {
        "index": 0,
        "busy": 0.42,
        "memory_used": 1048576,
        "memory_total": 68702699520,
        "power": 301.0,
        "temperature": 55.0,
        "clock": 1700,
    }
