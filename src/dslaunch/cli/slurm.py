"""`dslaunch slurm`: the same cluster file and job, by the site's scheduler."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import interruption, options, run_views, script_options, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots
from dslaunch.cli.positional import JobOptions
from dslaunch.cli.supervision import Supervision, supervise
from dslaunch.errors import DslaunchError, PlanError, UsageError
from dslaunch.terminal import one_line

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.render.batch import Batch, Origin
    from dslaunch.report.live import JsonView, TerminalView
    from dslaunch.run.run_directory import RunDirectory
    from dslaunch.slurm.client import RefusedError, SlurmClient
    from dslaunch.slurm.identity import JobId
    from dslaunch.slurm.job import Submitted
    from dslaunch.slurm.missing import Missing
    from dslaunch.slurm.settings import Sources

LINT = "lint"
DETACHED = ("--detach", "-d")
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLUSTER.yaml SCRIPT ARGS",
        help="As for `run`; or `lint FILE` to read a script that somebody else wrote.",
        show_default=False,
        callback=options.in_order(),
    ),
]
Render = Annotated[bool, typer.Option("--render", help="Print the script, submit nothing.")]
Check = Annotated[bool, typer.Option("--check", help="Ask SLURM what would become of it.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Submit it and leave.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE of the cluster file's `slurm:`, such as time=2:00:00."),
]
Template = Annotated[
    Path | None, typer.Option("--template", help="Your own template instead of ours.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the script to a file.")]
MinNodes = Annotated[
    int | None, typer.Option(min=1, help="With `elastic`: go on with so few nodes.")
]
Supervised = Annotated[
    bool | None,
    typer.Option(
        "--supervised/--plain",
        help="Run `dslaunch run --slurm` in the job, or let SLURM alone start the ranks (default).",
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(min=0, help="Restart the ranks within the job up to N times after a failure."),
]
HangTimeout = Annotated[
    float | None,
    typer.Option(
        min=1, help="With --supervised: end it when no rank prints or computes for N seconds."
    ),
]
NoPreflight = Annotated[
    bool, typer.Option("--no-preflight", help="With --supervised: skip the quick checks.")
]
CONTEXT = options.SCRIPT_LAST


def slurm(
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
    min_nodes: MinNodes = None,
    supervised: Supervised = None,
    restarts: Restarts = None,
    hang_timeout: HangTimeout = None,
    no_preflight: NoPreflight = False,
    setting: Set = None,
    render: Render = False,
    check: Check = False,
    detach: Detach = False,
    template: Template = None,
    output: Output = None,
    ranks: run_views.Ranks = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Submit although the DeepSpeed config has errors or files are missing."
        ),
    ] = False,
) -> None:
    """Submit a training to SLURM, follow it, end with its exit code.

    The cluster file says what nodes there are and, below `slurm:`, how to ask for them. SLURM
    gives any nodes of that kind, or with --include those very ones.

    Example: dslaunch slurm cluster.yaml train.py --epochs 3
    """
    if words and words[0] == LINT:
        _lint(words[1:])
        return
    from dslaunch.cluster.select import check_min_nodes
    from dslaunch.run.job_program import located
    from dslaunch.slurm.settings import Sources

    how = JobOptions(module, no_python, launcher, tuple(env or ()), command="slurm")
    asked = options.read_job(words or [], how, workdir=workdir)
    job = located(asked.job, Path.cwd())
    asked = replace(asked, job=replace(job, min_nodes=min_nodes))
    if sum((render or output is not None, check, detach)) > 1:
        raise UsageError("--render (or --output), --check and --detach: one of them")
    file = _file(words)
    chosen = options.selection(include, exclude, nodes, slots, label)
    batch = make_batch(asked, chosen, setting or [], force=force)
    batch = replace(batch, origin=_origin(file))
    allocation = batch.launch.allocation
    check_min_nodes(min_nodes, allocation)
    supervision = Supervision(
        supervised, restarts, hang_timeout, no_preflight=no_preflight, force=force
    )
    batch = supervise(batch, asked, supervision, file)
    shown = run_views.existing_ranks(ranks, allocation.world_size)
    sources = Sources(file, tuple(setting or ()), _options_of_sbatch(chosen))
    request = SlurmRequest(asked.cluster, batch, template, sources, force=force)
    if render or output is not None:
        request.print(output)
    elif check:
        request.check()
    else:
        script_options.tell_of_own_options(words or [], "slurm", Path.cwd())
        request.submit(detach=detach, show=(json, shown))


def _options_of_sbatch(chosen: Selection) -> dict[str, str]:
    """Return the options of ours that were given, by the option of sbatch that each decides."""
    given = {
        "nodes": ("--nodes", chosen.nodes),
        "nodelist": ("--include", chosen.include),
        "exclude": ("--exclude", chosen.exclude),
        "gres": ("--slots", chosen.slots),
    }
    return {name: f"{option} {value}" for name, (option, value) in given.items() if value}


def missing_files(batch: Batch) -> tuple[str, ...]:
    """Return a line for each file that the job needs and that is missing on this machine."""
    from dslaunch.slurm.missing import looker, missing, near

    def told(one: Missing) -> str:
        alike = near(one)
        hint = f"; did you mean {alike}?" if alike else ""
        whole = one.name == str(one.path)
        place = "" if whole else f" in {one.path.parent}, where the job runs"
        return f"{one.need} {one.name!r} does not exist{place}{hint}"

    found = missing(batch, looker(batch.launch.decided.workdir))
    return tuple(map(told, found))


def make_batch(
    asked: options.ClusterJob, chosen: Selection, settings: list[str], *, force: bool = False
) -> Batch:
    """Return the SLURM job of the command line, and print its warnings.

    Raises UsageError, SelectionError, and without `force` PlanError for errors in the DeepSpeed
    config.
    """
    from dslaunch.cluster.select import select
    from dslaunch.launch.assume import assume
    from dslaunch.render.batch import Batch
    from dslaunch.render.launch import Launch
    from dslaunch.run.ds_config import config_errors, refuse, warnings
    from dslaunch.run.prepare import code_of, localise_config
    from dslaunch.slurm.directive_settings import apply_directives, unusable
    from dslaunch.slurm.settings import overridden

    cluster = asked.cluster
    allocation = select(cluster, chosen)
    decided = assume(cluster, allocation, str(Path.cwd()))
    shared, count = cluster.storage.shared, len(allocation.placements)
    code = code_of(asked.job, Path.cwd(), decided.workdir, shared if count > 1 else None)
    job, files, _ = localise_config(asked.job, Path.cwd(), shared, count, code.options)
    errors = config_errors(asked.job, Path.cwd(), allocation, code.files)
    if not force:
        refuse(errors)
    for warning in (*warnings(errors), *code.decisions):
        ui.say(f"warning: {warning.value} ({warning.why})")
    wanted = overridden(cluster.slurm, settings)
    for why in unusable(wanted.directives):
        ui.say(f"note: {why}")
    if chosen.nodes is not None:
        wanted = replace(wanted, nodes=None)
    wanted = apply_directives(wanted)
    return Batch(
        Launch(cluster.name, allocation, job, replace(decided, files=files)),
        wanted,
        port=cluster.network.master_port,
        pinned=bool(chosen.include),
        excluded=_left_out(cluster, chosen),
    )


def _left_out(cluster: Cluster, chosen: Selection) -> tuple[str, ...]:
    """Return the nodes that --exclude names whole."""
    from dslaunch.cluster.select import Selection, select

    if not chosen.exclude:
        return ()
    left = set(select(cluster, Selection(exclude=chosen.exclude)).hosts)
    return tuple(n.host for n in cluster.nodes if not n.spare and n.host not in left)


def _lint(words: list[str]) -> None:
    from dslaunch.cli.slurm_lint import slurm_lint

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"]}
    app.command(f"slurm {LINT}", context_settings=settings)(slurm_lint)
    app(words, prog_name=f"dslaunch slurm {LINT}", standalone_mode=False)


def _origin(file: Path | None) -> Origin:
    """What made the script: the cluster file, and the command line with --render.

    Both are comments in it, and may not end there. Secrets are in neither; what --env and the
    script's arguments say is in the script anyway.
    """
    from dslaunch.launch.command import quote_in_line
    from dslaunch.render.batch import Origin

    others = [word for word in sys.argv[1:] if word not in ("--render", "--check", *DETACHED)]
    at = others.index("slurm") + 1 if "slurm" in others else 0
    again = ["dslaunch", *others[:at], "--render", *others[at:]]
    words = ["cd", str(Path.cwd())], again
    command = " && ".join(" ".join(map(quote_in_line, each)) for each in words)
    return Origin(file=one_line(str(file or "")), command=command)


def _file(words: list[str] | None) -> Path | None:
    """The cluster file, to name the line of it that SLURM refuses."""
    from dslaunch.cli.positional import split_words

    try:
        return options.find_cluster(split_words(words or [])[0])
    except UsageError:
        return None


@dataclass(frozen=True)
class SlurmRequest:
    """A job for SLURM: printed, checked, or submitted and followed."""

    cluster: Cluster
    batch: Batch
    template: Path | None
    sources: Sources
    force: bool = False

    @property
    def script(self) -> str:
        """The script. Raises PlanError."""
        from dslaunch.render.sbatch import sbatch

        return sbatch(self.batch, self.template)

    def print(self, output: Path | None) -> None:
        """Print or write the script; say what it cannot, and what would stop its submission."""
        text = self.script
        self.say_notes()
        for problem in self.problems(text):
            ui.say(f"warning: {problem}")
        ui.document(text, output)

    def say_notes(self) -> None:
        """What a person should know and the script does not say."""
        from dslaunch.render.sbatch import notes

        for note in notes(self.batch):
            ui.say(f"note: {note}")

    def problems(self, script: str) -> tuple[str, ...]:
        """Why the job would fail once it runs, as far as this machine can see."""
        from dslaunch.slurm.submit import withheld_secrets

        withheld = withheld_secrets(self.batch, script, os.environ)
        return (*missing_files(self.batch), *([withheld] if withheld else []))

    def refuse(self, script: str) -> None:
        """Raise PlanError with all problems; of those that --force overrides only say them."""
        from dslaunch.slurm.submit import withheld_secrets

        problems = self.problems(script)
        certain = withheld_secrets(self.batch, script, os.environ) is not None
        if problems and (certain or not self.force):
            ways = "--workdir DIR runs it elsewhere; --force submits it as it is"
            raise PlanError("\n".join(problems), hint=None if certain else ways)
        for problem in problems:
            ui.say(f"warning: {problem}")

    def check(self) -> None:
        """Ask sbatch what would become of the script."""
        from dslaunch.slurm.client import RefusedError
        from dslaunch.slurm.environment import submit_environment
        from dslaunch.slurm.lint import lint_script

        self.say_notes()
        script = self.script
        # a template or a directive of the user's may have brought a trap
        for remark in lint_script(script, "the script", lambda name: True).remarks:
            ui.say(f"{remark}")
        try:
            estimate = listening().test(script, submit_environment(os.environ, script, {}))
        except RefusedError as error:
            for problem in self.problems(script):
                ui.error(PlanError(problem))
            raise self.explained(error, script) from None
        self.refuse(script)
        ui.result(f"SLURM would take it: {estimate or 'it gives no estimate'}")

    def submit(self, *, detach: bool, show: tuple[bool, frozenset[int] | None]) -> None:
        """Submit it, and follow it unless told not to."""
        from dslaunch.slurm.client import RefusedError
        from dslaunch.slurm.submit import submit

        self.say_notes()
        client, script = listening(), self.script
        self.refuse(script)
        interruption.leave_if_interrupted()
        try:
            made, record = submit(client, script, self.batch, self.cluster, os.environ)
        except RefusedError as error:
            raise self.explained(error, script) from None
        view = run_views.make((), json=show[0], ranks=show[1])
        if detach:
            record.let_go()
            ui.say(f"dslaunch: job {made.number} is submitted")
            _goes_on(made, json=show[0])
        else:
            _follow(client, made, record, view, json=show[0])

    def explained(self, error: RefusedError, script: str) -> DslaunchError:
        """A refusal: what the site says, what SLURM says, what it means, and where that was set."""
        from dslaunch.slurm.environment import submit_environment, variables_used
        from dslaunch.slurm.settings import blamed

        variables = variables_used(submit_environment(os.environ, script, {}))
        refusal, sources = error.refusal, replace(self.sources, variables=variables)
        lines = [f"SLURM refuses the job: {refusal.sentences[0]}", *refusal.sentences[1:]]
        lines += [refusal.explanation] if refusal.explanation else []
        lines += blamed(refusal.options, sources)
        return DslaunchError("\n".join(lines), hint=refusal.hint)


def listening() -> SlurmClient:
    """Return SLURM on this machine; what sbatch says of a job that it takes is shown."""
    from dslaunch.slurm.client import here

    return replace(here(), notice=lambda line: ui.say(f"sbatch: {line}"))


def _follow(
    client: SlurmClient,
    made: Submitted,
    record: RunDirectory,
    view: JsonView | TerminalView,
    *,
    json: bool,
) -> None:
    """Stay to the end. Ctrl-C cancels the job, a second one leaves; so does a closed terminal,
    and the job goes on."""

    from dslaunch.run.watch import Watch
    from dslaunch.slurm.follow_signals import FollowSignals
    from dslaunch.slurm.job import follow

    ui.say(f"dslaunch: job {made.number} is submitted; run {made.directory.name}")
    with FollowSignals(lambda: _cancel(client, made.job)) as signals:
        watch = Watch(view, record)
        outcome = follow(client, made, watch, ui.tell, until=lambda: signals.leave)
    if outcome is None:
        record.let_go()
        _goes_on(made, json=json)
        raise typer.Exit(130)
    record.close(outcome.as_dict())
    view.outcome(outcome, made.directory)
    raise typer.Exit(outcome.exit_code)


def _goes_on(made: Submitted, *, json: bool) -> None:
    """Say how to look after it; for programs, what it is called."""
    run = made.directory.name
    if json:
        ui.data({"kind": "detached", "run": run, "job": made.number}, indent=None)
        return
    for what, command in (("output", "logs -f"), ("state", "status"), ("end", "stop")):
        ui.say(f"  {what:<10} dslaunch {command} {run}")


def _cancel(client: SlurmClient, job: JobId) -> None:
    try:
        client.cancel(job)
        ui.say(f"dslaunch: job {job.number} is being canceled; press Ctrl-C again to leave now")
    except DslaunchError as error:
        ui.say(f"dslaunch: {error.message}")
