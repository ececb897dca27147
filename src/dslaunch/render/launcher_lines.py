"""Shell lines to type on the nodes by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dslaunch.launch.command import Word, activated, at_home, shell_line
from dslaunch.launch.launchers import check_launcher
from dslaunch.registry import LAUNCHERS
from dslaunch.render.caveats import secret_notes
from dslaunch.render.launch import Rendered

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


@dataclass(frozen=True, slots=True)
class LauncherLines:
    """A format: the command of every node with one launcher, below a comment with its name."""

    launcher: str

    @property
    def summary(self) -> str:
        """One line that says what the text is for."""
        return LAUNCHERS.get(self.launcher).lines

    def render(self, launch: Launch) -> Rendered:
        """Each node's line. Raises PlanError where the launcher cannot run this allocation."""
        world = launch.world
        launcher = LAUNCHERS.get(self.launcher)
        cwd = directory(launch.decided.workdir)
        check_launcher(self.launcher, world)
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
    """A directory of a node as a word; a relative one is below the node user's home."""
    anchored = path.startswith(("/", "~/")) or path == "~"
    return at_home(path if anchored else f"~/{path}")
