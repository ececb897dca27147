"""The ranks themselves, with no launcher between them and the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import python_command

if TYPE_CHECKING:
    from dslaunch.cluster.model import Pairs, Placement
    from dslaunch.launch.job import Job


class Direct:
    """One process per rank, with the variables that torchrun would set.

    TORCHELASTIC_USE_AGENT_STORE is not among them: there is no agent with a store, and rank 0
    must open its own. Saves the import of torch in a launcher before the first rank starts.
    """

    summary = "every rank started by dslaunch itself; the fastest start"
    modules: tuple[str, ...] = ()

    def check(self, world: World) -> None:
        """Nothing to refuse: nodes may differ in slots."""

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """One process per slot; their output is read from them, so `logs` is not used."""
        command = Command(python_command(interpreter(placement.node), job))
        given = {name for name, _ in (*job.env, *placement.node.env, *job.overrides)}
        defaults = tuple(d for d in _defaults(placement) if d[0] not in given)
        return tuple(
            Process(command, (*rank_environment(placement, world, local_rank), *defaults), rank)
            for local_rank, rank in enumerate(placement.ranks)
        )


def rank_environment(placement: Placement, world: World, local_rank: int) -> Pairs:
    """The variables that place one rank in the world; nobody's environment overrides them.

    Torch's names and values (2.13, distributed/elastic/agent/server/local_elastic_agent.py),
    and NODE_RANK, which many scripts read.
    """
    rank, local_size = placement.first_rank + local_rank, len(placement.slots)
    pairs = (
        ("MASTER_ADDR", world.rendezvous.address),
        ("MASTER_PORT", world.rendezvous.port),
        ("WORLD_SIZE", world.size),
        ("RANK", rank),
        ("LOCAL_RANK", local_rank),
        ("LOCAL_WORLD_SIZE", local_size),
        ("GROUP_RANK", placement.node_rank),
        ("GROUP_WORLD_SIZE", world.node_count),
        ("NODE_RANK", placement.node_rank),
        ("ROLE_NAME", "default"),
        ("ROLE_RANK", rank),
        ("ROLE_WORLD_SIZE", world.size),
        ("TORCHELASTIC_RESTART_COUNT", 0),
        ("TORCHELASTIC_MAX_RESTARTS", 0),
        ("TORCHELASTIC_RUN_ID", "none"),
    )
    return tuple((name, str(value)) for name, value in pairs)


def _defaults(placement: Placement) -> Pairs:
    """What torch sets only if nobody else does (2.13, the same file and distributed/run.py)."""
    threads = (("OMP_NUM_THREADS", "1"),) if len(placement.slots) > 1 else ()
    return (("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), *threads)


LAUNCHER = Direct()
