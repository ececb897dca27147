"""Simulated trainings: when each rank enters its collectives, by models of what delays it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from dslaunch.run.collective_steps import EnteredCollective, GroupHistory

Noise = Callable[[Random], float]
"""Returns by which share of the step time one step of one rank differs from the usual one."""
NETWORK = 0.001
"""Seconds of a collective after the last rank has entered."""


def normal(sigma: float) -> Noise:
    return lambda random: random.gauss(0, sigma)


def lognormal(sigma: float) -> Noise:
    return lambda random: math.exp(random.gauss(0, sigma)) - 1


def heavy_tails(scale: float) -> Noise:
    """A Pareto distribution without a variance: most steps are equal, some take many times as
    long."""
    return lambda random: min(5.0, scale * (random.paretovariate(1.5) - 1))


def jitter(share: float, mean: float) -> Noise:
    """A data loader that is late in a share of the steps, by an exponential distribution."""

    def late(random: Random) -> float:
        return random.expovariate(1 / mean) if random.random() < share else random.gauss(0, 0.02)

    return late


def none() -> Noise:
    return lambda random: 0.0


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A training of which every step ends when all ranks have entered its last collective."""

    ranks: int = 8
    nodes: int = 4
    steps: int = 50
    seconds: float = 0.1
    """Of a step without noise."""
    buckets: int = 3
    """Collectives of a step. They begin while the backward pass computes the next gradients."""
    waits_in_between: bool = False
    """Whether all ranks wait in each of them instead."""
    noise: Noise = field(default_factory=lambda: normal(0.02))
    noise_of: Mapping[int, Noise] = field(default_factory=dict)
    """The noise of ranks that have another one."""
    memory: float = 0.0
    """Correlation of the noise of a step with that of the step before."""
    lengths: Noise = field(default_factory=lambda: none())
    """By which share the steps of all ranks differ, such as those of longer texts."""
    slower: Mapping[int, float] = field(default_factory=dict)
    """By which share of the step time ranks are slower."""
    begin: int = 0
    """From which step on they are."""
    pauses: tuple[int, int, float] | None = None
    """A rank that pauses every so many steps for so many seconds."""
    barrier: bool = False
    """Whether all ranks wait for it in a barrier, as for a checkpoint, before the next step."""
    offsets: Sequence[float] = ()
    """Seconds by which the clocks of the nodes are wrong."""
    drift: Sequence[float] = ()
    """Seconds per second by which they become more wrong."""
    clock_error: float = 0.0005
    """What is known of that."""
    lost: float = 0.0
    """Share of the collectives that were not recorded of all ranks."""

    def node_of(self, rank: int) -> int:
        return rank * self.nodes // self.ranks

    def group(self, random: Random) -> GroupHistory:
        """Return what the ranks have recorded."""
        collectives: list[EnteredCollective] = []
        released, number = 0.0, 0
        noise = [0.0] * self.ranks
        for step in range(self.steps):
            noise = self._all_noise(random, noise)
            length = self.seconds * max(0.2, 1 + self.lengths(random))
            at = [released] * self.ranks
            if self.barrier and self._pauses_at(step):
                at = [time + self._pause(rank, step) for rank, time in enumerate(at)]
                collectives.append(self._collective(number, "gloo:barrier []", at))
                number += 1
                at = [max(at) + NETWORK] * self.ranks
            for bucket, share in enumerate(self._shares()):
                if self.waits_in_between:
                    noise = self._all_noise(random, noise)
                at = [
                    time + self._compute(rank, step, share * length, noise[rank])
                    for rank, time in enumerate(at)
                ]
                if bucket == 0 and not self.barrier:
                    at = [time + self._pause(rank, step) for rank, time in enumerate(at)]
                if random.random() >= self.lost:
                    collectives.append(self._collective(number, "gloo:all_reduce [[1000]]", at))
                number += 1
                last = bucket == self.buckets - 1
                if self.waits_in_between or last:
                    released = max(at) + NETWORK
                    at = [released] * self.ranks
        hosts = tuple(f"node{self.node_of(rank)}" for rank in range(self.ranks))
        errors = dict.fromkeys(hosts, self.clock_error)
        return GroupHistory(tuple(range(self.ranks)), hosts, collectives, errors)

    def _collective(self, number: int, kind: str, at: Sequence[float]) -> EnteredCollective:
        shown = tuple(self._shown(rank, time) for rank, time in enumerate(at))
        return EnteredCollective(number, kind, shown)

    def _shares(self) -> list[float]:
        """Return the share of the computation before each collective: half before the first one,
        since the forward pass has none."""
        if self.buckets == 1:
            return [1.0]
        return [0.5, *[0.5 / (self.buckets - 1)] * (self.buckets - 1)]

    def _all_noise(self, random: Random, before: Sequence[float]) -> list[float]:
        new = [self.noise_of.get(rank, self.noise)(random) for rank in range(self.ranks)]
        weight = math.sqrt(1 - self.memory**2)
        return [self.memory * old + weight * now for old, now in zip(before, new, strict=True)]

    def _compute(self, rank: int, step: int, seconds: float, noise: float) -> float:
        slower = self.slower.get(rank, 0.0) if step >= self.begin else 0.0
        return seconds * max(0.2, 1 + noise) * (1 + slower)

    def _pauses_at(self, step: int) -> bool:
        return self.pauses is not None and step % self.pauses[1] == 0

    def _pause(self, rank: int, step: int) -> float:
        if self.pauses is None or not self._pauses_at(step):
            return 0.0
        paused, _, seconds = self.pauses
        return seconds if rank == paused else 0.0

    def _shown(self, rank: int, time: float) -> float:
        """Return a time as the clock of the rank's node shows it."""
        node = self.node_of(rank)
        offset = self.offsets[node] if self.offsets else 0.0
        drift = self.drift[node] if self.drift else 0.0
        return time + offset + drift * time
