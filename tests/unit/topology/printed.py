"""Texts as nvidia-smi prints them, written from the grammar: every form, with any links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEGENDS = {
    0: "  X   = Self\n  SOC = Path traverses a socket-level link (e.g. QPI)\n",
    1: "  X   = Self\n  SOC  = Connection traversing PCIe as well as the SMP link\n",
    2: "  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n",
}
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


@dataclass(frozen=True)
class Wiring:
    """What a text says."""

    gpus: int
    nics: tuple[str, ...] = ()
    """The NICs' device names."""
    links: Mapping[tuple[int, int], str] = None  # type: ignore[assignment]
    """By the columns of two devices, the smaller first; what is not there is SYS."""
    cpus: Sequence[str] = ()
    numa: Sequence[str] = ()

    def link(self, a: int, b: int) -> str:
        return (self.links or {}).get((min(a, b), max(a, b)), "SYS")


def labels(wiring: Wiring, era: int = 4) -> list[str]:
    """The devices as the matrix of that era names them."""
    nics = [f"NIC{at}" for at in range(len(wiring.nics))] if era > 2 else list(wiring.nics)
    return [f"GPU{at}" for at in range(wiring.gpus)] + nics


def topo_m(wiring: Wiring, era: int = 4, *, raw: bool = False, legend: bool = True) -> str:
    """Print a matrix; `raw` with the escapes that are in files as well."""
    names = labels(wiring, era)
    titles = "\t".join(_TITLES[: max(era - 1, 1)])
    on, off = ("\x1b[4m", "\x1b[0m") if raw else ("", "")
    lines = ["\t" + on + "\t".join(names) + "\t" + titles + off]
    for a, name in enumerate(names):
        cells = [" X " if a == b else _code(wiring.link(a, b), era) for b in range(len(names))]
        lines.append("\t".join([name, *cells, _tail(wiring, a, era)]))
    text = "\n".join(lines) + "\n"
    if legend:
        text += "\nLegend:\n\n" + _LEGENDS[min(era, 2)]
        if era > 2 and wiring.nics:
            numbered = (f"  NIC{at}: {nic}" for at, nic in enumerate(wiring.nics))
            text += "\nNIC Legend:\n\n" + "\n".join(numbered) + "\n"
    return text


def _code(link: str, era: int) -> str:
    return "SOC" if link == "SYS" and era < 2 else link


def _tail(wiring: Wiring, row: int, era: int) -> str:
    if row >= wiring.gpus:
        return ""
    cpus = wiring.cpus[row] if wiring.cpus else "0-31"
    numa = wiring.numa[row] if wiring.numa else "0"
    return {3: f"{cpus}\t{numa}", 4: f"{cpus}\t{numa}\t\tN/A"}.get(era, cpus)


def gpu_list(names: Sequence[str]) -> str:
    """Print `nvidia-smi -L`."""
    return "".join(
        f"GPU {at}: {name} (UUID: GPU-0000000{at}-0000-0000-0000-000000000000)\n"
        for at, name in enumerate(names)
    )


def mesh(gpus: int, code: str) -> dict[tuple[int, int], str]:
    """The same link between all GPUs."""
    return {(a, b): code for a in range(gpus) for b in range(a + 1, gpus)}


def rails(gpus: int, nics: int, code: str = "PIX") -> dict[tuple[int, int], str]:
    """One near NIC for each GPU, and the others far."""
    return {(at, gpus + at % nics): code for at in range(gpus)}


H100 = Wiring(
    8,
    tuple(f"mlx5_{at}" for at in range(8)),
    {**mesh(8, "NV18"), **rails(8, 8)},
    ["0-51"] * 4 + ["52-103"] * 4,
    ["0"] * 4 + ["1"] * 4,
)
"""A machine with NVSwitch and one InfiniBand card for each GPU."""
BRIDGED = Wiring(
    4,
    ("mlx5_0",),
    {(0, 2): "NV12", (1, 3): "NV12", (0, 1): "NODE", (2, 3): "NODE"},
    ["0-31"] * 2 + ["32-63"] * 2,
    ["0", "0", "1", "1"],
)
"""PCIe cards with bridges over 0-2 and 1-3."""
_CUBE = "01:1 02:1 03:2 04:2 12:2 13:1 15:2 23:2 26:1 37:1 45:1 46:1 47:2 56:2 57:1 67:2"
CUBE = Wiring(8, (), {(int(w[0]), int(w[1])): f"NV{w[3]}" for w in _CUBE.split()})
"""The hybrid cube mesh of eight V100."""
