"""What runs of many nodes cost the launcher, on simulated clusters, without SSH.

    python benchmarks/simulated.py [NODES...]

The agents are simulated in one process and speak the real protocol over a socket of this machine;
the launcher is the real one. Prints its processor time in each phase, wall time and peak memory,
with which power of the nodes they grow, and the straight lines that `tests/simulated/costs.py`
predicts larger clusters with: for a launcher that connects to all nodes, and for one of a tree.
Then: ranks of 100 nodes that print 10 lines a second.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulated.cluster import Launched, SimulatedCluster
from tests.simulated.costs import exponent, fitted
from tests.simulated.drawn import Scenario
from tests.simulated.phases import PHASES, phases_of

from dslaunch.run.output_interval import output_interval
from dslaunch.run.recorded_events import read_events

SIZES = (100, 300, 1000, 3000)
TALK_SECONDS, TALK_RATE = 5, 10
"""How long ranks print, and how many lines in a second."""
TALKING_RANKS = (1_000, 10_000)


def main() -> None:
    """Measure each size, and talkative ranks; print the tables."""
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    print("seconds of the launcher's processor time by phase; wall time; peak memory")
    for transport in ("simulated", "simulated-tree"):
        compare(sizes, transport)
    for ranks in TALKING_RANKS:
        talk(ranks)


def compare(sizes: list[int], transport: str) -> None:
    """Measure each size; print a table, and how the costs grow."""
    print(transport)
    print(
        f"{'nodes':>6}", *(f"{name:>8}" for name in PHASES), f"{'CPU s':>8}{'wall s':>8}{'MiB':>7}"
    )
    runs = {size: measured(size, transport) for size in sizes}
    for (few, less), (many, more) in pairwise(runs.items()):
        power = exponent((few, less.cpu), (many, more.cpu))
        of_memory = exponent((few, less.peak), (many, more.peak))
        print(f"from {few} to {many} nodes: powers of CPU {power:.2f}, of memory {of_memory:.2f}")
    if len(runs) > 1:
        cpu = fitted([(size, run.cpu) for size, run in runs.items()])
        memory = fitted([(size, run.peak) for size, run in runs.items()])
        print(f"CPU: {cpu.fixed:.2f} s and {cpu.each * 1e3:.2f} ms for each node")
        print(f"memory: {memory.fixed:.0f} MiB and {memory.each * 1024:.0f} KiB for each node")


def measured(size: int, transport: str) -> Launched:
    """Run a job of that many nodes; print its row."""
    run = launched(Scenario(nodes=size, lines=3, interval=0.1), transport)
    print(f"{size:>6}", *run[1], f"{run[0].cpu:8.2f}{run[0].wall:8.1f}{run[0].peak:7.0f}")
    return run[0]


def launched(scenario: Scenario, transport: str) -> tuple[Launched, list[str]]:
    """Run the job of a scenario; return what it used, and the processor time of its phases."""
    with (
        tempfile.TemporaryDirectory() as directory,
        SimulatedCluster(scenario, Path(directory), transport) as cluster,
    ):
        run = cluster.run()
        if run.code or run.record is None:
            sys.exit(run.errors.read_text())
        phases = phases_of(read_events(run.record), run.samples)
    return run, [f"{phases[name].cpu:8.2f}" for name in PHASES]


def talk(ranks: int) -> None:
    """Measure ranks that print while no user watches them: the screen shows rank 0 alone.

    A rank prints at once what a node would gather: one process, which has to print for all ranks,
    is too slow for more.
    """
    burst = max(1, round(output_interval(ranks) * TALK_RATE))
    scenario = Scenario(
        nodes=100,
        slots=ranks // 100,
        lines=TALK_SECONDS * TALK_RATE,
        burst=burst,
        interval=burst / TALK_RATE,
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        SimulatedCluster(scenario, Path(directory)) as cluster,
    ):
        run = cluster.run("--ranks=0")
        if run.code or run.record is None:
            sys.exit(run.errors.read_text())
        phases = phases_of(read_events(run.record), run.samples)
    each = (phases["run"].cpu + phases["end"].cpu) / (scenario.ranks * scenario.lines)
    share = each * scenario.ranks * TALK_RATE
    print(
        f"{ranks} ranks with {TALK_RATE} lines a second, recorded and not shown: "
        f"{each * 1e6:.1f} us of CPU for each line, {share:.0%} of one CPU"
    )


if __name__ == "__main__":
    main()
