"""`dslaunch clean`: remove leftovers of past runs from the nodes, or records on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import ui
from dslaunch.cli.json_option import JsonObject
from dslaunch.cli.moments import age
from dslaunch.cli.options import ClusterFile, find_cluster, open_cluster
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import DslaunchError, NodeError, UsageError
from dslaunch.plural import counted
from dslaunch.protocol.queries import CLEAN
from dslaunch.report.status import state_text, unknown_text
from dslaunch.run.local_runs import local_runs
from dslaunch.run.old_records import last_written, remove_record
from dslaunch.run.reach import ask, reach
from dslaunch.slurm.client import here
from dslaunch.slurm.known_runs import handles, reports_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dslaunch.protocol.queries import Answers
    from dslaunch.run.local_runs import LocalRun
    from dslaunch.run.status import RunStatus

HOW = "see `dslaunch status`; if the run has ended, remove its directory"


def clean(
    file: ClusterFile = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Remove only leftovers of this run.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Remove the logs of ended detached runs too.")
    ] = False,
    older: Annotated[
        str | None,
        typer.Option(
            "--runs-older-than",
            metavar="AGE",
            help="Instead, remove records and logs on this machine of runs that ended longer ago "
            "than for example 12h or 30d.",
        ),
    ] = None,
    json: JsonObject = False,
) -> None:
    """Remove leftovers of past runs from the nodes.

    These are processes and directories on nodes that were unreachable. Active runs are not
    touched.

    Example: dslaunch clean cluster.yaml
    """
    if older is not None:
        if file is not None or run is not None or ended:
            raise UsageError(
                "--runs-older-than removes records on this machine, not on nodes",
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
        ui.data(done)
    else:
        lines = [words(host, what) for host, what in done.items()]
        ui.result("\n".join(lines) or "no node answered")
    if failures:
        raise NodeError(failures)
    check_cleaned(done)


# ---------------------------------------------------------------- this machine


def clean_records(older: str, *, json: bool) -> None:
    """Remove the records of runs that ended at least `older` ago; print the removed and kept ones.

    Raises UsageError for an invalid duration, DslaunchError if a record cannot be removed.
    """
    before = age(older, "--runs-older-than")
    known = local_runs(os.environ)
    old = list(last_written(known.started, before))
    kept = going_on([recorded.run for recorded in old])
    removed = {}
    for recorded in old:
        if recorded.run.run not in kept:
            remove_record(recorded)
            removed[recorded.run.run] = recorded.size
    for error in known.unreadable:
        ui.say(f"kept {error.message}")
    for name, why in kept.items():
        ui.say(f"kept {name}: {why}")
    if json:
        ui.data({"removed": removed, "kept": kept})
    else:
        rows = [f"removed {name} ({size / 1e6:.1f} MB)" for name, size in removed.items()]
        ui.result("\n".join(rows) or "nothing to remove")


def going_on(runs: Sequence[LocalRun]) -> dict[str, str]:
    """Return the runs that may not have ended, and why; asks their nodes and SLURM."""
    found = {run.run: "its launcher is running" for run in runs if run.living}
    others = handles((run for run in runs if not run.living), here())
    reports = reports_on(others)
    for run in others:
        why = _why_kept(run.summary(reports))
        if why:
            found[run.name] = why
    return found


def _why_kept(status: RunStatus) -> str:
    """Return why a run may not have ended; empty: it has."""
    if status.may_continue and status.unknown is None:
        subject = "it" if status.record.slurm is None else "its job"
        return f"{subject} is {state_text(status.state)}"
    if status.unknown is not None:
        return f"{unknown_text(status.unknown).splitlines()[0]}; {HOW}"
    return ""


# ---------------------------------------------------------------- nodes


def cleaned(answers: Answers) -> dict[str, Any]:
    """Return what one node did, or its error, as JSON data."""
    done = answers.get(CLEAN)
    return {"error": answers.error(CLEAN)} if done is None else done.model_dump(mode="json")


def check_cleaned(done: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise DslaunchError if a node could not remove its leftovers."""
    failed = [host for host, what in done.items() if "error" in what]
    if failed:
        raise DslaunchError(f"leftovers were not removed: {fold(failed)}")


def words(host: str, what: dict[str, Any]) -> str:
    """Return what was done on one node as a line."""
    if "error" in what:
        return f"{host}: {what['error']}"
    done = []
    if what["killed"]:
        done.append(f"killed {counted(len(what['killed']), 'process', 'processes')}")
    if what["removed"]:
        done.append(f"removed {', '.join(what['removed'])}")
    return f"{host}: {', '.join(done) or 'nothing to remove'}"
