"""The records of a rehearsal's ranks, as the rules of its judge ask for them. Pure."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct

from dslaunch.launch.facts import Facts
from dslaunch.launch.plan import Plan
from dslaunch.protocol.rehearsal import (
    Batch,
    BuildBegun,
    BuildEnded,
    Engine,
    GivenConfig,
    Group,
    Loader,
    ModelSplit,
    Record,
    Replaced,
    Spawned,
    SpawnedJoins,
    Step,
    Wrapped,
)

Kind = TypeVar("Kind", bound=Record)
Noted = TypeVar("Noted", bound=Hashable)
FSDP = "FullyShardedDataParallel"


class RankRecords(Struct, frozen=True, dict=True):
    """What one rank has recorded."""

    rank: int
    host: str
    records: tuple[Record, ...] = ()

    def every(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """Return the records of a kind."""
        return tuple(record for record in self.records if isinstance(record, kind))

    def last(self, kind: type[Kind]) -> Kind | None:
        """Return the last record of a kind."""
        return next((r for r in reversed(self.records) if isinstance(r, kind)), None)

    @cached_property
    def batch_digests(self) -> dict[tuple[int, int], str]:
        """Return the digests of the batches that were trained on, by loader and index."""
        return {(batch.loader, batch.index): batch.digest for batch in self.trained_batches}

    @property
    def steps(self) -> int:
        """Return how many optimizer steps it has made."""
        return max((step.step for step in self.every(Step)), default=0)

    @property
    def trains(self) -> bool:
        """Return whether it has made a step, or has wrapped a model to train it."""
        return bool(self.steps or self.last(Wrapped) or self.last(Engine))

    @property
    def sharded(self) -> bool:
        """Return whether no rank has all parameters."""
        engine = self.last(Engine)
        wrapped = any(each.wrapper == FSDP for each in self.every(Wrapped))
        return wrapped or (engine is not None and engine.stage == 3)

    @property
    def builds(self) -> str | None:
        """Return the kernel that it was building at the end."""
        begun = self.every(BuildBegun)
        return begun[-1].name if len(begun) > len(self.every(BuildEnded)) else None

    @property
    def was_replaced(self) -> bool:
        """Return whether another program took its place, which records nothing."""
        return bool(self.records) and isinstance(self.records[-1], Replaced)

    @cached_property
    def trained_batches(self) -> tuple[Batch, ...]:
        """Return the batches that were trained on: of data loaders that were being read at a step.
        Others are read before the training, or to evaluate. Where none was being read, batches were
        kept in a list before they were trained on, and all count."""
        batches = self.every(Batch)
        reading = {number for step in self.every(Step) for number in step.loaders}
        trained = tuple(batch for batch in batches if batch.loader in reading)
        return trained or batches

    @property
    def trained_loaders(self) -> tuple[Loader, ...]:
        """Return the data loaders whose batches were trained on."""
        used = {batch.loader for batch in self.trained_batches}
        return tuple(loader for loader in self.every(Loader) if loader.number in used)

    @property
    def config(self) -> dict[str, Any] | None:
        """Return the DeepSpeed config that it got; empty: none; None: it is no JSON, such as HJSON,
        or nested too deeply."""
        given = self.last(GivenConfig)
        if given is None:
            return {}
        try:
            data: Any = json.loads(given.text)
        except (ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else {}

    def spawns_share(self, ranks: int) -> bool:
        """Return whether the processes that it starts are its share of one job's ranks, as of a
        launcher that starts one process for each node. `ranks`: that the launcher has started."""
        spawned, joins = self.last(Spawned), self.last(SpawnedJoins)
        if spawned is None or joins is None or self.steps:
            return False
        return joins.world == spawned.processes * ranks

    def splits_model(self, world: int) -> bool:
        """Return whether ranks may have different parts of the model, or the same data by
        intent: tensor, pipeline, sequence or expert parallelism."""
        engine = self.last(Engine)
        if engine is not None and (engine.pipeline or engine.model_parallel):
            return True
        if self.last(ModelSplit) is not None:
            return True
        if engine is not None and engine.data_parallel < world:
            return True
        sizes = (group.size for group in self.every(Group))
        return any(size is not None and 1 < size < world for size in sizes)


Ranks = tuple[RankRecords, ...]
"""The ranks of a rehearsal, in their order."""


def ranks_of(plan: Plan, records: Mapping[int, tuple[Record, ...]]) -> Ranks:
    """Return all ranks of a plan in their order."""
    return tuple(
        RankRecords(rank, node.host, records.get(rank, ()))
        for node in plan.nodes
        for rank in node.ranks
    )


def ranks_by(
    ranks: Ranks, noted: Callable[[RankRecords], Iterable[Noted]]
) -> dict[Noted, list[int]]:
    """Return the ranks that have noted each thing, in the order in which it was first noted."""
    found: dict[Noted, list[int]] = {}
    for rank in ranks:
        for each in dict.fromkeys(noted(rank)):
            found.setdefault(each, []).append(rank.rank)
    return found


def is_shared(facts: Facts, path: str, hosts: Collection[str]) -> bool | None:
    """Return whether nodes share the directory that a path is in; None: it was not tested."""
    for node in facts.nodes:
        around = [d for d in node.directories if _is_below(path, d.path)]
        if node.host in hosts and around:
            nearest = max(around, key=lambda directory: len(directory.path))
            return len(_stores(facts, nearest.asked, hosts)) == 1
    return None


def _stores(facts: Facts, asked: str, hosts: Collection[str]) -> set[str]:
    """Return the first node of each store on which nodes have a directory."""
    return {
        directory.first
        for node in facts.nodes
        if node.host in hosts
        for directory in node.directories
        if directory.asked == asked
    }


def _is_below(path: str, directory: str) -> bool:
    wanted = posixpath.normpath(directory)
    return path == wanted or path.startswith(f"{wanted.rstrip('/')}/")
