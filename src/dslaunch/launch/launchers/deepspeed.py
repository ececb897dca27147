"""DeepSpeed's launcher of one node, without its SSH part."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.json_text import json_text
from dslaunch.launch.command import LONGEST_ARGUMENT, Command, Var
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launcher_args import Reserved
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
    from collections.abc import Iterator, Mapping

    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job

RESERVED: Mapping[Reserved, tuple[str, ...]] = {
    Reserved.RENDEZVOUS: ("master_addr", "master_port"),
    Reserved.NODES: (
        "world_info",
        "hostfile",
        "include",
        "exclude",
        "num_nodes",
        "min_elastic_nodes",
        "max_elastic_nodes",
    ),
    Reserved.RANKS: ("num_gpus", "num_accelerators"),
    Reserved.NODE_RANK: ("node_rank",),
    Reserved.RESTARTS: ("enable_elastic_training", "elastic_training"),
    Reserved.OUTPUT: ("enable_each_rank_log",),
    Reserved.PROGRAM: (
        "module",
        "no_python",
        "help",
        "launcher",
        "launcher_args",
        "no_ssh",
        "no_ssh_check",
        "ssh_port",
        "force_multi",
        "venv_script",
        "autotuning",
    ),
}
"""Options of `deepspeed.launcher.launch` and of DeepSpeed's runner (0.19.8) that the plan sets."""


class DeepSpeed(Launcher):
    """`python -m deepspeed.launcher.launch` on every node.

    It sets CUDA_VISIBLE_DEVICES to the slots of the node, and adds `--local_rank=N` before the
    arguments of a script or module, as scripts for DeepSpeed expect; a command gets its arguments
    only. If nodes have different numbers of slots, LOCAL_RANK of the first rank of a node may not
    be 0 (0.19.8, launcher/launch.py: the rank modulo the node's slots).
    """

    summary = "one `deepspeed.launcher.launch` per node; for scripts that expect `--local_rank`"
    modules = ("torch", "deepspeed.launcher.launch")
    takes_args = True
    flags = ("bind_cores_to_rank", "no_local_rank", "quiet")
    reserved = RESERVED

    def check(self, world: World) -> None:
        """Raise PlanError if the map of hosts and slots is too long for one argument."""
        check_length(world_option(world), world)

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return the one launcher of a node."""
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
                        *job.launcher_args,
                        *kind_flag(job, "--no_python", logs),
                        *(("--no_local_rank",) if job.kind == "command" else ()),
                        *words,
                    )
                )
            ),
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return the launcher of a node. It counts the ranks in a map of all nodes, and prints the
        names in it only."""
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
                *step.job.launcher_args,
                *kind_flag(step.job, "--no_python"),
                *(("--no_local_rank",) if step.job.kind == "command" else ()),
                *positional(step.job),
            )
        )
        return StepCommand(command, tuple(_world_map(step)))


@lru_cache(maxsize=1)
def world_option(world: World) -> str:
    """Return the option with all hosts and slots, in rank order."""
    return _encoded(json_text(_slots(world), compact=True))


def runner_world_option(world: World) -> str:
    """Return the option as DeepSpeed's runner passes it to pdsh (0.19.8, launcher/runner.py)."""
    return _encoded(json_text(_slots(world)))


def check_length(option: str, world: World) -> None:
    """Raise PlanError if the option with all hosts and slots is too long for one argument."""
    if len(option) > LONGEST_ARGUMENT:
        raise PlanError.coded(
            ErrorCode.WORLD_INFO_TOO_LONG,
            nodes=world.node_count,
            size=len(option),
            limit=LONGEST_ARGUMENT,
        )


def _slots(world: World) -> dict[str, tuple[int, ...]]:
    return {p.node.host: p.slots for p in world.allocation.placements}


def _encoded(text: str) -> str:
    return f"--world_info={base64.urlsafe_b64encode(text.encode()).decode()}"


def _world_map(step: SlurmStep) -> Iterator[str]:
    """Return the shell lines that make the map on the node, with the GPUs that SLURM allocated.
    Otherwise the launcher would set CUDA_VISIBLE_DEVICES to 0, 1, ... (0.19.8, launcher/launch.py).
    """
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
