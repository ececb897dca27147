"""A launch as a SLURM job: the input of a rendered script."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.render.node_text import NodeGroup

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement, Slurm
    from dslaunch.render.launch import Launch


class Origin(Struct, frozen=True):
    """The source of a script."""

    file: str
    """The cluster file."""
    command: str
    """The command that prints the script again."""


class Supervised(Struct, frozen=True):
    """How `dslaunch run` is called in a job that it supervises."""

    file: str
    """The text of the cluster file for the job."""
    pythons: tuple[str, ...]
    """Interpreters on the node; the first that has dslaunch runs it."""
    hang_timeout: float | None = None
    preflight: bool = True
    force: bool = False


class Batch(Struct, frozen=True):
    """A launch as a SLURM job."""

    launch: Launch
    slurm: Slurm
    port: int | None = None
    """The master port; None: derived from the job number."""
    pinned: bool = False
    """Request the selected nodes by name, not any equal ones."""
    excluded: tuple[str, ...] = ()
    """Nodes that SLURM must not allocate."""
    supervised: Supervised | None = None
    """How `dslaunch run` is called in the job; None: srun starts the ranks."""
    origin: Origin | None = None
    """The source, for the first lines of the script; None: unknown."""


def job_name(batch: Batch) -> str:
    """Return the job name: as set, otherwise that of the script."""
    program = batch.launch.job.program
    stem = program if batch.launch.job.kind == "module" else PurePosixPath(program).stem
    return batch.slurm.job_name or re.sub(r"[^\w.-]+", "-", stem) or "job"


def signal_name(slurm: Slurm) -> str | None:
    """Return `USR1` of `USR1@600` or `RB:SIGUSR1`."""
    if not slurm.signal:
        return None
    return slurm.signal.partition("@")[0].rpartition(":")[2].removeprefix("SIG")


def signal_option(slurm: Slurm) -> str:
    """Return the value of `--signal`: the batch script gets the signal, and forwards it.

    `R:` also signals before a reservation with the job's nodes begins (sbatch(1)).
    """
    target, _, rest = (slurm.signal or "").rpartition(":")
    reservation = "R" if "R" in target else ""
    return f"{reservation}B:{rest.removeprefix('SIG')}"


def grouped(batch: Batch) -> tuple[NodeGroup, ...]:
    """Return the nodes grouped by number and type of GPUs: each group is a component of the job.

    There is one per type, not per node, since each counts as a job for limits (SLURM's page on
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
