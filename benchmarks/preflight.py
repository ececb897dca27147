"""What a cold preflight of many nodes costs, against clush that only runs `true`.

    python benchmarks/preflight.py [NODES...]

A virtual cluster with real sshd. In each round clush with the system's defaults, clush with the
key exchange that our SSH library agrees on too, and the preflight, one after the other; best and
median of the rounds on the wall, and the client's processor time. The goal for 64 nodes: no slower
than clush, half its processor time, and within twice clush with curve25519.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.testbed.vcluster import VirtualCluster, missing

ROUNDS = 5
METER = """\
import json, resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
spent = time.monotonic() - began, used.ru_utime + used.ru_stime
print(json.dumps([done.returncode, *spent, done.stdout.decode(errors="replace")[-600:]]))
"""
MESHED = 64
"""Nodes beyond which `net.mesh` is left out: virtual nodes share one table of neighbors, which by
the kernel's default holds 1024 (arp(7), gc_thresh3), and the calls of 128 nodes overflow it."""
CLUSH = [str(Path(sys.executable).with_name("clush")), "-f", "64", "-S"]
CURVE = ["-o", "-o KexAlgorithms=curve25519-sha256"]


def main() -> None:
    """One cluster of the largest size; rounds of each size on it."""
    if reason := missing():
        sys.exit(f"skipped: {reason}")
    sizes = [int(word) for word in sys.argv[1:]] or [16, 64, 128]
    directory = tempfile.mkdtemp(prefix="bench-")
    heads = ("best s", "median", "CPU s", "/clush", "/curve", "CPU/clush")
    print(f"{'':32}" + "".join(f"{head:>11}" for head in heads))
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
        "clush true, curve25519": [*CLUSH, *CURVE, "-w", f"node[1-{size}]", "true"],
        "dslaunch preflight, gate": [*preflight(), "--tier", "gate"],
        "dslaunch preflight": [*preflight(), *(["--skip", "net.mesh"] if size > MESHED else [])],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, command in programs.items():
            times[name].append(measure(cluster, name, command))
    walls = {name: min(wall for wall, _ in found) for name, found in times.items()}
    cpus = {name: min(cpu for _, cpu in found) for name, found in times.items()}
    clush, curve = list(programs)[:2]
    for name, found in times.items():
        median = statistics.median(wall for wall, _ in found)
        print(
            f"{f'{size} nodes, {name}':32}{walls[name]:11.2f}{median:11.2f}{cpus[name]:11.2f}"
            f"{walls[name] / walls[clush]:11.2f}{walls[name] / walls[curve]:11.2f}"
            f"{cpus[name] / cpus[clush]:11.2f}",
            flush=True,
        )


def preflight() -> list[str]:
    """The static tier, cold; virtual nodes have no PyTorch."""
    command = [sys.executable, "-m", "dslaunch", "preflight", "c.yaml"]
    return [*command, "--skip", "sw.packages"]


def measure(cluster: VirtualCluster, name: str, command: list[str]) -> tuple[float, float]:
    """Seconds on the wall, and of the client's processors."""
    meter = [sys.executable, "/root/meter.py", *command]
    time.sleep(0.5)  # let the servers of the round before be gone
    done = cluster.run("control", meter, cwd="/root/p", timeout=180)
    code, wall, cpu, said = json.loads(done.stdout)
    if code:
        sys.exit(f"{name}: exit code {code}: {said}")
    return wall, cpu


if __name__ == "__main__":
    main()
