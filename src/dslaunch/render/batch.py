"""A launch as a SLURM job: what is rendered, before any text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from dslaunch.render.node_text import NodeGroup

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement, Slurm
    from dslaunch.render.launch import Launch
    from dslaunch.render.supervised import Supervised


@dataclass(frozen=True, slots=True)
class Origin:
    """What made a script."""

    file: str
    """The cluster file."""
    command: str
    """A shell line that prints the script again."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A launch as a SLURM job."""

    launch: Launch
    slurm: Slurm
    port: int | None = None
    """Where the ranks meet; None: one that follows from the job's number."""
    pinned: bool = False
    """The very nodes that were chosen, not any that are like them."""
    excluded: tuple[str, ...] = ()
    """Nodes that SLURM must not give."""
    supervised: Supervised | None = None
    """How `dslaunch run` is called in the job; None: SLURM alone starts the ranks."""
    origin: Origin | None = None
    """What made it, for the script's head; None: not said."""


def job_name(batch: Batch) -> str:
    """The name in the queue: as given, else the script's."""
    program = batch.launch.job.program
    stem = program if batch.launch.job.kind == "module" else PurePosixPath(program).stem
    return batch.slurm.job_name or re.sub(r"[^\w.-]+", "-", stem) or "job"


def signal_name(slurm: Slurm) -> str | None:
    """`USR1` of `USR1@600` or `RB:SIGUSR1`."""
    if not slurm.signal:
        return None
    return slurm.signal.partition("@")[0].rpartition(":")[2].removeprefix("SIG")


def signal_option(slurm: Slurm) -> str:
    """What `--signal` is given: the batch script gets the signal, and passes it on.

    `R:` also signals when a reservation with the job's nodes is about to begin (sbatch(1)).
    """
    target, _, rest = (slurm.signal or "").rpartition(":")
    reservation = "R" if "R" in target else ""
    return f"{reservation}B:{rest.removeprefix('SIG')}"


def grouped(batch: Batch) -> tuple[NodeGroup, ...]:
    """The nodes by how many GPUs of which type they have: each is a component of the job.

    One per type and not per node, since each counts as a job for limits (SLURM's page on
    heterogeneous jobs).
    """
    kinds: dict[tuple[int, str | None], list[Placement]] = {}
    label = batch.slurm.gpu_label
    for placement in batch.launch.placements:
        gpu = dict(placement.node.labels).get(label) if label else None
        kinds.setdefault((len(placement.slots), gpu), []).append(placement)
    asked = batch.slurm.nodes
    most = int(asked.rpartition("-")[2]) if asked else None
    return tuple(
        NodeGroup(slots, gpu, most or len(members), tuple(members))
        for (slots, gpu), members in kinds.items()
    )
