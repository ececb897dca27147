"""Find a run by name: in this machine's records, else by asking the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch import api
from dslaunch.cli.options import find_cluster, open_cluster
from dslaunch.cli.positional import FILE_ENDINGS
from dslaunch.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from dslaunch.run.handle import RunHandle

LATEST = "latest"
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of the run, the start of it, or the number of a SLURM job.",
    ),
]
ClusterOfRun = Annotated[
    Path | None,
    typer.Argument(
        metavar="CLUSTER.yaml",
        help="Cluster file, if the run was started on another machine.",
    ),
]


def find(name: str, file: Path | None) -> RunHandle:
    """Return the handle of a run; a cluster file as the only word means its latest run here.

    Raises UsageError if no run has this name.
    """
    if file is None and name.endswith(FILE_ENDINGS):
        name, file = LATEST, Path(name)
    if file is not None:
        return api.find_run(name, open_cluster(find_cluster(file)))
    try:
        return api.find_run(name)
    except UsageError as error:
        if error.error_code is not ErrorCode.RUN_NOT_RECORDED:
            raise
        try:
            cluster = open_cluster(find_cluster(None))
        except UsageError:
            raise error from None
        return api.find_run(name, cluster)


def ranks_of(run: RunHandle, text: str | None) -> frozenset[int] | None:
    """Parse ranks of a run. Raises UsageError, also for a rank that the run never had.

    The number of ranks is known for runs of this machine; an earlier attempt may have had more.
    """
    from dslaunch.cli.run_views import check_ranks, parse_ranks

    ranks = parse_ranks(text)
    if run.record is not None and not run.record.attempt:
        check_ranks(ranks, run.record.world_size, text)
    return ranks


def hosts_of(text: str | None) -> frozenset[str] | None:
    """Parse the nodes of `--node`; None: all. Raises UsageError for an invalid list."""
    if text is None:
        return None
    from dslaunch.cluster.nodeset import expand

    try:
        return frozenset(expand(text))
    except ValueError as error:
        raise UsageError(f"--node {text}: {error}") from None
