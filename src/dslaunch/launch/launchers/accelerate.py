"""Hugging Face Accelerate's launcher, one per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launcher_args import Reserved
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World, thread_limit
from dslaunch.launch.program import kind_flag, positional, torch_positional
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


FLAGS = (
    "debug",
    "downcast_bf16",
    "dynamo_use_dynamic",
    "dynamo_use_fullgraph",
    "dynamo_use_regional_compilation",
    "enable_cpu_affinity",
    "fp8_use_autocast_during_eval",
    "quiet",
)
"""Options of `accelerate launch` (1.15) without a value that the plan does not set."""
RESERVED: Mapping[Reserved, tuple[str, ...]] = {
    Reserved.RENDEZVOUS: (
        "main_process_ip",
        "main_process_port",
        "rdzv_backend",
        "rdzv_conf",
        "same_network",
    ),
    Reserved.NODES: (
        "num_machines",
        "deepspeed_hostfile",
        "deepspeed_inclusion_filter",
        "deepspeed_exclusion_filter",
        "deepspeed_multinode_launcher",
        "mpirun_hostfile",
    ),
    Reserved.RANKS: ("num_processes",),
    Reserved.NODE_RANK: ("machine_rank",),
    # `--multi_gpu` excludes the others
    Reserved.DEVICES: ("gpu_ids", "multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp"),
    Reserved.RESTARTS: ("max_restarts", "monitor_interval"),
    Reserved.OUTPUT: ("log_dir", "tee"),
    Reserved.PROGRAM: ("module", "no_python", "main_training_function", "help"),
}
"""Options of `accelerate launch` (1.15.0) that the plan sets."""


class Accelerate(Launcher):
    """`python -m accelerate.commands.launch` on every node, with all settings of the world.

    They override `default_config.yaml` of a node; its other settings, such as `mixed_precision`,
    apply. `--multi_gpu` starts several ranks, also on nodes without GPUs: `--cpu` would start one
    (1.15.0, commands/launch.py). On these nodes the ranks join one process group only with
    `ACCELERATE_USE_CPU=true` in the environment; without it every rank trains alone (1.15.0,
    state.py, `_prepare_backend`).

    Accelerate starts `num_processes // num_machines` ranks on every machine, so a world of 3 + 1
    would silently become 2 + 2 (1.15.0, utils/launch.py, `prepare_multi_gpu_env`).
    """

    summary = "one `accelerate launch` per node; for scripts that rely on its configuration"
    modules = ("torch", "accelerate.commands.launch")
    lines = "one `accelerate launch` command per node"
    uneven_slots = False
    takes_args = True
    limits_threads = True
    flags = FLAGS
    reserved = RESERVED
    cpu_variable = "ACCELERATE_USE_CPU"

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return the launcher of a node; in a world of one rank it runs the program itself."""
        alone = world.size == 1
        pipes = None if alone else logs
        words = positional(job) if alone else (*_distributed(logs), *torch_positional(job, logs))
        command = Command(
            (
                interpreter(placement.node),
                "-m",
                "accelerate.commands.launch",
                f"--num_processes={world.size}",
                f"--num_machines={world.node_count}",
                f"--machine_rank={placement.node_rank}",
                f"--main_process_ip={world.rendezvous.address}",
                f"--main_process_port={world.rendezvous.port}",
                "--gpu_ids=all",
                *job.launcher_args,
                *kind_flag(job, "--no_python", pipes),
                *words,
            )
        )
        if alone:
            return (Process(command, rank=placement.first_rank),)
        threads = thread_limit(job, placement.node, len(placement.slots))
        return (Process(command, env=threads),)

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return the launcher of a node; it runs the program itself if there is one rank."""
        words: tuple[Word, ...] = (*_distributed(None), *teed(step.job, "--no_python"))
        if step.single_rank:
            words = (*kind_flag(step.job, "--no_python"), *positional(step.job))
        command = Command(
            (
                step.python,
                "-u",
                "-m",
                "accelerate.commands.launch",
                joined("--num_processes=", Var("ranks")),
                joined("--num_machines=", step.nodes),
                joined("--machine_rank=", NODE_RANK),
                joined("--main_process_ip=", MASTER_ADDRESS),
                joined("--main_process_port=", MASTER_PORT),
                "--gpu_ids=all",
                *step.job.launcher_args,
                *words,
            )
        )
        ranks = f"ranks=$((SLURM_NNODES * {step.slots}))"
        return StepCommand(command, (ranks, *thread_lines(step)))


def _distributed(logs: Var | None) -> tuple[Word, ...]:
    log_dir: tuple[Word, ...] = (("--log_dir=", logs),) if logs else ()
    return ("--multi_gpu", "--same_network", *log_dir)


LAUNCHER = Accelerate()
