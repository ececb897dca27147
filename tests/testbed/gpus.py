"""A machine's GPUs as nvidia-smi and the kernel tell of them, to be put on a virtual node's PATH.

The cells are those that driver 590.48.01 prints for an H100 (captures of
utkuozdemir/nvidia_gpu_exporter), the matrix is a DGX H100's; a fault is another cell or text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NICS = tuple(f"mlx5_{at}" for at in range(8))
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "590.48.01",
    "vbios_version": "96.00.A5.00.01",
    "memory.total [MiB]": "81559",
    "memory.used [MiB]": "0",
    "pstate": "P0",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "display_active": "Disabled",
    "temperature.gpu": "41",
    "temperature.gpu.tlimit": "46",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "enforced.power.limit [W]": "700.00",
    "power.default_limit [W]": "700.00",
    "clocks.max.sm [MHz]": "1980",
    "ecc.mode.current": "Enabled",
    "ecc.mode.pending": "Enabled",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.corrected.volatile.sram": "0",
    "ecc.errors.corrected.volatile.dram": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.sram": "0",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
    "retired_pages.single_bit_ecc.count": "[N/A]",
    "retired_pages.double_bit.count": "[N/A]",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "mig.mode.current": "Disabled",
    "mig.mode.pending": "Disabled",
    "clocks_event_reasons.active": "0x0000000000000001",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "gpu_recovery_action": "None",
}
NEW = ("clocks_event_reasons", "fabric", "gpu_recovery_action", "temperature.gpu.tlimit")
"""What a driver before 535 does not know, by the beginnings of fields."""


def h100s(count: int = 8) -> tuple[dict[str, str], ...]:
    """The cells of that many GPUs."""
    return tuple(
        {"index": str(at), "uuid": uuid(at), "pci.bus_id": f"00000000:{at + 1:02X}:00.0", **H100}
        for at in range(count)
    )


def uuid(at: int) -> str:
    """A GPU's identity."""
    return f"GPU-0000000{at}-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Machine:
    """What a machine prints."""

    gpus: tuple[Mapping[str, str], ...] = field(default_factory=h100s)
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Pairs of GPUs or cards, by their columns, that are not linked as the others."""
    inactive: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """NVLinks that are down, by GPU."""
    apps: str = ""
    """Lines of `--query-compute-apps=gpu_uuid,pid,used_memory,process_name`."""
    kernel: str = ""
    """Lines of `dmesg`."""
    says: tuple[int, str] | None = None
    """An exit code and the words with which nvidia-smi answers everything."""
    unknown: tuple[str, ...] = ()
    """Fields that this driver does not know, by their beginnings."""

    def cell(self, gpu: int, name: str, value: str) -> Machine:
        """The same with another cell."""
        gpus = tuple({**g, name: value} if at == gpu else g for at, g in enumerate(self.gpus))
        return replace(self, gpus=gpus)

    def every(self, name: str, value: str) -> Machine:
        """The same with another cell for each GPU."""
        return replace(self, gpus=tuple({**gpu, name: value} for gpu in self.gpus))

    def programs(self) -> dict[str, str]:
        """Its programs by name: `nvidia-smi` and `dmesg`."""
        texts = {
            "topo -m": topo(len(self.gpus), self.links),
            "topo -p2p r": p2p(len(self.gpus)),
            "nvlink -s": nvlink(self.gpus, self.inactive),
            "nvlink -e": nvlink_errors(self.gpus),
            "-L": "".join(f"{line}\n" for line in map(listed, self.gpus)),
        }
        known = {"gpus": self.gpus, "texts": texts, "apps": self.apps, "says": self.says}
        data = json.dumps({**known, "unknown": self.unknown})
        return {
            "nvidia-smi": f"#!/usr/bin/python3 -ES\nimport json\nM = json.loads({data!r})\n{_SMI}",
            "dmesg": f"#!/bin/sh\ncat <<'END'\n{self.kernel}\nEND\n",
        }


_SMI = r"""
import sys

words = sys.argv[1:]
if M["says"]:
    print(M["says"][1])
    sys.exit(M["says"][0])
options = dict(word.lstrip("-").partition("=")[::2] for word in words)
if "query-compute-apps" in options:
    print(M["apps"], end="")
elif "query-gpu" in options:
    titles = {title.split(" ")[0]: title for title in M["gpus"][0]}
    wanted = options["query-gpu"].split(",")
    for name in wanted:
        if name not in titles or name.startswith(tuple(M["unknown"])):
            print(f'Field "{name}" is not a valid field to query.\n')
            sys.exit(2)
    print(", ".join(titles[name] for name in wanted))
    for gpu in M["gpus"]:
        print(", ".join(gpu[titles[name]] for name in wanted))
elif " ".join(words) in M["texts"]:
    print(M["texts"][" ".join(words)], end="")
else:
    print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
    sys.exit(1)
"""


def listed(gpu: Mapping[str, str]) -> str:
    """A line of `nvidia-smi -L`."""
    return f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})"


def topo(gpus: int, links: Mapping[tuple[int, int], str]) -> str:
    """`nvidia-smi topo -m`: all GPUs linked by 18 NVLinks, each with a card at its switch."""
    names = [f"GPU{at}" for at in range(gpus)] + [f"NIC{at}" for at in range(len(NICS))]
    lines = ["\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for a, name in enumerate(names):
        cells = [_link(a, b, gpus, links) for b in range(len(names))]
        near = ("0-55,112-167\t0" if a < 4 else "56-111,168-223\t1") + "\t\tN/A"
        lines.append("\t".join([name, *cells, near if a < gpus else "\t\t\t"]))
    numbered = [f"  NIC{at}: {nic}" for at, nic in enumerate(NICS)]
    return "\n".join(
        [*lines, "", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", *numbered, ""]
    )


def _link(a: int, b: int, gpus: int, links: Mapping[tuple[int, int], str]) -> str:
    if a == b:
        return " X "
    low, high = min(a, b), max(a, b)
    if high < gpus or (low, high) in links:
        return links.get((low, high), "NV18")
    one = low if low < gpus else low - gpus
    other = high - gpus
    if low < gpus and one == other:
        return "PIX"
    return "NODE" if one // 4 == other // 4 else "SYS"


def p2p(gpus: int) -> str:
    """`nvidia-smi topo -p2p r`: all can."""
    head = " \t" + "\t".join(f"GPU{at}" for at in range(gpus)) + "\n"
    rows = ("\t".join("X" if a == b else "OK" for b in range(gpus)) for a in range(gpus))
    return head + "".join(f" GPU{at}\t{row}\n" for at, row in enumerate(rows))


def nvlink(gpus: tuple[Mapping[str, str], ...], inactive: Mapping[int, tuple[int, ...]]) -> str:
    """`nvidia-smi nvlink -s`."""
    lines = []
    for at, gpu in enumerate(gpus):
        lines.append(listed(gpu))
        for link in range(18):
            down = link in inactive.get(at, ())
            lines.append(f"\t Link {link}: {'<inactive>' if down else '26.562 GB/s'}")
    return "\n".join(lines) + "\n"


def nvlink_errors(gpus: tuple[Mapping[str, str], ...]) -> str:
    """`nvidia-smi nvlink -e`: none."""
    kinds = ("Replay", "Recovery", "CRC")
    return "".join(
        f"{listed(gpu)}\n"
        + "".join(f"\t Link {link}: {kind} Errors: 0\n" for link in range(18) for kind in kinds)
        for gpu in gpus
    )
