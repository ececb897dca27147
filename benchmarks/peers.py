"""What programs cost that reach many nodes: ssh, pdsh, clush, DeepSpeed with pdsh, and dslaunch.

    python -m benchmarks.peers [NODES...] [--rounds N] [--programs PART...] [--kex NAME]

Most run `true` on every node. Each round runs every program once. For each: the best and the median
seconds on the wall, and of the best round the processor time, peak memory and bytes sent of the
machine that it was started on, and the processor time of all nodes. The last columns divide the
seconds by those of clush with curve25519, which runs `true`, and which starts Python twice. A
preflight does that where the job's interpreter is not the one that runs its own program.

dslaunch and Paramiko agree on curve25519 with the nodes; ssh of OpenSSH 9.0 to 9.9 prefers
sntrup761x25519, which costs several times the processor time of the whole login. `--kex` sets
KexAlgorithms of all nodes, for logins from node to node. DeepSpeed imports torch on every node:
it runs once, and only for as many nodes as `--deepspeed` says.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

from benchmarks.virtual_nodes import (
    DSLAUNCH,
    PYTHON,
    Used,
    cluster_text,
    measured,
    nodes_cpu,
    sent_bytes,
    virtual_nodes,
)
from dslaunch.transport.tree_shape import tree_shape

CLUSH = str(Path(PYTHON).with_name("clush"))
DEEPSPEED = str(Path(PYTHON).with_name("deepspeed"))
TRUE, PYTHONS = "clush, curve25519", "clush, both Pythons"
BOTH_PYTHONS = "python3 -I -S -c pass; exec python3 -c pass"
LEAVING = 0.5
"""Seconds for the servers of a program to be gone."""
CONNECTIONS = "64"
"""That clush and pdsh have at a time."""
CURVE = "-oKexAlgorithms=curve25519-sha256"
SSH_LOOP = "for n in $(seq $1); do ssh node$n true & done; wait"
MESHED = 64
"""Nodes beyond which `net.mesh` is left out: virtual nodes share one table of neighbors, which by
the kernel's default holds 1024 (arp(7), gc_thresh3), and the calls of 128 nodes overflow it."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a program has used in a round."""

    used: Used
    by_nodes: float
    """Processor seconds of all nodes."""
    sent: float
    """MB that the control machine has sent."""


@dataclass(slots=True)
class Program:
    """A program, and its rounds."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    most_rounds: int = 100
    rounds: list[Round] = field(default_factory=list)

    @property
    def best(self) -> Round:
        """The round that took the shortest time."""
        return min(self.rounds, key=lambda each: each.used.seconds)


def main() -> None:
    """One cluster of the largest size; rounds of each size on it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", nargs="+", default=[""], help="parts of their names")
    parser.add_argument("--fan-out", type=int, help="of trees; default: the root of the nodes")
    parser.add_argument("--deepspeed", type=int, default=16, help="most nodes for DeepSpeed")
    parser.add_argument("--kex", help="KexAlgorithms of the nodes")
    asked = parser.parse_args()
    with virtual_nodes(max(asked.nodes)) as cluster:
        if asked.kex:
            cluster.put("node*", "/etc/ssh/ssh_config.d/kex.conf", f"KexAlgorithms {asked.kex}\n")
        for size in sorted(asked.nodes):
            fan_out = asked.fan_out or max(2, round(size**0.5))
            describe(cluster, size, fan_out)
            found = {
                name: program
                for name, program in programs(size, most_for_deepspeed=asked.deepspeed).items()
                if any(part in name for part in asked.programs)
            }
            for turn in range(asked.rounds):
                run_round(cluster, found, size, turn)
            report(found, size, fan_out)


def describe(cluster: VirtualCluster, size: int, fan_out: int) -> None:
    """Write what the programs read about the nodes: cluster files, a topology, a hostfile."""
    for transport in ("fabric", "tree", "openssh"):
        text = cluster_text(
            size,
            transport=transport,
            ssh={"tree_fanout": fan_out},
            launcher="direct",
            storage={"workdir": "/tmp"},
        )
        cluster.put("control", f"/root/{transport}.yaml", text)
    hosts = [f"node{number}" for number in range(1, size + 1)]
    cluster.put("control", "/root/topology.conf", topology(hosts, fan_out))
    cluster.put("control", "/root/hostfile", "".join(f"{host} slots=1\n" for host in hosts))


def topology(hosts: list[str], fan_out: int) -> str:
    """Return ClusterShell's file for the same tree as that of dslaunch."""
    below: dict[str, list[str]] = {}
    for host, parent in tree_shape(hosts, fan_out=fan_out).parents.items():
        below.setdefault(parent or "control", []).append(host)
    routes = (f"{parent}: {','.join(children)}\n" for parent, children in below.items())
    return "[routes]\n" + "".join(routes)


def programs(size: int, *, most_for_deepspeed: int) -> dict[str, Program]:
    """Return all programs that are installed, for this number of nodes."""
    hosts = f"node[1-{size}]"
    clush = [CLUSH, "-f", CONNECTIONS, "-S", "-w", hosts]
    run = ["--no-preflight", "--no-python", "--", "true"]
    preflight = ["--skip", "sw.packages", *(["--skip", "net.mesh"] if size > MESHED else [])]
    found = {
        "clush": Program([*clush, "true"]),
        TRUE: Program([*clush, "-o", CURVE, "true"]),
        PYTHONS: Program([*clush, "-o", CURVE, BOTH_PYTHONS]),
        "clush, tree": Program(
            [*clush, "--topology", "topology.conf", "true"],
            env={"CLUSTERSHELL_GW_PYTHON_EXECUTABLE": PYTHON},
        ),
        "pdsh": Program(["pdsh", "-R", "ssh", "-f", CONNECTIONS, "-w", hosts, "true"]),
        "ssh in a loop": Program(["sh", "-c", SSH_LOOP, "sh", str(size)]),
        "run": Program([*DSLAUNCH, "run", "fabric.yaml", *run]),
        "run, tree": Program([*DSLAUNCH, "run", "tree.yaml", *run]),
        "run, openssh": Program([*DSLAUNCH, "run", "openssh.yaml", *run]),
        "preflight, gate": Program(
            [*DSLAUNCH, "preflight", "fabric.yaml", "--tier", "gate", *preflight]
        ),
        "preflight": Program([*DSLAUNCH, "preflight", "fabric.yaml", *preflight]),
        "preflight, tree": Program([*DSLAUNCH, "preflight", "tree.yaml", *preflight]),
    }
    if size <= most_for_deepspeed:
        options = ["--hostfile", "hostfile", "--no_python", "--no_local_rank"]
        path = f"{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"
        found["deepspeed with pdsh"] = Program(
            [DEEPSPEED, *options, "true"], env={"PATH": path}, most_rounds=1
        )
    return {name: each for name, each in found.items() if shutil.which(each.command[0])}


def run_round(cluster: VirtualCluster, found: dict[str, Program], size: int, turn: int) -> None:
    """Run each program once; every other round in the opposite order."""
    nodes = cluster.names[:size]
    for program in list(found.values())[:: -1 if turn % 2 else 1]:
        if len(program.rounds) >= program.most_rounds:
            continue
        cpu_before, sent_before = nodes_cpu(cluster, nodes), sent_bytes(cluster)
        used = measured(cluster, program.command, env=program.env)
        sent = sent_bytes(cluster) - sent_before
        time.sleep(LEAVING)
        by_nodes = nodes_cpu(cluster, nodes) - cpu_before
        program.rounds.append(Round(used, by_nodes=by_nodes, sent=sent / 1e6))


def report(found: dict[str, Program], size: int, fan_out: int) -> None:
    """Print a row for each program."""
    heads = "".join(f"{head:>11}" for head in ("best s", "median", "CPU s", "peak MiB", "sent MB"))
    title = f"{size} nodes, trees of {fan_out}"
    print(f"{title:24}{heads}{'nodes CPU s':>13}{'/true':>9}{'/Pythons':>9}")
    bases = [found[name].best.used.seconds for name in (TRUE, PYTHONS) if name in found]
    for name, program in found.items():
        best, used = program.best, program.best.used
        median = statistics.median(each.used.seconds for each in program.rounds)
        row = f"{used.seconds:11.2f}{median:11.2f}{used.cpu:11.2f}{used.peak:11.0f}"
        row += f"{best.sent:11.2f}{best.by_nodes:13.1f}"
        ratios = "".join(f"{used.seconds / base:9.2f}" for base in bases)
        print(f"{name:24}{row}{ratios}", flush=True)


if __name__ == "__main__":
    main()
