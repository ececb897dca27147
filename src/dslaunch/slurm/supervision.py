"""Whether SLURM starts the ranks of a job, or `dslaunch run` inside the job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.launch.job import Job
    from dslaunch.render.batch import Batch


class Supervision(Struct, frozen=True):
    """The settings of supervision and restarts."""

    supervised: bool | None = None
    """None: as the cluster file says."""
    restarts: int | None = None
    """None: as the cluster file says."""
    hang_timeout: float | None = None
    """Seconds; None: hangs are not looked for."""
    preflight: bool = True


def supervise(
    batch: Batch, cluster: Cluster, job: Job, supervision: Supervision, *, force: bool
) -> Batch:
    """Return the batch with the supervision of the caller or the cluster file.

    Raises UsageError for what a plain job cannot do, and for a supervised one of a cluster that
    was not read from a text; PlanError for what a supervised job cannot do.
    """
    slurm = batch.slurm
    wanted = slurm.supervised if supervision.supervised is None else supervision.supervised
    job = replace(job, restarts=_restarts(batch, supervision))
    if not wanted:
        _check_plain(batch, supervision, job.restarts)
        launch = replace(batch.launch, job=replace(batch.launch.job, restarts=job.restarts))
        return replace(batch, launch=launch)
    from dslaunch.render.batch import Supervised
    from dslaunch.render.supervised import cluster_file, supervised

    if cluster.source is None:
        raise UsageError(
            f"cluster {cluster.name!r} was not read from a file, which a supervised job needs",
            hint="make the cluster by Cluster.load or Cluster.parse",
        )
    workdir = batch.launch.decided.workdir
    own = (placement.node.python for placement in batch.launch.placements)
    how = Supervised(
        file=cluster_file(cluster.source.text, cluster.name, job, workdir),
        pythons=tuple(dict.fromkeys((sys.executable, *filter(None, own)))),
        hang_timeout=supervision.hang_timeout,
        preflight=supervision.preflight,
        force=force,
    )
    return supervised(batch, job, how)


def _restarts(batch: Batch, supervision: Supervision) -> int:
    """Return how often the ranks are restarted within the job."""
    given = batch.slurm.restarts if supervision.restarts is None else supervision.restarts
    if given is not None:
        return given
    launch = batch.launch
    return launch.launcher.default_restarts(_nodes(batch), launch.job.min_nodes)


def _nodes(batch: Batch) -> int:
    from dslaunch.render.batch import grouped

    return sum(group.nodes for group in grouped(batch))


def _check_plain(batch: Batch, supervision: Supervision, restarts: int) -> None:
    """Raise UsageError for options that need `dslaunch run` inside the job, or another launcher."""
    launch = batch.launch
    if launch.job.min_nodes is not None and not launch.launcher.elastic:
        raise UsageError(
            f"--min-nodes: launcher `{launch.job.launcher}` does not continue without lost nodes",
            hint="use --launcher elastic, or add --supervised",
        )
    alone = {
        "--hang-timeout": supervision.hang_timeout is not None,
        "--no-preflight": not supervision.preflight,
        "restarts": restarts > 0 and not launch.launcher.elastic,
    }
    named = [name for name, given in alone.items() if given]
    if named:
        raise UsageError(
            f"{', '.join(named)}: needs --supervised",
            hint="add --supervised, or set `slurm.supervised: true`; `slurm.requeue` restarts the "
            "whole job after a failure",
        )
