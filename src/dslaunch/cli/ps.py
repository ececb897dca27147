"""`dslaunch ps`: which runs there are."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import slurm_runs, ui
from dslaunch.cli.options import DEFAULT_FILE, FILE_VARIABLE, ClusterFile, open_cluster
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from dslaunch.cluster.model import Cluster
    from dslaunch.run.state import Local, RunState

HEAD = ("RUN", "STATE", "NODES", "RANKS", "LAUNCHER", "STARTED")


def ps(
    file: ClusterFile = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that are over.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List runs: those that the nodes know, and this machine's own.

    Example: dslaunch ps cluster.yaml --all
    """
    import json as jsonlib

    from dslaunch.run.state import as_data, local_runs

    local = local_runs(os.environ)
    states, silent = ask_nodes(clusters(file, local))
    shown = [s for s in states.values() if everything or "running" in s.state or is_bad(s)]
    over = [run for run in local if run.run not in states and (everything or _goes_on(run))]
    if json:
        data = [as_data(state) for state in shown] + [local_data(run) for run in over]
        ui.result(jsonlib.dumps(data, indent=2))
    else:
        rows = [*map(local_row, over), *map(state_row, shown)]
        none = "no runs" if everything else "no run goes on; --all lists those that are over"
        ui.result(ui.table([HEAD, *rows], ui.width()) if rows else none)
    for host, why in silent.items():
        ui.say(f"no answer from {host}: {why}")


def _goes_on(run: Local) -> bool:
    """Whether a run of which no node tells anything is not over."""
    if slurm_runs.is_slurm(run):
        return run.result is None and slurm_runs.state(run) in ("waiting", "running")
    return run.living


def is_bad(state: RunState) -> bool:
    """Whether something of it is left that should not be."""
    return state.state == "orphaned"


def clusters(file: Path | None, local: list[Local]) -> list[Cluster]:
    """Whose nodes to ask: those of the given or default file, else of the runs that may go on."""
    from pathlib import Path as AnyPath

    if file is not None or os.environ.get(FILE_VARIABLE) or AnyPath(DEFAULT_FILE).is_file():
        from dslaunch.cli.options import find_cluster

        return [open_cluster(find_cluster(file))]
    going = [
        run
        for run in local
        if (run.living or run.about["detached"]) and not slurm_runs.is_slurm(run)
    ]
    found: dict[str, Cluster] = {}
    for run in going:
        try:
            cluster = run.cluster()
        except UsageError as error:
            ui.say(error.message)
        else:
            found[cluster.name] = cluster
    return list(found.values())


def ask_nodes(of: list[Cluster]) -> tuple[dict[str, RunState], dict[str, str]]:
    """The runs that the nodes know, and why some nodes did not answer."""
    from dslaunch.run.reach import reach
    from dslaunch.run.state import node_runs

    states: dict[str, RunState] = {}
    silent: dict[str, str] = {}
    for cluster in of:
        with reach(cluster, cluster.nodes) as reached:
            states |= node_runs(reached)
            silent |= {host: failure.message for host, failure in reached.failures.items()}
    return states, silent


def state_row(state: RunState) -> tuple[str, ...]:
    """A run as its nodes tell it."""
    ranks = sum(len(node.ranks) for node in state.nodes.values())
    nodes = str(len(state.hosts))
    return (state.run, state.state, nodes, str(ranks), state.launcher, ago(state.started))


def local_row(run: Local) -> tuple[str, ...]:
    """A run of which no node knows anything, as this machine recorded it."""
    about = run.about
    counts = (str(len(about["hosts"])), str(about["world_size"]))
    return (run.run, local_state(run), *counts, str(about["launcher"]), ago(about["started"]))


def local_state(run: Local) -> str:
    """How a recorded run stands, in a word."""
    if slurm_runs.is_slurm(run):
        return slurm_runs.state(run)
    if run.living:
        return "starting or ending"
    if run.result is None:
        return "unknown"
    words = {"ok": "ended well", "failed": "failed", "interrupted": "stopped"}
    return words.get(str(run.result["status"]), "unknown")


def local_data(run: Local) -> dict[str, Any]:
    """A recorded run for JSON."""
    return {"run": run.run, "state": local_state(run), **run.about, "result": run.result}


def ago(when: float) -> str:
    """A time as people say it of a run: `12 s ago`, `3 h ago`, `5 d ago`."""
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
