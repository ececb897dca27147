"""`dslaunch clean`: end and remove what dead runs have left on nodes, or their records here."""

from __future__ import annotations

import json as jsonlib
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import ui
from dslaunch.cli.lookup import handles, reports_on
from dslaunch.cli.options import ClusterFile, find_cluster, open_cluster
from dslaunch.errors import NodeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.protocol.queries import Answers
    from dslaunch.run.local import LocalRun
    from dslaunch.run.status import RunStatus

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
    from dslaunch.run.local import local_runs
    from dslaunch.run.old_records import last_written, remove_record

    before = seconds(age, "--runs-older-than")
    assert before is not None
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
        ui.result(jsonlib.dumps({"removed": removed, "kept": kept}, indent=2))
    else:
        rows = [f"removed {name}, {size / 1e6:.1f} MB" for name, size in removed.items()]
        ui.result("\n".join(rows) or "nothing to do")


def going_on(runs: Sequence[LocalRun]) -> dict[str, str]:
    """The runs that may not be over, and why: whoever might know is asked."""
    found = {run.run: "its launcher is running" for run in runs if run.living}
    others = handles(run for run in runs if not run.living)
    reports = reports_on(others)
    for run in others:
        why = _why_kept(run.summary(reports))
        if why:
            found[run.name] = why
    return found


def _why_kept(status: RunStatus) -> str:
    """Why a run may not be over; empty: it is."""
    from dslaunch.report.status import state_text, unknown_text

    if status.may_continue and status.unknown is None:
        subject = "it" if status.record.slurm is None else "its job"
        return f"{subject} is {state_text(status.state)}"
    if status.unknown is not None:
        return f"{unknown_text(status.unknown).splitlines()[0]}; {HOW}"
    return ""


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
