"""A launcher that is its own program: Acme's `pool` starts the ranks of a node."""

from __future__ import annotations

from dslaunch.plugin import (
    Command,
    Job,
    Launcher,
    Placement,
    PlanError,
    Process,
    Var,
    World,
    interpreter,
    piped,
    python_command,
)


class Pool(Launcher):
    """`pool --ranks N --first RANK -- PROGRAM`, once on every node. It sets RANK and LOCAL_RANK."""

    summary = "Acme's pool, which shares one data loader among the ranks of a node"
    uneven_slots = False

    def check(self, world: World) -> None:
        """Raise PlanError for more nodes than a license permits."""
        if world.node_count > 64:
            raise PlanError(f"pool runs on 64 nodes at most, not {world.node_count}", hint="-N 64")

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """One program, which starts all ranks of the node."""
        python = interpreter(placement.node)
        rank = python_command(python, job) if logs is None else (python, *piped(job, logs))
        words = ("pool", "--ranks", str(len(placement.slots)), "--first", str(placement.first_rank))
        variables = (
            ("MASTER_ADDR", world.rendezvous.address),
            ("MASTER_PORT", str(world.rendezvous.port)),
            ("WORLD_SIZE", str(world.size)),
        )
        return (Process(Command((*words, "--", *rank)), variables),)


LAUNCHER = Pool()
