"""A launcher: ranks that leave the CPU to others, for machines that are shared with users."""

from __future__ import annotations

from msgspec.structs import replace

from dslaunch.plugin import (
    Command,
    Direct,
    Job,
    Placement,
    Process,
    SlurmStep,
    StepCommand,
    Var,
    World,
)


class Nice(Direct):
    """Like `direct`, which this class takes its capabilities from, with `nice` before each rank."""

    summary = "every rank started by dslaunch itself, with a low priority"
    lines = "one command per rank"

    def processes(
        self, placement: Placement, world: World, job: Job, *, logs: Var | None = None
    ) -> tuple[Process, ...]:
        """One process per slot."""
        ranks = super().processes(placement, world, job, logs=logs)
        return tuple(replace(rank, command=nice(rank.command)) for rank in ranks)

    def slurm_command(self, step: SlurmStep) -> StepCommand:
        """The rank itself."""
        rank = super().slurm_command(step)
        return replace(rank, command=nice(rank.command))


def nice(command: Command) -> Command:
    """Return the command, started with a low priority."""
    return Command(("nice", "-n", "10", *command.argv))


LAUNCHER = Nice()
