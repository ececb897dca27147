"""What a run of many nodes costs the launching machine: a model with measured costs. Pure.

The costs are straight lines, fitted to runs of several sizes: a fixed part and one for each node.
`MEASURED` holds those of one machine, which `docs/explanation/scale.md` uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A cost that grows with a number: `fixed + each * number`."""

    fixed: float
    each: float

    def at(self, number: float) -> float:
        """Return the cost of that number."""
        return self.fixed + self.each * number


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs. Times are seconds, memory is MiB."""

    cpu: Line
    """Of the launcher's processor time, by nodes, without what SSH needs."""
    start_cpu: Line
    """The part of it until all ranks have started."""
    memory: Line
    """Of the launcher's peak memory, by nodes, without what SSH needs."""
    relay_memory: float
    """Of the launcher's peak memory, for a node and each relay before it."""
    ssh_cpu: float
    """Processor time for one SSH connection, with key exchange."""
    ssh_memory: float
    """Memory of one SSH connection."""
    login: float
    """Until a node has logged in, on an idle machine in the same hall."""
    boot: float
    """Until an agent greets that has its program."""
    round_trips: int
    """Rounds of questions, between the greeting and the start of the ranks."""
    relayed_cpu: float
    """Processor time of a relay for one node below it: its `ssh` and the frames that pass."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a run needs; times in seconds, memory in MiB."""

    nodes: int
    fan_out: int | None
    """Connections of the launcher, and of each relay; None: the launcher connects to all nodes."""
    connections: int
    levels: int
    cpu: float
    memory: float
    start: float
    """Until all ranks have started."""


def predict(
    costs: Costs, nodes: int, *, fan_out: int | None = None, one_way: float = 0.0
) -> Prediction:
    """Return what a run on that many nodes needs, flat or by a tree of relays.

    `one_way`: seconds for a message between two nodes that are neighbors in the tree.
    """
    connections = nodes if fan_out is None else min(nodes, fan_out)
    levels = levels_of(nodes, fan_out)
    relays = 0.0 if fan_out is None else (levels - 1) * fan_out * costs.relayed_cpu
    connecting = connections * costs.ssh_cpu
    behind_relays = relays_before(nodes, fan_out) * costs.relay_memory
    waiting = levels * (costs.login + costs.boot)
    asking = costs.round_trips * 2 * levels * one_way
    return Prediction(
        nodes=nodes,
        fan_out=fan_out,
        connections=connections,
        levels=levels,
        cpu=costs.cpu.at(nodes) + connecting,
        memory=costs.memory.at(nodes) + connections * costs.ssh_memory + behind_relays,
        start=costs.start_cpu.at(nodes) + connecting + relays + waiting + asking,
    )


def levels_of(nodes: int, fan_out: int | None) -> int:
    """Return how many levels of nodes a tree has whose nodes have at most `fan_out` below them."""
    if fan_out is None:
        return 1
    levels, reached = 1, fan_out
    while reached < nodes:
        levels += 1
        reached += fan_out**levels
    return levels


def relays_before(nodes: int, fan_out: int | None) -> int:
    """Return how many relays are between the launcher and a node, added up over all nodes."""
    if fan_out is None:
        return 0
    count, level, left = 0, 0, nodes
    while left > 0:
        here = min(left, fan_out ** (level + 1))
        count += level * here
        level, left = level + 1, left - here
    return count


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """Return the line with the least squares of relative errors through points of number and
    cost."""
    weights = [1 / cost**2 for _, cost in points]
    total = sum(weights)
    mean_number = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_cost = sum(w * c for w, (_, c) in zip(weights, points, strict=True)) / total
    pairs = list(zip(weights, points, strict=True))
    covariance = sum(w * (n - mean_number) * (c - mean_cost) for w, (n, c) in pairs)
    variance = sum(w * (n - mean_number) ** 2 for w, (n, _) in pairs)
    each = covariance / variance
    return Line(fixed=mean_cost - each * mean_number, each=each)


def exponent(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the power of the number with which the cost grows between two points."""
    (few, less), (many, more) = first, second
    return math.log(more / less) / math.log(many / few)


MEASURED = Costs(
    cpu=Line(fixed=0.35, each=0.0013),
    start_cpu=Line(fixed=0.33, each=0.001),
    memory=Line(fixed=50, each=0.0105),
    relay_memory=0.0005,
    ssh_cpu=0.0058,
    ssh_memory=0.21,
    login=0.1,
    boot=0.15,
    round_trips=4,
    relayed_cpu=0.015,
)
"""On two idle CPUs of 2026: `benchmarks/simulated.py` with 300, 1,000, 3,000 and 10,000 nodes.
What SSH needs is the rest of runs on 16, 64 and 128 virtual nodes with real sshd, of which each
further one took 7.1 ms and 0.22 MiB (`benchmarks/many_nodes.py`); what relays themselves need is
estimated."""
ONE_WAY = 0.0001
"""Seconds for a message between two nodes of a hall."""
SIZES = (100, 300, 1000, 3000, 10_000)
FAN_OUTS = (None, 16, 32, 64)


def costs_table(costs: Costs) -> str:
    """Return the measured costs as a table of Markdown."""
    cpu, start, memory = costs.cpu, costs.start_cpu, costs.memory
    rows = [
        "| cost | of a run | of each node |",
        "| --- | ---: | ---: |",
        f"| CPU, without SSH | {cpu.fixed:.1f} s | {cpu.each * 1e3:.1f} ms |",
        f"| CPU until all ranks have started | {start.fixed:.1f} s | {start.each * 1e3:.1f} ms |",
        f"| memory, without SSH | {memory.fixed:.0f} MiB | {memory.each * 1024:.0f} KiB |",
        f"| memory for each relay before a node | | {costs.relay_memory * 1024:.0f} KiB |",
        f"| CPU of an SSH connection | | {costs.ssh_cpu * 1e3:.1f} ms |",
        f"| memory of an SSH connection | | {costs.ssh_memory * 1024:.0f} KiB |",
        f"| login, until the agent greets, estimated | | {costs.login + costs.boot:.2f} s |",
        f"| CPU of a relay for each node below, estimated | | {costs.relayed_cpu * 1e3:.0f} ms |",
    ]
    return "\n".join(rows)


def table(costs: Costs, one_way: float) -> str:
    """Return the predictions as a table of Markdown."""
    rows = [
        "| nodes | connections of the launcher | levels | CPU | memory | all ranks started after |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    predicted = [
        predict(costs, nodes, fan_out=fan_out, one_way=one_way)
        for nodes in SIZES
        for fan_out in FAN_OUTS
    ]
    return "\n".join([*rows, *map(_row, predicted)])


def _row(found: Prediction) -> str:
    way = "flat" if found.fan_out is None else f"tree of {found.fan_out}"
    return (
        f"| {found.nodes} | {way}: {found.connections} | {found.levels} | {found.cpu:.1f} s "
        f"| {found.memory:.0f} MiB | {found.start:.1f} s |"
    )
