"""Recognize errors of nvidia-smi, which it also prints on standard output.

Texts as observed in nvidia-smi 410 to 610; exit codes are those of its manual page.
"""

from __future__ import annotations

import re

from dslaunch.terminal import printable
from dslaunch.topology.model import MatrixFailure

LONGEST = 4096
"""Maximum number of characters to inspect: errors of nvidia-smi are one or two lines."""
_KNOWN = (
    (
        r"couldn't communicate with the NVIDIA driver",
        "driver_not_loaded",
        "the NVIDIA driver is not loaded",
        (
            "load or install it; after a kernel update check `dkms status`, with Secure "
            "Boot `mokutil`"
        ),
    ),
    (
        r"Driver/library version mismatch",
        "nvml_mismatch",
        "the driver library and the loaded kernel module have different versions",
        "reboot the node: the driver was updated while it was running",
    ),
    (
        r"Failed to initialize NVML",
        "nvml_unknown",
        "NVML cannot be initialized",
        "restart the container: it lost access to the devices",
    ),
    (
        r"GPU is lost|Unable to determine the device handle",
        "gpu_lost",
        "a GPU does not respond",
        "look for Xid errors in `dmesg | grep Xid`, then power-cycle the node",
    ),
    (
        r"No devices were found",
        "no_devices",
        "the driver is loaded but found no usable GPU",
        ("check `dmesg | grep -i nvrm`, the power cables and the container's GPU option"),
    ),
    (
        r"nvidia-smi:? (?:command )?not found|nvidia-smi: No such file|executable file not found",
        "no_nvidia_smi",
        "nvidia-smi not found in PATH of a session",
        "install the driver, or add its directory to PATH of non-interactive shells",
    ),
    (
        r"Option -m is missing its value|topo.*not supported",
        "topo_unsupported",
        "nvidia-smi does not support `topo -m`",
        None,
    ),
    (
        r"must be used in conjunction|Invalid combination of input arguments|is not recognized",
        "bad_usage",
        "nvidia-smi rejected the command",
        "run `nvidia-smi topo -m` without other options",
    ),
    (
        r"ROCm|rocm-smi",
        "other_tool",
        "output of rocm-smi, which has another format",
        "pass the output of `nvidia-smi topo -m`",
    ),
    (
        r"^[ \t]*NPU[0-9]",
        "other_tool",
        "output of npu-smi: no NVIDIA GPUs",
        "pass the output of `nvidia-smi topo -m`",
    ),
)


def smi_error(text: str) -> MatrixFailure:
    """Return the reason why a text has no matrix."""
    text = text[:LONGEST]
    if not text.strip():
        return MatrixFailure(
            "no_answer", "nvidia-smi printed nothing", "run `nvidia-smi topo -m` on the node"
        )
    for pattern, kind, message, hint in _KNOWN:
        if re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return MatrixFailure(kind, message, hint)
    first = next(line.strip() for line in text.splitlines() if line.strip())
    shown = printable(first[:60])
    return MatrixFailure(
        "unreadable",
        f"no matrix found in the text, which begins with {shown!r}",
        "pass the output of `nvidia-smi topo -m`",
    )
