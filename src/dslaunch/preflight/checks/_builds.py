"""How torch must be built for the accelerators of its node.

A vendor's accelerator is one entry of `BUILDS`; which vendors a node has is asked and judged by
`ask` and `vendors`, from NVIDIA's query.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dslaunch.launch.devices import NAMES
from dslaunch.preflight.check import Asked, NodeAnswers, Scope
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.protocol.programs import Installed
from dslaunch.protocol.values import Vendor

DRIVER_OF_CUDA = {11: 450, 12: 525, 13: 580}
"""The oldest major version of the driver for each major version of CUDA (NVIDIA, CUDA Toolkit
release notes, minimum driver version for minor version compatibility)."""
NOT_BUILT = ("", "None")


class Build(Struct, frozen=True):
    """What of torch uses a vendor's accelerators."""

    name: str = ""
    """The name in `torch/version.py` that says so; empty: torch needs one of `modules`."""
    modules: tuple[str, ...] = ()
    """Packages that add it to a torch for CPUs."""


BUILDS: Mapping[Vendor, Build] = {
    "nvidia": Build("cuda"),
    "amd": Build("hip"),
    "intel": Build("xpu", ("intel_extension_for_pytorch",)),
    "ascend": Build(modules=("torch_npu",)),
    "gaudi": Build(modules=("habana_frameworks",)),
    "neuron": Build(modules=("torch_neuronx", "torch_xla")),
    "mlu": Build(modules=("torch_mlu",)),
}
"""torch 2.13 torch/version.py; Ascend/pytorch, intel/intel-extension-for-pytorch, HabanaAI, AWS
Neuron and Cambricon documentation for the packages."""
MODULES = tuple(sorted({name for build in BUILDS.values() for name in build.modules}))


def ask(scope: Scope) -> Asked:
    """Return the questions about accelerators; they cost a node nothing."""
    return {**nvidia.ask(scope), **accelerators.ask(scope)}


def vendors(a: NodeAnswers) -> tuple[Vendor, ...]:
    """The vendors of the accelerators that work on a node, as keys of `BUILDS`. Raises
    UnansweredError."""
    return tuple(vendor for vendor in BUILDS if _works(a, vendor))


def _works(a: NodeAnswers, vendor: Vendor) -> bool:
    """NVIDIA's driver is asked; for the others a device file that can be opened counts."""
    if vendor == "nvidia":
        return nvidia.driver(a) is nvidia.Driver.UP and bool(nvidia.gpus(a))
    counts = accelerators.of_vendor(a, vendor)
    return bool(counts and counts["devices"])


def is_for(found: Installed, vendor: Vendor) -> bool:
    """Whether torch, as it is installed, can use a vendor's accelerators."""
    build = BUILDS[vendor]
    built = bool(build.name) and found.torch.get(build.name, "") not in NOT_BUILT
    return built or any(name in found.modules for name in build.modules)


def target(found: Installed) -> str:
    """What torch is built for, in words."""
    fitting = [f"{NAMES[vendor]}s" for vendor in BUILDS if is_for(found, vendor)]
    return " and ".join(fitting) or "CPUs alone"


def driver(a: NodeAnswers) -> int | None:
    """The major version of NVIDIA's driver; None: it is not known. Raises UnansweredError."""
    version = (nvidia.gpus(a)[0].text("driver_version") or "").partition(".")[0]
    return int(version) if version.isdecimal() and len(version) < 6 else None
