"""`dslaunch ps`: list runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from dslaunch import api
from dslaunch.cli import options, ui
from dslaunch.cli.cluster_option import default_cluster
from dslaunch.cli.json_option import JsonList
from dslaunch.cli.moments import moment
from dslaunch.cli.options import ClusterFile, find_cluster, open_cluster
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.report.status import run_rows
from dslaunch.run.run_selection import RunSelection
from dslaunch.run.run_state import State
from dslaunch.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dslaunch.cluster.model import Cluster
    from dslaunch.run.status import RunStatus
    from dslaunch.slurm.known_runs import KnownRuns

CLEAR = "\x1b[H\x1b[J"
"""Moves to the top left of a terminal, and clears what is below."""


def ps(
    file: ClusterFile = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="List ended runs too.")] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--last", "-n", metavar="N", min=1, help="List the newest N runs, also ended ones."
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="List only runs in this state, also ended ones, for example failed or running.",
        ),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option("--script", metavar="GLOB", help="List only runs of scripts that match."),
    ] = None,
    cluster_name: Annotated[
        str | None,
        typer.Option(
            "--cluster-name", metavar="GLOB", help="List only runs on clusters whose names match."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="List only runs that were started since: an age such as 2d, or a time such as "
            "2026-01-31.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update the list until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        options.seconds("Time between two updates of --watch.", least=0.5),
    ] = 2.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only names.")] = False,
    json: JsonList = False,
) -> None:
    """List runs, the newest first.

    These are the runs in the records of this machine and of the nodes.

    Example: dslaunch ps cluster.yaml --all
    """
    selection = RunSelection(
        ended=everything or count is not None or bool(state),
        script=script,
        cluster=cluster_name,
        since=moment(since, "--since"),
        states=frozenset(map(state_of, state or ())),
        count=count,
    )
    cluster = _cluster(file)
    while True:
        found = api.runs(cluster, selection=selection)
        if watch and sys.stdout.isatty():
            sys.stdout.write(CLEAR)
        show(found, selection, quiet=quiet, json=json)
        if not watch:
            return
        time.sleep(interval)


def show(found: KnownRuns, selection: RunSelection, *, quiet: bool, json: bool) -> None:
    """Print the selected runs, and what could not be found out."""
    shown = selection.of(found.statuses)
    if quiet:
        if shown:
            ui.result("\n".join(one_line(status.run) for status in shown))
    elif json:
        ui.data([status.as_data() for status in with_progress(found, shown)])
    elif shown:
        width = ui.width()
        ui.result(ui.table(run_rows(list(with_progress(found, shown)), width), width))
    else:
        ui.result("no runs" if selection.ended else "no active runs; list ended ones with --all")
    for error in found.errors:
        ui.say(one_line(error.message))
    for failure in found.failures.values():
        ui.say(one_line(f"{failure.host}: {failure.message}"))


def with_progress(found: KnownRuns, shown: list[RunStatus]) -> Iterable[RunStatus]:
    """Yield the runs with their progress, which is read only for those that are shown."""
    handles = {handle.name: handle for handle in found.handles}
    for status in shown:
        yield replace(status, progress=status.progress or handles[status.run].progress())


def state_of(text: str) -> State:
    """Return a state by its name. Raises UsageError."""
    try:
        return State(text)
    except ValueError:
        raise UsageError.coded(
            ErrorCode.UNKNOWN_CHOICE, option="--state", value=text, choices=tuple(State)
        ) from None


def _cluster(file: Path | None) -> Cluster | None:
    """Return the cluster of the given or default file, if there is one."""
    if file is not None or default_cluster() is not None:
        return open_cluster(find_cluster(file))
    return None
