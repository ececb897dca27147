"""Whether nodes are fit to train on: asked now, or by recorded answers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from dslaunch.api.arguments import PathText, directory, several
from dslaunch.registry import plugin_faults
from dslaunch.run.view import ignore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.cluster.model import Allocation, Cluster
    from dslaunch.launch.job import Job
    from dslaunch.preflight.check import Tier
    from dslaunch.preflight.check_selection import CheckSelection
    from dslaunch.preflight.judge import Report
    from dslaunch.preflight.recording import Recording
    from dslaunch.run.preflight_survey import OnProgress


@plugin_faults()
def preflight(
    cluster: Cluster,
    allocation: Allocation | None = None,
    job: Job | None = None,
    *,
    tier: Tier = "static",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    purposes: Sequence[str] = (),
    cwd: PathText | None = None,
    on_progress: OnProgress = ignore,
) -> Report:
    """Ask the nodes whether they are fit to train on, and return the findings.

    Without an allocation spares are asked too; without a job that of the cluster file counts. Nodes
    that do not answer are findings. Raises UsageError.
    """
    from dslaunch.launch.job import Job
    from dslaunch.preflight.judge import judge
    from dslaunch.preflight.logins import begin_logins
    from dslaunch.run.preflight_survey import ask_nodes, preflight_scope

    if job is None:
        job = Job.on(cluster) if has_job(cluster) else Job.on(cluster, "")
    wanted = _checks(tier, only, skip, purposes)
    scope, checks = preflight_scope(cluster, allocation, job, wanted, directory(cwd))
    with closing(begin_logins(cluster, scope.nodes)) as logins:
        answered = ask_nodes(scope, checks, tier, on_progress, logins=logins)
    return judge(answered, checks)


@plugin_faults()
def replay_preflight(
    recording: Recording,
    cluster: Cluster | None = None,
    allocation: Allocation | None = None,
    *,
    tier: Tier | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    purposes: Sequence[str] = (),
    launcher: str | None = None,
) -> Report:
    """Judge recorded answers, and return the findings. No node is asked.

    What is not given is as recorded. Raises UsageError.
    """
    from dslaunch.preflight.judge import judge
    from dslaunch.run.preflight_survey import checks_again, scoped_again

    wanted = _checks(tier or "static", only, skip, purposes)
    facts = scoped_again(
        recording,
        cluster=cluster,
        allocation=allocation,
        purposes=wanted.purposes,
        launcher=launcher,
    )
    return judge(facts, checks_again(wanted, facts, tiered=tier is not None))


def _checks(
    tier: Tier, only: Sequence[str], skip: Sequence[str], purposes: Sequence[str]
) -> CheckSelection:
    """Return which checks are wanted. Raises UsageError."""
    from dslaunch.preflight.check_selection import CheckSelection, tier_of
    from dslaunch.preflight.check_selection import purposes as known_purposes

    return CheckSelection(
        tier=tier_of(tier),
        only=several("only", only),
        skip=several("skip", skip),
        purposes=known_purposes(several("purposes", purposes)),
    )


def has_job(cluster: Cluster) -> bool:
    """Return whether the cluster file says what to run."""
    return cluster.job is not None and bool(cluster.job.script or cluster.job.module)
