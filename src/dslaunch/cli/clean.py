"""`dslaunch clean`: end and remove what dead runs have left on nodes, or their records here."""

from __future__ import annotations

import json as jsonlib
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import slurm_runs, ui
from dslaunch.cli.options import ClusterFile, find_cluster, open_cluster
from dslaunch.errors import DslaunchError, NodeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Container

    from dslaunch.cluster.model import Cluster
    from dslaunch.protocol.queries import Answers
    from dslaunch.run.local import LocalRun
    from dslaunch.run.state import RunState

OVER = ("ended well", "failed", "stopped")
HOW = "`dslaunch status` tells more; if it is over, remove its directory"


def clean(
    file: ClusterFile = None,
    run: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also what ended detached runs have kept: their logs.")
    ] = False,
    older: Annotated[
        str | None,
        typer.Option(
            "--runs-older-than",
            metavar="AGE",
            help="Instead remove this machine's records and logs of runs that have been over for "
            "90s, 10m, 12h, 30d.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """End and remove what runs have left on nodes that were away.

    Runs that go on are not touched.

    Example: dslaunch clean cluster.yaml
    """
    from dslaunch.protocol.queries import CLEAN
    from dslaunch.run.reach import ask, reach

    if older is not None:
        if file is not None or run is not None or ended:
            raise UsageError(
                "--runs-older-than is about this machine, not about nodes",
                hint="use it without a cluster file, --run and --ended",
            )
        clean_records(older, json=json)
        return
    cluster = open_cluster(find_cluster(file))
    with reach(cluster, cluster.nodes) as reached:
        answers = ask(reached, {CLEAN: {"run": run, "ended": ended}})
        failures = tuple(reached.failures.values())
    done = {host: cleaned(answer) for host, answer in answers.items()}
    if json:
        ui.result(jsonlib.dumps(done, indent=2))
    else:
        ui.result("\n".join(words(host, what) for host, what in done.items()) or "nobody answered")
    if failures:
        raise NodeError(failures)


# ---------------------------------------------------------------- this machine


def clean_records(age: str, *, json: bool) -> None:
    """Remove the records of runs that are over for so long; tell which, and which were kept.

    Raises UsageError if `age` is no span of time, DslaunchError if a record cannot be removed.
    """
    from dslaunch.cli.logs import seconds
    from dslaunch.run.forget import forget, last_written
    from dslaunch.run.local import local_runs

    before = seconds(age, "--runs-older-than")
    assert before is not None
    known = local_runs(os.environ)
    old = list(last_written(known.started, before))
    kept = going_on([recorded.run for recorded in old])
    removed = {}
    for recorded in old:
        if recorded.run.run not in kept:
            forget(recorded)
            removed[recorded.run.run] = recorded.size
    for error in known.unreadable:
        ui.say(f"kept {error.message}")
    for name, why in kept.items():
        ui.say(f"kept {name}: {why}")
    if json:
        ui.result(jsonlib.dumps({"removed": removed, "kept": kept}, indent=2))
    else:
        rows = [f"removed {name}, {size / 1e6:.1f} MB" for name, size in removed.items()]
        ui.result("\n".join(rows) or "nothing to do")


def going_on(runs: list[LocalRun]) -> dict[str, str]:
    """The runs that may not be over, and why: whoever might know is asked."""
    detached = [run for run in runs if run.record.detached and not run.living]
    alone = [run for run in runs if not run.record.detached or run.living]
    found = {run.run: _why_alone(run) for run in alone} | _why_detached(detached)
    return {name: why for name, why in found.items() if why}


def _why_alone(run: LocalRun) -> str:
    """Of a run that its launcher, or SLURM, has in hand; empty: it is over."""
    if run.living:
        return "its launcher is running"
    if run.result is not None or not slurm_runs.is_slurm(run):
        return ""
    try:
        state = str(slurm_runs.data(run)["state"])
    except DslaunchError as error:
        return f"{error.message.splitlines()[0]}; {HOW}"
    return f"its job is {state}" if state in ("waiting", "running") else ""


def _why_detached(runs: list[LocalRun]) -> dict[str, str]:
    """Of runs that only their nodes have in hand."""
    from dslaunch.cli.ps import ask_nodes

    clusters: list[Cluster] = []
    unknown = set()
    for run in runs:
        try:
            cluster = run.cluster()
        except UsageError:  # of another version
            unknown.add(run.run)
            continue
        if cluster not in clusters:
            clusters.append(cluster)
    states, silent = ask_nodes(clusters)
    return {
        run.run: f"its nodes are not known; {HOW}"
        if run.run in unknown
        else _why_on_nodes(run, states.get(run.record.agents), silent)
        for run in runs
    }


def _why_on_nodes(run: LocalRun, state: RunState | None, silent: Container[str]) -> str:
    away = [host for host in run.record.hosts if host in silent]
    if state is not None and state.state not in OVER:
        return f"it is {state.state}"
    return f"no answer from {', '.join(away)}; {HOW}" if away else ""


# ---------------------------------------------------------------- nodes


def cleaned(answers: Answers) -> dict[str, Any]:
    """What one node did, or why it could not, for JSON."""
    from dslaunch.protocol.queries import CLEAN

    done = answers.get(CLEAN)
    return {"error": answers.error(CLEAN)} if done is None else done.model_dump(mode="json")


def words(host: str, what: dict[str, Any]) -> str:
    """What was done on one node."""
    if "error" in what:
        return f"{host}: {what['error']}"
    killed = f"{len(what['killed'])} processes ended" if what["killed"] else ""
    runs = f"removed {', '.join(what['removed'])}" if what["removed"] else ""
    return f"{host}: {', '.join(filter(None, (killed, runs))) or 'nothing to do'}"
