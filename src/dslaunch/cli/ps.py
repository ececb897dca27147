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
    from collections.abc import Sequence
    from pathlib import Path

    from dslaunch.cluster.model import Cluster
    from dslaunch.run.local import LocalRun
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.state import RunState

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

    from dslaunch.run.local import local_runs
    from dslaunch.run.state import as_data

    known = local_runs(os.environ)
    local = known.started
    states, silent = ask_nodes(clusters(file, local))
    shown = [s for s in states.values() if everything or "running" in s.state or is_bad(s)]
    jobs = slurm_runs.standings([run for run in local if slurm_runs.is_slurm(run)])
    rest = [run for run in local if run.run not in states]
    over = [run for run in rest if everything or _goes_on(run, jobs.get(run.run))]
    if json:
        recorded = [local_data(run, jobs.get(run.run)) for run in over]
        ui.result(jsonlib.dumps([as_data(state) for state in shown] + recorded, indent=2))
    else:
        recorded_rows = [local_row(run, jobs.get(run.run)) for run in over]
        rows = [*recorded_rows, *map(state_row, shown)]
        none = "no runs" if everything else "no run goes on; --all lists those that are over"
        ui.result(ui.table([HEAD, *rows], ui.width()) if rows else none)
    for error in known.unreadable:
        ui.say(error.message)
    for host, why in silent.items():
        ui.say(f"no answer from {host}: {why}")


def _goes_on(run: LocalRun, job: slurm_runs.Standing | None) -> bool:
    """Whether a run of which no node tells anything is not over, or may not be."""
    if job is not None:
        return job.goes_on
    return run.living


def is_bad(state: RunState) -> bool:
    """Whether something of it is left that should not be."""
    return state.state == "orphaned"


def clusters(file: Path | None, local: Sequence[LocalRun]) -> list[Cluster]:
    """Whose nodes to ask: those of the given or default file, else of the runs that may go on."""
    from pathlib import Path as AnyPath

    if file is not None or os.environ.get(FILE_VARIABLE) or AnyPath(DEFAULT_FILE).is_file():
        from dslaunch.cli.options import find_cluster

        return [open_cluster(find_cluster(file))]
    going = [
        run for run in local if (run.living or run.record.detached) and not slurm_runs.is_slurm(run)
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


def local_row(run: LocalRun, job: slurm_runs.Standing | None = None) -> tuple[str, ...]:
    """A run of which no node knows anything, as this machine recorded it, with the nodes that
    SLURM gave it."""
    record = run.record
    nodes = str(len(record.hosts)) if job is None else job.nodes
    state = local_state(run) if job is None else job.word
    counts = (nodes, str(record.world_size))
    return (run.run, state, *counts, record.launcher, ago(record.started))


def local_state(run: LocalRun) -> str:
    """How a recorded run stands, in a word."""
    if slurm_runs.is_slurm(run):
        return slurm_runs.state(run)
    if run.living:
        return "starting or ending"
    if run.result is None:
        return "unknown"
    words = {"ok": "ended well", "failed": "failed", "interrupted": "stopped"}
    return words[run.result.status]


def local_data(run: LocalRun, job: slurm_runs.Standing | None = None) -> dict[str, Any]:
    """A recorded run for JSON; of a job of SLURM also its nodes and why it is unknown."""
    data = {"run": run.run, **run.record.as_dict(), "result": result_data(run.result)}
    if job is None:
        return {**data, "state": local_state(run)}
    return {**data, "state": job.word, "nodes": job.nodes, "unknown": job.unknown}


def result_data(result: Outcome | None) -> dict[str, Any] | None:
    """How a run ended, for JSON; None: it is not known."""
    return None if result is None else result.as_dict()


def ago(when: float) -> str:
    """A time as people say it of a run: `12 s ago`, `3 h ago`, `5 d ago`."""
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
