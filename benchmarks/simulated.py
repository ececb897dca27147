"""What runs of many nodes cost the launcher, on simulated clusters, without SSH.

    python -m benchmarks.simulated [NODES...]

The agents are simulated in one process and speak the real protocol over a socket of this machine;
the launcher is the real one. Prints its processor time in each phase, wall time and peak memory,
with which power of the nodes they grow, and the straight lines that `tests/simulated/costs.py`
predicts larger clusters with: for a launcher that connects to all nodes, and for one of a tree.
Then: until all ranks of 1,000 nodes have started, with delays; the goal is 5 s. And what ranks cost
that print 10 lines a second, while all of them print; the goal is less than one CPU.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.simulated.cluster import Launched, SimulatedCluster
from tests.simulated.costs import exponent, fitted
from tests.simulated.drawn import Scenario
from tests.simulated.phases import PHASES, cpu_between, phases_of

from dslaunch.run.events import Event
from dslaunch.run.output_interval import output_interval
from dslaunch.run.recorded_events import read_events

SIZES = (100, 300, 1000, 3000)
TRANSPORTS = ("simulated", "simulated-tree")
STARTED_NODES = 1_000
ONE_WAY, BOOT = (0.005, 0.005), (0.25, 0.25)
"""Seconds that a message takes to a node, and an agent until it greets; the least and the most."""
TALK_SECONDS, TALK_RATE = 10, 10
"""How long ranks print, and how many lines in a second."""
WARM_UP = 2.0
"""Seconds that are not measured after the start of the last rank: its log is created then."""
TALKING = ((100, 10), (100, 100), (1_000, 10))
"""Nodes and ranks of each."""


def main() -> None:
    """Measure each size, and talkative ranks; print the tables."""
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    print("seconds of the launcher's processor time by phase; wall time; peak memory")
    for transport in TRANSPORTS:
        compare(sizes, transport)
    print("until all ranks have started, 5 ms for each message and 0.25 s until an agent greets")
    print(f"{'nodes':>6}{'':16}{'wall s':>9}{'CPU s':>8}")
    for transport in TRANSPORTS:
        start(STARTED_NODES, transport)
    print(f"ranks that print {TALK_RATE} lines a second, recorded and not shown")
    print(
        f"{'nodes':>6}{'ranks':>8}{'lines/s':>9}{'pieces/s':>10}{'us/piece':>10}{'of one CPU':>11}"
    )
    for nodes, slots in TALKING:
        talk(nodes, slots)


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
    run, events = launched(Scenario(nodes=size, lines=3, interval=0.1), transport)
    phases = phases_of(events, run.samples)
    by_phase = (f"{phases[name].cpu:8.2f}" for name in PHASES)
    print(f"{size:>6}", *by_phase, f"{run.cpu:8.2f}{run.wall:8.1f}{run.peak:7.0f}", flush=True)
    return run


def launched(scenario: Scenario, transport: str, *options: str) -> tuple[Launched, Sequence[Event]]:
    """Run the job of a scenario; return what it used, and the events of the run."""
    with (
        tempfile.TemporaryDirectory() as directory,
        SimulatedCluster(scenario, Path(directory), transport) as cluster,
    ):
        run = cluster.run(*options)
        if run.code or run.record is None:
            sys.exit(run.errors.read_text())
        return run, list(read_events(run.record))


def start(nodes: int, transport: str) -> None:
    """Measure until all ranks have started, with delays of real nodes."""
    scenario = Scenario(nodes=nodes, one_way=ONE_WAY, boot=BOOT)
    run, events = launched(scenario, transport)
    phases = phases_of(events, run.samples)
    until_start = [phases[name] for name in ("connect", "check", "start")]
    wall = sum(phase.wall for phase in until_start)
    cpu = sum(phase.cpu for phase in until_start)
    print(f"{nodes:>6}{transport:>16}{wall:9.1f}{cpu:8.2f}", flush=True)


def talk(nodes: int, slots: int) -> None:
    """Measure ranks that print while no user watches them: the screen shows rank 0 alone.

    A rank prints at once what a node would gather: one process, which has to print for all ranks,
    is too slow for more.
    """
    ranks = nodes * slots
    burst = max(1, round(output_interval(ranks) * TALK_RATE))
    scenario = Scenario(
        nodes=nodes,
        slots=slots,
        lines=TALK_SECONDS * TALK_RATE,
        burst=burst,
        interval=burst / TALK_RATE,
    )
    run, events = launched(scenario, "simulated", "--ranks=0")
    began = max(event.time for event in events if event.kind == "started") + WARM_UP
    ended = min(event.time for event in events if event.kind == "exit")
    share = cpu_between(run.samples, began, ended) / (ended - began)
    pieces = ranks * TALK_RATE / burst
    print(
        f"{nodes:>6}{ranks:>8}{ranks * TALK_RATE:>9}{pieces:>10.0f}"
        f"{share / pieces * 1e6:>10.1f}{share:>11.0%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
