"""What a run of many nodes costs the machine that it is started from.

    python -m benchmarks.many_nodes [NODES...]

A virtual cluster with real sshd; one rank per node. Two tables:

- whole runs, quiet and talkative: seconds until the first rank spoke, until all had spoken, and to
  the end, and the launcher's processor time and peak memory;
- each phase of a run (`launch_phases.py`): processor time, memory and bytes per node, and the
  exponent with which the processor time grows from the smallest to the largest number of nodes.

What others cost on as many nodes: `peers.py`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

from benchmarks.virtual_nodes import DSLAUNCH, PYTHON, cluster_text, metered, used, virtual_nodes

JOB = """\
import sys
for i in range(int(sys.argv[1])):
    print("line", i, "of a training that says a lot", flush=i % 50 == 0)
"""
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """One cluster of the largest size; all measurements of each size on it."""
    sizes = sorted(int(word) for word in sys.argv[1:]) or [16, 64]
    with virtual_nodes(max(sizes)) as cluster:
        cluster.put("control", "/root/p/job.py", JOB)
        for size in sizes:
            text = cluster_text(size, python=PYTHON, launcher="direct", storage={"workdir": "work"})
            cluster.put("control", f"/root/p/c{size}.yaml", text)
        whole_runs(cluster, sizes)
        phases(cluster, sizes)


# ---------------------------------------------------------------- whole runs


def whole_runs(cluster: VirtualCluster, sizes: list[int]) -> None:
    """Print one row for each number of nodes and of lines."""
    print(f"{'':24}{'first':>7}{'all':>7}{'end':>7}{'CPU s':>8}{'CPU ms/node':>13}{'peak MiB':>10}")
    for size in sizes:
        for lines in (10, 5000, 50000):
            measure(cluster, size, lines)


def measure(cluster: VirtualCluster, size: int, lines: int) -> None:
    """One run, as one row."""
    run = [*DSLAUNCH, "run", f"c{size}.yaml", "job.py", str(lines)]
    command = ["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *metered(run)]
    began = time.monotonic()
    spoke: dict[str, float] = {}
    with cluster.popen("control", command, cwd="/root/p") as running:
        for line in running.stdout:
            speaker, bar, _ = line.partition("│")
            if bar and speaker not in spoke:
                spoke[speaker] = time.monotonic() - began
        code = running.wait(60)
    if code or len(spoke) != size:
        sys.exit(f"{size} nodes: exit code {code}, {len(spoke)} ranks spoke")
    end, launcher = time.monotonic() - began, used(cluster)
    name = f"{size} nodes, {lines} lines"
    seconds = f"{min(spoke.values()):7.1f}{max(spoke.values()):7.1f}{end:7.1f}"
    cost = f"{launcher.cpu:8.2f}{launcher.cpu / size * 1e3:13.0f}{launcher.peak:10.0f}"
    print(f"{name:24}{seconds}{cost}", flush=True)
    # the logs of all runs together would fill the control machine's disk
    forget = [*DSLAUNCH, "clean", "--runs-older-than", "0s"]
    cluster.run("control", forget, cwd="/root/p", check=True)


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
    command = [PYTHON, "-m", "benchmarks.launch_phases", f"c{size}.yaml", "job.py"]
    path = {"PYTHONPATH": str(ROOT)}
    done = cluster.run("control", command, cwd="/root/p", env=path, timeout=300)
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


if __name__ == "__main__":
    main()
