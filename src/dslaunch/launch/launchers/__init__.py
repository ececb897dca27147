"""How the ranks of one node start. One file per launcher; the directory is the registry.

A module here that is not private holds one object `LAUNCHER` of the shape of `Launcher`.
Third parties add theirs by an entry point of the group `dslaunch.launchers`, which is read
only when a name is not built in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dslaunch.registry import Registry

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.command import Var
    from dslaunch.launch.job import Job
    from dslaunch.launch.plan import Process, RankFiles, World


class Launcher(Protocol):
    """How the ranks of one node start. Pure."""

    @property
    def summary(self) -> str:
        """One line that says what it does and when to choose it."""

    @property
    def rank_files(self) -> RankFiles | None:
        """Where its ranks' output is found when `processes` was given `logs`."""

    def check(self, world: World) -> None:
        """Raise PlanError if this launcher cannot run `world`, saying which node and why."""

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The commands that start the node's ranks.

        With `logs`, the launcher is also told to write each rank's output below that
        directory, as `rank_files` describes; without, the line is one to type by hand.
        """


_LAUNCHERS: Registry[Launcher] = Registry(
    __name__, __path__, "LAUNCHER", "dslaunch.launchers", "launcher"
)
names = _LAUNCHERS.names
get = _LAUNCHERS.get
require = _LAUNCHERS.require
