"""How long until the first rank speaks, all have met, and all is over: dslaunch and its peers.

Four virtual nodes of two ranks each with real sshd, one run after the other, several rounds, every
other one in the opposite order: best (median). Needs what the sshd tests need. A launch takes 10 s,
and three times as long where other programs need the CPUs. Where the machine has other work, or is
a guest of one that has, a difference of tenths of a second wants a dozen rounds.

    python -m benchmarks.launch_speed [ROUNDS] [PART OF A NAME...]

Names choose among the launches, as `torchrun` both that have it in their name.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

from benchmarks.virtual_nodes import PYTHON, cluster_text, virtual_nodes

NODES, SLOTS = 4, 2
WORLD = NODES * SLOTS
LONGEST = 120
"""Seconds for one launch; `timeout` ends it then, with exit code 124."""
JOB = """\
import os, sys
print("first", flush=True)
import torch
torch.set_num_threads(1)
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("joined", flush=True)
dist.destroy_process_group()
"""
Times = tuple[float, float, float]


def main() -> None:
    """Measure all, print a table and what the acceptance asks."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    parts = sys.argv[2:] or [""]
    chosen = {name: line for name, line in LAUNCHES.items() if any(p in name for p in parts)}
    with virtual_nodes(NODES) as cluster:
        prepare(cluster)
        found: dict[str, list[Times]] = {name: [] for name in chosen}
        for turn in range(rounds + 1):  # the first warms the caches
            for name, line in list(chosen.items())[:: -1 if turn % 2 else 1]:
                times = measure(cluster, line(cluster, 20000 + turn))
                if turn:
                    found[name].append(times)
        report(found)


def prepare(cluster: VirtualCluster) -> None:
    """The job on every node, and a cluster file on the control machine."""
    cluster.put("*", "/root/job.py", JOB)
    cluster.put("control", "/root/c.yaml", cluster_text(NODES, SLOTS, python=PYTHON))
    hosts = "".join(f"node{i} slots={SLOTS}\n" for i in range(1, NODES + 1))
    cluster.put("control", "/root/hostfile", hosts)


def measure(cluster: VirtualCluster, script: str) -> Times:
    """Seconds until the first rank's first line, the last rank's meeting, and the end."""
    began = time.monotonic()
    command = ["timeout", str(LONGEST), "bash", "-c", f"({script}) 2>/dev/null"]
    with cluster.popen("control", command, cwd="/root") as run:
        first = joined = 0.0
        for line in run.stdout:
            first = first or (time.monotonic() - began if "first" in line else 0.0)
            joined = time.monotonic() - began if "joined" in line else joined
        code = run.wait()
    if code or not joined:
        sys.exit(f"exit code {code}: {script}")
    return first, joined, time.monotonic() - began


def dslaunch(launcher: str) -> Callable[[VirtualCluster, int], str]:
    """`dslaunch run` with everything that it finds out."""
    return lambda cluster, port: f"{PYTHON} -m dslaunch run -l {launcher} c.yaml job.py"


def bare_ssh(cluster: VirtualCluster, port: int) -> str:
    """One ssh per rank, with the variables that a rank needs."""
    lines = []
    for rank in range(WORLD):
        env = (
            f"MASTER_ADDR={cluster.address('node1')} MASTER_PORT={port} WORLD_SIZE={WORLD} "
            f"RANK={rank} LOCAL_RANK={rank % SLOTS} GLOO_SOCKET_IFNAME=eth0"
        )
        lines.append(f"ssh node{rank // SLOTS + 1} {env} {PYTHON} -u job.py &")
    return f"{' '.join(lines)} wait"


def torchrun_loop(cluster: VirtualCluster, port: int) -> str:
    """One ssh per node, each with its torchrun line."""
    lines = [
        f"ssh node{node + 1} GLOO_SOCKET_IFNAME=eth0 {PYTHON} -m torch.distributed.run "
        f"--nnodes={NODES} --nproc-per-node={SLOTS} --node-rank={node} "
        f"--master-addr={cluster.address('node1')} --master-port={port} job.py &"
        for node in range(NODES)
    ]
    return f"{' '.join(lines)} wait"


def deepspeed_pdsh(cluster: VirtualCluster, port: int) -> str:
    """DeepSpeed's own launcher."""
    binary = Path(PYTHON).with_name("deepspeed")
    return f"PATH={binary.parent}:$PATH deepspeed --hostfile hostfile --master_port {port} job.py"


LAUNCHES: dict[str, Callable[[VirtualCluster, int], str]] = {
    "ranks by bare ssh": bare_ssh,
    "dslaunch direct": dslaunch("direct"),
    "torchrun by ssh": torchrun_loop,
    "dslaunch torchrun": dslaunch("torchrun"),
    "deepspeed with pdsh": deepspeed_pdsh,
}


def each_point(of: Callable[[Iterable[float]], float], times: list[Times]) -> Times:
    """One figure for each of the three points over all rounds."""
    first, joined, end = (of(column) for column in zip(*times, strict=True))
    return first, joined, end


def report(found: dict[str, list[Times]]) -> None:
    """Each launch's best and median times, and the differences that matter: of the best, since what
    else the machine does can only add to a time, and the median of the rounds' own differences,
    which a machine that becomes slower meanwhile does not change."""
    best = {name: each_point(min, times) for name, times in found.items()}
    middle = {name: each_point(statistics.median, times) for name, times in found.items()}
    print(f"{'seconds until':24}{'first line':>14}{'all joined':>14}{'end':>14}")
    for name in found:
        pairs = zip(best[name], middle[name], strict=True)
        print(f"{name:24}" + "".join(f"{f'{b:.2f} ({m:.2f})':>14}" for b, m in pairs))
    for ours, theirs, limit in (
        ("dslaunch direct", "ranks by bare ssh", 1.0),
        ("dslaunch torchrun", "torchrun by ssh", 0.4),
    ):
        if ours in found and theirs in found:
            rounds = [less(a, b) for a, b in zip(found[ours], found[theirs], strict=True)]
            differences = (less(best[ours], best[theirs]), each_point(statistics.median, rounds))
            words = [", ".join(f"{seconds:+.2f}" for seconds in times) for times in differences]
            print(f"{ours} minus {theirs}: {words[0]} ({words[1]})  (wanted: {limit:+.1f} each)")


def less(ours: Times, theirs: Times) -> Times:
    """The differences at the three points."""
    first, joined, end = (a - b for a, b in zip(ours, theirs, strict=True))
    return first, joined, end


if __name__ == "__main__":
    main()
