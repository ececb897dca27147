"""The command of DeepSpeed's own multi-node runner."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.command import (
    LONGEST_ARGUMENT,
    Command,
    Word,
    activated,
    quote,
    shell_line,
)
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launcher_args import check_launcher_args
from dslaunch.launch.launchers.deepspeed import check_length, runner_world_option
from dslaunch.launch.program import kind_flag, positional
from dslaunch.notes import note
from dslaunch.render.formats.include import include
from dslaunch.render.launch import Rendered
from dslaunch.render.launcher_lines import directory
from dslaunch.render.notes import (
    DEEPSPEED_EXPORTS,
    LOOPBACK,
    RenderNote,
    argument_notes,
    differing_notes,
    export_notes,
    home_notes,
    secret_notes,
    ssh_notes,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node, Pairs
    from dslaunch.render.launch import Launch

HOSTFILE = "hostfile"
OWN_WORDS = 1024
"""Bytes of the runner's own words: the path of its interpreter, its options, and a few exported
variables of its environment."""


class DeepSpeedFormat:
    """A command for the machine from which DeepSpeed reaches the nodes with pdsh."""

    summary = "the `deepspeed` command that starts all nodes through pdsh"

    def render(self, launch: Launch) -> Rendered:
        """Return the line, below a comment.

        Raises PlanError for a host that `--include` cannot name, and for more nodes than fit into
        the command in which DeepSpeed passes all of them to pdsh: with a hostfile alone, too.
        """
        # the runner hands its launcher's options on
        check_launcher_args("deepspeed", launch.job.launcher_args)
        env = tuple(
            pair
            for pair in launch.environment(launch.placements[0])
            if pair[0] != "CUDA_VISIBLE_DEVICES"
        )
        _check_pdsh_command(launch, env)
        started = activated(command(launch), launch.placements[0].node.activate)
        line = shell_line(started, env=env, cwd=directory(launch.decided.workdir))
        notes = (
            note(RenderNote.SAVE_HOSTFILE, file=HOSTFILE),
            *ssh_notes(launch),
            *differing_notes(launch, "deepspeed"),
            *export_notes(launch),
            *argument_notes(launch),
            *home_notes(line),
            *secret_notes(launch),
        )
        return Rendered(f"{line}\n", notes)


def command(launch: Launch) -> Command:
    """Return the runner's command. It starts the same interpreter on every node.

    The runner sets CUDA_VISIBLE_DEVICES by the slots of `--include`. One node needs
    `--force_multi`, since DeepSpeed otherwise starts it on the machine where it is called; if it
    is that machine, `--no_ssh_check` (0.19.8, launcher/runner.py).
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
            *launch.job.launcher_args,
            *kind_flag(launch.job, "--no_python"),
            *(("--no_local_rank",) if launch.job.kind == "command" else ()),
            *positional(launch.job),
        )
    )


def _check_pdsh_command(launch: Launch, env: Pairs) -> None:
    """Raise PlanError if a node could not start what DeepSpeed's runner passes to pdsh. The node's
    sshd has it executed as one argument of a shell (0.19.8, launcher/multinode_runner.py)."""
    world_option = runner_world_option(launch.world)
    check_length(world_option, launch.world)
    exports = [
        f"export {name}={value};" for name, value in env if name.startswith(DEEPSPEED_EXPORTS)
    ]
    words = (*exports, launch.decided.workdir, world_option, *map(quote, positional(launch.job)))
    size = len(os.fsencode(" ".join(words))) + OWN_WORDS
    if size > LONGEST_ARGUMENT:
        raise PlanError.coded(
            ErrorCode.PDSH_COMMAND_TOO_LONG,
            nodes=launch.world.node_count,
            size=size,
            limit=LONGEST_ARGUMENT,
        )


def runner(node: Node) -> tuple[Word, ...]:
    """Return the words that start DeepSpeed's runner: its script, or the module if an interpreter
    is set."""
    if node.python is None:
        return ("deepspeed",)
    return (interpreter(node), "-m", "deepspeed.launcher.runner")


FORMAT = DeepSpeedFormat()
