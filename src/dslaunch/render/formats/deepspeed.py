"""The command of DeepSpeed's own multi-node runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Word, activated, shell_line
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.program import kind_flag, positional
from dslaunch.render.caveats import (
    LOOPBACK,
    argument_notes,
    differing_notes,
    export_notes,
    home_notes,
    secret_notes,
    ssh_notes,
)
from dslaunch.render.formats.include import include
from dslaunch.render.launch import Rendered
from dslaunch.render.launcher_lines import directory

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node
    from dslaunch.render.launch import Launch

HOSTFILE = "hostfile"


class DeepSpeedFormat:
    """One line for the machine from which DeepSpeed reaches the nodes with pdsh."""

    summary = "the `deepspeed` command that starts all nodes through pdsh"

    def render(self, launch: Launch) -> Rendered:
        """The line, below a comment. Raises PlanError for a host that `--include` cannot name."""
        env = tuple(
            pair
            for pair in launch.environment(launch.placements[0])
            if pair[0] != "CUDA_VISIBLE_DEVICES"
        )
        started = activated(command(launch), launch.placements[0].node.activate)
        line = shell_line(started, env=env, cwd=directory(launch.decided.workdir))
        notes = (
            f"save what the format `hostfile` prints as `{HOSTFILE}` in the working directory",
            *ssh_notes(launch),
            *differing_notes(launch, "deepspeed"),
            *export_notes(launch),
            *argument_notes(launch),
            *home_notes(line),
            *secret_notes(launch),
        )
        return Rendered(f"{line}\n", notes)


def command(launch: Launch) -> Command:
    """The runner's command. It starts on every node the interpreter that it was started with.

    CUDA_VISIBLE_DEVICES is left to it: it takes the slots of `--include`. One node needs
    `--force_multi`, since DeepSpeed else starts that node's part on the machine where it is
    called; if it is that machine, `--no_ssh_check` (0.19.8, launcher/runner.py).
    """
    first, *others = launch.allocation.hosts
    alone: tuple[str, ...] = ()
    if not others:
        alone = ("--no_ssh_check",) if first in LOOPBACK else ("--force_multi",)
    return Command(
        (
            *runner(launch.placements[0].node),
            f"--hostfile={HOSTFILE}",
            f"--include={include(launch.allocation)}",
            f"--master_addr={launch.decided.rendezvous.address}",
            f"--master_port={launch.decided.rendezvous.port}",
            *alone,
            *kind_flag(launch.job, "--no_python"),
            *(("--no_local_rank",) if launch.job.kind == "command" else ()),
            *positional(launch.job),
        )
    )


def runner(node: Node) -> tuple[Word, ...]:
    """What starts DeepSpeed's runner: its own script, or the module if an interpreter is named."""
    if node.python is None:
        return ("deepspeed",)
    return (interpreter(node), "-m", "deepspeed.launcher.runner")


FORMAT = DeepSpeedFormat()
