"""From the name of a run to the run itself: by this machine's records, else by asking nodes."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import slurm_runs
from dslaunch.cli.options import find_cluster, open_cluster
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster, Node
    from dslaunch.run.local import LocalRun

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Its name, a beginning of it, or `latest` of this machine."),
]
Cluster_ = Annotated[
    Path | None,
    typer.Argument(
        metavar="CLUSTER.yaml",
        help="The cluster file, where the run was started from another machine.",
    ),
]


@dataclass(frozen=True, slots=True)
class Found:
    """A run, and whom to ask about it."""

    run: str
    agents: str
    """The name that the agents of its latest attempt carry."""
    cluster: Cluster
    nodes: tuple[Node, ...]
    local: LocalRun | None


def find(name: str, file: Path | None) -> Found:
    """Find a run. Raises UsageError if there is none of that name."""
    local = _recorded(name, file)
    if local is not None:
        cluster = local.cluster()
        agents = local.record.agents
        return Found(local.run, agents, cluster, _nodes(cluster, local.record.hosts), local)
    try:
        cluster = open_cluster(find_cluster(file))
    except UsageError:
        raise _unknown(name, "this machine did not start it, and no cluster file is here") from None
    return _ask(name, cluster)


def _recorded(name: str, file: Path | None) -> LocalRun | None:
    """The run of that exact name, or of that job, or the only one that begins so.

    A number names a job, never the beginning of a run that is a job of another number.
    Raises UsageError.
    """
    from dslaunch.run.local import LATEST, local_runs

    local = local_runs(os.environ)
    here = local.exactly(name) if file is None else None
    exact = here or slurm_runs.by_number(name, local)
    if exact is not None:
        return exact
    if file is not None and name != LATEST:
        return None
    alike = local.find(name)
    if alike is not None and slurm_runs.is_slurm(alike) and slurm_runs.JOB.fullmatch(name):
        raise _unknown(name, f"no job of this machine has that number; {alike.run} begins so")
    return alike


def _ask(name: str, cluster: Cluster) -> Found:
    from dslaunch.run.local import one_of
    from dslaunch.run.reach import reach
    from dslaunch.run.state import node_runs

    with reach(cluster, cluster.nodes) as reached:
        runs = node_runs(reached)
        silent = ", ".join(reached.failures)
    state = one_of(runs, name)
    if state is None:
        missing = f"; no answer from {silent}" if silent else ""
        raise _unknown(name, f"no node of {cluster.name} knows it{missing}")
    return Found(
        state.run.partition("+")[0], state.run, cluster, _nodes(cluster, state.hosts), None
    )


def ranks_of(found: Found, text: str | None) -> frozenset[int] | None:
    """Read ranks of a run. Raises UsageError, also for one that it certainly never had: how many it
    has is known of runs of this machine, and those of an earlier attempt may have been more."""
    from dslaunch.cli.screens import check_ranks, parse_ranks

    ranks = parse_ranks(text)
    if found.local is not None and not found.local.record.attempt:
        check_ranks(ranks, found.local.record.world_size, text)
    return ranks


def _unknown(name: str, why: str) -> UsageError:
    hint = "`dslaunch ps --all CLUSTER.yaml` lists the runs"
    return UsageError(f"no run {name!r}: {why}", hint=hint)


def _nodes(cluster: Cluster, hosts: tuple[str, ...]) -> tuple[Node, ...]:
    by_host = {node.host: node for node in cluster.nodes}
    return tuple(by_host[host] for host in hosts if host in by_host)


def caller() -> str:
    """Who we are, for those whose run we stop."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
