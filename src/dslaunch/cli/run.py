"""`dslaunch run`: start a training job on all nodes, stream its output, stop it cleanly."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec import Struct
from msgspec.structs import replace

from dslaunch import api
from dslaunch.cli import (
    interruption,
    notifications,
    options,
    run_metrics,
    run_views,
    script_options,
    ui,
)
from dslaunch.cli.json_option import JsonEvents
from dslaunch.cli.options import Words
from dslaunch.cli.output_files import output_option
from dslaunch.cli.run_options import (
    JobOptions,
    SelectionOptions,
    StartOptions,
    read_job,
    with_master_port,
)
from dslaunch.errors import DslaunchError, ErrorCode, Interrupted, NodeError, PreflightError
from dslaunch.json_text import json_text
from dslaunch.run.timeouts import DEFAULTS, REHEARSAL_DEFAULTS, Timeouts

if TYPE_CHECKING:
    from dslaunch.report.json_view import JsonView
    from dslaunch.report.live import TerminalView
    from dslaunch.run.notification import Target
    from dslaunch.run.outcome import Outcome, Status
    from dslaunch.run.request import RunRequest
    from dslaunch.run.usage_recorder import OnUsage

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan without contacting any node.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only why the run failed.")]
ExitTimeout = Annotated[
    float,
    options.seconds(
        "Time to wait for the other ranks after the first one exits successfully.", least=0
    ),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Run in the background; follow it with 'dslaunch attach'."),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Restart up to N times after a failure or a lost node (default: 0; for launcher "
        "elastic with --min-nodes: enough to shrink to that number).",
    ),
]
Result = Annotated[
    Path | None,
    output_option("--result", text="Write the outcome to a JSON file."),
]
Notice = Annotated[
    Literal["USR1", "USR2"] | None,
    typer.Option(
        "--notice",
        metavar="SIGNAL",
        help="After this signal (USR1 or USR2) each rank saves and exits by itself, as before a "
        "time limit; the run is not restarted.",
    ),
]
Requeue = Annotated[
    int,
    typer.Option(
        "--requeue",
        metavar="N",
        min=0,
        help="In a SLURM job: requeue it without failed nodes, up to N times.",
    ),
]
MinNodes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Keep going while at least N nodes are available (default: all).",
    ),
]
Rehearse = Annotated[
    bool,
    typer.Option("--rehearse", help="Rehearse it first, and start it only if that finds no error."),
]
ReconnectTimeout = Annotated[
    float,
    options.seconds(
        "Time to restore a lost connection before the node is treated as lost.",
        "--reconnect-timeout",
        least=0,
    ),
]
HeartbeatTimeout = Annotated[
    float,
    options.seconds(
        "Treat a node as unresponsive after this time without contact.",
        "--heartbeat-timeout",
        least=1,
    ),
]
CONTEXT = options.SCRIPT_LAST


class TimeoutOptions(Struct, frozen=True):
    """The options for times, in seconds."""

    grace: options.Grace = DEFAULTS.grace
    exit_timeout: ExitTimeout = DEFAULTS.exit_timeout
    hang_timeout: options.HangTimeout = None
    reconnect_timeout: ReconnectTimeout = DEFAULTS.reconnect
    heartbeat_timeout: HeartbeatTimeout = DEFAULTS.heartbeat

    @property
    def timeouts(self) -> Timeouts:
        """Return them as the run needs them."""
        return Timeouts(
            grace=self.grace,
            exit_timeout=self.exit_timeout,
            heartbeat=self.heartbeat_timeout,
            reconnect=self.reconnect_timeout,
            hang_timeout=self.hang_timeout,
        )


class ViewOptions(Struct, frozen=True):
    """The options for what is shown of a run, and how."""

    quiet: Quiet = False
    ranks: run_views.Ranks = None
    fold: run_views.Fold = None
    json: JsonEvents = False

    def shown(self, request: RunRequest) -> Shown:
        """Return them for a run. Raises UsageError for ranks that it does not have."""
        world_size = request.allocation.world_size
        ranks = run_views.shown_ranks(self.ranks, request.cluster, world_size)
        return Shown(ranks=ranks, fold=self.fold, json=self.json, quiet=self.quiet)


class EndOptions(Struct, frozen=True):
    """The options for what is done with the outcome, and with the figures of a run."""

    result: Result = None
    requeue: Requeue = 0
    metrics: run_metrics.Metrics = None
    notify: notifications.Notify = None

    def checked(self, *, detach: bool) -> RunEnd:
        """Return what is done with the outcome. Raises UsageError."""
        notifications.check_launcher_stays(
            "--metrics", given=self.metrics is not None, detach=detach
        )
        notifications.check_launcher_stays("--notify", given=bool(self.notify), detach=detach)
        return RunEnd(self.result, self.requeue, notifications.targets_of(self.notify))


def run(
    *,
    words: Words = None,
    which: SelectionOptions,
    how: JobOptions,
    start: StartOptions,
    dry_run: DryRun = False,
    rehearse: Rehearse = False,
    view: ViewOptions,
    detach: Detach = False,
    restarts: Restarts = None,
    min_nodes: MinNodes = None,
    times: TimeoutOptions,
    notice: Notice = None,
    ending: EndOptions,
    file: options.ClusterOption = None,
) -> None:
    """Start a training job on all nodes and follow it.

    Everything after the script is passed to the script. Without a script, `job:` of the cluster
    file is run.

    Example: dslaunch run cluster.yaml train.py --epochs 3
    """
    asked = read_job(words, how, command="run", file=file, slurm=start.slurm)
    cluster = with_master_port(asked.cluster, start.master_port)
    if not dry_run:
        cluster = start.reached(cluster)
    request = start.request(
        cluster,
        asked.job,
        which.of(cluster),
        restarts=restarts,
        min_nodes=min_nodes,
        timeouts=times.timeouts,
        detached=detach,
        notice=signal.Signals[f"SIG{notice}"] if notice else None,
    )
    shown = view.shown(request)
    end = ending.checked(detach=detach)
    if dry_run:
        _print_plan(request)
        return
    start.check_not_scheduled(cluster)
    script_options.tell_of_own_options(words or [], "run", Path.cwd(), file=file)
    try:
        if rehearse:
            _rehearse_first(request, json=view.json)
        with run_metrics.exported(ending.metrics) as on_usage:
            _run(request, shown, end, on_usage)
    except DslaunchError as error:
        outcome = end.not_started(error)
        if view.json:
            ui.result(json_text({"kind": "outcome"} | outcome.as_data()))
        raise


def _print_plan(request: RunRequest) -> None:
    from dslaunch.render.dry_run import dry_run

    ui.result(dry_run(api.assumed_plan(request)))


def _rehearse_first(request: RunRequest, *, json: bool) -> None:
    """Rehearse a job and show the result. Raises DslaunchError unless the job would run."""
    from dslaunch.cli.rehearse import page, rehearsed
    from dslaunch.run.rehearsal import RehearsalLimits
    from dslaunch.run.rehearsal_result import Verdict

    timeouts = request.timeouts
    if timeouts.hang_timeout is None:
        timeouts = replace(timeouts, hang_timeout=REHEARSAL_DEFAULTS.hang_timeout)
    request = replace(request, timeouts=timeouts)
    rehearsal = rehearsed(request, RehearsalLimits(), quiet=json)
    if json:
        ui.result(json_text({"kind": "rehearsal"} | rehearsal.as_data()))
    else:
        ui.result(page(request, rehearsal), colors=True)
    if rehearsal.outcome.status == "interrupted":
        raise Interrupted("interrupted")
    if rehearsal.verdict is Verdict.WOULD_FAIL:
        raise DslaunchError.coded(ErrorCode.WOULD_FAIL)
    if rehearsal.verdict is Verdict.NOT_REHEARSED:
        raise DslaunchError.coded(ErrorCode.NOT_REHEARSED)


class RunEnd(Struct, frozen=True):
    """What is done with a run's outcome, besides showing it."""

    result: Path | None
    requeue: int
    notify: tuple[Target, ...] = ()

    def after(self, outcome: Outcome, directory: Path) -> None:
        """Write the result file; requeue the job if its nodes failed."""
        self._write(outcome, directory)
        if outcome.faulty and self.requeue and not outcome.goes_on:
            from dslaunch.slurm.client import here
            from dslaunch.slurm.requeue import requeue_without

            requeue_without(
                client=here(),
                nodes=outcome.faulty,
                limit=self.requeue,
                tell=lambda note: ui.say(f"dslaunch: {note}"),
            )
        notifications.tell(self.notify, outcome, directory)

    def not_started(self, error: DslaunchError) -> Outcome:
        """Write and return the outcome of a run that was not started."""
        from dslaunch.run.outcome import Outcome
        from dslaunch.run.reasons import EndCode, EndReason

        status: Status = "interrupted" if isinstance(error, Interrupted) else "failed"
        failures = error.failures if isinstance(error, NodeError) else ()
        reason = EndReason(
            EndCode.NOT_STARTED,
            problem=error.error_code,
            failures=tuple((failure.host, failure.kind) for failure in failures),
            checks=error.checks if isinstance(error, PreflightError) else (),
            error=error.message,
        )
        outcome = Outcome(status, error.exit_code, reason, hint=error.hint)
        self._write(outcome, None)
        notifications.tell(self.notify, outcome, None)
        return outcome

    def _write(self, outcome: Outcome, directory: Path | None) -> None:
        if self.result is None:
            return
        from dslaunch.run.run_directory import write_private
        from dslaunch.slurm.job_files import of_job

        run = {"run": directory.name, "directory": str(directory)} if directory else {}
        text = json_text(outcome.as_data() | run | of_job(os.environ), indent=2) + "\n"
        try:
            write_private(self.result, text)
        except OSError as error:
            ui.say(f"dslaunch: --result {self.result}: {error.strerror}")
            return
        ui.wrote(self.result)


class Shown(Struct, frozen=True):
    """What is shown of a run, and how."""

    ranks: frozenset[int] | None
    fold: bool | None
    json: bool
    quiet: bool


def _run(request: RunRequest, shown: Shown, end: RunEnd, on_usage: OnUsage) -> None:
    from dslaunch.run.launch import run_job

    interruption.leave_if_interrupted()
    at_exit = ExitStack()

    @cache
    def view() -> JsonView | TerminalView:
        made = run_views.make(
            request.allocation.hosts,
            json=shown.json,
            quiet=shown.quiet,
            ranks=shown.ranks,
            fold=shown.fold,
            progress_formats=request.cluster.progress,
        )
        at_exit.callback(made.close)
        return made

    with at_exit:
        outcome, directory = run_job(request, view, on_usage=on_usage)
    if outcome.goes_on:
        view().detached(directory.name)
    else:
        view().outcome(outcome, directory)
    end.after(outcome, directory)
    raise typer.Exit(outcome.exit_code)
