"""Ranks that the agent starts itself, without another launcher."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word, wrapped
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World, thread_limit
from dslaunch.launch.program import python_command
from dslaunch.launch.slurm_step import (
    LOCAL_RANK,
    NODE_RANK,
    RANK,
    SlurmStep,
    StepCommand,
    default_line,
    joined,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dslaunch.cluster.model import Node, Pairs, Placement
    from dslaunch.launch.job import Job


class Direct(Launcher):
    """One process per rank, with the variables that torchrun would set.

    Except TORCHELASTIC_USE_AGENT_STORE: without torch's agent rank 0 must open the store itself.
    Saves the import of torch in a launcher before the first rank starts.
    """

    summary = "every rank started by dslaunch itself; the fastest start"
    task_per_rank = True
    limits_threads = True

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """Return one process per slot; the agent reads their output, so `logs` is not used."""
        command = Command(python_command(interpreter(placement.node), job))
        defaults = _defaults(job, placement.node, len(placement.slots))
        environments = rank_environments(placement, world)
        return tuple(
            Process(command, (*own, *defaults), rank)
            for own, rank in zip(environments, placement.ranks, strict=True)
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """Return the rank itself."""
        variables: tuple[tuple[str, Word], ...] = (
            ("RANK", (RANK,)),
            ("LOCAL_RANK", (LOCAL_RANK,)),
            ("WORLD_SIZE", step.tasks),
            ("LOCAL_WORLD_SIZE", str(step.slots)),
            ("GROUP_RANK", (NODE_RANK,)),
            ("NODE_RANK", (NODE_RANK,)),
            ("GROUP_WORLD_SIZE", step.nodes),
        )
        settings = [joined(f"{name}=", word) for name, word in variables]
        defaults = _defaults(step.job, step.node, step.slots)
        lines = [default_line(name, value) for name, value in defaults]
        return StepCommand(
            command=Command(python_command(step.python, step.job)),
            before=(wrapped(Command(("export", *settings))), *lines),
        )


def rank_environments(placement: Placement, world: World) -> Iterator[Pairs]:
    """Yield the variables of each rank of a node; no other environment overrides them.

    Names and values are torch's (2.13, distributed/elastic/agent/server/local_elastic_agent.py),
    and NODE_RANK, which many scripts read.
    """
    address, port, world_size, node_count, role_size = _same_for_all_ranks(world)
    local_size, node_rank = str(len(placement.slots)), str(placement.node_rank)
    for local_rank, rank in enumerate(map(str, placement.ranks)):
        yield (
            address,
            port,
            world_size,
            ("RANK", rank),
            ("LOCAL_RANK", str(local_rank)),
            ("LOCAL_WORLD_SIZE", local_size),
            ("GROUP_RANK", node_rank),
            node_count,
            ("NODE_RANK", node_rank),
            ("ROLE_NAME", "default"),
            ("ROLE_RANK", rank),
            role_size,
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "0"),
            ("TORCHELASTIC_RUN_ID", "none"),
        )


@lru_cache(maxsize=1)
def _same_for_all_ranks(world: World) -> Pairs:
    """Return the variables with the same values for all ranks: made once, since there may be a
    hundred thousand ranks."""
    world_size = str(world.size)
    return (
        ("MASTER_ADDR", world.rendezvous.address),
        ("MASTER_PORT", str(world.rendezvous.port)),
        ("WORLD_SIZE", world_size),
        ("GROUP_WORLD_SIZE", str(world.node_count)),
        ("ROLE_WORLD_SIZE", world_size),
    )


def _defaults(job: Job, node: Node, slots: int) -> Pairs:
    """Return the variables that torch sets only if they are not set (2.13, distributed/run.py)."""
    given = {name for name, _ in (*job.env, *node.env, *job.overrides)}
    handling = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    own = () if handling in given else ((handling, "1"),)
    return (*own, *thread_limit(job, node, slots))


LAUNCHER = Direct()
