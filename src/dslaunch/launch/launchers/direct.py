"""The ranks themselves, with no launcher between them and the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dslaunch.launch.command import Command, Var, Word, wrapped
from dslaunch.launch.interpreter import interpreter
from dslaunch.launch.launchers import Launcher
from dslaunch.launch.plan import Process, World
from dslaunch.launch.program import python_command
from dslaunch.launch.slurm_step import LOCAL_RANK, NODE_RANK, RANK, SlurmStep, StepCommand, joined

if TYPE_CHECKING:
    from dslaunch.cluster.model import Node, Pairs, Placement
    from dslaunch.launch.job import Job


class Direct(Launcher):
    """One process per rank, with the variables that torchrun would set.

    TORCHELASTIC_USE_AGENT_STORE is not among them: there is no agent with a store, and rank 0
    must open its own. Saves the import of torch in a launcher before the first rank starts.
    """

    summary = "every rank started by dslaunch itself; the fastest start"
    task_per_rank = True

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """One process per slot; their output is read from them, so `logs` is not used."""
        command = Command(python_command(interpreter(placement.node), job))
        defaults = _defaults(job, placement.node, len(placement.slots))
        return tuple(
            Process(command, (*rank_environment(placement, world, local_rank), *defaults), rank)
            for local_rank, rank in enumerate(placement.ranks)
        )

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """The rank itself."""
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
        lines = [f'export {name}="${{{name}:-{value}}}"' for name, value in defaults]
        return StepCommand(
            command=Command(python_command(step.python, step.job)),
            before=(wrapped(Command(("export", *settings))), *lines),
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


def _defaults(job: Job, node: Node, slots: int) -> Pairs:
    """What torch sets only if nobody else does (2.13, the same file and distributed/run.py)."""
    given = {name for name, _ in (*job.env, *node.env, *job.overrides)}
    threads = (("OMP_NUM_THREADS", "1"),) if slots > 1 else ()
    defaults = (("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), *threads)
    return tuple((name, value) for name, value in defaults if name not in given)


LAUNCHER = Direct()
