"""The input and the output of a launcher for a SLURM step.

The counterpart of `World` and `Process`, in which every node has a name. Here the nodes are
unknown, and SLURM's variables contain the differences between tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.plan import thread_limit
from dslaunch.launch.program import kind_flag, torch_positional

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.launch.job import Job

NODE_RANK, RANK, LOCAL_RANK = Var("SLURM_NODEID"), Var("SLURM_PROCID"), Var("SLURM_LOCALID")
MASTER_ADDRESS, MASTER_PORT = Var("MASTER_ADDR"), Var("MASTER_PORT")


class Component(Struct, frozen=True):
    """Equal nodes: the whole job, or one component of a heterogeneous job."""

    nodes: int
    slots: int
    """Number of GPUs in use per node."""


class SlurmStep(Struct, frozen=True):
    """The part of a job's step that runs on one component."""

    job: Job
    node: Node
    """One of the nodes of the component, which are equal."""
    component: Component
    components: tuple[Component, ...]
    min_nodes: int | None = None
    """Minimum number of nodes of an elastic run; None: all."""
    suffix: str = ""
    """Suffix of host names in the fast network."""

    @property
    def python(self) -> Word:
        """Return the interpreter."""
        return interpreter(self.node)

    @property
    def slots(self) -> int:
        """Return the number of ranks per node of the component."""
        return self.component.slots

    @property
    def heterogeneous(self) -> bool:
        """Return whether the job has several components; then its numbers are fixed."""
        return len(self.components) > 1

    @property
    def nodes(self) -> Word:
        """Return the number of nodes of the job, from SLURM: it may change in a requeued job
        (submitit #1613)."""
        if self.heterogeneous:
            return str(sum(c.nodes for c in self.components))
        return (Var("SLURM_NNODES"),)

    @property
    def tasks(self) -> Word:
        """Return the number of ranks of the job, if each rank is a task."""
        return self._fixed_ranks if self.heterogeneous else (Var("SLURM_NTASKS"),)

    @property
    def single_rank(self) -> bool:
        """Return whether the job has one rank."""
        return self._fixed_ranks == "1"

    @property
    def _fixed_ranks(self) -> str:
        return str(sum(c.nodes * c.slots for c in self.components))


class StepCommand(Struct, frozen=True):
    """The shell lines of a task, and the command after them."""

    command: Command
    before: tuple[str, ...] = ()


def joined(*parts: Word | Var) -> Word:
    """Return text, variables and words joined to one word."""
    flat: list[str | Var] = []
    for part in parts:
        flat += part if isinstance(part, tuple) else [part]
    return tuple(part for part in flat if part)


def teed(job: Job, no_python: str = "--no-python") -> tuple[Word, ...]:
    """Return the last words of a command of torch's agent. `--tee` prefixes each line with the
    local rank, `[default0]:`; `no_python` is the launcher's spelling of that option."""
    return ("--tee=3", *kind_flag(job, no_python), *torch_positional(job))


def default_line(name: str, value: str) -> str:
    """The shell line that sets a variable unless it is set on the node."""
    return f'export {name}="${{{name}:-{value}}}"'


def thread_lines(step: SlurmStep) -> tuple[str, ...]:
    """The shell lines that give each rank of a node one OpenMP thread; see `thread_limit`."""
    limit = thread_limit(step.job, step.node, step.slots)
    return tuple(default_line(name, value) for name, value in limit)
