"""The shell text that a node, or a rank, of a SLURM step runs.

It uses SLURM's variables, since the nodes are unknown before the start, unlike those of a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

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


class NodeGroup(Struct, frozen=True):
    """Equal nodes: those of the job, or of one component of a heterogeneous job."""

    slots: int
    gpu: str | None
    """The type of the GPUs in SLURM."""
    nodes: int
    members: tuple[Placement, ...]

    @property
    def node(self) -> Node:
        """Return one of the nodes, which are all equal."""
        return self.members[0].node

    @property
    def component(self) -> Component:
        """Return the group as an input of launchers."""
        return Component(nodes=self.nodes, slots=self.slots)

    def tasks(self, launcher: Launcher) -> int:
        """Return the number of SLURM tasks per node: one launcher, or all ranks.

        A task per node needs no `--gpus-per-task`, which hides the GPUs of a node from each other
        (pyxis #73, Lightning #16828).
        """
        return self.slots if launcher.task_per_rank else 1


class TaskContext(Struct, frozen=True):
    """The input for the text of one group."""

    launch: Launch
    group: NodeGroup
    groups: tuple[NodeGroup, ...]
    suffix: str = ""
    """The suffix of host names in the fast network."""
    container: Container | None = None

    @property
    def workdir(self) -> str:
        """Return the working directory of the ranks, inside the container if there is one."""
        inside = self.container.workdir if self.container else None
        return inside or self.launch.decided.workdir

    @property
    def step(self) -> SlurmStep:
        """Return the same as a value for launchers."""
        return SlurmStep(
            job=self.launch.job,
            node=self.group.node,
            component=self.group.component,
            components=tuple(group.component for group in self.groups),
            min_nodes=self.launch.world.min_nodes,
            suffix=self.suffix,
        )


def node_text(context: TaskContext, notice: Notice | None) -> str:
    """Return the text for `bash -c`, without a newline at the end."""
    launch, group, node = context.launch, context.group, context.group.node
    start = launch.launcher.slurm_command(context.step)
    # SLURM chooses the GPUs, and sets the variables for them
    slots = tuple(range(group.slots))
    here = replace(group.members[0], slots=slots, node=replace(node, slots=slots))
    env = node_environment(here, launch.job, launch.decided.rendezvous)
    lines = _keep_early_signal(notice, launch.launcher) if notice else []
    lines += _require_variables(context)
    lines += exports(env)
    lines += [f"cd {quote(directory(context.workdir))} || exit"]
    lines += _activated(node.activate)
    files = launch.decided.files
    lines += [*_versions(context), *start.before, *_files(files)]
    lines += _run_command(start.command, notice)
    return "\n".join(lines)


def _require_variables(context: TaskContext) -> list[str]:
    """Return lines that end the task if a variable is not set in its container."""
    if context.container is None:
        return []
    names = ("SLURM_PROCID", "MASTER_ADDR", *(s.name for s in context.launch.job.secrets))
    return [f': "${{{name}:?did not reach the container}}"' for name in names]


def _versions(context: TaskContext) -> list[str]:
    """Return the line that prints versions, for a Python program."""
    if not starts_python(context.launch.job):
        return []
    packages = context.launch.launcher.packages
    return [Command(("print_versions", context.step.python, *packages)).shell()]


def _activated(line: str | None) -> list[str]:
    """Return the activate line; a failure ends the task."""
    text = (line or "").strip()
    if not text:
        return []
    if set("#\n;&|") & set(text):
        return ["{", text, "} || exit"]
    return [f"{text} || exit"]


class Notice(Struct, frozen=True):
    """The signal to the ranks before the time limit."""

    signal: str
    requeue: int
    """Maximum number of requeues after the signal."""


def _keep_early_signal(notice: Notice, launcher: Launcher) -> list[str]:
    """Return lines that keep a signal which arrives before the ranks are started; it would kill
    this shell otherwise."""
    kept = Command(("trap", f'noticed=1 early+=" {notice.signal}"', notice.signal))
    flag = "" if launcher.task_per_rank else " launcher=1"
    return [f"notice={notice.signal}{flag}", kept.shell()]


def _run_command(command: Command, notice: Notice | None) -> list[str]:
    """Return lines that run the command by the functions of `script_functions`, and end with its
    exit code.

    Only the ranks get the signal, and only those with a handler react. Launchers must not get it:
    torch's kills its ranks after 30 seconds (torch 2.13, distributed/elastic/agent/server/api.py),
    DeepSpeed's is killed by it. A signal that is ignored when a program starts is ignored in its
    children until they set a handler; so it does not kill ranks without a handler (submitit #1793).
    """
    lines = [wrapped(Command(("attend", *command.argv))), "leave"]
    if notice is not None and notice.requeue:
        lines += _succeed_if_requeued(notice)
    return [*lines, 'exit "$code"']


def _succeed_if_requeued(notice: Notice) -> tuple[str, ...]:
    """Return the line that ends the task with 0 if the job is requeued: after a failed task srun
    would kill the others before they have saved."""
    return (f'[ -z "$noticed" ] || ((${{SLURM_RESTART_COUNT:-0}} >= {notice.requeue})) || exit 0',)


def _files(files: tuple[File, ...]) -> list[str]:
    """Return lines that create the files of the command, in a temporary directory of the task."""
    if not files:
        return []
    directory = RUN_DIRECTORY.name
    lines = [f"{directory}=$(mktemp -d) || exit", f"trap 'rm -rf \"${directory}\"' EXIT"]
    return lines + [
        f"printf %s {quote(file.text)} >{quote((RUN_DIRECTORY, f'/{file.name}'))} || exit"
        for file in files
    ]
