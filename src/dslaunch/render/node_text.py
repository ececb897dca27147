"""What one node, or rank, of a SLURM step runs: a shell text that SLURM's variables fill in.

The counterpart of a plan, which knows every node by name: here none is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, exports, quote, wrapped
from dslaunch.launch.launchers import starts_python
from dslaunch.launch.plan import RUN_DIRECTORY, node_environment
from dslaunch.launch.slurm_step import Component, SlurmStep
from dslaunch.render.launcher_lines import directory

if TYPE_CHECKING:
    from dslaunch.cluster.model import Container, Node, Placement
    from dslaunch.launch.launchers import Launcher
    from dslaunch.launch.plan import File
    from dslaunch.render.launch import Launch


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike: the job, or one component of a heterogeneous job."""

    slots: int
    gpu: str | None
    """The GPUs' type as SLURM calls it."""
    nodes: int
    members: tuple[Placement, ...]

    @property
    def node(self) -> Node:
        """One of them, which stands for all."""
        return self.members[0].node

    @property
    def component(self) -> Component:
        """The same for a launcher."""
        return Component(nodes=self.nodes, slots=self.slots)

    def tasks(self, launcher: Launcher) -> int:
        """How many tasks of SLURM run on each: a launcher, or every rank itself.

        With one per node and not per GPU no `--gpus-per-task` is needed, which hides the GPUs
        of a node from each other (pyxis #73, Lightning #16828).
        """
        return self.slots if launcher.task_per_rank else 1


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What is known of the tasks of one group."""

    launch: Launch
    group: NodeGroup
    groups: tuple[NodeGroup, ...]
    suffix: str = ""
    """What makes a node's name one of the fast network."""
    container: Container | None = None

    @property
    def workdir(self) -> str:
        """Where the ranks start, as they see it."""
        inside = self.container.workdir if self.container else None
        return inside or self.launch.decided.workdir

    @property
    def step(self) -> SlurmStep:
        """The same for a launcher."""
        return SlurmStep(
            job=self.launch.job,
            node=self.group.node,
            component=self.group.component,
            components=tuple(group.component for group in self.groups),
            min_nodes=self.launch.world.min_nodes,
            suffix=self.suffix,
        )


def node_text(seat: TaskContext, notice: Notice | None) -> str:
    """The text for `bash -c`, with no newline at the end."""
    launch, group, node = seat.launch, seat.group, seat.group.node
    start = launch.launcher.slurm_command(seat.step)
    # SLURM chooses the GPUs, and says which
    slots = tuple(range(group.slots))
    here = replace(group.members[0], slots=slots, node=replace(node, slots=slots))
    env = node_environment(here, launch.job, launch.decided.rendezvous)
    lines = _prepared_for(notice, launch.launcher) if notice else []
    lines += _arrived(seat)
    lines += exports(env)
    lines += [f"cd {quote(directory(seat.workdir))} || exit"]
    lines += _activated(node.activate)
    files = launch.decided.files
    lines += [*_versions(seat), *start.before, *_files(files)]
    lines += _attended(start.command, notice)
    return "\n".join(lines)


def _arrived(seat: TaskContext) -> list[str]:
    """End the task when a variable that it needs did not get into its container."""
    if seat.container is None:
        return []
    names = ("SLURM_PROCID", "MASTER_ADDR", *(s.name for s in seat.launch.job.secrets))
    return [f': "${{{name}:?did not reach the container}}"' for name in names]


def _versions(seat: TaskContext) -> list[str]:
    """Print what runs, where that is Python."""
    if not starts_python(seat.launch.job):
        return []
    packages = seat.launch.launcher.packages
    return [Command(("print_versions", seat.step.python, *packages)).shell()]


def _activated(line: str | None) -> list[str]:
    """The activate line; what it cannot do ends the task."""
    text = (line or "").strip()
    if not text:
        return []
    if set("#\n;&|") & set(text):
        return ["{", text, "} || exit"]
    return [f"{text} || exit"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What the ranks get before the time limit."""

    signal: str
    requeue: int
    """How often the job may start again after it."""


def _prepared_for(notice: Notice, launcher: Launcher) -> list[str]:
    """Keep a notice that comes before the ranks are there, which would end this shell."""
    kept = Command(("trap", f'noticed=1 early+=" {notice.signal}"', notice.signal))
    flag = "" if launcher.task_per_rank else " launcher=1"
    return [f"notice={notice.signal}{flag}", kept.shell()]


def _attended(command: Command, notice: Notice | None) -> list[str]:
    """Run the command by the functions of `script_functions`, and end with its exit code.

    Ranks alone get the notice, and only those that handle it take notice. Launchers must not:
    torch's would give its ranks 30 seconds and kill them (torch 2.13,
    distributed/elastic/agent/server/api.py), DeepSpeed's would just die. A signal that is
    ignored when a program starts stays so in what it starts, until that sets a handler; so
    ranks without one do not die of it either (submitit #1793).
    """
    lines = [wrapped(Command(("attend", *command.argv))), "leave"]
    if notice is not None and notice.requeue:
        lines += _comes_again(notice)
    return [*lines, 'exit "$code"']


def _comes_again(notice: Notice) -> tuple[str, ...]:
    """Who has saved and ends badly must not have the others killed before they have saved, so it
    ends well where the job starts again anyway."""
    return (f'[ -z "$noticed" ] || ((${{SLURM_RESTART_COUNT:-0}} >= {notice.requeue})) || exit 0',)


def _files(files: tuple[File, ...]) -> list[str]:
    """Make the files that the command names, in a directory of the task's own."""
    if not files:
        return []
    directory = RUN_DIRECTORY.name
    lines = [f"{directory}=$(mktemp -d) || exit", f"trap 'rm -rf \"${directory}\"' EXIT"]
    return lines + [
        f"printf %s {quote(file.text)} >{quote((RUN_DIRECTORY, f'/{file.name}'))} || exit"
        for file in files
    ]
