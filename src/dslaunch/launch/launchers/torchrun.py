"""Torch's launcher, one per node, with static rendezvous: node ranks are the allocation's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import kind_flag, torch_positional
from dslaunch.launch.slurm_step import (
    MASTER_ADDRESS,
    MASTER_PORT,
    NODE_RANK,
    SlurmStep,
    StepCommand,
    joined,
    teed,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job


class Torchrun(Launcher):
    """`python -m torch.distributed.run` on every node.

    Static rendezvous: the node with rank 0 holds the store, so that global rank 0 runs on the
    master address; with c10d any node may become rank 0 (pytorch #137402).
    """

    summary = "one `torch.distributed.run` per node; for any script that torchrun would start"
    modules = ("torch.distributed.run",)
    lines = "one `torchrun` line per node, to type there"

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The one agent of a node. An IPv6 address stands without brackets."""
        log_dir: tuple[Word, ...] = (("--log-dir=", logs),) if logs else ()
        return (
            Process(
                Command(
                    (
                        interpreter(placement.node),
                        "-m",
                        "torch.distributed.run",
                        f"--nnodes={world.node_count}",
                        f"--nproc-per-node={len(placement.slots)}",
                        f"--node-rank={placement.node_rank}",
                        f"--master-addr={world.rendezvous.address}",
                        f"--master-port={world.rendezvous.port}",
                        *kind_flag(job, "--no-python", logs),
                        *log_dir,
                        *torch_positional(job, logs),
                    )
                )
            ),
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """The one agent of a node. torch's agent writes what it tees: without `-u` that would come
        in blocks, long after."""
        return StepCommand(
            Command(
                (
                    step.python,
                    "-u",
                    "-m",
                    "torch.distributed.run",
                    joined("--nnodes=", step.nodes),
                    f"--nproc-per-node={step.slots}",
                    joined("--node-rank=", NODE_RANK),
                    joined("--master-addr=", MASTER_ADDRESS),
                    joined("--master-port=", MASTER_PORT),
                    *teed(step.job),
                )
            )
        )


LAUNCHER = Torchrun()
