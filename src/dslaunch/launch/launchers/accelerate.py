"""Hugging Face Accelerate's launcher, one per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import kind_flag, positional, torch_positional
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


class Accelerate(Launcher):
    """`python -m accelerate.commands.launch` on every node, with every setting on its line.

    So nothing that decides the world is left to a node's own `default_config.yaml`; its other
    settings, such as `mixed_precision`, hold. `--multi_gpu` is what starts several ranks, on
    nodes without GPUs too: `--cpu` would start one (1.15.0, commands/launch.py). There the ranks
    join each other only with `ACCELERATE_USE_CPU=true` in the environment; without it every
    rank trains alone (1.15.0, state.py, `_prepare_backend`).

    Accelerate tells torch `num_processes // num_machines` ranks for every machine, so a world of
    3 + 1 would silently become 2 + 2 (1.15.0, utils/launch.py, `prepare_multi_gpu_env`).
    """

    summary = "one `accelerate launch` per node; for scripts that rely on its configuration"
    modules = ("torch", "accelerate.commands.launch")
    lines = "one `accelerate launch` line per node, to type there"
    uneven_slots = False
    cpu_variable = "ACCELERATE_USE_CPU"

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The one launcher of a node; in a world of one rank it runs the program itself."""
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
                *kind_flag(job, "--no_python", pipes),
                *words,
            )
        )
        if alone:
            return (Process(command, rank=placement.first_rank),)
        return (Process(command),)

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """The one launcher of a node; it runs the program itself where there is one rank."""
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
                *words,
            )
        )
        return StepCommand(command, (f"ranks=$((SLURM_NNODES * {step.slots}))",))


def _distributed(logs: Var | None) -> tuple[Word, ...]:
    log_dir: tuple[Word, ...] = (("--log_dir=", logs),) if logs else ()
    return ("--multi_gpu", "--same_network", *log_dir)


LAUNCHER = Accelerate()
