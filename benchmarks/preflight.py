"""What a cold preflight of many nodes costs, against clush that runs `true` or only starts Python.

    python benchmarks/preflight.py [NODES...]

A virtual cluster with real sshd. In each round clush with the system's defaults, clush with the
key exchange that our SSH library agrees on too, and the preflight, one after the other; best and
median of the rounds on the wall, the processor time of the client, and that of all nodes in the
last round. A preflight starts Python twice on a node: for its own program, and as the job does it.
The least that it can take is therefore what clush takes to start these two.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.tree import used_by_nodes
from tests.testbed.vcluster import VirtualCluster, missing

ROUNDS = 5
TRUE, PYTHONS = "clush true, curve25519", "clush both Pythons, curve25519"
METER = """\
import json, resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
spent = time.monotonic() - began, used.ru_utime + used.ru_stime
print(json.dumps([done.returncode, *spent, done.stdout.decode(errors="replace")[-600:]]))
"""
LEAVING = 0.5
"""Seconds for the servers of the round before to be gone."""
MESHED = 64
"""Nodes beyond which `net.mesh` is left out: virtual nodes share one table of neighbors, which by
the kernel's default holds 1024 (arp(7), gc_thresh3), and the calls of 128 nodes overflow it."""
CLUSH = [str(Path(sys.executable).with_name("clush")), "-f", "64", "-S"]
CURVE = ["-o", "-o KexAlgorithms=curve25519-sha256"]
BOTH_PYTHONS = "python3 -I -S -c pass; exec python3 -c pass"


def main() -> None:
    """One cluster of the largest size; rounds of each size on it."""
    if reason := missing():
        sys.exit(f"skipped: {reason}")
    sizes = [int(word) for word in sys.argv[1:]] or [16, 64, 128]
    directory = tempfile.mkdtemp(prefix="bench-")
    heads = ("best s", "median", "CPU s", "nodes CPU", "/true", "/Pythons")
    print(f"{'':40}" + "".join(f"{head:>11}" for head in heads))
    with VirtualCluster(nodes=max(sizes), directory=directory) as cluster:
        cluster.put("control", "/root/meter.py", METER, 0o644)
        for size in sizes:
            compare(cluster, size)


def compare(cluster: VirtualCluster, size: int) -> None:
    """Rounds of all programs on this number of nodes, as one row each."""
    nodes = f"nodes: [{{host: 'node[1-{size}]', slots: 1}}]\nstorage: {{workdir: /tmp}}\n"
    cluster.put("control", "/root/p/c.yaml", nodes, 0o644)
    programs = {
        "clush true": [*CLUSH, "-w", f"node[1-{size}]", "true"],
        TRUE: [*CLUSH, *CURVE, "-w", f"node[1-{size}]", "true"],
        PYTHONS: [*CLUSH, *CURVE, "-w", f"node[1-{size}]", BOTH_PYTHONS],
        "dslaunch preflight, gate": [*preflight(), "--tier", "gate"],
        "dslaunch preflight": [*preflight(), *(["--skip", "net.mesh"] if size > MESHED else [])],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    by_nodes: dict[str, float] = {}
    for _ in range(ROUNDS - 1):
        for name, command in programs.items():
            times[name].append(measure(cluster, name, command))
    for name, command in programs.items():
        before = used_by_nodes(cluster)
        times[name].append(measure(cluster, name, command))
        time.sleep(LEAVING)
        by_nodes[name] = used_by_nodes(cluster) - before
    walls = {name: min(wall for wall, _ in found) for name, found in times.items()}
    cpus = {name: min(cpu for _, cpu in found) for name, found in times.items()}
    for name, found in times.items():
        median = statistics.median(wall for wall, _ in found)
        print(
            f"{f'{size} nodes, {name}':40}{walls[name]:11.2f}{median:11.2f}{cpus[name]:11.2f}"
            f"{by_nodes[name]:11.2f}{walls[name] / walls[TRUE]:11.2f}"
            f"{walls[name] / walls[PYTHONS]:11.2f}",
            flush=True,
        )


def preflight() -> list[str]:
    """The static tier, cold; virtual nodes have no PyTorch."""
    command = [sys.executable, "-m", "dslaunch", "preflight", "c.yaml"]
    return [*command, "--skip", "sw.packages"]


def measure(cluster: VirtualCluster, name: str, command: list[str]) -> tuple[float, float]:
    """Seconds on the wall, and of the client's processors."""
    meter = [sys.executable, "/root/meter.py", *command]
    time.sleep(LEAVING)
    done = cluster.run("control", meter, cwd="/root/p", timeout=180)
    code, wall, cpu, said = json.loads(done.stdout)
    if code:
        sys.exit(f"{name}: exit code {code}: {said}")
    return wall, cpu


if __name__ == "__main__":
    main()
