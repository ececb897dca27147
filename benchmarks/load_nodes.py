"""How much CPU time loading and selecting take, for one folded entry and for one per node.

python benchmarks/load_nodes.py
"""

from __future__ import annotations

import time

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.select import Selection, select


def folded(count: int) -> str:
    """Write `count` nodes as one entry."""
    return f"nodes:\n  - {{host: 'n[00001-{count:05}]', slots: 8}}\n"


def explicit(count: int) -> str:
    """Write `count` nodes as an entry each."""
    entries = (f"  - {{host: n{i:05}, slots: 8}}\n" for i in range(1, count + 1))
    return "nodes:\n" + "".join(entries)


def measure(text: str) -> tuple[float, float]:
    """Give the CPU seconds to load the text, and to select half of its slots."""
    start = time.process_time()
    cluster = parse_cluster(text, "benchmark.yaml")
    loaded = time.process_time()
    hosts = f"n[00001-{len(cluster.nodes):05}]"
    select(cluster, Selection(include=f"{hosts}:0-3"))
    return loaded - start, time.process_time() - loaded


def main() -> None:
    """Print one line per size and way of writing."""
    measure(folded(1))  # the imports
    print(f"{'nodes':>7} {'written':>9} {'load s':>8} {'select s':>9}")
    for count in (1_000, 10_000, 20_000):
        for written in (folded, explicit):
            load, selected = measure(written(count))
            print(f"{count:>7} {written.__name__:>9} {load:>8.3f} {selected:>9.3f}")


if __name__ == "__main__":
    main()
