"""What a run of many nodes costs the machine that it is started from.

    python -m benchmarks.many_nodes [NODES...] [--lines N...]

A virtual cluster with real sshd; one rank per node.

- Whole runs, quiet and talkative: seconds until the first rank spoke, until all had spoken, and to
  the end, and the launcher's processor time and peak memory.
- The phases of a run (`launch_phases.py`): a table each of processor time, memory, bytes and
  seconds on the wall, by the number of nodes. The last column is the power of the number of nodes
  with which a cost grows, by least squares through all sizes: 1.0 is in proportion to them.

What others cost on as many nodes: `peers.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

from benchmarks.launch_phases import IDLE_PHASE
from benchmarks.virtual_nodes import DSLAUNCH, PYTHON, cluster_text, metered, used, virtual_nodes

JOB = """\
import sys
for i in range(int(sys.argv[1])):
    print("line", i, "of a training that says a lot", flush=i % 50 == 0)
"""
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """One cluster of the largest size; all measurements of each size on it."""
    parser = argparse.ArgumentParser(description="See the docstring of this module.")
    parser.add_argument("nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--lines", nargs="*", type=int, default=[10, 5000, 50000])
    chosen = parser.parse_args()
    sizes = sorted(chosen.nodes)
    with virtual_nodes(max(sizes)) as cluster:
        cluster.put("control", "/root/p/job.py", JOB)
        for size in sizes:
            text = cluster_text(size, python=PYTHON, launcher="direct", storage={"workdir": "work"})
            cluster.put("control", f"/root/p/c{size}.yaml", text)
        whole_runs(cluster, sizes, chosen.lines)
        phases(cluster, sizes)


# ---------------------------------------------------------------- whole runs


def whole_runs(cluster: VirtualCluster, sizes: list[int], numbers: list[int]) -> None:
    """Print one row for each number of nodes, and of lines that each rank prints."""
    print(f"{'':24}{'first':>7}{'all':>7}{'end':>7}{'CPU s':>8}{'CPU ms/node':>13}{'peak MiB':>10}")
    for size in sizes:
        for lines in numbers:
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


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of cost, and how it is printed."""

    title: str
    scale: float
    """From seconds or bytes to the printed unit."""
    per_node: bool = True


QUANTITIES = (
    Quantity("CPU, ms per node", 1e3),
    Quantity("wall time, s", 1.0, per_node=False),
    Quantity("memory, KiB per node", 1 / 1024),
    Quantity("traffic, kB per node", 1e-3),
)
"""In the order of what `launch_phases.py` prints."""


def phases(cluster: VirtualCluster, sizes: list[int]) -> None:
    """Print a table of each kind of cost, with a row for each phase."""
    found = {size: measured_phases(cluster, size) for size in sizes}
    for position, quantity in enumerate(QUANTITIES):
        print(f"\n{quantity.title:28}{''.join(f'{size:>9}' for size in sizes)}{'growth':>8}")
        for name in found[sizes[0]]:
            costs = [found[size][name][position] for size in sizes]
            print_costs(name, quantity, sizes, costs)
        active = [name for name in found[sizes[0]] if name != IDLE_PHASE]
        totals = [sum(found[size][name][position] for name in active) for size in sizes]
        print_costs("all but the pause", quantity, sizes, totals)


def print_costs(name: str, quantity: Quantity, sizes: list[int], costs: list[float]) -> None:
    """Print a row: a cost by the number of nodes."""
    divisors = sizes if quantity.per_node else [1] * len(sizes)
    shown = [cost * quantity.scale / by for cost, by in zip(costs, divisors, strict=True)]
    print(f"{name:28}{''.join(f'{value:9.2f}' for value in shown)}{exponent(sizes, costs):>8}")


def measured_phases(cluster: VirtualCluster, size: int) -> dict[str, list[float]]:
    """Run the phases on this number of nodes; return CPU s, wall s, memory and traffic by name."""
    command = [PYTHON, "-m", "benchmarks.launch_phases", f"c{size}.yaml", "job.py"]
    path = {"PYTHONPATH": str(ROOT)}
    done = cluster.run("control", command, cwd="/root/p", env=path, timeout=300)
    if done.returncode:
        sys.exit(f"{size} nodes: {done.stderr[-600:]}")
    return {name: values for name, *values in json.loads(done.stdout)}


def exponent(sizes: list[int], costs: list[float]) -> str:
    """Return the power of the nodes with which a cost grows: 1.0 is in proportion to them."""
    if len(sizes) < 2 or min(costs) <= 0:
        return "-"
    logarithms = [[math.log(each) for each in values] for values in (sizes, costs)]
    return f"{statistics.linear_regression(*logarithms).slope:.2f}"


if __name__ == "__main__":
    main()
