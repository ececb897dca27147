"""A requested run, and the names of its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from dslaunch.run.timeouts import Timeouts

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from pathlib import Path

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.launch.job import Job
    from dslaunch.run.rehearsal import RehearsalLimits


class RunRequest(Struct, frozen=True):
    """A run as the user requested it."""

    cluster: Cluster
    allocation: Allocation
    job: Job
    cwd: Path
    environ: Mapping[str, str]
    sync: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)
    detached: bool = False
    preflight: bool = True
    """Whether the quick checks run before the start."""
    restarts: int = 0
    """Restarts after failures, at most."""
    min_nodes: int | None = None
    """Fewest nodes of a restart; None: as many as in the first attempt."""
    force: bool = False
    """Whether to start although the DeepSpeed config has errors."""
    notice: signal.Signals | None = None
    """A signal that the launcher forwards to the ranks; None: none."""
    rehearsal: RehearsalLimits | None = None
    """When a rehearsal ends; None: this is none."""


def agent_run(run: str, count: int) -> str:
    """Return the name of the agents of one attempt."""
    return f"{run}+{count}" if count else run


def job_of_attempt(request: RunRequest, count: int) -> Job:
    """Return the job of one attempt, with the number of restarts in its environment."""
    job = request.job
    return replace(
        job,
        overrides=(*job.overrides, ("DSLAUNCH_RESTART_COUNT", str(count))),
        restarts=request.restarts,
        min_nodes=request.min_nodes,
    )
