"""Launchers, which start the ranks of one node. One module per launcher, with an object `LAUNCHER`;
`registry.LAUNCHERS` lists them by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.registry import LAUNCHERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Placement
    from dslaunch.launch.command import Var
    from dslaunch.launch.job import Job
    from dslaunch.launch.launcher_args import Reserved
    from dslaunch.launch.plan import Process, World
    from dslaunch.launch.slurm_step import SlurmStep, StepCommand


class Launcher(ABC):
    """A launcher of the ranks of one node, and its capabilities. Pure.

    The class attributes are the capabilities; code tests these, never the name of a launcher.
    """

    summary: str
    """One line: what it does, and when to choose it."""
    modules: tuple[str, ...] = ()
    """Python modules that must be installed on the nodes, as dotted names."""
    lines: str = ""
    """Summary of the render format with its command lines; empty: no such format."""
    elastic: bool = False
    """It restarts ranks itself, continues without lost nodes, and assigns new ranks."""
    uneven_slots: bool = True
    """Nodes may have different numbers of slots."""
    compares_clocks: bool = False
    """Its rendezvous removes nodes whose clocks differ."""
    uses_host_name: bool = False
    """Its first node compares its host name with the master's address."""
    task_per_rank: bool = False
    """In a SLURM job every rank is a task; otherwise a task is the launcher of a node."""
    takes_args: bool = False
    """The user can pass options through to it (`launcher_args`)."""
    flags: tuple[str, ...] = ()
    """Its options without a value, without dashes and with `_`; all others need `=VALUE`."""
    reserved: Mapping[Reserved, tuple[str, ...]] = {}
    """Options that the plan sets, without dashes and with `_`; they cannot be passed through."""
    limits_threads: bool = False
    """Each of several ranks on a node gets one OpenMP thread unless the user sets it."""
    cpu_variable: str = ""
    """Variable that must be `true` for its ranks to join one process group on nodes without
    GPUs."""

    def check(self, world: World) -> None:  # noqa: B027 - most launchers can run any world
        """Raise PlanError, with the node and the reason, if this launcher cannot run `world`."""

    @abstractmethod
    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return the commands that start the node's ranks.

        With `logs`, the node's directory of pipes, a launcher starts `program.piped` as each rank,
        which connects the rank to its pipes. Without it, users type the command on the nodes.
        """

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return the command of each task of a SLURM step. A launcher without it requires a
        supervised job."""
        raise NotImplementedError

    @property
    def has_slurm_command(self) -> bool:
        """Return whether `slurm_command` is implemented."""
        return type(self).slurm_command is not Launcher.slurm_command

    def default_restarts(self, nodes: int, min_nodes: int | None) -> int:
        """Return the default number of restarts by the launcher itself."""
        return 0

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages of `modules`; without modules torch, which the ranks use."""
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
            able = (n for n in LAUNCHERS.names() if LAUNCHERS.get(n).uneven_slots)
            raise PlanError.coded(
                ErrorCode.UNEVEN_SLOTS,
                launcher=name,
                host=first.node.host,
                slots=len(first.slots),
                other=other.node.host,
                other_slots=len(other.slots),
                least=min(len(each.slots) for each in world.allocation.placements),
                launchers=tuple(able),
            )


def modules_of(name: str) -> tuple[str, ...]:
    """Return the Python modules of the launcher of that name."""
    return LAUNCHERS.get(name).modules


def starts_python(job: Job) -> bool:
    """Return whether a job starts Python, for its launcher or for a script or module."""
    return job.kind != "command" or bool(modules_of(job.launcher))
