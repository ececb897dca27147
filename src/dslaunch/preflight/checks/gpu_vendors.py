"""What is checked of accelerators of other vendors than NVIDIA, and what is not."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch.devices import NAMES
from dslaunch.plural import counted
from dslaunch.preflight.check import Answers, Check, Verdict, skipped
from dslaunch.preflight.checks import _accelerators as accelerators

CHECKED = {
    "amd": "checked are number, access, driver, memory errors, temperature, and XGMI links; not "
    "checked are power limits, clocks, PCIe links, and other processes",
    "intel": "only the device files are checked, not the driver's version, memory errors, "
    "temperature, or Xe Link",
    "ascend": "only the number is checked, not the driver's version, health, memory errors, "
    "temperature, or HCCS links",
}
_NUMBER_ALONE = "only the number of device files is checked"


def _judge(a: Answers) -> Iterator[Verdict]:
    others = [vendor for vendor in a["accelerators"] if vendor != "nvidia"]
    for vendor in others:
        if vendor != "amd":  # rocm.count tells of these
            yield from (v for v in accelerators.count(a, vendor) if v.level != "pass")
        devices = a["accelerators"][vendor]["devices"]
        if devices:
            what = CHECKED.get(vendor, _NUMBER_ALONE)
            yield Verdict("info", f"{counted(devices, NAMES[vendor])}: {what}")
    if not others:
        yield skipped("no accelerator of another vendor than NVIDIA")


CHECK = Check(
    title="accelerators that are not NVIDIA's, and what is checked of them",
    tier="gate",
    why="Most checks of GPUs ask NVIDIA's tools. A node with other accelerators passes those that "
    "do not apply, which says nothing about its own devices.",
    fix="run the vendor's own diagnosis for the rest: `rocm-smi`, `xpu-smi diag`, `npu-smi info`",
    see="ls -l /dev/kfd /dev/dri /dev/davinci* /dev/accel",
    source="Linux, drivers/gpu/drm/amd/amdkfd; ascend-docker-runtime; habanalabs; AWS Neuron",
    ask=accelerators.ask,
    judge=_judge,
)
