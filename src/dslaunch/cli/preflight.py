"""`dslaunch preflight`: is this cluster fit to train on, and if not, which node and why."""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.options import Exclude, Include, Label, Nodes
from dslaunch.errors import PreflightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.select import Selection
    from dslaunch.preflight.check import Check, Scope, Tier
    from dslaunch.preflight.choose import Wanted
    from dslaunch.preflight.facts import Facts
    from dslaunch.preflight.judge import Report
    from dslaunch.run.source import Source

Only = Annotated[
    list[str] | None, typer.Option(help="Only these checks: gpu, fs.free. Repeatable.")
]
Skip = Annotated[list[str] | None, typer.Option(help="All but these checks. Repeatable.")]
TierName = Annotated[
    str, typer.Option(help="gate (a second), static, or deep (measures, minutes).")
]
For = Annotated[list[str] | None, typer.Option("--for", help="A need, such as zero-infinity.")]
Launcher = Annotated[str | None, typer.Option(help="The launcher that will be used.")]
Save = Annotated[Path | None, typer.Option(help="Write what the nodes answered to a file.")]
From = Annotated[Path | None, typer.Option("--from", help="Judge saved answers; ask nobody.")]
Baseline = Annotated[Path | None, typer.Option(help="Say what differs from these saved answers.")]
Script = Annotated[
    str | None, typer.Option(help="A script that all nodes must have; default: the file's job.")
]
Verbose = Annotated[bool, typer.Option("--all", "-a", help="Show also what passed.")]


def preflight(
    file: options.ClusterFile = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    label: Label = None,
    tier: TierName = "static",
    only: Only = None,
    skip: Skip = None,
    purpose: For = None,
    launcher: Launcher = None,
    script: Script = None,
    save: Save = None,
    saved: From = None,
    baseline: Baseline = None,
    every: Verbose = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it for an issue.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to a file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to a file.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the checks.")] = False,
    explain: Annotated[str | None, typer.Option(metavar="CHECK", help="Explain one.")] = None,
) -> None:
    """Say whether a cluster is fit to train on, and what is wrong where.

    Nothing is changed on the nodes. Exit code 4 if a check failed.

    Example: dslaunch preflight cluster.yaml
    """
    from dslaunch.preflight import checks as registry
    from dslaunch.preflight.changes import changes
    from dslaunch.preflight.choose import Wanted, purposes, tier_of
    from dslaunch.preflight.judge import judge
    from dslaunch.preflight.replay import replayed
    from dslaunch.report.markdown import as_markdown
    from dslaunch.report.preflight import as_json, change_rows

    known = registry.load()
    if listed or explain is not None:
        ui.result(_words_on(known, explain))
        return
    if json and markdown:
        raise UsageError("--json and --markdown: one of them")
    for option, path in (("--save", save), ("--junit", junit), ("--html", html)):
        options.check_writable(option, path)
    wanted = Wanted(tier_of(tier), tuple(only or ()), tuple(skip or ()), purposes(purpose or ()))
    which = options.selection(include, exclude, nodes, None, label)
    known_good = None if baseline is None else replayed(baseline)
    if saved is not None:
        scope, facts = _again(saved, file, which, wanted, launcher, script)
        wanted = wanted.as_recorded(facts.tier, facts.named)
        chosen = wanted.of(known, scope.cluster)
        _same_nodes(scope, known_good, baseline)
    else:
        scope = _scope(file, which, wanted, launcher, script, wanted.named(known))
        chosen = wanted.of(known, scope.cluster)
        _same_nodes(scope, known_good, baseline)
        facts = _ask(scope, chosen, options.find_cluster(file), wanted.tier)
    if save is not None:
        _write(save, facts.to_json())
    report = judge(scope, facts, chosen)
    _write_reports(report, chosen, junit, html)
    if json:
        ui.result(as_json(report))
    elif markdown:
        ui.result(as_markdown(report))
    else:
        _show(report, every=every)
    if known_good is not None:
        before = judge(*known_good, chosen)
        ui.say("\n".join(change_rows(changes(before, report), ui.width())))
    if not report.fit:
        raise typer.Exit(PreflightError.exit_code)


def _words_on(known: Mapping[str, Check], name: str | None) -> str:
    """The list of checks, or all that is to be known of one."""
    from dslaunch.preflight.choose import unknown
    from dslaunch.report.preflight import explanation

    if name is None:
        rows = [(check, known[check].tier, known[check].title) for check in sorted(known)]
        return ui.table([("CHECK", "TIER", "MAKES SURE THAT"), *rows], ui.width())
    if name not in known:
        raise unknown(name, known, "--explain")
    return "\n".join(explanation(name, known[name]))


def _scope(
    file: Path | None,
    which: Selection,
    wanted: Wanted,
    launcher: str | None,
    script: str | None,
    named: frozenset[str],
) -> Scope:
    """What is checked; without a selection also the spares, which may be needed one day."""
    from dslaunch.cluster.select import Selection, select
    from dslaunch.launch import launchers
    from dslaunch.preflight.check import Scope
    from dslaunch.run.source import find_source

    cluster = options.open_cluster(file)
    nodes = cluster.nodes
    if which != Selection():
        nodes = tuple(p.node for p in select(cluster, which).placements)
    words = [str(options.find_cluster(file)), *([script] if script else [])]
    asked = options.read_job(
        words, module=False, no_python=False, launcher=launcher, env=None, workdir=None, fallback=""
    )
    launchers.get(asked.job.launcher)
    workdir = cluster.storage.workdir or str(Path.cwd())
    source = find_source(asked.job, Path.cwd(), workdir) if asked.job.program else None
    return Scope(
        cluster=cluster,
        nodes=nodes,
        launcher=asked.job.launcher,
        purposes=wanted.purposes,
        directories=tuple(dict.fromkeys([workdir, cluster.storage.checkpoints or workdir])),
        root=source.remote if source else "",
        files=_files(source),
        named=named,
        token=secrets.token_hex(8),
    )


def _same_nodes(
    scope: Scope, known_good: tuple[Scope, Facts] | None, baseline: Path | None
) -> None:
    """Raise UsageError for a baseline of another cluster: everything would differ."""
    if known_good is None:
        return
    then = {node.host for node in known_good[0].nodes}
    if not then & {node.host for node in scope.nodes}:
        raise UsageError(f"--baseline {baseline}: holds no answer of these nodes")


def _again(
    saved: Path,
    file: Path | None,
    which: Selection,
    wanted: Wanted,
    launcher: str | None,
    script: str | None,
) -> tuple[Scope, Facts]:
    """Saved answers and what they are judged for: as then, or by a cluster file named now."""
    from dslaunch.cluster.select import Selection, select
    from dslaunch.launch import launchers
    from dslaunch.preflight.replay import replayed

    if script is not None:
        raise UsageError("--script: with --from no node is asked for a script")
    scope, facts = replayed(saved)
    cluster = scope.cluster if file is None else options.open_cluster(file)
    nodes = tuple(n for n in cluster.nodes if n.host in {*facts.nodes, *facts.failures})
    if which != Selection():
        nodes = tuple(p.node for p in select(cluster, which).placements)
    if not nodes:
        raise UsageError(f"{saved}: holds no answer of a node of {file}")
    purposes = scope.purposes | wanted.purposes
    scope = replace(scope, cluster=cluster, nodes=nodes, purposes=purposes)
    if launcher is not None:
        launchers.get(launcher)
        scope = replace(scope, launcher=launcher)
    return scope, facts


def _files(source: Source | None) -> tuple[tuple[str, str], ...]:
    """The job's files with their SHA-256; a script that is not here has none."""
    if source is None:
        return ()
    return source.digests or (((source.script, ""),) if source.script else ())


def _ask(scope: Scope, checks: Mapping[str, Check], file: Path, tier: Tier) -> Facts:
    """Ask the nodes, with a line of progress on a terminal."""
    from dslaunch.cluster.load import read_text
    from dslaunch.preflight.facts import Facts
    from dslaunch.preflight.runner import Survey
    from dslaunch.report.preflight import Progress

    progress = Progress(scope, sys.stderr, live=sys.stderr.isatty())
    survey = Survey(scope, checks, progress.note)
    began = time.time()
    try:
        nodes = survey.run()
    finally:
        progress.end()
    return Facts(
        cluster=read_text(file),
        file=str(file),
        token=scope.token,
        time=began,
        nodes=nodes,
        failures=survey.failures,
        launcher=scope.launcher,
        purposes=tuple(sorted(scope.purposes)),
        directories=scope.directories,
        root=scope.root,
        files=scope.files,
        named=tuple(sorted(scope.named)),
        tier=tier,
        here=survey.here,
    )


def _show(report: Report, *, every: bool) -> None:
    from dslaunch.report.preflight import rows

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    ui.result("\n".join(rows(report, ui.width(), every=every, colour=colour)))


def _write_reports(
    report: Report, checks: Mapping[str, Check], junit: Path | None, html: Path | None
) -> None:
    """The files that were asked for."""
    from dslaunch.report.junit import as_junit
    from dslaunch.report.page import as_page

    if junit is not None:
        _write(junit, as_junit(report))
    if html is not None:
        _write(html, as_page(report, checks))


def _write(path: Path, text: str) -> None:
    """Write a file; names that are no UTF-8 are spelt in it."""
    try:
        path.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
