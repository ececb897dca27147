"""What nvidia-smi says instead of an answer: on standard output too, so every reader meets it.

Texts as seen in nvidia-smi 410 to 610; exit codes are those of its manual page.
"""

from __future__ import annotations

import re

from dslaunch.terminal import printable
from dslaunch.topology.model import MatrixFailure

LONGEST = 4096
"""Characters that are looked at: nvidia-smi complains in a line or two."""
_KNOWN = (
    (
        r"couldn't communicate with the NVIDIA driver",
        "driver_not_loaded",
        "the NVIDIA driver is not loaded",
        "load or install it: after a kernel update `dkms status`, with Secure Boot `mokutil`",
    ),
    (
        r"Driver/library version mismatch",
        "nvml_mismatch",
        "the driver's library is newer or older than the loaded kernel module",
        "reboot the node: the driver was updated while it ran",
    ),
    (
        r"Failed to initialize NVML",
        "nvml_unknown",
        "NVML cannot be initialised",
        "in a container, start it anew: it has lost the right to use the devices",
    ),
    (
        r"GPU is lost|Unable to determine the device handle",
        "gpu_lost",
        "a GPU does not answer any more",
        "see `dmesg | grep Xid`, then power-cycle the node",
    ),
    (
        r"No devices were found",
        "no_devices",
        "the driver is loaded and finds no GPU that it can use",
        "see `dmesg | grep -i nvrm`; check power cables and the container's GPU option",
    ),
    (
        r"nvidia-smi:? (?:command )?not found|nvidia-smi: No such file|executable file not found",
        "no_nvidia_smi",
        "there is no nvidia-smi on the PATH of a session",
        "install the driver, or put its directory on the PATH of non-interactive shells",
    ),
    (
        r"Option -m is missing its value|topo.*not supported",
        "topo_unsupported",
        "this nvidia-smi has no `topo -m`",
        None,
    ),
    (
        r"must be used in conjunction|Invalid combination of input arguments|is not recognized",
        "bad_usage",
        "nvidia-smi did not understand the command",
        "ask with `nvidia-smi topo -m` and nothing else",
    ),
    (
        r"ROCm|rocm-smi",
        "other_tool",
        "this is rocm-smi's output, which has another grammar",
        "only `nvidia-smi topo -m` is read",
    ),
    (
        r"^[ \t]*NPU[0-9]",
        "other_tool",
        "this is npu-smi's output: there is no NVIDIA GPU in it",
        "only `nvidia-smi topo -m` is read",
    ),
)


def smi_error(text: str) -> MatrixFailure:
    """Say why a text holds no matrix."""
    text = text[:LONGEST]
    if not text.strip():
        return MatrixFailure(
            "no_answer", "nvidia-smi gave no answer", "run `nvidia-smi topo -m` there"
        )
    for pattern, kind, message, hint in _KNOWN:
        if re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return MatrixFailure(kind, message, hint)
    first = next(line.strip() for line in text.splitlines() if line.strip())
    shown = printable(first[:60])
    return MatrixFailure(
        "unreadable",
        f"there is no matrix in the text, which begins {shown!r}",
        "expected the output of `nvidia-smi topo -m`",
    )
