"""A preflight of a cluster: what is asked of which nodes, for which job, and their answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.errors import SelectionError
from dslaunch.launch.job import Job
from dslaunch.preflight import checks
from dslaunch.preflight.check import Check, Scope, Tier
from dslaunch.preflight.check_selection import CheckSelection
from dslaunch.preflight.logins import Logins, asked_nodes
from dslaunch.preflight.measurement import OnMeasurement
from dslaunch.preflight.recording import Recording
from dslaunch.preflight.runner import Survey
from dslaunch.registry import LAUNCHERS
from dslaunch.run.detours import detour_decisions
from dslaunch.run.job_files import JobFiles, find_source, script_imports
from dslaunch.run.job_program import located
from dslaunch.run.view import ignore
from dslaunch.transport.base import detours_of

if TYPE_CHECKING:
    from dslaunch.launch.decisions import Decision

ABOUT_LOGINS = ("ssh.client", "shell.login", "shell.noise")
"""Checks of the login of a session."""
OnProgress = Callable[[str, str], None]
"""Called with a host and how far it is: `connected`, `asked`, `answered`, `failed`."""


def preflight_scope(
    cluster: Cluster,
    allocation: Allocation | None,
    job: Job,
    wanted: CheckSelection,
    cwd: Path,
) -> tuple[Scope, dict[str, Check]]:
    """Return what is asked of which nodes, and the checks. Raises UsageError, PlanError."""
    known = checks.load()
    job = located(job, cwd)
    LAUNCHERS.get(job.launcher)
    workdir = cluster.storage.workdir or str(cwd)
    source = find_source(job, cwd, workdir) if job.program else None
    directories = dict.fromkeys([workdir, cluster.storage.checkpoints or workdir])
    scope = Scope(
        cluster=cluster,
        nodes=asked_nodes(cluster, allocation),
        job=job,
        purposes=wanted.purposes,
        directories=tuple(directories),
        root=source.remote if source else "",
        files=_files(source),
        named=wanted.named(known),
        token=secrets.token_hex(8),
        imports=script_imports(job, cwd),
    )
    return scope, chosen_checks(wanted, scope, known)


def _files(source: JobFiles | None) -> tuple[tuple[str, str], ...]:
    """Return the job's files with their SHA-256; a script that is not here has none."""
    if source is None:
        return ()
    return source.digests or (((source.script, ""),) if source.script else ())


def chosen_checks(
    wanted: CheckSelection, scope: Scope, known: Mapping[str, Check]
) -> dict[str, Check]:
    """Return the wanted checks, without those about logins where there are no logins to
    the nodes, unless they were asked for by name. Raises UsageError."""
    chosen = wanted.of(known, scope.cluster)
    if not scope.cluster.by_steps:
        return chosen
    skip = set(ABOUT_LOGINS) - scope.named
    why = "the nodes are reached by steps of the allocation, without logins"
    return {name: check.left_out(why) if name in skip else check for name, check in chosen.items()}


def scoped_again(
    facts: Recording,
    *,
    cluster: Cluster | None = None,
    allocation: Allocation | None = None,
    purposes: frozenset[str] = frozenset(),
    launcher: str | None = None,
) -> Recording:
    """Return recorded answers that are to be judged by another cluster file, for some of the nodes,
    for further purposes or another launcher. None: as recorded. A node that is new in the cluster
    file has no recorded answer. Raises SelectionError."""
    scope = facts.scope
    cluster = cluster or scope.cluster
    recorded = {*facts.nodes, *facts.failures}
    # not those that --include left out of the recording
    left_out = {node.host for node in scope.cluster.nodes} - recorded
    nodes = tuple(node for node in cluster.nodes if node.host not in left_out)
    if allocation is not None:
        nodes = tuple(placement.node for placement in allocation.placements)
    if not any(node.host in recorded for node in nodes):
        file = cluster.source.file if cluster.source else cluster.name
        raise SelectionError(f"the recording has no answers of the nodes of {file}")
    scope = replace(scope, cluster=cluster, nodes=nodes, purposes=scope.purposes | purposes)
    if launcher is not None:
        LAUNCHERS.require(launcher)
        scope = replace(scope, job=replace(scope.job, launcher=launcher))
    return replace(facts, scope=scope)


def checks_again(wanted: CheckSelection, facts: Recording, *, tiered: bool) -> dict[str, Check]:
    """Return the checks that judge recorded answers: without `tiered` those of the recorded tier.

    Raises UsageError.
    """
    if not tiered:
        wanted = wanted.as_recorded(facts.tier, tuple(sorted(facts.scope.named)))
    return chosen_checks(wanted, facts.scope, checks.load())


def ask_nodes(
    scope: Scope,
    checks: Mapping[str, Check],
    tier: Tier,
    tell: OnProgress,
    *,
    logins: Logins,
    on_measurement: OnMeasurement = ignore,
    on_detours: Callable[[tuple[Decision, ...]], object] = ignore,
) -> Recording:
    """Ask the nodes that are logged in to, and return what they answer. `on_detours` is called with
    what did not go as intended."""
    survey = Survey(scope, checks, tell, logins, on_measurement=on_measurement)
    began = time.time()
    with closing(survey):
        nodes = survey.run()
    on_detours(detour_decisions(detours_of(logins.transport)))
    return Recording(
        scope=scope,
        time=began,
        nodes=nodes,
        failures=survey.failures,
        here=survey.here,
        tier=tier,
    )
