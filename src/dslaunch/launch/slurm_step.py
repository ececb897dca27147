"""What a launcher knows of a SLURM step, and what it says each task of the step runs.

The counterpart of `World` and `Process`, which know every node by name: here none is known, and
SLURM's variables say on the node what differs from task to task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.program import kind_flag, torch_positional

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.launch.job import Job

NODE_RANK, RANK, LOCAL_RANK = Var("SLURM_NODEID"), Var("SLURM_PROCID"), Var("SLURM_LOCALID")
MASTER_ADDRESS, MASTER_PORT = Var("MASTER_ADDR"), Var("MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Component:
    """Nodes that are alike: the whole job, or one component of a heterogeneous job."""

    nodes: int
    slots: int
    """GPUs used of each."""


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """The part of a job's step that runs on one component."""

    job: Job
    node: Node
    """One of the component's nodes, which stands for all."""
    component: Component
    components: tuple[Component, ...]
    min_nodes: int | None = None
    """With how few nodes an elastic run may go on; None: all."""
    suffix: str = ""
    """What makes a node's name one of the fast network."""

    @property
    def python(self) -> Word:
        """The interpreter."""
        return interpreter(self.node)

    @property
    def slots(self) -> int:
        """How many ranks each node of the component has."""
        return self.component.slots

    @property
    def heterogeneous(self) -> bool:
        """Whether the job has several components: its numbers are fixed then."""
        return len(self.components) > 1

    @property
    def nodes(self) -> Word:
        """How many nodes the job has: SLURM says, which may change when a job is requeued
        (submitit #1613)."""
        if self.heterogeneous:
            return str(sum(c.nodes for c in self.components))
        return (Var("SLURM_NNODES"),)

    @property
    def tasks(self) -> Word:
        """How many ranks the job has, where each is a task."""
        return self._fixed_ranks if self.heterogeneous else (Var("SLURM_NTASKS"),)

    @property
    def single_rank(self) -> bool:
        """Whether the job has one rank."""
        return self._fixed_ranks == "1"

    @property
    def _fixed_ranks(self) -> str:
        return str(sum(c.nodes * c.slots for c in self.components))


@dataclass(frozen=True, slots=True)
class StepCommand:
    """What a task runs: shell lines, and the command after them."""

    command: Command
    before: tuple[str, ...] = ()


def joined(*parts: Word | Var) -> Word:
    """Join text, variables and words to one word."""
    flat: list[str | Var] = []
    for part in parts:
        flat += part if isinstance(part, tuple) else [part]
    return tuple(part for part in flat if part)


def teed(job: Job, no_python: str = "--no-python") -> tuple[Word, ...]:
    """The end of a line for torch's agent. `--tee` makes each line say its local rank:
    `[default0]:`; `no_python` is the launcher's spelling of that option."""
    return ("--tee=3", *kind_flag(job, no_python), *torch_positional(job))
