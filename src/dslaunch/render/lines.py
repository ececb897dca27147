"""Shell lines to type on the nodes by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch import launchers
from dslaunch.launch.command import Var, Word, activated, shell_line
from dslaunch.render.launch import Rendered
from dslaunch.render.notes import secret_notes

if TYPE_CHECKING:
    from dslaunch.render.launch import Launch


def launcher_lines(launch: Launch, launcher_name: str) -> Rendered:
    """The command of every node with that launcher, each below a comment with its name.

    Raises PlanError where the launcher cannot run this allocation.
    """
    launcher = launchers.get(launcher_name)
    launcher.check(launch.world)
    lines = []
    for placement in launch.placements:
        env, activate = launch.environment(placement), placement.node.activate
        cwd = directory(launch.decided.workdir)
        lines.append(f"# {placement.node.host}")
        lines += [
            shell_line(activated(p.command, activate), env=(*env, *p.env), cwd=cwd)
            for p in launcher.processes(placement, launch.world, launch.job)
        ]
    return Rendered("".join(f"{line}\n" for line in lines), secret_notes(launch))


def directory(path: str) -> Word:
    """A directory of a node as a word; a relative one is below the node user's home."""
    return path if path.startswith("/") else (Var("HOME"), f"/{path}")
