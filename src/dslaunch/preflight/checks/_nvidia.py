"""What the GPU checks ask in common, and how its answers are read.

nvidia-smi takes from a tenth of a second to several, so all checks share a few questions, and only
nodes that have a driver or nvidia-smi are asked them. Where there is no NVIDIA device at all the
checks are skipped silently.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache

from msgspec import Struct

from dslaunch.plural import counted
from dslaunch.preflight.alike import by_host
from dslaunch.preflight.check import (
    Asked,
    Finding,
    Flow,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Scope,
    UnansweredError,
    skipped,
)
from dslaunch.preflight.checks._query import Column, Columns, Tables, columns, read
from dslaunch.preflight.checks._query import NvidiaGpu as NvidiaGpu
from dslaunch.preflight.flow import Ask, Compare, NodeFlow, NodeJudge, each
from dslaunch.preflight.unanswered import UnansweredReason
from dslaunch.terminal import printable

PATIENCE = 20.0
"""Seconds after which nvidia-smi counts as hung, as in Azure's health checks."""
MAKER = "0x10de"
WHICH = Question("which", ["nvidia-smi"])
PCI = Question("pci", [MAKER])
DRIVER = Question("read", ["/proc/driver/nvidia/version"])

_GROUPS = (
    "name,uuid,pci.bus_id,driver_version,vbios_version,memory.total,memory.used,pstate,"
    "persistence_mode,compute_mode,display_active,temperature.gpu,pcie.link.gen.current,"
    "pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,enforced.power.limit,"
    "power.default_limit,clocks.max.sm,ecc.mode.current,ecc.mode.pending,"
    "ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,"
    "retired_pages.single_bit_ecc.count,retired_pages.double_bit.count,retired_pages.pending",
    "mig.mode.current,mig.mode.pending,remapped_rows.uncorrectable,remapped_rows.pending,"
    "remapped_rows.failure",
    "clocks_event_reasons.active",
    "ecc.errors.corrected.volatile.sram,ecc.errors.corrected.volatile.dram,"
    "ecc.errors.uncorrected.aggregate.sram,"
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    "temperature.gpu.tlimit,fabric.state,fabric.status",
    "gpu_recovery_action",
)
"""By age: a driver that does not know one field answers none of its query."""
_OLD_NAMES = "clocks_throttle_reasons.active"
"""Before driver 535 (AzureHPC health checks, azure_gpu_clock_throttling)."""
_QUERY = "nvidia-smi --format=csv,nounits --query-gpu=index,"
_SCRIPT = (
    f"{_QUERY}{','.join(_GROUPS)}; c=$?; [ $c = 2 ] || exit $c; "
    f"for fields in {' '.join((*_GROUPS, _OLD_NAMES))}; do {_QUERY}$fields || true; done"
)
_APPS = (
    "all=$(nvidia-smi --format=csv,noheader,nounits "
    "--query-compute-apps=gpu_uuid,pid,used_memory,process_name) "
    '|| { c=$?; echo "$all"; exit $c; }; echo "$all" | while IFS=\', \' read -r gpu pid rest; do '
    '[ -n "$pid" ] && echo "$gpu, $pid, $(stat -c "%u, %U" "/proc/$pid" 2>/dev/null || echo ,), '
    '$rest"; done; true'
)


def smi(words: str, timeout: float = PATIENCE) -> Question:
    """Run nvidia-smi."""
    return Question("run", {"argv": ["nvidia-smi", *words.split()]}, timeout)


QUERY = Question("run", {"shell": _SCRIPT}, PATIENCE + 10)
LIST = smi("-L")
TOPO = smi("topo -m")
P2P = smi("topo -p2p r")
NVLINK = smi("nvlink -s")
NVLINK_ERRORS = smi("nvlink -e")
APPS = Question("run", {"shell": _APPS}, PATIENCE)


def ask(scope: Scope) -> Asked:
    """What costs a node nothing."""
    del scope
    return {"which": WHICH, "pci": PCI, "driver": DRIVER}


def queried(
    asked: Asked | None = None,
    *,
    judge: NodeJudge | None = None,
    ask: Ask = ask,
    fine: str = "",
    compare: Compare | None = None,
) -> Callable[[Scope], Flow]:
    """Return a flow that asks the nodes which have a driver the query, and more; see
    `flow.judged`."""

    def flow(a: NodeAnswers) -> NodeFlow:
        if has_driver(a):
            a = yield {"query": QUERY, **(asked or {})}
        return judge(a) if judge is not None else ()

    return each(flow, ask, fine=fine, compare=compare)


def has_driver(a: NodeAnswers) -> bool:
    """Whether nvidia-smi can be asked: there is one, or a loaded driver."""
    programs = a.found(WHICH) or {}
    return bool(programs.get("nvidia-smi") or a.found(DRIVER))


class KernelModule(Struct, frozen=True):
    """The NVIDIA kernel module, as /proc/driver/nvidia/version names it."""

    open: bool
    """Whether it is built from the open source code."""


_MODULE = re.compile(r"NVRM version: NVIDIA UNIX (Open Kernel Module|\S+ +Kernel Module|Kernel)")


def kernel_module(a: NodeAnswers) -> KernelModule | None:
    """Return the loaded module; None: none is loaded, or its text has another form. Raises
    UnansweredError."""
    return a.once(_kernel_module)


def _kernel_module(a: NodeAnswers) -> KernelModule | None:
    found = _MODULE.search("\n".join(a.value(DRIVER).values()))
    return KernelModule(found[1] == "Open Kernel Module") if found else None


def pci_gpus(a: NodeAnswers) -> int:
    """How many GPUs the bus has that no other driver holds."""
    drivers = _drivers(a)
    return drivers["nvidia"] + drivers[None]


def held_gpus(a: NodeAnswers) -> dict[str, int]:
    """How many GPUs other drivers hold, by their names, such as `nouveau`."""
    drivers = _drivers(a)
    return {name: count for name, count in drivers.items() if name is not None and name != "nvidia"}


def _drivers(a: NodeAnswers) -> Counter[str | None]:
    """Return how many GPUs of the bus each kernel driver holds; None: no driver."""
    devices = a.found(PCI) or {}
    return Counter(of["driver"] for of in devices.values() if of["class"].startswith("0x03"))


def gpus(a: NodeAnswers) -> tuple[NvidiaGpu, ...]:
    """The node's GPUs. Of several nodes that are judged together, their GPUs in the fields that a
    check reads: serial numbers and temperatures differ on all. Raises UnansweredError."""
    if a.group is None:
        return a.once(_tables).gpus
    indices = a.part(_indices)
    return tuple(NvidiaGpu(index, _CommonFields(a, at)) for at, index in enumerate(indices))


def _tables(a: NodeAnswers) -> Tables:
    return read(a.value(QUERY)["out"])


def _indices(a: NodeAnswers) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in a.once(_tables).gpus)


def _columns(a: NodeAnswers) -> Columns:
    return columns(a.once(_tables).gpus)


_OF_EACH_NODE = frozenset(("uuid", "temperature.gpu", "temperature.gpu.tlimit", "memory.used"))
"""Fields that differ from node to node. All others are compared at once: nodes that differ in one
are few."""


def _usual_fields(a: NodeAnswers) -> tuple[tuple[str, Column], ...]:
    return tuple(each for each in a.once(_columns).items() if each[0] not in _OF_EACH_NODE)


def _usual_columns(a: NodeAnswers) -> Columns:
    return dict(a.part(_usual_fields))


@cache
def _column(name: str) -> Callable[[NodeAnswers], Column | None]:
    """Return what reads a field of each GPU; None: no GPU has it."""
    return lambda a: a.once(_columns).get(name)


class _CommonFields(Mapping[str, str]):
    """The fields of one GPU of several nodes. To read one in which the GPUs of the nodes differ
    raises DifferError."""

    def __init__(self, a: NodeAnswers, at: int) -> None:
        self._a, self._at = a, at

    def __getitem__(self, name: str) -> str:
        if name in _OF_EACH_NODE:
            column = self._a.part(_column(name))
        else:
            column = self._a.once(_usual_columns).get(name)
        text = column[self._at] if column is not None else None
        if text is None:
            raise KeyError(name)
        return text

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._a.part(_titles) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _titles(a: NodeAnswers) -> tuple[str, ...]:
    return tuple(a.once(_columns))


# ---------------------------------------------------------------- a driver that is not up

_LOST = ("GPU is lost", "Unable to determine the device handle")
_CODES = {
    4: "no permission to use the GPUs",
    6: "no GPU found",
    8: "external power cables of a GPU are not attached",
    9: "the driver is not loaded",
    10: "interrupt problem of a GPU",
    12: "NVML library not found",
    14: "corrupted infoROM of a GPU",
    15: "a GPU has fallen off the bus",
}
"""nvidia-smi(1), return value."""


class Driver(Enum):
    """The state of a node's NVIDIA driver; the value is the reason for skipping a check."""

    UP = ""
    ABSENT = "no NVIDIA GPU"
    BROKEN = "the driver is not running"


def driver(a: NodeAnswers) -> Driver:
    """Return whether nvidia-smi works; `gpu.driver-up` reports what is wrong."""
    return a.part(_driver)


def _driver(a: NodeAnswers) -> Driver:
    if _absent(a):
        return Driver.ABSENT
    return Driver.UP if trouble(a) is None else Driver.BROKEN


def trouble(a: NodeAnswers) -> Finding | None:
    """Return what is wrong with the driver of a node with GPUs; None: nothing."""
    return a.part(_trouble)


def _trouble(a: NodeAnswers) -> Finding | None:
    if not has_driver(a):
        found = f"{counted(pci_gpus(a), 'GPU')} on the PCI bus, but no NVIDIA driver"
        fix = "install the NVIDIA driver; after a kernel update check `dkms status`"
        return Finding("fail", found, "a loaded driver", fix, "lspci -d 10de:")
    try:
        answer = a.value(QUERY)
    except UnansweredError as error:
        if error.reason is UnansweredReason.TIMEOUT:
            return Finding("fail", f"nvidia-smi: {error}", *_HUNG)
        return Finding("unknown", f"nvidia-smi: {error}")
    said = answer["out"] + "\n" + answer["err"]
    if answer["code"] == 127:
        said = "nvidia-smi: not found"
    if answer["code"] or any(words in said for words in _LOST):
        return _complained(answer["code"], said)
    tables = a.once(_tables)
    if not tables.gpus:
        return Finding("unknown", f"output of nvidia-smi cannot be parsed: {_first(said)!r}")
    if tables.damage is not None:
        first = _first(tables.damage)
        return Finding("unknown", f"output of nvidia-smi is incomplete: {first!r}")
    return None


_HUNG = (
    "an answer within a second",
    ("check for processes in state D: `ps -eo pid,stat,wchan,cmd | grep ' D'`; reboot the node"),
)


def _complained(code: int, said: str) -> Finding:
    from dslaunch.topology.smi_errors import smi_error  # no run with healthy GPUs waits for it

    known = smi_error(said)
    found, fix = known.message, known.hint or ""
    if known.kind in ("unreadable", "no_answer", "bad_usage"):
        found = (
            f"nvidia-smi failed with exit code {code}: "
            f"{_CODES.get(code, _first(said) or 'no output')}"
        )
        fix = ""
    return Finding("fail", found, "a running driver", fix)


def _first(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return printable(line[:80])


# ---------------------------------------------------------------- judging


def _absent(a: NodeAnswers) -> bool:
    """Whether the node has no NVIDIA GPU.

    nvidia-smi alone is no GPU: images for all nodes of a cluster have it too.
    """
    if not has_driver(a):
        return not pci_gpus(a)
    if a.found(PCI) != {} or a.found(DRIVER):
        return False
    answer = a.found(QUERY)
    return answer is not None and answer["code"] in (6, 9, 12)


def where_up(
    judge: NodeJudge,
    asked: Asked | None = None,
    *,
    ask: Ask = ask,
    fine: str = "",
    compare: Compare | None = None,
) -> Callable[[Scope], Flow]:
    """Return a flow like `queried` that judges only the nodes whose driver answers."""
    return queried(asked, judge=lambda a: if_up(a, judge), ask=ask, fine=fine, compare=compare)


def if_up(a: NodeAnswers, judge: NodeJudge) -> Iterable[Finding]:
    """Judge a node if its driver answers."""
    state = driver(a)
    return judge(a) if state is Driver.UP else [skipped(state.value)]


def up(nodes: Nodes) -> dict[str, NodeAnswers]:
    """The nodes whose driver answers."""
    states = by_host(nodes, driver)
    return {host: nodes[host] for host, state in states.items() if state is Driver.UP}


Predicate = Callable[[NvidiaGpu, Mapping[str, float]], object]
"""Of a GPU and the check's limits: what the rule's text shows, a tuple for several values; None or
False: the rule does not apply. Raises UnansweredError for a field that cannot be read."""


class GpuRule(Struct, frozen=True):
    """The finding for a GPU to which a predicate applies."""

    level: Level
    found: str
    """`{}` stands for what the predicate found."""
    applies: Predicate


def each_gpu(
    needs: tuple[str, ...], *rules: GpuRule, expected: str, fine: str
) -> Callable[[Scope], Flow]:
    """Return a flow that judges every GPU by itself: the first rule that applies counts. GPUs with
    equal findings are named together.

    `needs`: the check is skipped for GPUs that report none of these fields.
    """

    def judge(a: NodeAnswers) -> Iterator[Finding]:
        groups: dict[tuple[Level, str], list[int]] = {}
        there = False
        for gpu in gpus(a):
            try:
                there |= any(gpu.text(name) is not None for name in needs)
                said = _said(gpu, rules, a.limits)
            except UnansweredError as error:
                said = ("unknown", str(error).partition(": ")[2] or str(error))
            if said is not None:
                groups.setdefault(said, []).append(gpu.index)
        for (level, words), indices in groups.items():
            yield Finding(level, f"GPU {listed(indices)}: {words}", expected)
        if not groups and not there:
            yield skipped("not reported by these GPUs or this driver")

    return where_up(judge, fine=fine)


def _said(
    gpu: NvidiaGpu, rules: Iterable[GpuRule], limits: Mapping[str, float]
) -> tuple[Level, str] | None:
    for rule in rules:
        found = rule.applies(gpu, limits)
        if found is not None and found is not False:
            values = found if isinstance(found, tuple) else (found,)
            return rule.level, rule.found.format(*values)
    return None


def listed(numbers: Iterable[int]) -> str:
    """Numbers in words: `0-3,7`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ",".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)


_DATA_CENTRE = re.compile(
    r"\b(?:A100|A800|A30|A40|A10|A16|A2|H\d{2,3}|B\d{3}|G[HB]\d{3}|L4|L20|L40S?|V100S?|P100|P40|T4)\b"
)
_MESHED = re.compile(r"SXM[4-9]|\bH(?:100|800|200|20)\b(?!.*(?:PCIe|NVL))|\bB[123]00\b")


def data_centre(name: str) -> bool:
    """Whether a GPU is made for servers: these have ECC, and it is on when they are made."""
    return bool(_DATA_CENTRE.search(name)) and "RTX" not in name


def meshed(name: str) -> bool:
    """Whether all GPUs of this kind in a machine have NVLink with each other.

    SXM boards since the A100. V100 and P100 boards make a cube in which some pairs have none.
    """
    return bool(_MESHED.search(name))
