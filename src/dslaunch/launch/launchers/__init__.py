"""How the ranks of one node start. One file per launcher, with an object `LAUNCHER`;
`registry.LAUNCHERS` knows them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dslaunch.registry import LAUNCHERS

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.command import Var
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Process, World


class Launcher(Protocol):
    """How the ranks of one node start. Pure."""

    @property
    def summary(self) -> str:
        """One line that says what it does and when to choose it."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The Python modules that a node must have to start it, as dotted names."""

    def check(self, world: World) -> None:
        """Raise PlanError if this launcher cannot run `world`, saying which node and why."""

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The commands that start the node's ranks.

        With `logs`, the node's directory of pipes, a launcher starts `program.piped` as each
        rank, which gives the rank its own pipes. Without, the line is one to type by hand.
        """


def modules_of(name: str) -> tuple[str, ...]:
    """The Python modules that a launcher starts with; one of a third party may not say."""
    found: tuple[str, ...] = getattr(LAUNCHERS.get(name), "modules", ())
    return found


def starts_python(job: Job) -> bool:
    """Whether a job starts Python: as its launcher, or because it is a script or a module."""
    return job.kind != "command" or bool(modules_of(job.launcher))
