"""How much CPU time a cluster of many nodes takes until there are lines to run.

python -m benchmarks.load_nodes
"""

from __future__ import annotations

import time
from itertools import pairwise

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.select import Selection, select
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job
from dslaunch.render.formats import render
from dslaunch.render.launch import Launch

STEPS = ("load", "select", "hostfile", "torchrun", "plan")
REST = "network: {interface: ib0}\n"


def folded(count: int) -> str:
    """Write `count` nodes as one entry."""
    return f"nodes:\n  - {{host: 'n[00001-{count:05}]', slots: 8}}\n{REST}"


def explicit(count: int) -> str:
    """Write `count` nodes as an entry each."""
    entries = (f"  - {{host: n{i:05}, slots: 8}}\n" for i in range(1, count + 1))
    return "nodes:\n" + "".join(entries) + REST


def measure(text: str) -> list[float]:
    """Give the CPU seconds of each step; half of the slots are selected."""
    times = [time.process_time()]
    cluster = parse_cluster(text, "benchmark.yaml")
    times.append(time.process_time())
    hosts = f"n[00001-{len(cluster.nodes):05}]"
    allocation = select(cluster, Selection(include=f"{hosts}:0-3"))
    times.append(time.process_time())
    launch = Launch("c", allocation, Job("train.py"), assume(cluster, allocation, "/work"))
    for name in STEPS[2:]:
        render(name, launch)
        times.append(time.process_time())
    return [after - before for before, after in pairwise(times)]


def main() -> None:
    """Print one line per size and way of writing, in seconds."""
    measure(folded(1))  # the imports
    print(f"{'nodes':>7} {'written':>9}", *(f"{step:>9}" for step in STEPS))
    for count in (1_000, 10_000, 20_000):
        for written in (folded, explicit):
            seconds = (f"{spent:>9.3f}" for spent in measure(written(count)))
            print(f"{count:>7} {written.__name__:>9}", *seconds)


if __name__ == "__main__":
    main()
