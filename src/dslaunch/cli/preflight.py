"""`dslaunch preflight`: is this cluster fit to train on, and if not, which node and why."""

from __future__ import annotations

import os
import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.options import Exclude, Include, Label, Nodes
from dslaunch.cli.words import JobOptions
from dslaunch.errors import PreflightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.preflight.check import Check, Scope, Tier
    from dslaunch.preflight.choose import Wanted
    from dslaunch.preflight.facts import Facts
    from dslaunch.preflight.judge import Report
    from dslaunch.run.source import JobFiles

Only = Annotated[
    list[str] | None, typer.Option(help="Only these checks: gpu, fs.free. Repeatable.")
]
Skip = Annotated[list[str] | None, typer.Option(help="All but these checks. Repeatable.")]
TierName = Annotated[
    str | None,
    typer.Option(
        metavar="TIER",
        help="gate (a second), static, or deep (measures, minutes); default static, and with "
        "--from the one that was asked.",
    ),
]
For = Annotated[list[str] | None, typer.Option("--for", help="A need, such as zero-infinity.")]
Launcher = Annotated[str | None, typer.Option(help="The launcher that will be used.")]
Save = Annotated[Path | None, typer.Option(help="Write what the nodes answered to a file.")]
From = Annotated[Path | None, typer.Option("--from", help="Judge saved answers; ask nobody.")]
Baseline = Annotated[Path | None, typer.Option(help="Say what differs from these saved answers.")]
FailOnChange = Annotated[
    bool, typer.Option("--fail-on-change", help="Exit code 4 also for a change from --baseline.")
]
Script = Annotated[
    str | None, typer.Option(help="A script that all nodes must have; default: the file's job.")
]
Verbose = Annotated[bool, typer.Option("--all", "-a", help="Show also what passed.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print it for an issue.")]
Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML to a file.")]
Html = Annotated[Path | None, typer.Option(help="Write a page to a file.")]
Listed = Annotated[bool, typer.Option("--list", help="List the checks.")]
Explain = Annotated[str | None, typer.Option(metavar="CHECK", help="Explain one.")]
USUAL = "static"
"""The tier that is asked where none is named."""
ABOUT_LOGINS = ("ssh.client", "shell.login", "shell.noise")
"""Checks of what happens when somebody logs in."""


def preflight(
    file: options.ClusterFile = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    label: Label = None,
    tier: TierName = None,
    only: Only = None,
    skip: Skip = None,
    purpose: For = None,
    launcher: Launcher = None,
    script: Script = None,
    slurm: options.Allocated = False,
    transport: options.Way = None,
    save: Save = None,
    saved: From = None,
    baseline: Baseline = None,
    fail_on_change: FailOnChange = False,
    every: Verbose = False,
    json: Json = False,
    markdown: Markdown = False,
    junit: Junit = None,
    html: Html = None,
    listed: Listed = False,
    explain: Explain = None,
) -> None:
    """Say whether a cluster is fit to train on, and what is wrong where.

    Nothing is changed on the nodes. Exit code 4 if a check failed.

    Example: dslaunch preflight cluster.yaml
    """
    if listed or explain is not None:
        ui.result(_words_on(explain))
        return
    if fail_on_change and baseline is None:
        raise UsageError("--fail-on-change compares with a baseline", hint="add --baseline FILE")
    paper = Paper(
        save=save,
        junit=junit,
        html=html,
        every=every,
        json=json,
        markdown=markdown,
        fail_on_change=fail_on_change,
    )
    paper.check()
    request = Request(
        file=file,
        which=options.selection(include, exclude, nodes, None, label),
        wanted=_wanted(tier, only, skip, purpose),
        tiered=tier is not None,
        launcher=launcher,
        script=script,
        slurm=slurm,
        transport=transport,
    )
    paper.write(request.judged(saved, baseline))


def _wanted(
    tier: str | None, only: list[str] | None, skip: list[str] | None, purpose: list[str] | None
) -> Wanted:
    from dslaunch.preflight.choose import Wanted, purposes, tier_of

    needs = purposes(purpose or ())
    return Wanted(tier_of(tier or USUAL), tuple(only or ()), tuple(skip or ()), needs)


def _words_on(name: str | None) -> str:
    """The list of checks, or all that is to be known of one."""
    from dslaunch.preflight import checks
    from dslaunch.preflight.choose import unknown
    from dslaunch.report.preflight import explanation

    known = checks.load()
    if name is None:
        rows = [(check, known[check].tier, known[check].title) for check in sorted(known)]
        return ui.table([("CHECK", "TIER", "MAKES SURE THAT"), *rows], ui.width())
    if name not in known:
        raise unknown(name, known, "--explain")
    return "\n".join(explanation(name, known[name]))


# ---------------------------------------------------------------- asking


@dataclass(frozen=True, slots=True)
class Judged:
    """What the nodes answered, and what follows."""

    facts: Facts
    checks: Mapping[str, Check]
    report: Report
    before: Report | None
    """The baseline's."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be known of which nodes."""

    file: Path | None
    which: Selection
    wanted: Wanted
    tiered: bool
    """Whether a tier was named."""
    launcher: str | None
    """None: the file's; so with the script and the transport."""
    script: str | None
    slurm: bool
    """Whether the nodes are those of the allocation that we are in."""
    transport: str | None

    def judged(self, saved: Path | None, baseline: Path | None) -> Judged:
        """Ask the nodes, or take saved answers; and judge. Raises errors of many kinds."""
        from dslaunch.preflight import checks
        from dslaunch.preflight.facts import read
        from dslaunch.preflight.judge import judge

        known, wanted = checks.load(), self.wanted
        known_good = None if baseline is None else read(baseline)
        facts = None if saved is None else self._again(saved)
        scope = self._scope(wanted.named(known)) if facts is None else facts.scope
        if facts is not None and not self.tiered:
            wanted = wanted.as_recorded(facts.tier, tuple(sorted(scope.named)))
        chosen = _fitting(wanted.of(known, scope.cluster), scope)
        _same_nodes(scope, known_good, baseline)
        with ExitStack() as farewell:
            if facts is None:
                facts = _ask(scope, chosen, self._text(scope.cluster), wanted.tier, farewell)
            before = None if known_good is None else judge(known_good, chosen)
            return Judged(facts, chosen, judge(facts, chosen), before)

    def _scope(self, named: frozenset[str]) -> Scope:
        """What is checked; without a selection also the spares, which may be needed one day."""
        from dslaunch.cluster.select import Selection, select
        from dslaunch.preflight.check import Scope
        from dslaunch.registry import LAUNCHERS
        from dslaunch.run.source import find_source, script_imports

        open_file = options.allocated if self.slurm else options.open_cluster
        cluster = options.reached(open_file(self.file), self.transport, slurm=self.slurm)
        nodes = cluster.nodes
        if self.which != Selection():
            nodes = tuple(p.node for p in select(cluster, self.which).placements)
        how = JobOptions(launcher=self.launcher, fallback="")
        job = options.job_on(cluster, self.script, (), how)
        LAUNCHERS.get(job.launcher)
        workdir = cluster.storage.workdir or str(Path.cwd())
        source = find_source(job, Path.cwd(), workdir) if job.program else None
        directories = dict.fromkeys([workdir, cluster.storage.checkpoints or workdir])
        return Scope(
            cluster,
            nodes,
            job,
            purposes=self.wanted.purposes,
            directories=tuple(directories),
            root=source.remote if source else "",
            files=_files(source),
            named=named,
            token=secrets.token_hex(8),
            imports=script_imports(job, Path.cwd()),
        )

    def _again(self, saved: Path) -> Facts:
        """Saved answers, judged for what they were asked for, or by a cluster file named now."""
        from dslaunch.cluster.select import Selection, select
        from dslaunch.preflight.facts import read
        from dslaunch.registry import LAUNCHERS

        if self.script is not None:
            raise UsageError("--script: with --from no node is asked for a script")
        if self.slurm or self.transport is not None:
            raise UsageError("--slurm and --transport: with --from no node is asked")
        facts = read(saved)
        scope = facts.scope
        cluster = scope.cluster if self.file is None else options.open_cluster(self.file)
        nodes = tuple(n for n in cluster.nodes if n.host in {*facts.nodes, *facts.failures})
        if self.which != Selection():
            nodes = tuple(p.node for p in select(cluster, self.which).placements)
        if not nodes:
            raise UsageError(f"{saved}: holds no answer of a node of {self.file}")
        purposes = scope.purposes | self.wanted.purposes
        scope = replace(scope, cluster=cluster, nodes=nodes, purposes=purposes)
        if self.launcher is not None:
            LAUNCHERS.get(self.launcher)
            scope = replace(scope, job=replace(scope.job, launcher=self.launcher))
        return replace(facts, scope=scope)

    def _text(self, cluster: Cluster) -> tuple[str, str]:
        """The cluster file and its name, to be kept with the answers; in an allocation with the
        nodes that SLURM gave."""
        from dslaunch.cluster.load import read_text
        from dslaunch.slurm.allocation import file_of

        try:
            path = options.find_cluster(self.file)
        except UsageError:
            if not self.slurm:
                raise
            return file_of(cluster, ""), "the SLURM allocation"
        text = read_text(path)
        return file_of(cluster, text) if self.slurm else text, str(path)


def _fitting(checks: Mapping[str, Check], scope: Scope) -> dict[str, Check]:
    """The checks, where nobody logs in to the nodes without those about logins, unless they were
    asked for by name."""
    if not scope.cluster.by_steps:
        return dict(checks)
    skip = set(ABOUT_LOGINS) - scope.named
    why = "nobody logs in: the nodes are reached by steps of the allocation"
    return {n: check.left_out(why) if n in skip else check for n, check in checks.items()}


def _same_nodes(scope: Scope, known_good: Facts | None, baseline: Path | None) -> None:
    """Raise UsageError for a baseline of another cluster: everything would differ."""
    if known_good is None:
        return
    then = {node.host for node in known_good.scope.nodes}
    if not then & {node.host for node in scope.nodes}:
        raise UsageError(f"--baseline {baseline}: holds no answer of these nodes")


def _files(source: JobFiles | None) -> tuple[tuple[str, str], ...]:
    """The job's files with their SHA-256; a script that is not here has none."""
    if source is None:
        return ()
    return source.digests or (((source.script, ""),) if source.script else ())


def _ask(
    scope: Scope,
    checks: Mapping[str, Check],
    text: tuple[str, str],
    tier: Tier,
    farewell: ExitStack,
) -> Facts:
    """Ask the nodes, with a line of progress on a terminal; `farewell` ends the connections."""
    from dslaunch import transport
    from dslaunch.preflight.facts import Facts
    from dslaunch.preflight.runner import Survey
    from dslaunch.report.preflight import Progress

    chosen = transport.choose(scope.cluster.transport, scope.cluster)
    if chosen.notable:
        ui.say(f"transport: {chosen.name} ({chosen.why})")
    progress = Progress(scope, sys.stderr, live=sys.stderr.isatty())
    way = transport.make(chosen.name, scope.cluster)
    survey = Survey(scope, checks, progress.note, way)
    farewell.callback(survey.close)
    began = time.time()
    try:
        nodes = survey.run()
    finally:
        progress.end()
    return Facts(
        scope=scope,
        time=began,
        nodes=nodes,
        failures=survey.failures,
        here=survey.here,
        tier=tier,
        cluster=text[0],
        file=text[1],
    )


# ---------------------------------------------------------------- telling


@dataclass(frozen=True, slots=True)
class Paper:
    """Where the answers and the findings go."""

    save: Path | None
    junit: Path | None
    html: Path | None
    every: bool
    json: bool
    markdown: bool
    fail_on_change: bool

    def check(self) -> None:
        """Raise UsageError for what could not be done: known before nodes are asked."""
        if self.json and self.markdown:
            raise UsageError("--json and --markdown: one of them")
        for option in ("save", "junit", "html"):
            options.check_writable(f"--{option}", getattr(self, option))

    def write(self, judged: Judged) -> None:
        """Write and print everything that was asked for. Raises Exit with code 4 if the cluster
        is not fit."""
        report = judged.report
        if self.save is not None:
            _write(self.save, judged.facts.to_json())
        self._write_reports(report, judged.checks)
        self._print(report)
        if judged.before is not None:
            from dslaunch.preflight.changes import changes
            from dslaunch.report.preflight import change_rows

            changed = changes(judged.before, report)
            ui.say("\n".join(change_rows(changed, ui.width())))
            if changed and self.fail_on_change:
                raise typer.Exit(PreflightError.exit_code)
        if not report.fit:
            raise typer.Exit(PreflightError.exit_code)

    def _print(self, report: Report) -> None:
        from dslaunch.report.markdown import as_markdown
        from dslaunch.report.preflight import as_json, rows

        if self.json:
            ui.result(as_json(report))
        elif self.markdown:
            ui.result(as_markdown(report))
        else:
            colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            text = "\n".join(rows(report, ui.width(), every=self.every, colour=colour))
            ui.result(text, colors=colour)

    def _write_reports(self, report: Report, checks: Mapping[str, Check]) -> None:
        if self.junit is not None:
            from dslaunch.report.junit import as_junit

            _write(self.junit, as_junit(report))
        if self.html is not None:
            from dslaunch.report.page import as_page

            _write(self.html, as_page(report, checks))


def _write(path: Path, text: str) -> None:
    """Write a file; names that are no UTF-8 are spelt in it."""
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
