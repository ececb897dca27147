"""What nccl-tests measure on each node by itself, where they are installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dslaunch.launch.command import Command
from dslaunch.preflight.check import (
    AskedOfAll,
    Check,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks._machine import INTERFACES, interface_of, resolve
from dslaunch.preflight.checks._measure import SLOW_MEANS, slow_findings, span

PROGRAM = "all_reduce_perf"
WHICH = Question("which", [PROGRAM])
SECONDS = 120.0


_BAD = re.compile(r"^# Out of bounds values\s*:\s*(\d{1,18})", re.MULTILINE)


class AllReduceRun(Struct, frozen=True):
    """What a program of nccl-tests measured."""

    busbw: float
    """The highest bus bandwidth of all sizes and both places, bytes per second. The printed
    average is over all sizes, small ones too, and says little: 68 GB/s of a run that reaches
    235."""
    size: int
    """Of which size, in bytes."""
    wrong: int
    """Values that were not what they must be."""


def parse(text: str) -> AllReduceRun | None:
    """Read what a program printed, of any age: with and without the column `root`, with `error` or
    `#wrong`, and with words of NCCL between the rows. None: there is no figure in it, which is
    never a bandwidth of 0."""
    rows = [(busbw, size) for size, cells in _rows(text) for busbw in cells]
    if not rows:
        return None
    busbw, size = max(rows)
    found = _BAD.search(text)
    return AllReduceRun(busbw * 1e9, size, int(found[1]) if found else 0)


def _rows(text: str) -> Iterator[tuple[int, list[float]]]:
    """Size, and the cells of the columns `busbw`, of rows that carry data."""
    places: list[int] = []
    width = 0
    for line in text.splitlines():
        cells = line.split()
        if cells[:2] == ["#", "size"]:
            titles = cells[1:]
            width, places = len(titles), [at for at, t in enumerate(titles) if t == "busbw"]
        elif len(cells) == width and places and re.fullmatch("0*[1-9][0-9]{0,17}", cells[0]):
            numbers = [cells[at] for at in places]
            if all(re.fullmatch(r"\d{1,9}(\.\d{1,9})?", number) for number in numbers):
                yield int(cells[0]), [float(number) for number in numbers]


def _question(a: NodeAnswers) -> Question:
    argv = [a["which"][PROGRAM], "-b", "256M", "-e", "2G", "-f", "2", "-g", str(len(a.node.slots))]
    env = job.variables(a, interface_of(a))
    return job.run(a, Command(tuple(argv)), env, what={"what": PROGRAM}, seconds=SECONDS)


def _flow(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, _ask(scope))
    installed = [host for host, a in nodes.items() if a.has("which") and a["which"][PROGRAM]]
    asked = {host: {"allreduce": _question(nodes[host])} for host in installed}
    nodes = yield Round(asked, alone=True)
    return _compare(nodes)


def _ask(scope: Scope) -> AskedOfAll:
    return {"which": WHICH, "interfaces": INTERFACES, "resolve": resolve(scope)}


def _run(a: NodeAnswers) -> AllReduceRun:
    """What was measured. Raises UnansweredError."""
    done = a.value(_question(a))
    found = parse(done["out"])
    if found is not None and found.wrong:
        return found  # its exit code is then that of a failure (nccl-tests, src/common.cu)
    if found is None or done["code"]:
        words = (done["err"].strip() or done["out"].strip()).splitlines()
        last = words[-1][:200] if words else f"exit code {done['code']}"
        raise UnansweredError(f"{PROGRAM}: {last}")
    return found


def _compare(nodes: Nodes) -> Iterator[Finding]:
    rates: dict[str, float] = {}
    for host, a in nodes.items():
        try:
            if not a["which"][PROGRAM]:
                yield Finding("skip", f"{PROGRAM} is not installed", hosts=(host,))
                continue
            found = _run(a)
        except UnansweredError as error:
            yield Finding("unknown", str(error).rstrip("."), hosts=(host,))
            continue
        if found.wrong:
            words = f"all-reduce between its GPUs: {found.wrong} wrong values"
            yield Finding("fail", words, "none", hosts=(host,))
        else:
            rates[host] = found.busbw
    if rates:
        yield from _judge(rates, nodes)


def _judge(rates: dict[str, float], nodes: Nodes) -> Iterator[Finding]:
    limits = nodes[next(iter(rates))].limits
    slow = list(slow_findings(rates, limits, "all-reduce bus bandwidth between its GPUs {}"))
    yield from slow
    odd = {host for finding in slow for host in finding.hosts}
    if fine := {host: rate for host, rate in rates.items() if host not in odd}:
        words = f"all-reduce bus bandwidth between a node's GPUs {span(fine.values())}"
        yield Finding("info", words, hosts=tuple(fine))


CHECK = Check(
    title="NCCL all-reduce is correct and uniform on each node",
    tier="deep",
    why=(
        "An inactive NVLink, a GPU in a slow PCIe slot or NCCL without peer access "
        "doubles the time of every step."
    ),
    fix=(
        "compare `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and NCCL_DEBUG=INFO "
        "with those of the other nodes"
    ),
    see=f"{PROGRAM} -b 256M -e 2G -f 2 -g GPUS",
    source="NVIDIA/nccl-tests, PERFORMANCE.md; facebookresearch/gcm, check_nccl",
    flow=_flow,
    limits={"warn": 0.9, "fail": 0.5},
    limits_mean=SLOW_MEANS,
)
