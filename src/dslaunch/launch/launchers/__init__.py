"""How the ranks of one node start. One file per launcher, with an object `LAUNCHER`;
`registry.LAUNCHERS` knows them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.plural import counted
from dslaunch.registry import LAUNCHERS

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.command import Var
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Process, World
    from dslaunch.launch.slurm_step import SlurmStep, StepCommand


class Launcher(ABC):
    """How the ranks of one node start, and what this way of starting them can do. Pure.

    The class attributes are the launcher's capabilities; code asks for them, never for a name.
    """

    summary: str
    """One line that says what it does and when to choose it."""
    modules: tuple[str, ...] = ()
    """The Python modules that a node must have to start it, as dotted names."""
    lines: str = ""
    """The summary of the render format with its command lines; empty: there is no such format."""
    elastic: bool = False
    """It restarts ranks by itself, goes on without nodes that leave, and gives out ranks anew."""
    uneven_slots: bool = True
    """Nodes may have different numbers of slots."""
    compares_clocks: bool = False
    """Its rendezvous drops nodes whose clocks differ."""
    uses_host_name: bool = False
    """Its first node finds out by its own name that it is the master."""
    task_per_rank: bool = False
    """In a SLURM job every rank is a task; else a task is the launcher of a node."""
    cpu_variable: str = ""
    """The variable that must be `true` for its ranks to join each other on nodes without GPUs."""

    def check(self, world: World) -> None:  # noqa: B027 - most launchers can run any world
        """Raise PlanError if this launcher cannot run `world`, saying which node and why."""

    @abstractmethod
    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return the commands that start the node's ranks.

        With `logs`, the node's directory of pipes, a launcher starts `program.piped` as each
        rank, which gives the rank its own pipes. Without, the line is one to type by hand.
        """

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return what each task of a SLURM step runs. A launcher without it cannot be used in a
        job that dslaunch does not supervise."""
        raise NotImplementedError

    @property
    def has_slurm_command(self) -> bool:
        """Whether `slurm_command` is implemented."""
        return type(self).slurm_command is not Launcher.slurm_command

    def default_restarts(self, nodes: int, min_nodes: int | None) -> int:
        """Return how often it restarts ranks by itself where nobody says it."""
        return 0

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of `modules`; without any, torch's: the ranks use it."""
        found = dict.fromkeys(module.partition(".")[0] for module in self.modules)
        return tuple(found) or ("torch",)


def check_launcher(name: str, world: World) -> None:
    """Raise PlanError if the launcher of that name cannot run `world`."""
    launcher = LAUNCHERS.get(name)
    if not launcher.uneven_slots:
        _check_even(name, world)
    launcher.check(world)


def _check_even(name: str, world: World) -> None:
    first, *others = world.allocation.placements
    for other in others:
        if len(other.slots) != len(first.slots):
            able = [f"`{n}`" for n in LAUNCHERS.names() if LAUNCHERS.get(n).uneven_slots]
            raise PlanError(
                f"launcher `{name}` starts equally many ranks on every node, but "
                f"{first.node.host} has {_slots(first)} and {other.node.host} {_slots(other)}",
                hint=f"choose the launcher {', '.join(able[:-1])} or {able[-1]}, or select "
                "equally many slots on every node",
                code=ErrorCode.UNEVEN_SLOTS,
            )


def _slots(placement: Placement) -> str:
    return counted(len(placement.slots), "slot")


def modules_of(name: str) -> tuple[str, ...]:
    """Return the Python modules that the launcher of that name starts with."""
    return LAUNCHERS.get(name).modules


def starts_python(job: Job) -> bool:
    """Whether a job starts Python: as its launcher, or because it is a script or a module."""
    return job.kind != "command" or bool(modules_of(job.launcher))
