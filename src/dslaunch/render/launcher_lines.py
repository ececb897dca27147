"""Commands to run on the nodes by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.launch.command import Word, activated, at_home, shell_line
from dslaunch.launch.launcher_args import check_launcher_args
from dslaunch.launch.launchers import check_launcher
from dslaunch.registry import LAUNCHERS
from dslaunch.render.launch import Rendered
from dslaunch.render.notes import secret_notes

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


class LauncherLines(Struct, frozen=True):
    """A format: the command of each node for one launcher, below a comment with its name."""

    launcher: str

    @property
    def summary(self) -> str:
        """Return the purpose of the text in one line."""
        return LAUNCHERS.get(self.launcher).lines

    def render(self, launch: Launch) -> Rendered:
        """Return the command of each node.

        Raises PlanError if the launcher cannot run this allocation, UsageError for the job's
        launcher arguments if they are for another launcher.
        """
        world = launch.world
        launcher = LAUNCHERS.get(self.launcher)
        cwd = directory(launch.decided.workdir)
        check_launcher(self.launcher, world)
        check_launcher_args(self.launcher, launch.job.launcher_args)
        lines = []
        for placement in launch.placements:
            env, activate = launch.environment(placement), placement.node.activate
            lines.append(f"# {placement.node.host}")
            lines += [
                shell_line(activated(p.command, activate), env=(*env, *p.env), cwd=cwd)
                for p in launcher.processes(placement, world, launch.job)
            ]
        return Rendered("".join(f"{line}\n" for line in lines), secret_notes(launch))


def directory(path: str) -> Word:
    """Return a directory of a node as a word; a relative one is below the user's home there."""
    anchored = path.startswith(("/", "~/")) or path == "~"
    return at_home(path if anchored else f"~/{path}")
