"""How the ranks of one node start. One file per launcher; the directory is the registry.

A module here that is not private holds one object `LAUNCHER` of the shape of `Launcher`.
Third parties add theirs by an entry point of the group `dslaunch.launchers`, which is read
only when a name is not built in.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol

from dslaunch.errors import UsageError

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


def names() -> tuple[str, ...]:
    """The launchers that are built in."""
    return tuple(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def get(name: str) -> Launcher:
    """Give the launcher of that name. Raises UsageError when there is none."""
    if name in names():
        built_in: Launcher = importlib.import_module(f"{__name__}.{name}").LAUNCHER
        return built_in
    return _installed(name)


def _installed(name: str) -> Launcher:
    import difflib
    from importlib.metadata import entry_points

    for entry in entry_points(group="dslaunch.launchers", name=name):
        found: Launcher = entry.load()
        return found
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(names())}"
    raise UsageError(f"no launcher is named `{name}`", hint=hint)
