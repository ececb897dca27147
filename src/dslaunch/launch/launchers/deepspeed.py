"""DeepSpeed's own per-node launcher, without its SSH part."""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import TYPE_CHECKING

from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import kind_flag, piped, positional

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument that Linux takes, less its final NUL (execve(2), MAX_ARG_STRLEN)."""


class DeepSpeed:
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
                        *(interpreter(placement.node), "-u", "-m", "deepspeed.launcher.launch"),
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


@lru_cache(maxsize=1)
def world_option(world: World) -> str:
    """The option that tells every node all hosts and slots, in rank order."""
    slots = {p.node.host: p.slots for p in world.allocation.placements}
    text = json.dumps(slots, separators=(",", ":"))
    return f"--world_info={base64.urlsafe_b64encode(text.encode()).decode()}"


LAUNCHER = DeepSpeed()
