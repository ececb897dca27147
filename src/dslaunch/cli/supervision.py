"""Whether SLURM alone starts the ranks of a job, or `dslaunch run` within the job."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from dslaunch.cli.options import ClusterJob
    from dslaunch.render.batch import Batch


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the command line says of supervision and restarts."""

    supervised: bool | None
    """None: as the cluster file says."""
    restarts: int | None
    """None: as the cluster file says."""
    hang_timeout: float | None
    no_preflight: bool
    force: bool


def supervise(
    batch: Batch, asked: ClusterJob, supervision: Supervision, file: Path | None
) -> Batch:
    """Return the batch with what the command line and the cluster file say of supervision.

    Raises UsageError for what a plain job cannot do, PlanError for what a supervised one cannot,
    ConfigError where the cluster file cannot be read any more.
    """
    slurm = batch.slurm
    wanted = slurm.supervised if supervision.supervised is None else supervision.supervised
    job = replace(asked.job, restarts=_restarts(batch, supervision))
    if not wanted:
        _check_plain(batch, supervision, job.restarts)
        launch = replace(batch.launch, job=replace(batch.launch.job, restarts=job.restarts))
        return replace(batch, launch=launch)
    from dslaunch.cluster.load import read_text
    from dslaunch.render.supervised import Supervised, cluster_file, supervised

    assert file is not None  # `asked` was read from it
    workdir = batch.launch.decided.workdir
    own = (placement.node.python for placement in batch.launch.placements)
    how = Supervised(
        file=cluster_file(read_text(file), asked.cluster.name, job, workdir),
        pythons=tuple(dict.fromkeys((sys.executable, *filter(None, own)))),
        hang_timeout=supervision.hang_timeout,
        preflight=not supervision.no_preflight,
        force=supervision.force,
    )
    return supervised(batch, job, how)


def _restarts(batch: Batch, supervision: Supervision) -> int:
    """How often the ranks are restarted within the job."""
    given = batch.slurm.restarts if supervision.restarts is None else supervision.restarts
    if given is not None:
        return given
    launch = batch.launch
    return launch.launcher.default_restarts(_nodes(batch), launch.job.min_nodes)


def _nodes(batch: Batch) -> int:
    from dslaunch.render.batch import grouped

    return sum(group.nodes for group in grouped(batch))


def _check_plain(batch: Batch, supervision: Supervision, restarts: int) -> None:
    """Raise UsageError for what takes `dslaunch run` in the job."""
    alone = {
        "--hang-timeout": supervision.hang_timeout is not None,
        "--no-preflight": supervision.no_preflight,
        "restarts": restarts > 0 and not batch.launch.launcher.elastic,
    }
    named = [name for name, given in alone.items() if given]
    if named:
        raise UsageError(
            f"{', '.join(named)}: SLURM alone cannot do this",
            hint="add --supervised, or `supervised: true` below `slurm:`; after a failure "
            "`slurm.requeue` starts the whole job again",
        )
