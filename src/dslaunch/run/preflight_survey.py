"""A preflight of a cluster: what is asked of which nodes, for which job, and their answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch import transport
from dslaunch.cluster.model import Allocation, Cluster
from dslaunch.launch.job import Job
from dslaunch.preflight import checks
from dslaunch.preflight.check import Check, Scope, Tier
from dslaunch.preflight.check_selection import CheckSelection
from dslaunch.preflight.recording import Recording
from dslaunch.preflight.runner import Survey
from dslaunch.registry import LAUNCHERS
from dslaunch.run.job_program import located
from dslaunch.run.source import JobFiles, find_source, script_imports

if TYPE_CHECKING:
    from dslaunch.transport.ssh.choice import Choice

ABOUT_LOGINS = ("ssh.client", "shell.login", "shell.noise")
"""Checks of what happens when somebody logs in."""
Tell = Callable[[str, str], None]
"""Called with a host and how far it is: `connected`, `asked`, `answered`, `failed`."""


def preflight_scope(
    cluster: Cluster,
    allocation: Allocation | None,
    job: Job,
    wanted: CheckSelection,
    cwd: Path,
) -> tuple[Scope, dict[str, Check]]:
    """Return what is asked of which nodes, and the checks. Without an allocation spares are asked
    too, which may be needed one day. Raises UsageError, PlanError."""
    known = checks.load()
    nodes = cluster.nodes
    if allocation is not None:
        nodes = tuple(placement.node for placement in allocation.placements)
    job = located(job, cwd)
    LAUNCHERS.get(job.launcher)
    workdir = cluster.storage.workdir or str(cwd)
    source = find_source(job, cwd, workdir) if job.program else None
    directories = dict.fromkeys([workdir, cluster.storage.checkpoints or workdir])
    scope = Scope(
        cluster=cluster,
        nodes=nodes,
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
    """Return the checks that are wanted; those about logins are left out where nobody logs in to
    the nodes, unless they were asked for by name. Raises UsageError."""
    chosen = wanted.of(known, scope.cluster)
    if not scope.cluster.by_steps:
        return chosen
    skip = set(ABOUT_LOGINS) - scope.named
    why = "nobody logs in: the nodes are reached by steps of the allocation"
    return {name: check.left_out(why) if name in skip else check for name, check in chosen.items()}


def ask_nodes(
    scope: Scope,
    checks: Mapping[str, Check],
    tier: Tier,
    tell: Tell,
    *,
    choice: Choice | None = None,
    text: str = "",
    file: str = "",
) -> Recording:
    """Ask the nodes, and return what they answer. `choice` is how they are reached; `text` and
    `file` are recorded: the cluster file and its name."""
    choice = choice or transport.choose(scope.cluster.transport, scope.cluster)
    survey = Survey(scope, checks, tell, transport.make(choice.name, scope.cluster))
    began = time.time()
    with closing(survey):
        nodes = survey.run()
    return Recording(
        scope=scope,
        time=began,
        nodes=nodes,
        failures=survey.failures,
        here=survey.here,
        tier=tier,
        cluster=text,
        file=file,
    )
