"""`dslaunch slurm`: run the same cluster file and job as a SLURM job."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cli import interruption, notifications, options, run_views, script_options, ui
from dslaunch.cli.json_option import JsonEvents
from dslaunch.cli.output_files import output_option
from dslaunch.cli.run_options import JobOptions, SelectionOptions, read_job
from dslaunch.errors import DslaunchError, PlanError, UsageError
from dslaunch.terminal import one_line

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.render.batch import Origin
    from dslaunch.report.json_view import JsonView
    from dslaunch.report.live import TerminalView
    from dslaunch.run.notification import Target
    from dslaunch.run.run_directory import RunDirectory
    from dslaunch.slurm.client import SlurmClient
    from dslaunch.slurm.identity import JobId
    from dslaunch.slurm.job import Submitted
    from dslaunch.slurm.slurm_job import SlurmJob
    from dslaunch.slurm.states import JobInfo
    from dslaunch.slurm.supervision import Supervision

DETACHED = ("--detach", "-d")
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLUSTER.yaml] [SCRIPT [ARG]...]",
        help="Cluster file, script and its arguments, as for `run`.",
        show_default=False,
        callback=options.in_order(),
    ),
]
Render = Annotated[bool, typer.Option("--render", help="Print the batch script; do not submit.")]
Check = Annotated[
    bool, typer.Option("--check", help="Ask SLURM whether it accepts the job; do not submit.")
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Submit the job and exit; do not follow it.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of `slurm:` in the cluster file, for example time=2:00:00.",
    ),
]
Template = Annotated[
    Path | None,
    typer.Option("--template", metavar="FILE", help="Use your own template for the script."),
]
Output = Annotated[
    Path | None,
    output_option(
        "--output",
        "-o",
        text="Write the batch script to a file; - is standard output.",
        or_stdout=True,
    ),
]
MinNodes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Keep going while at least N nodes are available; needs --supervised or launcher "
        "elastic.",
    ),
]
Supervised = Annotated[
    bool | None,
    typer.Option(
        "--supervised/--plain",
        help="Start the ranks by `dslaunch run` in the job, or only by srun (default: --plain).",
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, help="Restart the ranks in the job up to N times after a failure."
    ),
]
HangTimeout = Annotated[
    float | None,
    options.seconds(
        "With --supervised: stop when no rank has made progress for this time.", least=1
    ),
]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="With --supervised: skip the quick checks.")
]
CONTEXT = options.SCRIPT_LAST


class SupervisionOptions(Struct, frozen=True):
    """The options that define whether and how `dslaunch run` supervises the ranks in the job."""

    supervised: Supervised = None
    restarts: Restarts = None
    hang_timeout: HangTimeout = None
    no_preflight: NoPreflight = False

    @property
    def chosen(self) -> Supervision:
        """Return them as the job needs them."""
        from dslaunch.slurm.supervision import Supervision

        return Supervision(
            supervised=self.supervised,
            restarts=self.restarts,
            hang_timeout=self.hang_timeout,
            preflight=not self.no_preflight,
        )


def slurm(
    *,
    words: Words = None,
    which: SelectionOptions,
    how: JobOptions,
    min_nodes: MinNodes = None,
    supervision: SupervisionOptions,
    setting: Set = None,
    render: Render = False,
    check: Check = False,
    detach: Detach = False,
    template: Template = None,
    output: Output = None,
    ranks: run_views.Ranks = None,
    fold: run_views.Fold = None,
    json: JsonEvents = False,
    notify: notifications.Notify = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Submit despite missing files or errors in the DeepSpeed config."
        ),
    ] = False,
    cluster: options.ClusterOption = None,
) -> None:
    """Submit a training job to SLURM and follow it.

    The exit code is the job's. The cluster file lists the nodes; `slurm:` in it has the settings
    of the job. SLURM allocates any nodes of the same type, or with --include exactly these.

    `dslaunch slurm lint FILE` checks an sbatch script.

    Example: dslaunch slurm cluster.yaml train.py --epochs 3
    """
    from dslaunch.slurm.slurm_job import SlurmRequest, prepare_job

    asked = read_job(words, how, command="slurm", file=cluster)
    if sum((render or output is not None, check, detach)) > 1:
        raise UsageError("--render (or --output), --check and --detach exclude each other")
    notifications.check_launcher_stays("--notify", given=bool(notify), detach=detach)
    request = SlurmRequest(
        selection=which.selection,
        cwd=Path.cwd(),
        settings=tuple(setting or ()),
        supervision=supervision.chosen,
        min_nodes=min_nodes,
        template=template,
        origin=_origin(asked.cluster),
        force=force,
    )
    job = prepare_job(asked.cluster, asked.job, request, listening())
    for warning in job.warnings:
        ui.say(f"warning: {warning.value} ({warning.why})")
    world_size = job.batch.launch.allocation.world_size
    shown = run_views.shown_ranks(ranks, asked.cluster, world_size)
    for note in job.notes:
        ui.say(f"note: {note}")
    if render or output is not None:
        _print(job, output)
    elif check:
        _check(job)
    else:
        script_options.tell_of_own_options(words or [], "slurm", Path.cwd(), file=cluster)
        formats = asked.cluster.progress
        view = run_views.make((), json=json, ranks=shown, fold=fold, progress_formats=formats)
        view.follow(world_size, None)
        targets = notifications.targets_of(notify)
        _submit(job, detach=detach, view=view, json=json, targets=targets)


def _origin(cluster: Cluster) -> Origin:
    """Return the origin of the script: the cluster file, and the command line with --render.

    Both become comments, so they must stay on one line. Neither contains secrets; the values of
    --env and the script's arguments are in the script anyway.
    """
    from dslaunch.launch.command import quote_in_line
    from dslaunch.render.batch import Origin

    others = [word for word in sys.argv[1:] if word not in ("--render", "--check", *DETACHED)]
    at = others.index("slurm") + 1 if "slurm" in others else 0
    again = ["dslaunch", *others[:at], "--render", *others[at:]]
    words = ["cd", str(Path.cwd())], again
    command = " && ".join(" ".join(map(quote_in_line, each)) for each in words)
    file = cluster.source.file if cluster.source else ""
    return Origin(file=one_line(file), command=command)


def _print(job: SlurmJob, output: Path | None) -> None:
    """Print or write the script; print what would prevent its submission."""
    for problem in job.problems:
        ui.say(f"warning: {problem}")
    ui.document(job.script, output)


def _check(job: SlurmJob) -> None:
    """Ask sbatch whether it accepts the script."""
    from dslaunch.slurm.client import RefusedError

    for remark in job.lint().remarks:
        ui.say(f"{remark}")
    try:
        estimate = job.test()
    except RefusedError:
        for problem in job.problems:
            ui.error(PlanError(problem))
        raise
    for problem in job.check():
        ui.say(f"warning: {problem}")
    ui.result(f"SLURM accepts the job: {estimate or 'no estimated start'}")


def _submit(
    job: SlurmJob,
    *,
    detach: bool,
    view: JsonView | TerminalView,
    json: bool,
    targets: tuple[Target, ...],
) -> None:
    """Submit the job, and follow it unless `detach`."""
    for problem in job.check():
        ui.say(f"warning: {problem}")
    interruption.leave_if_interrupted()
    made, record = job.start()
    if detach:
        record.let_go()
        ui.say(f"dslaunch: submitted job {made.number}")
        _goes_on(made, json=json)
    else:
        _follow(job.client, made, record, view, json=json, targets=targets)


def listening() -> SlurmClient:
    """Return SLURM on this machine; messages of sbatch for accepted jobs are shown."""
    from dslaunch.slurm.client import here

    return replace(here(), notice=lambda line: ui.say(f"sbatch: {line}"))


def _follow(
    client: SlurmClient,
    made: Submitted,
    record: RunDirectory,
    view: JsonView | TerminalView,
    *,
    json: bool,
    targets: tuple[Target, ...],
) -> None:
    """Follow the job until it ends. Ctrl-C cancels it; a second one stops following. A closed
    terminal stops following, and the job continues."""

    from dslaunch.run.watch import Watch
    from dslaunch.slurm.follow_signals import FollowSignals
    from dslaunch.slurm.job import follow

    ui.say(f"dslaunch: submitted job {made.number} as run {made.directory.name}")
    with closing(view), FollowSignals(lambda: _cancel(client, made.job, view)) as signals:
        watch = Watch(view, record)
        outcome = follow(
            client,
            made,
            watch,
            view.tell,
            until=lambda: signals.leave,
            on_job=partial(_show_job, view),
        )
    if outcome is None:
        record.let_go()
        _goes_on(made, json=json)
        raise typer.Exit(130)
    record.close(outcome.as_data())
    view.outcome(outcome, made.directory)
    notifications.tell(targets, outcome, made.directory)
    raise typer.Exit(outcome.exit_code)


def _goes_on(made: Submitted, *, json: bool) -> None:
    """Print the commands for the job; for programs, its names."""
    run = made.directory.name
    if json:
        ui.data({"kind": "detached", "run": run, "job": made.number}, indent=None)
        return
    for what, command in (("output", "logs -f"), ("state", "status"), ("stop", "stop")):
        ui.say(f"  {what:<10} dslaunch {command} {run}")


def _show_job(view: JsonView | TerminalView, info: JobInfo, hosts: tuple[str, ...]) -> None:
    started = None if info.waiting else info.started
    view.job(hosts, started=started, ended=info.ended if info.over else None)


def _cancel(client: SlurmClient, job: JobId, view: JsonView | TerminalView) -> None:
    """Cancel the job. `scancel` sends TERM, and KILL after KillWait, 30 s by default
    (slurm.conf(5))."""
    try:
        client.cancel(job)
    except DslaunchError as error:
        view.tell(error.message)
        return
    view.tell(
        f"canceling job {job.number}; SLURM kills what runs after its KillWait (usually 30 s); "
        "Ctrl-C again stops following it"
    )
    view.canceling()
