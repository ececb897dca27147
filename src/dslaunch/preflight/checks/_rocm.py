"""Parse what rocm-smi or amd-smi report about AMD GPUs, in their text format.

rocm-smi writes no JSON for memory errors (ROCm#4374), so its tables are read: formats as in
ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py (`printLog`, `printTableLog`, `showTypeTopology`).
amd-smi is asked where there is no rocm-smi: formats as in ROCm/amdsmi, CHANGELOG.md.
Both are often below /opt/rocm/bin alone, which no session has on its PATH.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from dslaunch.preflight.check import (
    Finding,
    Flow,
    NodeAnswers,
    Question,
    Scope,
    UnansweredError,
    skipped,
)
from dslaunch.preflight.checks import _accelerators as accelerators
from dslaunch.preflight.flow import Compare, NodeFlow, each
from dslaunch.terminal import printable

NONE = "no AMD GPU"
MOST_LINES = 20_000
_SCRIPT = (
    'PATH="$PATH:/opt/rocm/bin:/opt/rocm/sbin"; export PATH; '
    "if command -v rocm-smi >/dev/null; then "
    "for what in --showdriverversion --showtemp '--showrasinfo all' --showtopo; "
    "do rocm-smi $what 2>&1; done; "
    "elif command -v amd-smi >/dev/null; then "
    "for what in 'static --driver' 'metric --temperature --ecc' topology; "
    "do amd-smi $what 2>&1; done; "
    "else echo 'rocm-smi: not found'; exit 127; fi; true"
)
TELL = Question("run", {"shell": _SCRIPT}, 40.0)

_OF_GPU = re.compile(r"GPU\[([0-9]{1,4})\][ \t]*:[ \t]*([^:]{1,80})(?::[ \t]*(\S.{0,80}))?$")
_SENSOR = re.compile(r"Temperature \(Sensor ([a-zA-Z0-9 ]{1,20})\) \(C\)")
_AMD_SMI_GPU = re.compile(r"GPU:[ \t]*([0-9]{1,4})$")
_FIELD = re.compile(r"([A-Z0-9_]{1,60}):[ \t]*(\S.{0,80})?$")
_NUMBER = re.compile(r"(-?[0-9]{1,9}(?:\.[0-9]{1,6})?)(?:[ \t]*[^0-9.\s]{1,4})?")
_HOTTEST = {"HOTSPOT": "junction", "EDGE": "edge", "MEM": "memory"}


class AmdGpu(Struct):
    """One AMD GPU as reported by the tools."""

    temperatures: dict[str, float] = field(default_factory=dict)
    """Degrees C by sensor: `junction`, `edge`, `memory`."""
    corrected: int | None = None
    """Corrected errors of all blocks; None: not reported."""
    uncorrected: int | None = None


class Told(Struct):
    """What the tools of one node reported."""

    gpus: dict[int, AmdGpu] = field(default_factory=dict)
    driver: str | None = None
    links: dict[tuple[int, int], str] = field(default_factory=dict)
    """`XGMI`, `PCIE` or `XXXX` (not reported) by pair of GPUs."""

    def gpu(self, index: int) -> AmdGpu:
        """The GPU of this index, new if it was not named before."""
        return self.gpus.setdefault(index, AmdGpu())


def read(text: str) -> Told:
    """Read what the tools wrote; lines of another form are skipped."""
    told = Told()
    current: AmdGpu | None = None
    in_driver = False
    lines = text.splitlines()[:MOST_LINES]
    for raw in lines:
        line = raw.strip()
        if found := _OF_GPU.match(line):
            current = told.gpu(int(found[1]))
            sensor = _SENSOR.fullmatch(found[2])
            if sensor and (celsius := _number(found[3])) is not None:
                current.temperatures[sensor[1]] = celsius
        elif found := _AMD_SMI_GPU.match(line):
            current = told.gpu(int(found[1]))
        elif line.startswith("Driver version:"):
            told.driver = line.partition(":")[2].strip()[:60] or None
        elif current is not None and (found := _FIELD.match(line)):
            in_driver = found[1] == "DRIVER" or (in_driver and bool(found[2]))
            if in_driver and found[1] == "VERSION" and found[2]:
                told.driver = found[2]
            _amd_smi(current, found[1], _number(found[2]))
        elif current is not None:
            _ras_row(current, line.split())
    told.links = _links(lines)
    return told


def _number(text: str | None) -> float | None:
    found = _NUMBER.fullmatch((text or "").strip())
    return float(found[1]) if found else None


def _amd_smi(gpu: AmdGpu, name: str, value: float | None) -> None:
    if value is None:
        return
    if name in _HOTTEST:
        gpu.temperatures[_HOTTEST[name]] = value
    elif name == "TOTAL_CORRECTABLE_COUNT":
        gpu.corrected = int(value)
    elif name == "TOTAL_UNCORRECTABLE_COUNT":
        gpu.uncorrected = int(value)


def _ras_row(gpu: AmdGpu, words: list[str]) -> None:
    """Add a row of rocm-smi's RAS table: block, status, corrected and uncorrected errors."""
    if len(words) < 4 or not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words[-2:]):
        return
    if re.fullmatch(r"[A-Z][A-Z0-9_]{1,20}", words[0]) and words[1].isupper():
        gpu.corrected = (gpu.corrected or 0) + int(words[-2])
        gpu.uncorrected = (gpu.uncorrected or 0) + int(words[-1])


def _links(lines: list[str]) -> dict[tuple[int, int], str]:
    """Parse the table of link types; a table that is not square is ignored."""
    titles = ("Link Type between two GPUs", "LINK TYPE TABLE")
    start = next((n for n, line in enumerate(lines) if any(t in line for t in titles)), None)
    if start is None:
        return {}
    rows: list[list[str]] = []
    size = 0
    for line in lines[start + 1 :]:
        words = line.split()
        if not size:
            size = len(words)
        elif len(words) == size + 1:
            rows.append(words[1:])
        else:
            break
    if len(rows) != size:
        return {}
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    agree = all(rows[a][b] == rows[b][a] for a, b in pairs)
    known = all(rows[a][b] in ("XGMI", "PCIE", "XXXX", "UNKNOWN", "N/A") for a, b in pairs)
    return {(a, b): rows[a][b] for a, b in pairs} if agree and known else {}


def _devices(a: NodeAnswers) -> int:
    found = accelerators.of_vendor(a, "amd")
    return found["devices"] if found else 0


def told(a: NodeAnswers) -> Told:
    """Return what a node's tools reported. Raises UnansweredError."""
    return a.once(_told)


def _told(a: NodeAnswers) -> Told:
    answer = a.value(TELL)
    if answer["code"] == 127:
        raise UnansweredError("neither rocm-smi nor amd-smi is installed")
    found = read(answer["out"])
    if not found.gpus:
        first = next((line.strip() for line in answer["out"].splitlines() if line.strip()), "")
        raise UnansweredError(f"rocm-smi reports no GPU: {printable(first[:80])!r}")
    return found


def where_there(
    judge: Callable[[Told, NodeAnswers], Iterable[Finding]],
    *,
    fine: str = "",
    compare: Compare | None = None,
) -> Callable[[Scope], Flow]:
    """Return a flow that asks the tools of nodes whose AMD GPUs can be opened, and judges these;
    `rocm.count` reports those without a driver."""

    def flow(a: NodeAnswers) -> NodeFlow:
        if accelerators.of_vendor(a, "amd") is None:
            return [skipped(NONE)]
        if not _devices(a):
            return [skipped("the driver is not running")]
        a = yield {"told": TELL}
        return judge(told(a), a)

    return each(flow, accelerators.ask, fine=fine, compare=compare)
