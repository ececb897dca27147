"""What the nodes and ranks of a simulated cluster will do, drawn from a seed. Pure.

A draw depends on the seed, the kind of draw and the number of the node or rank, and on nothing
else: the launcher's order of requests changes no draw.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from random import Random
from typing import Any

Range = tuple[float, float]
"""Seconds, drawn uniformly: the least and the most."""
ZERO: Range = (0.0, 0.0)
PEER_LOST = (
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
    "network error"
)
"""What a rank prints that fails because another one has failed."""
MISTAKE = "ValueError: the loss is not a number"
"""What the first rank prints that fails."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated cluster and its job."""

    seed: int = 1
    nodes: int = 1
    slots: int = 1
    """Ranks of each node."""
    login: Range = ZERO
    """Until a node has logged the launcher in."""
    one_way: Range = ZERO
    """Until a message of the launcher arrives at a node."""
    boot: Range = ZERO
    """Until the agent greets, after its program has arrived."""
    clock: Range = ZERO
    """By how much the clock of a node is ahead."""
    lines: int = 0
    """That every rank prints."""
    burst: int = 1
    """That it prints at a time."""
    interval: float = 0.0
    """Seconds between two of these times."""
    rest: Range = ZERO
    """Until a rank ends after its last line."""
    ending: Range = ZERO
    """Until a rank ends that was asked to."""
    refused: int = 0
    """Nodes that refuse the launcher."""
    dropped: int = 0
    """Nodes whose connection breaks once, while their ranks run."""
    dropped_early: int = 0
    """Nodes whose connection breaks once, when they are asked something."""
    fails: bool = False
    """Whether one rank fails, before it has printed all lines."""
    consequences: int = 0
    """Ranks that fail within 0.1 s after that one, because they lost it."""
    shared: bool = False
    """Whether the nodes share their storage."""

    def as_json(self) -> str:
        """Return it as a word of a command line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def ranks(self) -> int:
        """Return the number of all ranks."""
        return self.nodes * self.slots


def from_json(text: str) -> Scenario:
    """Return the scenario of such a word."""
    values: dict[str, Any] = json.loads(text)
    ranges = {field.name for field in fields(Scenario) if field.type == "Range"}
    values |= {name: tuple(values[name]) for name in ranges}
    return Scenario(**values)


@dataclass(frozen=True, slots=True)
class NodeDraw:
    """What one node does. Times are seconds."""

    login: float
    one_way: float
    boot: float
    clock: float
    refused: bool
    drops_after: float | None
    """After the start of its ranks; None: the connection stays."""
    drops_when_asked: bool


@dataclass(frozen=True, slots=True)
class RankDraw:
    """What one rank does. Times are seconds after its start."""

    lines: int
    rest: float
    ending: float
    fails: bool
    """It is the root cause: it fails in the place of its last line."""
    consequence: float | None
    """After that rank has failed; None: it survives the loss until it is asked to end."""


def node_draw(scenario: Scenario, node: int) -> NodeDraw:
    """Return what the node of that number, from 0, does."""
    random = _random(scenario, "node", node)
    drops = node in _chosen(scenario, "dropped", scenario.nodes, scenario.dropped)
    return NodeDraw(
        login=random.uniform(*scenario.login),
        one_way=random.uniform(*scenario.one_way),
        boot=random.uniform(*scenario.boot),
        clock=random.uniform(*scenario.clock),
        refused=node in _chosen(scenario, "refused", scenario.nodes, scenario.refused),
        drops_after=random.uniform(0.1, 0.5) if drops else None,
        drops_when_asked=node in _chosen(scenario, "early", scenario.nodes, scenario.dropped_early),
    )


def rank_draw(scenario: Scenario, rank: int) -> RankDraw:
    """Return what that rank does."""
    random = _random(scenario, "rank", rank)
    fails = rank == failing_rank(scenario)
    failing = _chosen(scenario, "failing", scenario.ranks, 1 + scenario.consequences)
    consequent = scenario.fails and not fails and rank in failing
    return RankDraw(
        lines=scenario.lines // 2 if fails else scenario.lines,
        rest=0.0 if fails else random.uniform(*scenario.rest),
        ending=random.uniform(*scenario.ending),
        fails=fails,
        consequence=random.uniform(0.02, 0.1) if consequent else None,
    )


def failing_rank(scenario: Scenario) -> int | None:
    """Return the rank that is the root cause of the failure; None: no rank fails."""
    if not scenario.fails:
        return None
    return _chosen(scenario, "failing", scenario.ranks, 1)[0]


def refused_nodes(scenario: Scenario) -> Sequence[int]:
    """Return the nodes that refuse the launcher."""
    return _chosen(scenario, "refused", scenario.nodes, scenario.refused)


def host_of(node: int) -> str:
    """Return the name of the node of that number, from 0."""
    return f"n{node + 1:05}"


def node_of(host: str) -> int:
    """Return the number of the node of that name."""
    return int(host[1:]) - 1


def line(rank: int, number: int) -> str:
    """Return a line that a rank prints."""
    return f"rank {rank} line {number} of a training"


def _random(scenario: Scenario, kind: str, number: int) -> Random:
    return Random(f"{scenario.seed} {kind} {number}")


@cache
def _chosen(scenario: Scenario, kind: str, total: int, count: int) -> Sequence[int]:
    """Return some of the numbers below `total`; a larger `count` only adds to them."""
    return _random(scenario, kind, 0).sample(range(total), total)[:count]
