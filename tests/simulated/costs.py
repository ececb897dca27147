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
    connecting = costs.start_cpu.at(nodes) + connections * costs.ssh_cpu + relays
    waiting = levels * (costs.login + costs.boot)
    asking = costs.round_trips * 2 * levels * one_way
    return Prediction(
        nodes=nodes,
        fan_out=fan_out,
        connections=connections,
        levels=levels,
        cpu=costs.cpu.at(nodes) + connections * costs.ssh_cpu,
        memory=costs.memory.at(nodes) + connections * costs.ssh_memory,
        start=connecting + waiting + asking,
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
