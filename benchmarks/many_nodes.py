"""What a run of many nodes costs the machine that it is started from.

    python benchmarks/many_nodes.py [NODES...]

A virtual cluster with real sshd; one rank per node. Three tables:

- whole runs, quiet and talkative: seconds until the first rank spoke, until all had spoken, and to
  the end, and the launcher's processor time and peak memory;
- each phase of a run (`launch_phases.py`): processor time, memory and bytes per node, and the
  exponent with which the processor time grows from the smallest to the largest number of nodes;
- clush and pdsh, which only run `true`, with the system's key exchange and with the one that our
  SSH library agrees on.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.testbed.vcluster import VirtualCluster, missing

JOB = """\
import sys
for i in range(int(sys.argv[1])):
    print("line", i, "of a training that says a lot", flush=i % 50 == 0)
"""
METER = """\
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print("METER", json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss]), flush=True)
"""
PHASES = Path(__file__).resolve().with_name("launch_phases.py")
CURVE = "-oKexAlgorithms=curve25519-sha256"
CLUSH = str(Path(sys.executable).with_name("clush"))


def main() -> None:
    """One cluster of the largest size; all measurements of each size on it."""
    if reason := missing():
        sys.exit(f"skipped: {reason}")
    sizes = sorted(int(word) for word in sys.argv[1:]) or [16, 64]
    directory = tempfile.mkdtemp(prefix="bench-")
    with VirtualCluster(nodes=max(sizes), directory=directory) as cluster:
        cluster.put("control", "/root/p/job.py", JOB, 0o644)
        cluster.put("control", "/root/meter.py", METER, 0o644)
        for size in sizes:
            nodes = f"nodes: [{{host: 'node[1-{size}]', slots: 1}}]\n"
            text = (
                f"{nodes}python: {sys.executable}\nlauncher: direct\nstorage: {{workdir: work}}\n"
            )
            cluster.put("control", f"/root/p/c{size}.yaml", text, 0o644)
        whole_runs(cluster, sizes)
        phases(cluster, sizes)
        peers(cluster, sizes)


# ---------------------------------------------------------------- whole runs


def whole_runs(cluster: VirtualCluster, sizes: list[int]) -> None:
    """Print one row for each number of nodes and of lines."""
    print(f"{'':24}{'first':>7}{'all':>7}{'end':>7}{'CPU s':>8}{'CPU ms/node':>13}{'peak MiB':>10}")
    for size in sizes:
        for lines in (10, 5000, 50000):
            measure(cluster, size, lines)


def measure(cluster: VirtualCluster, size: int, lines: int) -> None:
    """One run, as one row."""
    run = [sys.executable, "-m", "dslaunch", "run", f"c{size}.yaml", "job.py", str(lines)]
    began = time.monotonic()
    first = last = 0.0
    speakers: set[str] = set()
    used: list[float] = [1, 0, 0]
    command = ["bash", "-c", 'exec "$@" 2>/dev/null', "-", sys.executable, "/root/meter.py", *run]
    with cluster.popen("control", command, cwd="/root/p") as running:
        for line in running.stdout:
            speaker, bar, _ = line.partition("│")
            if bar and speaker not in speakers:
                speakers.add(speaker)
                last = time.monotonic() - began
                first = first or last
            elif line.startswith("METER "):
                used = json.loads(line[6:])
        running.wait(60)
    if used[0] or len(speakers) != size:
        sys.exit(f"{size} nodes: exit code {used[0]}, {len(speakers)} ranks spoke")
    end, cpu = time.monotonic() - began, used[1]
    name = f"{size} nodes, {lines} lines"
    print(
        f"{name:24}{first:7.1f}{last:7.1f}{end:7.1f}{cpu:8.2f}{cpu / size * 1e3:13.0f}"
        f"{used[2] / 1024:10.0f}",
        flush=True,
    )


# ---------------------------------------------------------------- phases


def phases(cluster: VirtualCluster, sizes: list[int]) -> None:
    """Print one row for each phase, with columns for each number of nodes."""
    found = {size: measured_phases(cluster, size) for size in sizes}
    columns = [f"{f'{size}: CPU ms':>13}{'wall s':>8}{'KiB':>7}{'kB sent':>9}" for size in sizes]
    heads = "".join(columns)
    print(f"\n{'per node':24}{heads}{'growth':>8}")
    for name in found[sizes[0]]:
        columns = [_columns(found[size][name], size) for size in sizes]
        growth = exponent(sizes, [found[size][name][0] for size in sizes])
        print(f"{name:24}{''.join(columns)}{growth:>8}")


def measured_phases(cluster: VirtualCluster, size: int) -> dict[str, list[float]]:
    """Run the phases on this number of nodes; return CPU s, wall s, memory and traffic by name."""
    command = [sys.executable, str(PHASES), f"c{size}.yaml", "job.py"]
    done = cluster.run("control", command, cwd="/root/p", timeout=300)
    if done.returncode:
        sys.exit(f"{size} nodes: {done.stderr[-600:]}")
    return {name: values for name, *values in json.loads(done.stdout)}


def _columns(measured: list[float], size: int) -> str:
    cpu, wall, kept, sent = measured
    return f"{cpu / size * 1e3:13.2f}{wall:8.2f}{kept / size / 1024:7.0f}{sent / size / 1e3:9.1f}"


def exponent(sizes: list[int], costs: list[float]) -> str:
    """Return the power of the nodes with which a cost grows: 1.0 is in proportion to them."""
    if len(sizes) < 2 or min(costs[0], costs[-1]) <= 0:
        return "-"
    return f"{math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0]):.2f}"


# ---------------------------------------------------------------- peers


def peers(cluster: VirtualCluster, sizes: list[int]) -> None:
    """Print what programs cost that only run `true` everywhere."""
    print(f"\n{'true on all nodes':32}{'wall s':>8}{'CPU s':>8}{'CPU ms/node':>13}")
    for size in sizes:
        hosts = f"node[1-{size}]"
        clush = [CLUSH, "-f", "64", "-S"]
        lines = {
            "clush": [*clush, "-w", hosts, "true"],
            "clush, curve25519": [*clush, "-o", CURVE, "-w", hosts, "true"],
            "pdsh": ["pdsh", "-R", "ssh", "-f", "64", "-w", hosts, "true"],
        }
        for name, line in lines.items():
            if shutil.which(line[0]) is None:
                print(f"{f'{size} nodes, {name}':32} not installed")
                continue
            began = time.monotonic()
            meter = [sys.executable, "/root/meter.py", *line]
            done = cluster.run("control", meter, cwd="/root/p", timeout=300)
            wall = time.monotonic() - began
            code, cpu, _ = json.loads(done.stdout.rpartition("METER ")[2])
            if code:
                sys.exit(f"{name}: exit code {code}: {done.stderr[-600:]}")
            row = f"{wall:8.2f}{cpu:8.2f}{cpu / size * 1e3:13.0f}"
            print(f"{f'{size} nodes, {name}':32}{row}", flush=True)


if __name__ == "__main__":
    main()
