"""`dslaunch run`: start a training on every node, stream it, end cleanly."""

from __future__ import annotations

import json as jsonlib
import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dslaunch import api
from dslaunch.cli import interruption, options, run_views, script_options, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots, Words
from dslaunch.cli.positional import JobOptions
from dslaunch.errors import DslaunchError, Interrupted

if TYPE_CHECKING:
    from dslaunch.report.live import JsonView, TerminalView
    from dslaunch.run.outcome import Outcome, Status
    from dslaunch.run.request import RunRequest

NoSync = Annotated[
    bool, typer.Option("--no-sync", help="Ship nothing: refuse if the code differs.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan, ask no node, start nothing.")
]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="Leave out the quick checks of the nodes.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only how it failed.")]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")]
Grace = Annotated[
    float, typer.Option(min=0, help="Seconds between asking a rank to end and killing it.")
]
ExitTimeout = Annotated[
    float, typer.Option(min=0, help="Seconds that ranks may outlive the first good end.")
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Start it and leave; the nodes hold together.")
]
Restarts = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Restart up to N times after a failure or a lost node; default: 0, and with `elastic` "
        "and --min-nodes as often as it takes to go on with so few.",
    ),
]
Result = Annotated[
    Path | None,
    typer.Option("--result", help="Write how the run ended to this file, as JSON."),
]
Notice = Annotated[
    Literal["USR1", "USR2"] | None,
    typer.Option("--notice", help="Hand this signal to the ranks, such as before a time limit."),
]
Requeue = Annotated[
    int,
    typer.Option(
        "--requeue",
        min=0,
        help="In a SLURM job whose nodes failed: requeue it without them, up to N times.",
    ),
]
MinNodes = Annotated[
    int | None,
    typer.Option(min=1, help="Go on with so few nodes; default: not with fewer."),
]
HangTimeout = Annotated[
    float | None,
    typer.Option(min=1, help="End it when no rank printed or computed for so many seconds."),
]
Reconnect = Annotated[
    float, typer.Option(min=0, help="Seconds in which a lost connection may come back.")
]
Silence = Annotated[
    float, typer.Option(min=1, help="Seconds without a sign after which it counts as lost.")
]
CONTEXT = options.SCRIPT_LAST


def run(
    words: Words = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    module: options.Module = False,
    no_python: options.NoPython = False,
    launcher: Launcher = None,
    env: Setting = None,
    workdir: options.Workdir = None,
    slurm: options.Allocated = False,
    transport: options.TransportName = None,
    no_sync: NoSync = False,
    no_preflight: NoPreflight = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    ranks: run_views.Ranks = None,
    json: Json = False,
    grace: Grace = 10.0,
    exit_timeout: ExitTimeout = 300.0,
    detach: Detach = False,
    restarts: Restarts = None,
    min_nodes: MinNodes = None,
    hang_timeout: HangTimeout = None,
    reconnect: Reconnect = 20.0,
    silence: Silence = 15.0,
    notice: Notice = None,
    result: Result = None,
    requeue: Requeue = 0,
    force: options.Force = False,
) -> None:
    """Start a training on every node, stream it, end cleanly.

    Everything after the script is the script's own. Without a script the cluster file's `job:`
    is run.

    Example: dslaunch run cluster.yaml train.py --epochs 3
    """
    from dslaunch.run.timeouts import Timeouts

    how = JobOptions(module, no_python, launcher, tuple(env or ()))
    asked = options.read_job(words or [], how, workdir=workdir, slurm=slurm)
    cluster = asked.cluster
    if not dry_run:
        cluster = options.reached(cluster, transport, slurm=slurm)
    request = api.run_request(
        cluster,
        asked.job,
        api.select(
            cluster,
            include=include,
            exclude=exclude,
            nodes=nodes,
            slots=slots,
            labels=label or (),
        ),
        sync=not no_sync,
        preflight=not no_preflight,
        force=force,
        restarts=restarts,
        min_nodes=min_nodes,
        timeouts=Timeouts(
            grace=grace,
            exit_timeout=exit_timeout,
            heartbeat=silence,
            reconnect=reconnect,
            hang_timeout=hang_timeout,
        ),
        detached=detach,
        notice=signal.Signals[f"SIG{notice}"] if notice else None,
    )
    shown = run_views.existing_ranks(ranks, request.allocation.world_size)
    options.check_writable("--result", result)
    if dry_run:
        _print_plan(request)
        return
    if not (force or slurm or transport):
        api.check_not_scheduled(cluster, os.environ)
    script_options.tell_of_own_options(words or [], "run", Path.cwd())
    end = RunEnd(result, requeue)
    try:
        _run(request, (json, quiet, shown), end)
    except DslaunchError as error:
        outcome = end.not_started(error)
        if json:
            ui.result(jsonlib.dumps({"kind": "outcome"} | outcome.as_dict()))
        raise


def _print_plan(request: RunRequest) -> None:
    from dslaunch.render.dry_run import dry_run

    ui.result(dry_run(api.assumed_plan(request)))


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What becomes of a run's outcome beside what is shown of it."""

    result: Path | None
    requeue: int

    def after(self, outcome: Outcome, directory: Path) -> None:
        """Write the result; requeue the job if its nodes failed."""
        self._write(outcome, directory)
        if outcome.faulty and self.requeue and not outcome.goes_on:
            from dslaunch.slurm.client import here
            from dslaunch.slurm.requeue import requeue_without

            requeue_without(
                client=here(),
                nodes=outcome.faulty,
                most=self.requeue,
                say=lambda words: ui.say(f"dslaunch: {words}"),
            )

    def not_started(self, error: DslaunchError) -> Outcome:
        """Write and return why nothing was started."""
        from dslaunch.run.outcome import Outcome
        from dslaunch.run.reasons import EndCode, EndReason

        status: Status = "interrupted" if isinstance(error, Interrupted) else "failed"
        reason = EndReason(EndCode.NOT_STARTED, problem=error.error_code, error=error.message)
        outcome = Outcome(status, error.exit_code, reason, hint=error.hint)
        self._write(outcome, None)
        return outcome

    def _write(self, outcome: Outcome, directory: Path | None) -> None:
        if self.result is None:
            return
        from dslaunch.run.run_directory import write_private
        from dslaunch.slurm.job_files import of_job

        run = {"run": directory.name, "directory": str(directory)} if directory else {}
        text = jsonlib.dumps(outcome.as_dict() | run | of_job(os.environ), indent=2) + "\n"
        try:
            write_private(self.result, text)
        except OSError as error:
            ui.say(f"dslaunch: --result {self.result}: {error.strerror}")


def _run(request: RunRequest, show: tuple[bool, bool, frozenset[int] | None], end: RunEnd) -> None:
    from dslaunch.run.launch import run_job

    interruption.leave_if_interrupted()
    json, quiet, ranks = show

    @cache
    def view() -> JsonView | TerminalView:
        return run_views.make(request.allocation.hosts, json=json, quiet=quiet, ranks=ranks)

    outcome, directory = run_job(request, view)
    if outcome.goes_on:
        view().detached(directory.name)
    else:
        view().outcome(outcome, directory)
    end.after(outcome, directory)
    raise typer.Exit(outcome.exit_code)
