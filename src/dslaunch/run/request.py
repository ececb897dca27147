"""What the user asked of a run, and what its attempts are called."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dslaunch.run.timeouts import Timeouts

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from pathlib import Path

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.launch.job import Job


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for."""

    cluster: Cluster
    allocation: Allocation
    job: Job
    cwd: Path
    environ: Mapping[str, str]
    sync: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)
    detached: bool = False
    preflight: bool = True
    """Whether the quick checks are made before the start."""
    restarts: int = 0
    """How often a run that failed is started again."""
    min_nodes: int | None = None
    """With how few nodes; None: with as many as at first."""
    force: bool = False
    """Whether to start although the DeepSpeed config has errors."""
    notice: signal.Signals | None = None
    """A signal of ours that is handed to the ranks; None: none."""


def agent_run(run: str, count: int) -> str:
    """The name that the agents of one attempt carry."""
    return f"{run}+{count}" if count else run


def counted(request: RunRequest, count: int) -> Job:
    """The job, told how often it was started again, and how far it can help itself."""
    job = request.job
    return replace(
        job,
        overrides=(*job.overrides, ("DSLAUNCH_RESTART_COUNT", str(count))),
        restarts=request.restarts,
        min_nodes=request.min_nodes,
    )
