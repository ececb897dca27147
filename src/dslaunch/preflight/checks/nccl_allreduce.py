"""What nccl-tests measure on each node by itself, where they are installed."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.launch.command import Command
from dslaunch.preflight.check import (
    Answers,
    Check,
    Finding,
    Flow,
    Nodes,
    Question,
    Round,
    UnansweredError,
)
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks import _nccl_tests
from dslaunch.preflight.checks._machine import INTERFACES, interface_of, resolve
from dslaunch.preflight.checks._measure import SLOW_MEANS, slow, span, speed

PROGRAM = "all_reduce_perf"
WHICH = Question("which", [PROGRAM])
SECONDS = 120.0


def _question(a: Answers) -> Question:
    argv = [a["which"][PROGRAM], "-b", "256M", "-e", "2G", "-f", "2", "-g", str(len(a.node.slots))]
    env = job.variables(a, interface_of(a))
    return job.run(a, Command(tuple(argv)), env, what={"what": PROGRAM}, seconds=SECONDS)


def _flow(nodes: Nodes) -> Flow:
    installed = [host for host, a in nodes.items() if a.has("which") and a["which"][PROGRAM]]
    asked = {host: {"allreduce": _question(nodes[host])} for host in installed}
    nodes = yield Round(asked, alone=True)
    return _compare(nodes)


def _run(a: Answers) -> _nccl_tests.Run:
    """What was measured. Raises UnansweredError."""
    done = a.value(_question(a))
    found = _nccl_tests.read(done["out"])
    if found is None or done["code"]:
        words = (done["err"].strip() or done["out"].strip()).splitlines()
        last = words[-1][:200] if words else f"it ended with {done['code']}"
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
            words = f"all-reduce between its GPUs gives {found.wrong} wrong values"
            yield Finding("fail", words, "none", hosts=(host,))
        else:
            rates[host] = found.busbw
    if rates:
        yield from _judge(rates, nodes)


def _judge(rates: dict[str, float], nodes: Nodes) -> Iterator[Finding]:
    odd = dict(slow(rates, nodes[next(iter(rates))].limits))
    fine = {host: rate for host, rate in rates.items() if host not in odd}
    for host, level in odd.items():
        expected = f"as the others: {span(fine.values())}" if fine else ""
        found = f"bus bandwidth of all-reduce between its GPUs {speed(rates[host])}"
        yield Finding(level, found, expected, hosts=(host,))
    if fine:
        words = f"bus bandwidth of all-reduce between a node's GPUs {span(fine.values())}"
        yield Finding("info", words, hosts=tuple(fine))


CHECK = Check(
    title="nccl-tests are as fast on every node as on the others",
    tier="deep",
    why="A lost NVLink, a GPU in a slow PCIe slot or NCCL without peer to peer halves every step.",
    fix="compare `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and NCCL_DEBUG=INFO with the other "
    "nodes'",
    see=f"{PROGRAM} -b 256M -e 2G -f 2 -g GPUS",
    source="NVIDIA/nccl-tests, PERFORMANCE.md; facebookresearch/gcm, check_nccl",
    ask=lambda scope: {"which": WHICH, "interfaces": INTERFACES, "resolve": resolve(scope)},
    flow=_flow,
    limits={"warn": 0.9, "fail": 0.5},
    limits_mean=SLOW_MEANS,
)
