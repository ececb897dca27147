"""A preflight of a cluster: what is asked of which nodes, for which job, and their answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch import transport
from dslaunch.cluster.model import BY_STEPS, Cluster, Node
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Check, Scope, Tier
from dslaunch.preflight.facts import Facts
from dslaunch.preflight.runner import Survey
from dslaunch.registry import LAUNCHERS
from dslaunch.run.source import Source, find_source, script_imports

if TYPE_CHECKING:
    from dslaunch.transport.ssh.choice import Choice

ABOUT_LOGINS = ("ssh.client", "shell.login", "shell.noise")
"""Checks of what happens when somebody logs in."""
Tell = Callable[[str, str], None]
"""Called with a host and how far it is: `connected`, `asked`, `answered`, `failed`."""


def preflight_scope(
    cluster: Cluster,
    nodes: tuple[Node, ...],
    job: Job,
    *,
    cwd: Path,
    purposes: frozenset[str],
    named: frozenset[str],
) -> Scope:
    """Return what is checked of these nodes. Raises UsageError, PlanError."""
    LAUNCHERS.get(job.launcher)
    workdir = cluster.storage.workdir or str(cwd)
    source = find_source(job, cwd, workdir) if job.program else None
    directories = dict.fromkeys([workdir, cluster.storage.checkpoints or workdir])
    return Scope(
        cluster=cluster,
        nodes=nodes,
        job=job,
        purposes=purposes,
        directories=tuple(directories),
        root=source.remote if source else "",
        files=_files(source),
        named=named,
        token=secrets.token_hex(8),
        imports=script_imports(job, cwd),
    )


def _files(source: Source | None) -> tuple[tuple[str, str], ...]:
    """Return the job's files with their SHA-256; a script that is not here has none."""
    if source is None:
        return ()
    return source.digests or (((source.script, ""),) if source.script else ())


def fitting(checks: Mapping[str, Check], scope: Scope) -> dict[str, Check]:
    """Return the checks; those about logins are left out where nobody logs in to the nodes, unless
    they were asked for by name."""
    if scope.cluster.transport != BY_STEPS:
        return dict(checks)
    skip = set(ABOUT_LOGINS) - scope.named
    why = "nobody logs in: the nodes are reached by steps of the allocation"
    return {n: check.left_out(why) if n in skip else check for n, check in checks.items()}


class PreflightSurvey:
    """Asks the nodes of a scope; to be closed when the answers have been judged."""

    def __init__(self, scope: Scope, checks: Mapping[str, Check], tell: Tell) -> None:
        self.transport: Choice = transport.choose(scope.cluster.transport, scope.cluster)
        way = transport.make(self.transport.name, scope.cluster)
        self._survey = Survey(scope, checks, tell, way)

    def ask(self, tier: Tier, *, cluster: str = "", file: str = "") -> Facts:
        """Return what the nodes answer. `cluster` and `file` are recorded: the cluster file's text
        and its name."""
        began = time.time()
        nodes = self._survey.run()
        return Facts(
            scope=self._survey.scope,
            time=began,
            nodes=nodes,
            failures=self._survey.failures,
            here=self._survey.here,
            tier=tier,
            cluster=cluster,
            file=file,
        )

    def close(self) -> None:
        """End the connections; the nodes remove what checks have left."""
        self._survey.close()
