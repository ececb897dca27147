"""DeepSpeed's own per-node launcher, without its SSH part."""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import TYPE_CHECKING

from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import kind_flag, piped, positional
from dslaunch.launch.slurm_step import (
    MASTER_ADDRESS,
    MASTER_PORT,
    NODE_RANK,
    SlurmStep,
    StepCommand,
    joined,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument that Linux takes, less its final NUL (execve(2), MAX_ARG_STRLEN)."""


class DeepSpeed(Launcher):
    """`python -m deepspeed.launcher.launch` on every node.

    It sets CUDA_VISIBLE_DEVICES to the node's slots and puts `--local_rank=N` in front of the
    arguments of a script or module, as scripts written for DeepSpeed expect; a command gets
    its arguments alone. Where nodes have different numbers of slots, LOCAL_RANK does not start
    at 0 with a node's first rank (0.19.8, launcher/launch.py: the rank modulo the node's slots).
    """

    summary = "one `deepspeed.launcher.launch` per node; for scripts that expect `--local_rank`"
    modules = ("torch", "deepspeed.launcher.launch")

    def check(self, world: World) -> None:
        """Raise PlanError if the map of the world is too long for one argument."""
        length = len(world_option(world))
        if length > LONGEST_ARGUMENT:
            raise PlanError(
                f"launcher `deepspeed`: its `--world_info` for {world.node_count} nodes has "
                f"{length} bytes, and Linux takes {LONGEST_ARGUMENT} in one argument",
                hint="choose the launcher `torchrun`, which needs no map of the world",
            )

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The one launcher of a node."""
        words = piped(job, logs, "RANK") if logs else positional(job)
        return (
            Process(
                Command(
                    (
                        interpreter(placement.node),
                        "-u",
                        "-m",
                        "deepspeed.launcher.launch",
                        world_option(world),
                        f"--node_rank={placement.node_rank}",
                        f"--master_addr={world.rendezvous.address}",
                        f"--master_port={world.rendezvous.port}",
                        *kind_flag(job, "--no_python", logs),
                        *(("--no_local_rank",) if job.kind == "command" else ()),
                        *words,
                    )
                )
            ),
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """The one launcher of a node. It counts the ranks in a map of all nodes, whose names it
        only prints."""
        command = Command(
            (
                step.python,
                "-u",
                "-m",
                "deepspeed.launcher.launch",
                joined("--world_info=", Var("world")),
                joined("--node_rank=", NODE_RANK),
                joined("--master_addr=", MASTER_ADDRESS),
                joined("--master_port=", MASTER_PORT),
                *kind_flag(step.job, "--no_python"),
                *(("--no_local_rank",) if step.job.kind == "command" else ()),
                *positional(step.job),
            )
        )
        return StepCommand(command, tuple(_world_map(step)))


@lru_cache(maxsize=1)
def world_option(world: World) -> str:
    """The option that tells every node all hosts and slots, in rank order."""
    slots = {p.node.host: p.slots for p in world.allocation.placements}
    text = json.dumps(slots, separators=(",", ":"))
    return f"--world_info={base64.urlsafe_b64encode(text.encode()).decode()}"


def _world_map(step: SlurmStep) -> Iterator[str]:
    """The shell lines that make the map on the node, with the GPUs there that SLURM gave: the
    launcher would set CUDA_VISIBLE_DEVICES to 0, 1, ... else (0.19.8, launcher/launch.py)."""
    yield "world= n=0"
    if step.heterogeneous:
        for component in step.components:
            ids = ",".join(map(str, range(component.slots)))
            loop = f"for ((i = 0; i < {component.nodes}; i++))"
            yield f'{loop}; do world+=",\\"$((n++))\\":[{ids}]"; done'
    else:
        ids, more = ",".join(map(str, range(step.slots))), step.slots - 1
        yield f"gpus=${{CUDA_VISIBLE_DEVICES:-{ids}}}"
        yield f"[[ $gpus =~ ^[0-9]+(,[0-9]+){{{more}}}$ ]] || gpus={ids}"
        yield 'while ((n < SLURM_NNODES)); do world+=",\\"$((n++))\\":[$gpus]"; done'
    yield "world=$(printf '{%s}' \"${world#,}\" | base64 -w 0 | tr '+/' '-_')"


LAUNCHER = DeepSpeed()
