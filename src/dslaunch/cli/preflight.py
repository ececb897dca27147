"""`dslaunch preflight`: is this cluster fit to train on, and if not, which node and why."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.options import Exclude, Include, Label, Nodes
from dslaunch.cli.positional import JobOptions
from dslaunch.errors import PreflightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Cluster
    from dslaunch.cluster.select import Selection
    from dslaunch.preflight.check import Check, Scope, Tier
    from dslaunch.preflight.check_selection import CheckSelection
    from dslaunch.preflight.judge import Report
    from dslaunch.preflight.recording import Recording

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
SPELLED = "backslashreplace"
"""How names that are no UTF-8 are written into files."""
USUAL = "static"
"""The tier that is asked where none is named."""


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
    transport: options.TransportName = None,
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
        ui.result(_explained(explain))
        return
    if fail_on_change and baseline is None:
        raise UsageError("--fail-on-change compares with a baseline", hint="add --baseline FILE")
    output = PreflightOutput(
        save=save,
        junit=junit,
        html=html,
        every=every,
        json=json,
        markdown=markdown,
        fail_on_change=fail_on_change,
    )
    output.check()
    request = PreflightRequest(
        file=file,
        which=options.selection(include, exclude, nodes, None, label),
        wanted=_wanted(tier, only, skip, purpose),
        tiered=tier is not None,
        launcher=launcher,
        script=script,
        slurm=slurm,
        transport=transport,
    )
    output.write(request.ask(baseline) if saved is None else request.again(saved, baseline))


def _wanted(
    tier: str | None, only: list[str] | None, skip: list[str] | None, purpose: list[str] | None
) -> CheckSelection:
    from dslaunch.preflight.check_selection import CheckSelection, purposes, tier_of

    needs = purposes(purpose or ())
    return CheckSelection(tier_of(tier or USUAL), tuple(only or ()), tuple(skip or ()), needs)


def _explained(name: str | None) -> str:
    """Return the list of checks, or the explanation of one."""
    from dslaunch.preflight import checks
    from dslaunch.preflight.check_selection import unknown
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
class PreflightResult:
    """What follows from the nodes' answers."""

    checks: Mapping[str, Check]
    report: Report
    before: Report | None
    """The baseline's."""


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """What is asked of which nodes."""

    file: Path | None
    which: Selection
    wanted: CheckSelection
    tiered: bool
    """Whether a tier was named."""
    launcher: str | None
    """None: the file's; so with the script and the transport."""
    script: str | None
    slurm: bool
    """Whether the nodes are those of the allocation that we are in."""
    transport: str | None

    def ask(self, baseline: Path | None) -> PreflightResult:
        """Ask the nodes, and judge. Raises errors of many kinds."""
        from dslaunch.cluster.select import Selection, select
        from dslaunch.run.preflight_survey import preflight_scope

        open_file = options.allocated if self.slurm else options.open_cluster
        cluster = options.reached(open_file(self.file), self.transport, slurm=self.slurm)
        allocation = None if self.which == Selection() else select(cluster, self.which)
        how = JobOptions(launcher=self.launcher, fallback="")
        job = options.job_on(cluster, self.script, (), how)
        known_good = _known_good(baseline)
        scope, checks = preflight_scope(cluster, allocation, job, self.wanted, Path.cwd())
        _same_nodes(scope, known_good, baseline)
        text, file = self._text(cluster)
        facts = _ask(scope, checks, self.wanted.tier, text=text, file=file)
        return _judged(facts, checks, known_good)

    def again(self, saved: Path, baseline: Path | None) -> PreflightResult:
        """Judge saved answers. Raises errors of many kinds."""
        from dslaunch.preflight import checks
        from dslaunch.run.preflight_survey import chosen_checks

        known_good = _known_good(baseline)
        facts = self._facts(saved)
        wanted = self.wanted
        if not self.tiered:
            wanted = wanted.as_recorded(facts.tier, tuple(sorted(facts.scope.named)))
        chosen = chosen_checks(wanted, facts.scope, checks.load())
        _same_nodes(facts.scope, known_good, baseline)
        return _judged(facts, chosen, known_good)

    def _facts(self, saved: Path) -> Recording:
        """Saved answers, judged for what they were asked for, or by a cluster file named now."""
        from dslaunch.cluster.select import Selection, select
        from dslaunch.preflight.recording import read
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


def _known_good(baseline: Path | None) -> Recording | None:
    from dslaunch.preflight.recording import read

    return None if baseline is None else read(baseline)


def _judged(
    facts: Recording, checks: Mapping[str, Check], known_good: Recording | None
) -> PreflightResult:
    from dslaunch.preflight.judge import judge

    before = None if known_good is None else judge(known_good, checks)
    return PreflightResult(checks, judge(facts, checks), before)


def _same_nodes(scope: Scope, known_good: Recording | None, baseline: Path | None) -> None:
    """Raise UsageError for a baseline of another cluster: everything would differ."""
    if known_good is None:
        return
    then = {node.host for node in known_good.scope.nodes}
    if not then & {node.host for node in scope.nodes}:
        raise UsageError(f"--baseline {baseline}: holds no answer of these nodes")


def _ask(
    scope: Scope, checks: Mapping[str, Check], tier: Tier, *, text: str, file: str
) -> Recording:
    """Ask the nodes, with a line of progress on a terminal."""
    from dslaunch import transport
    from dslaunch.report.preflight import ProgressLine
    from dslaunch.run.preflight_survey import ask_nodes

    choice = transport.choose(scope.cluster.transport, scope.cluster)
    if choice.notable:
        ui.say(f"transport: {choice.name} ({choice.why})")
    progress = ProgressLine(scope, sys.stderr, live=sys.stderr.isatty())
    try:
        return ask_nodes(scope, checks, tier, progress.note, choice=choice, text=text, file=file)
    finally:
        progress.end()


# ---------------------------------------------------------------- telling


@dataclass(frozen=True, slots=True)
class PreflightOutput:
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

    def write(self, judged: PreflightResult) -> None:
        """Write and print everything that was asked for. Raises Exit with code 4 if the cluster
        is not fit."""
        report = judged.report
        if self.save is not None:
            ui.write(self.save, judged.report.facts.to_json(), "--save", errors=SPELLED)
        self._write_reports(report, judged.checks)
        self._print(report)
        if judged.before is not None:
            from dslaunch.preflight.baseline import compare_reports
            from dslaunch.report.preflight import change_rows

            changed = compare_reports(judged.before, report)
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

            ui.write(self.junit, as_junit(report), "--junit", errors=SPELLED)
        if self.html is not None:
            from dslaunch.report.page import as_page

            ui.write(self.html, as_page(report, checks), "--html", errors=SPELLED)
