"""The gate: the quick checks before every run, answered by the agents of the run."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import PreflightError
from dslaunch.launch.decisions import Decision, DecisionCode, decision
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided
from dslaunch.preflight import checks
from dslaunch.preflight.check import Check, Finding, Scope
from dslaunch.preflight.conversation import Conversation
from dslaunch.preflight.judge import Report, judge
from dslaunch.preflight.recording import Recording
from dslaunch.preflight.runner import Survey
from dslaunch.protocol.survey import KnownAnswers
from dslaunch.registry import LAUNCHERS
from dslaunch.run.evidence import Inquiry
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.job_files import script_imports
from dslaunch.run.session import Session
from dslaunch.transport.fulfill import fulfill
from dslaunch.transport.future import Future

OF_THE_JOB = ("py.activate", "py.interpreter", "sw.packages", "sw.torch-build")
"""Checks of the job's environment."""
QUICK = (
    *("clock.skew", "fs.free", "fs.hung", "shm.size"),
    *("gpu.driver-up", "gpu.ecc-uncorrected", "gpu.recovery", "gpu.row-remap", "gpu.vendors"),
    "rocm.count",
    *OF_THE_JOB,
)
"""The checks of the gate, by name: importing all checks takes longer than these."""
OWN = ("code.files", "fs.shared", "gpu.count", "host.names", "host.unique")
"""Checks of its tier that a run leaves out: it finds these out by its own questions."""
SOFTER = (("shm.size", "warn"),)
"""Checks that stop no run: many trainings need no shared memory."""


class Gate:
    """Asks the nodes once all agents have greeted, while the run prepares its start; `passed`
    waits for the findings."""

    def __init__(
        self,
        inquiry: Inquiry,
        job: Job,
        begun: Mapping[str, Future[Session]],
        cwd: Path,
    ) -> None:
        cluster = inquiry.cluster
        # clocks that differ make logs hard to compare, and break some launchers
        by_clock = LAUNCHERS.get(job.launcher).compares_clocks
        softer = SOFTER if by_clock else (*SOFTER, ("clock.skew", "warn"))
        severity = (*softer, *cluster.preflight.severity)
        cluster = replace(cluster, preflight=replace(cluster.preflight, severity=severity))
        self.scope = Scope(
            cluster,
            tuple(placement.node for placement in inquiry.allocation.placements),
            job,
            directories=inquiry.directories,
            root=inquiry.source.remote if inquiry.source else "",
            token=secrets.token_hex(8),
            placements=inquiry.allocation.placements,
            imports=script_imports(job, cwd),
        )
        skip = cluster.preflight.skip
        quick = checks.some(QUICK)
        self.checks = {n: c for n, c in quick.items() if not {n, n.split(".")[0]} & set(skip)}
        self._begun = begun
        self._later: tuple[Finding, ...] = ()
        self._report = self._begin(self.checks)

    def _begin(self, chosen: Mapping[str, Check]) -> Future[Report]:
        """Ask the nodes in the background."""
        pool = ThreadPoolExecutor(1)
        report: Future[Report] = Future()
        pool.submit(fulfill, report, partial(self._ask, chosen))
        pool.shutdown(wait=False)
        return report

    def _ask(self, chosen: Mapping[str, Check]) -> Report:
        sessions = {host: begun.result() for host, begun in self._begun.items()}
        for session in sessions.values():
            session.hello.result()
        known = KnownAnswers()
        talks = {
            node.host: Conversation(
                node,
                self.scope.by_hand(node),
                wire=sessions[node.host],
                of_run=True,
                known=known,
            )
            for node in self.scope.nodes
        }
        survey = Survey(self.scope, chosen, lambda host, stage: None, talks=talks)
        began = time.time()
        try:
            nodes = survey.run()
        finally:
            survey.close()
        facts = Recording(self.scope, began, nodes, survey.failures)
        report = judge(facts, chosen)
        self.scope.made.clear()  # of each node its questions, and the report is kept for the run
        return report

    @property
    def report(self) -> Report:
        """Return all findings, as soon as there are some; `passed` has waited for them."""
        return self._report.result()

    def passed(self, decided: Decided, interrupts: Interrupts, *, shipping: bool) -> Decided:
        """Return the decisions with the warnings of the checks.

        With `shipping`, files of the job are not on the nodes yet: an activate line may read them,
        so `after_shipping` repeats the checks that fail for this reason.
        Raises PreflightError for findings that prevent the start, Interrupted.
        """
        interrupts.wait([self._report], math.inf)
        report = self._report.result()
        failed = tuple(f for f in report.findings if f.level == "fail")
        if shipping and any(node.activate for node in self.scope.nodes):
            self._later = tuple(f for f in failed if f.check in OF_THE_JOB)
        _refuse(tuple(f for f in failed if f not in self._later))
        warnings = tuple(_warning(f) for f in report.findings if f.level == "warn")
        return replace(decided, decisions=(*decided.decisions, *warnings))

    def after_shipping(self, interrupts: Interrupts) -> None:
        """Repeat the checks that may have failed because the job's files were missing.

        Raises PreflightError, Interrupted.
        """
        if not self._later:
            return
        chosen = {name: check for name, check in self.checks.items() if name in OF_THE_JOB}
        report = self._begin(chosen)
        interrupts.wait([report], math.inf)
        _refuse(tuple(f for f in report.result().findings if f.level == "fail"))

    def release(self) -> None:
        """Drop the answers of all nodes and the findings, which a run needs no more."""
        self._report = Future()


def _warning(finding: Finding) -> Decision:
    return decision(
        DecisionCode.CHECK_WARNING,
        hosts=finding.hosts,
        found=finding.found,
        check=finding.check,
        fix=finding.fix,
    )


def _refuse(failed: tuple[Finding, ...]) -> None:
    """Raise PreflightError if a check failed."""
    if failed:
        fixes = dict.fromkeys(f.fix for f in failed if f.fix)
        raise PreflightError(
            "\n".join(f"{fold(f.hosts)}: {f.check}: {f.found}" for f in failed),
            hint="\n".join([*fixes, "or skip the checks with --no-preflight"]),
            checks=tuple((host, f.check) for f in failed for host in f.hosts),
        )
