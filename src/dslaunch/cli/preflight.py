"""`dslaunch preflight`: check whether the nodes are ready for training."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from dslaunch import api
from dslaunch.cli import options, ui
from dslaunch.cli.collection import without_collection
from dslaunch.cli.options import Exclude, Include, Label, Nodes
from dslaunch.cli.preflight_output import PreflightOutput, PreflightResult
from dslaunch.cli.run_options import JobOptions, job_on
from dslaunch.cluster.nodeset import fold
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import DslaunchError, SelectionError, UsageError
from dslaunch.preflight.check_selection import CheckSelection, purposes, tier_of, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.launch.decisions import Decision
    from dslaunch.preflight.check import Check, Scope, Tier
    from dslaunch.preflight.logins import Logins
    from dslaunch.preflight.recording import Recording
    from dslaunch.run.request import RunRequest

Only = Annotated[
    list[str] | None,
    typer.Option(metavar="CHECK", help="Run only this check or group, for example gpu or fs.free."),
]
Skip = Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Skip this check or group.")]
TierName = Annotated[
    str | None,
    typer.Option(
        metavar="TIER",
        help="Run the checks of a tier: gate (1 s), static, or deep (minutes of measurements); "
        "default: static, with --from that of the recording.",
    ),
]
For = Annotated[
    list[str] | None,
    typer.Option("--for", metavar="PURPOSE", help="Add the checks for a purpose: zero-infinity."),
]
Launcher = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Check for this launcher (default: of the cluster file)."),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE", help="Replay saved answers; contact no node."),
]
Baseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Show changes since these saved answers.")
]
Script = Annotated[
    str | None,
    typer.Option(
        metavar="SCRIPT",
        help="Check that all nodes have this script (default: the file's job); with --tier deep, "
        "rehearse it too.",
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- ARGS]...", help="Arguments of SCRIPT for its rehearsal."),
]
Listed = Annotated[bool, typer.Option("--list", help="List the checks.")]
Explain = Annotated[str | None, typer.Option(metavar="CHECK", help="Explain a check.")]
USUAL = "static"
"""The default tier."""


class NodeOptions(Struct, frozen=True):
    """The options that select nodes, with all their slots."""

    include: Include = ""
    exclude: Exclude = ""
    nodes: Nodes = None
    label: Label = None

    @property
    def selection(self) -> Selection:
        """Return the selection."""
        return Selection(self.include, self.exclude, self.nodes, labels=tuple(self.label or ()))


class CheckOptions(Struct, frozen=True):
    """The options that select checks."""

    tier: TierName = None
    only: Only = None
    skip: Skip = None
    purpose: For = None

    @property
    def selection(self) -> CheckSelection:
        """Return the selection. Raises UsageError."""
        return CheckSelection(
            tier=tier_of(self.tier or USUAL),
            only=tuple(self.only or ()),
            skip=tuple(self.skip or ()),
            purposes=purposes(self.purpose or ()),
        )


def preflight(
    *,
    file: options.ClusterFile = None,
    arguments: Arguments = None,
    which: NodeOptions,
    chosen: CheckOptions,
    launcher: Launcher = None,
    script: Script = None,
    slurm: options.Allocated = False,
    transport: options.TransportName = None,
    saved: From = None,
    baseline: Baseline = None,
    output: PreflightOutput,
    listed: Listed = False,
    explain: Explain = None,
) -> None:
    """Check whether the nodes are ready for training.

    Nothing is changed on the nodes, except by a script that is rehearsed. Exit code 4 if a check
    fails.

    Example: dslaunch preflight cluster.yaml
    """
    if listed or explain is not None:
        ui.result(_explained(explain))
        return
    if output.fail_on_change and baseline is None:
        raise UsageError("--fail-on-change needs a baseline", hint="add --baseline FILE")
    if arguments and script is None:
        raise UsageError(
            f"unexpected argument: {arguments[0]}",
            hint="select nodes with --include NODES; arguments of a script need --script SCRIPT",
        )
    output.check()
    request = PreflightRequest(
        file=file,
        which=which.selection,
        wanted=chosen.selection,
        tiered=chosen.tier is not None,
        launcher=launcher,
        script=script,
        arguments=tuple(arguments or ()),
        slurm=slurm,
        transport=transport,
    )
    output.write(request.ask(baseline) if saved is None else request.again(saved, baseline))


def _explained(name: str | None) -> str:
    """Return the list of checks, or the explanation of one."""
    from dslaunch.preflight import checks
    from dslaunch.report.preflight import explanation

    known = checks.load()
    if name is None:
        rows = [(check, known[check].tier, known[check].title) for check in sorted(known)]
        return ui.table([("CHECK", "TIER", "MAKES SURE THAT"), *rows], ui.width())
    if name not in known:
        raise unknown(name, known, "--explain")
    return "\n".join(explanation(name, known[name]))


class PreflightRequest(Struct, frozen=True):
    """The nodes and the checks of a preflight."""

    file: Path | None
    which: Selection
    wanted: CheckSelection
    tiered: bool
    """Whether a tier was given."""
    launcher: str | None
    """None: that of the file; also for the script and the transport."""
    script: str | None
    arguments: tuple[str, ...]
    """Of the script, for its rehearsal."""
    slurm: bool
    """Whether to use the nodes of the current SLURM allocation."""
    transport: str | None

    def ask(self, baseline: Path | None) -> PreflightResult:
        """Ask the nodes and return the result. Raises DslaunchError."""
        open_file = options.allocated if self.slurm else options.open_cluster
        cluster = api.with_transport(open_file(self.file), self.transport, in_allocation=self.slurm)
        allocation = None if self.which == Selection() else select(cluster, self.which)
        how = JobOptions(launcher=self.launcher)
        job = job_on(
            cluster, self.script, self.arguments, how, command="preflight --script", fallback=""
        )
        known_good = _known_good(baseline)
        with closing(_begin_logins(cluster, allocation)) as logins:
            # what takes long is imported while the nodes are logged in to
            from dslaunch.preflight.checks import job_rehearsal
            from dslaunch.run.preflight_survey import preflight_scope

            scope, checks = preflight_scope(cluster, allocation, job, self.wanted, Path.cwd())
            _same_nodes(scope, known_good, baseline)
            rehearses = self.script is not None and job_rehearsal.NAME in checks
            if rehearses and not (self.slurm or self.transport):
                api.check_not_scheduled(cluster, os.environ)
            facts = _ask(scope, checks, self.wanted.tier, logins)
        if rehearses:
            from dslaunch.run.timeouts import REHEARSAL_DEFAULTS

            request = api.run_request(
                cluster, job, allocation, preflight=False, timeouts=REHEARSAL_DEFAULTS
            )
            facts = _rehearsed(facts, request)
        return _judged(facts, checks, known_good)

    def again(self, saved: Path, baseline: Path | None) -> PreflightResult:
        """Return the result for saved answers. Raises DslaunchError."""
        from dslaunch.run.preflight_survey import checks_again

        with without_collection():
            known_good = _known_good(baseline)
            facts = self._facts(saved)
            chosen = checks_again(self.wanted, facts, tiered=self.tiered)
            _same_nodes(facts.scope, known_good, baseline)
            return _judged(facts, chosen, known_good)

    def _facts(self, saved: Path) -> Recording:
        """Return saved answers with their own cluster, or with the cluster file given now."""
        if self.script is not None:
            raise UsageError("--script needs the nodes", hint="remove --from or --script")
        if self.slurm or self.transport is not None:
            raise UsageError(
                "--slurm and --transport need the nodes", hint="remove them, or remove --from"
            )
        from dslaunch.preflight.recording import read
        from dslaunch.run.preflight_survey import scoped_again

        facts = read(saved)
        cluster = facts.scope.cluster if self.file is None else options.open_cluster(self.file)
        everywhere = self.which == Selection()
        scoped = scoped_again(
            facts,
            cluster=cluster,
            allocation=None if everywhere else select(cluster, self.which),
            purposes=self.wanted.purposes,
            launcher=self.launcher,
        )
        if everywhere and self.file is not None:
            _say_left_out(cluster, scoped.scope)
        return scoped


def _say_left_out(cluster: Cluster, scope: Scope) -> None:
    """Print which nodes of a cluster file are not judged, since they were not recorded."""
    judged = {node.host for node in scope.nodes}
    left_out = [node.host for node in cluster.nodes if node.host not in judged]
    if left_out:
        ui.say(f"not judged, since the recording was made without them: {fold(left_out)}")


def _known_good(baseline: Path | None) -> Recording | None:
    if baseline is None:
        return None
    from dslaunch.preflight.recording import read

    return read(baseline)


def _judged(
    facts: Recording, checks: Mapping[str, Check], known_good: Recording | None
) -> PreflightResult:
    from dslaunch.preflight.judge import judge

    before = None if known_good is None else judge(known_good, checks)
    return PreflightResult(checks, judge(facts, checks), before)


def _same_nodes(scope: Scope, known_good: Recording | None, baseline: Path | None) -> None:
    """Raise SelectionError for a baseline of another cluster."""
    if known_good is None:
        return
    then = {node.host for node in known_good.scope.nodes}
    if not then & {node.host for node in scope.nodes}:
        raise SelectionError(f"--baseline {baseline}: no answers of these nodes")


def _begin_logins(cluster: Cluster, allocation: Allocation | None) -> Logins:
    """Begin to log in to the nodes, and say how if that is worth knowing."""
    from dslaunch import transport
    from dslaunch.preflight.logins import asked_nodes, begin_logins

    choice = transport.choose(cluster.transport, cluster)
    if choice.notable:
        ui.say(f"transport: {choice.name} ({choice.why})")
    return begin_logins(cluster, asked_nodes(cluster, allocation), choice)


def _ask(scope: Scope, checks: Mapping[str, Check], tier: Tier, logins: Logins) -> Recording:
    """Ask the nodes, with a progress line on a terminal."""
    from dslaunch.report.preflight import ProgressLine
    from dslaunch.run.preflight_survey import ask_nodes

    progress = ProgressLine(scope, sys.stderr, live=sys.stderr.isatty())
    detours: list[Decision] = []
    try:
        return ask_nodes(
            scope,
            checks,
            tier,
            progress.note,
            logins=logins,
            on_measurement=progress.begin_measurement,
            on_detours=detours.extend,
        )
    finally:
        progress.end()
        if detours:
            _say_detours(tuple(detours))


def _say_detours(detours: tuple[Decision, ...]) -> None:
    from dslaunch.report.decision_rows import decision_rows

    ui.say("\n".join(decision_rows(detours, ui.width())))


def _rehearsed(facts: Recording, request: RunRequest) -> Recording:
    """Rehearse the job, and return the answers with the result. Raises Exit if interrupted."""
    from dslaunch.cli.rehearse import rehearsed
    from dslaunch.rehearsal.in_preflight import with_rehearsal, without_start
    from dslaunch.run.rehearsal import RehearsalLimits

    ui.say(f"rehearsing {request.job.program}")
    try:
        result = rehearsed(request, RehearsalLimits(), quiet=True)
    except DslaunchError as error:
        return without_start(facts, error.message)
    if result.outcome.status == "interrupted":
        raise typer.Exit(result.exit_code)
    return with_rehearsal(facts, result)
