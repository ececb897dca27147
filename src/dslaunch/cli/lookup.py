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
    from dslaunch.run.state import Local

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
    local: Local | None


def find(name: str, file: Path | None) -> Found:
    """Find a run. Raises UsageError if there is none of that name."""
    from dslaunch.run.state import LATEST, find_local

    local = find_local(name, os.environ) if file is None or name == LATEST else None
    local = local or slurm_runs.by_number(name, os.environ)
    if local is not None:
        cluster = local.cluster()
        agents = str(local.about["agents"])
        return Found(local.run, agents, cluster, _nodes(cluster, local.about["hosts"]), local)
    try:
        cluster = open_cluster(find_cluster(file))
    except UsageError:
        raise _unknown(name, "this machine did not start it, and no cluster file is here") from None
    return _ask(name, cluster)


def _ask(name: str, cluster: Cluster) -> Found:
    from dslaunch.run.reach import reach
    from dslaunch.run.state import node_runs, one_of

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


def _unknown(name: str, why: str) -> UsageError:
    hint = "`dslaunch ps --all CLUSTER.yaml` lists the runs"
    return UsageError(f"no run {name!r}: {why}", hint=hint)


def _nodes(cluster: Cluster, hosts: tuple[str, ...] | list[str]) -> tuple[Node, ...]:
    by_host = {node.host: node for node in cluster.nodes}
    return tuple(by_host[host] for host in hosts if host in by_host)


def caller() -> str:
    """Who we are, for those whose run we stop."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
