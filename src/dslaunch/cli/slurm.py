"""`dslaunch slurm`: the same cluster file and job, by the site's scheduler."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, screens, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots
from dslaunch.cli.words import JobOptions
from dslaunch.errors import DslaunchError, UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.render.sbatch import Batch
    from dslaunch.report.live import JsonScreen, TerminalScreen
    from dslaunch.run.record import Record
    from dslaunch.slurm.client import Client, RefusedError
    from dslaunch.slurm.job import Submitted

LINT = "lint"
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
    setting: Set = None,
    render: Render = False,
    check: Check = False,
    detach: Detach = False,
    template: Template = None,
    output: Output = None,
    ranks: screens.Ranks = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
) -> None:
    """Submit a training to SLURM, follow it, end with its exit code.

    The cluster file says what nodes there are and, below `slurm:`, how to ask for them. SLURM
    gives any nodes of that kind, or with --include those very ones.

    Example: dslaunch slurm cluster.yaml train.py --epochs 3
    """
    if words and words[0] == LINT:
        _lint(words[1:])
        return
    how = JobOptions(module, no_python, launcher, tuple(env or ()))
    asked = options.read_job(words or [], how, workdir=workdir)
    asked = replace(asked, job=replace(asked.job, min_nodes=min_nodes))
    chosen = options.selection(include, exclude, nodes, slots, label)
    if sum((render or output is not None, check, detach)) > 1:
        raise UsageError("--render (or --output), --check and --detach: one of them")
    order = Order(asked.cluster, make_batch(asked, chosen, setting or []), template)
    if render or output is not None:
        order.print(output)
    elif check:
        order.check(_file(words))
    else:
        order.submit(_file(words), detach=detach, show=(json, screens.parse_ranks(ranks)))


def make_batch(asked: options.Asked, chosen: Selection, settings: list[str]) -> Batch:
    """The job for SLURM that the command line asks for. Raises UsageError, SelectionError."""
    from dslaunch.cluster.select import select
    from dslaunch.launch.assume import assume
    from dslaunch.render.launch import Launch
    from dslaunch.render.sbatch import Batch
    from dslaunch.run.ds_config import config_errors
    from dslaunch.run.prepare import localise_config
    from dslaunch.slurm.settings import overridden

    cluster = asked.cluster
    allocation = select(cluster, chosen)
    decided = assume(cluster, allocation, str(Path.cwd()))
    shared, count = cluster.storage.shared, len(allocation.placements)
    job, files, _ = localise_config(asked.job, Path.cwd(), shared, count)
    for error in config_errors(asked.job, Path.cwd(), allocation):
        ui.say(f"warning: {error}")
    wanted = overridden(cluster.slurm, settings)
    if chosen.nodes is not None:
        wanted = replace(wanted, nodes=None)
    return Batch(
        Launch(cluster.name, allocation, job, replace(decided, files=files)),
        wanted,
        port=cluster.network.master_port,
        pinned=bool(chosen.include),
        excluded=_left_out(cluster, chosen),
    )


def _left_out(cluster: Cluster, chosen: Selection) -> tuple[str, ...]:
    """The nodes that --exclude names whole."""
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


def _file(words: list[str] | None) -> Path | None:
    """The cluster file, to name the line of it that SLURM refuses."""
    from dslaunch.cli.words import split_words

    try:
        return options.find_cluster(split_words(words or [])[0])
    except UsageError:
        return None


@dataclass(frozen=True)
class Order:
    """What is wanted of SLURM, and what can be done with it."""

    cluster: Cluster
    batch: Batch
    template: Path | None

    @property
    def script(self) -> str:
        """The script. Raises PlanError."""
        from dslaunch.render.sbatch import sbatch

        return sbatch(self.batch, self.template)

    def print(self, output: Path | None) -> None:
        """Print or write the script; say what it cannot."""
        text = self.script
        self.say_notes()
        if output is None:
            ui.result(text)
            return
        try:
            output.write_text(text, "utf-8", "surrogateescape")
        except OSError as error:
            raise UsageError(f"--output {output}: {error.strerror}") from None

    def say_notes(self) -> None:
        """What a person should know and the script does not say."""
        from dslaunch.render.sbatch import notes

        for note in notes(self.batch):
            ui.say(f"note: {note}")

    def check(self, file: Path | None) -> None:
        """Ask sbatch what would become of the script."""
        from dslaunch.slurm.client import RefusedError, here, submit_environment
        from dslaunch.slurm.lint import lint_script

        self.say_notes()
        script = self.script
        # a template or a directive of the user's may have brought a trap
        for remark in lint_script(script, "the script", lambda name: True).remarks:
            ui.say(f"{remark}")
        try:
            estimate = here().test(script, submit_environment(os.environ, script, {}))
        except RefusedError as error:
            raise explained(error, file) from None
        ui.result(f"SLURM would take it: {estimate}")

    def submit(
        self, file: Path | None, *, detach: bool, show: tuple[bool, frozenset[int] | None]
    ) -> None:
        """Submit it, and follow it unless told not to."""
        from dslaunch.slurm.client import RefusedError, here
        from dslaunch.slurm.job import submit

        self.say_notes()
        client = here()
        try:
            made, record = submit(client, self.script, self.batch, self.cluster, os.environ)
        except RefusedError as error:
            raise explained(error, file) from None
        screen = screens.make((), json=show[0], ranks=show[1])
        if detach:
            record.let_go()
            ui.say(f"dslaunch: job {made.number} is submitted")
            _goes_on(made, json=show[0])
        else:
            _follow(client, made, record, screen, json=show[0])


def explained(error: RefusedError, file: Path | None) -> DslaunchError:
    """A refusal with the lines of the cluster file that it is about."""
    from dslaunch.slurm.settings import blamed

    lines = [error.message, *blamed(error.refusal, file)]
    if error.said and error.refusal.words not in error.said:
        lines.append(f"it says: {error.said.splitlines()[-1]}")
    return DslaunchError("\n".join(lines), hint=error.hint)


def _follow(
    client: Client,
    made: Submitted,
    record: Record,
    screen: JsonScreen | TerminalScreen,
    *,
    json: bool,
) -> None:
    """Stay to the end. Ctrl-C cancels the job, a second one leaves; so does a closed terminal,
    and the job goes on."""
    from dataclasses import asdict

    from dslaunch.run.watch import Watch
    from dslaunch.slurm.job import follow
    from dslaunch.slurm.wishes import Wishes

    ui.say(f"dslaunch: job {made.number} is submitted; run {made.directory.name}")
    with Wishes(lambda: _cancel(client, made.number)) as wishes:
        watch = Watch(screen, record)
        outcome = follow(client, made, watch, _tell, until=lambda: wishes.leave)
    if outcome is None:
        record.let_go()
        _goes_on(made, json=json)
        raise typer.Exit(130)
    record.close(asdict(outcome))
    screen.outcome(outcome, made.directory)
    raise typer.Exit(outcome.exit_code)


def _goes_on(made: Submitted, *, json: bool) -> None:
    """Say how to look after it; for programs, what it is called."""
    run = made.directory.name
    if json:
        import json as jsonlib

        ui.result(jsonlib.dumps({"kind": "detached", "run": run, "job": made.number}))
        return
    for what, command in (("output", "logs -f"), ("state", "status"), ("end", "stop")):
        ui.say(f"  {what:<10} dslaunch {command} {run}")


def _tell(words: str) -> None:
    ui.say(f"dslaunch: {words}")


def _cancel(client: Client, number: str) -> None:
    try:
        client.cancel(number)
        ui.say(f"dslaunch: job {number} is being cancelled; once more Ctrl-C to leave now")
    except DslaunchError as error:
        ui.say(f"dslaunch: {error.message}")
