"""Hugging Face Accelerate's launcher, one per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.errors import PlanError
from dslaunch.launch.command import Command, Var, Word
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import kind_flag, positional, torch_positional

if TYPE_CHECKING:
    from dslaunch.cluster.model import Placement
    from dslaunch.launch.job import Job


class Accelerate:
    """`python -m accelerate.commands.launch` on every node, with every setting on its line.

    So nothing that decides the world is left to a node's own `default_config.yaml`; its other
    settings, such as `mixed_precision`, hold. `--multi_gpu` is what starts several ranks, on
    nodes without GPUs too: `--cpu` would start one (1.15.0, commands/launch.py). There the ranks
    join each other only with `ACCELERATE_USE_CPU=true` in the environment; without it every
    rank trains alone (1.15.0, state.py, `_prepare_backend`).
    """

    summary = "one `accelerate launch` per node; for scripts that rely on its configuration"
    modules = ("torch", "accelerate.commands.launch")

    def check(self, world: World) -> None:
        """Raise PlanError if nodes have different numbers of slots.

        Accelerate tells torch `num_processes // num_machines` ranks for every machine, so a
        world of 3 + 1 silently becomes 2 + 2 (1.15.0, utils/launch.py, `prepare_multi_gpu_env`).
        """
        first, *others = world.allocation.placements
        for other in others:
            if len(other.slots) != len(first.slots):
                raise PlanError(
                    "launcher `accelerate` starts equally many ranks on every node, but "
                    f"{first.node.host} has {_slots(first)} and {other.node.host} {_slots(other)}",
                    hint="choose the launcher `torchrun`, `deepspeed` or `direct`, or select "
                    "equally many slots on every node",
                )

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """The one launcher of a node; in a world of one rank it runs the program itself."""
        alone = world.size == 1
        pipes = None if alone else logs
        words = positional(job) if alone else (*_distributed(logs), *torch_positional(job, logs))
        command = Command(
            (
                *(interpreter(placement.node), "-m", "accelerate.commands.launch"),
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


def _distributed(logs: Var | None) -> tuple[Word, ...]:
    log_dir: tuple[Word, ...] = (("--log_dir=", logs),) if logs else ()
    return ("--multi_gpu", "--same_network", *log_dir)


def _slots(placement: Placement) -> str:
    count = len(placement.slots)
    return "1 slot" if count == 1 else f"{count} slots"


LAUNCHER = Accelerate()
