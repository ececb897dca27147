"""Torch's launcher, one per node, with static rendezvous: node ranks follow the allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launcher_args import Reserved
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World, thread_limit
from dslaunch.launch.program import kind_flag, torch_positional
from dslaunch.launch.slurm_step import (
    MASTER_ADDRESS,
    MASTER_PORT,
    NODE_RANK,
    SlurmStep,
    StepCommand,
    joined,
    teed,
    thread_lines,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job


TORCH_RESERVED: Mapping[Reserved, tuple[str, ...]] = {
    Reserved.RENDEZVOUS: (
        "master_addr",
        "master_port",
        "rdzv_backend",
        "rdzv_endpoint",
        "rdzv_id",
        "rdzv_conf",
        "local_addr",
        "standalone",
    ),
    Reserved.NODES: ("nnodes",),
    Reserved.RANKS: ("nproc_per_node",),
    Reserved.NODE_RANK: ("node_rank",),
    Reserved.DEVICES: ("virtual_local_rank", "local_rank"),
    Reserved.RESTARTS: ("max_restarts",),
    Reserved.OUTPUT: (
        "log_dir",
        "redirects",
        "tee",
        "local_ranks_filter",
        "duplicate_stdout_filters",
        "duplicate_stderr_filters",
        "logs_specs",
    ),
    Reserved.PROGRAM: ("module", "no_python", "run_path", "help"),
}
"""Options of `torch.distributed.run` (torch 2.13) that the plan sets."""


class Torchrun(Launcher):
    """`python -m torch.distributed.run` on every node.

    Static rendezvous: the store is on the node with rank 0, so global rank 0 runs at the master
    address. With c10d any node may get rank 0 (pytorch #137402).
    """

    summary = "one `torch.distributed.run` per node; for any script that works with torchrun"
    modules = ("torch.distributed.run",)
    lines = "one `torchrun` command per node"
    takes_args = True
    limits_threads = True
    reserved = TORCH_RESERVED

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return the agent of a node. An IPv6 address is without brackets."""
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
                        *job.launcher_args,
                        *kind_flag(job, "--no-python", logs),
                        *log_dir,
                        *torch_positional(job, logs),
                    )
                ),
                env=thread_limit(job, placement.node, len(placement.slots)),
            ),
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return the agent of a node. With `-u`, because torch's agent writes the output of ranks,
        which would be buffered otherwise."""
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
                    *step.job.launcher_args,
                    *teed(step.job),
                )
            ),
            before=thread_lines(step),
        )


LAUNCHER = Torchrun()
