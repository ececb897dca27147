"""What a rehearsal has measured. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from statistics import median
from typing import Any

from msgspec import Struct, to_builtins

from dslaunch.protocol.rehearsal import (
    AcceleratorBuilt,
    Engine,
    Host,
    Loader,
    OptimizerBuilt,
    ProcessGroup,
    Saved,
    Step,
    TorchImported,
    Wrapped,
    Written,
)
from dslaunch.rehearsal.memory import machines, model_states
from dslaunch.rehearsal.ranks import RankRecords, Ranks
from dslaunch.run.rehearsal import Rehearsed


class Measured(Struct, frozen=True):
    """What the ranks did. None: not seen."""

    ranks: int
    nodes: int
    seconds: float
    """Of the rehearsal, from the start of the ranks."""
    steps: int
    """Optimizer steps that all ranks have made."""
    step_seconds: float | None = None
    """Seconds per step, without the first; the median of all ranks."""
    losses: tuple[float, ...] = ()
    """Of the first rank that has any, step by step."""
    torch: str | None = None
    backend: str | None = None
    world: int | None = None
    wrapper: str | None = None
    model: str | None = None
    parameters: int | None = None
    trainable: int | None = None
    precision: tuple[str, ...] = ()
    """Data types of the parameters."""
    stage: int | None = None
    """ZeRO stage."""
    optimizer: str | None = None
    learning_rates: tuple[float, ...] = ()
    """Of the first group of parameters, step by step."""
    batch: int | None = None
    """Samples of a rank's batch."""
    samples: int | None = None
    """Of the data set."""
    sampler: str | None = None
    mixed_precision: str | None = None
    memory: int | None = None
    """Largest resident memory of a rank in bytes."""
    gpu_memory: int | None = None
    """Largest GPU memory that PyTorch reserved in a rank, in bytes."""
    written: tuple[str, ...] = ()
    """Directories that the script wrote to: nothing was removed."""
    hosts: tuple[str, ...] = ()
    """Other hosts whose names were resolved."""
    full_ranks: int | None = None
    """Ranks of the real run, if these are more."""
    full_nodes: int | None = None
    """Nodes of the real run, if it has more ranks."""
    model_states: int | None = None
    """Estimated GPU memory for the model states of a rank of the real run, in bytes."""

    def as_data(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        fields: dict[str, Any] = to_builtins(self)
        return fields


MOST_KEPT = 20
"""Directories and hosts that are kept."""


def measure(rehearsed: Rehearsed, ranks: Ranks) -> Measured:
    """Return what the ranks of a rehearsal have measured."""
    first = next((rank for rank in ranks if rank.steps), ranks[0])
    steps = [step for rank in ranks for step in rank.every(Step)]
    timed = [step.seconds for step in steps if step.step > 1 and step.seconds is not None]
    torch, group = first.last(TorchImported), first.last(ProcessGroup)
    wrapped, engine = first.last(Wrapped), first.last(Engine)
    optimizer, accelerator = first.last(OptimizerBuilt), first.last(AcceleratorBuilt)
    sizes = wrapped or optimizer
    loader = next(iter(first.trained_loaders), None)
    gpu_memory = [step.gpu_memory for step in steps if step.gpu_memory is not None]
    mixed = accelerator.settings.get("mixed_precision") if accelerator is not None else None
    return Measured(
        ranks=len(ranks),
        nodes=len(rehearsed.plan.nodes),
        seconds=rehearsed.seconds,
        steps=min(rank.steps for rank in ranks),
        step_seconds=median(timed) if timed else None,
        losses=tuple(s.loss for s in first.every(Step) if s.loss is not None),
        torch=torch.version if torch is not None else None,
        backend=group.backend if group is not None else None,
        world=group.world if group is not None else None,
        wrapper=wrapped.wrapper if wrapped is not None else None,
        model=wrapped.model if wrapped is not None else None,
        parameters=sizes.parameters if sizes is not None else None,
        trainable=sizes.trainable if sizes is not None else None,
        precision=tuple(sizes.types) if sizes is not None else (),
        stage=engine.stage if engine is not None else None,
        optimizer=_optimizer(engine, optimizer),
        learning_rates=tuple(s.lr[0] for s in first.every(Step) if s.lr),
        batch=_batch(engine, loader),
        samples=loader.samples if loader is not None else None,
        sampler=loader.sampler if loader is not None else None,
        mixed_precision=str(mixed) if mixed is not None else None,
        memory=max((step.memory for step in steps), default=None),
        gpu_memory=max(gpu_memory, default=None),
        written=_several(directories_written(ranks)),
        hosts=_several(host.name for rank in ranks for host in rank.every(Host)),
        full_ranks=rehearsed.full_ranks if rehearsed.is_smaller else None,
        full_nodes=rehearsed.full_nodes if rehearsed.is_smaller else None,
        model_states=model_states(
            first, machines(rehearsed.full_ranks, rehearsed.full_nodes), rehearsed.plan.world_size
        ),
    )


def directories_written(ranks: Iterable[RankRecords]) -> Iterable[str]:
    """Return the directories with checkpoints first, then the others."""
    several = list(ranks)
    for rank in several:
        for saved in rank.every(Saved):
            whole = saved.by.startswith("save_")
            yield saved.path if whole else posixpath.dirname(saved.path)
    for rank in several:
        for written in rank.every(Written):
            if not written.path.startswith(("/tmp/", "/dev/shm/")):
                yield posixpath.dirname(written.path)


def _several(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:MOST_KEPT]


def _optimizer(engine: Engine | None, optimizer: OptimizerBuilt | None) -> str | None:
    if engine is not None:
        return engine.optimizer
    return optimizer.optimizer if optimizer is not None else None


def _batch(engine: Engine | None, loader: Loader | None) -> int | None:
    if engine is not None:
        return engine.micro_batch
    return loader.batch if loader is not None else None
