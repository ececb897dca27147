"""The quick part of a preflight, before every run: its agents have the questions answered."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import PreflightError
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided
from dslaunch.preflight import checks
from dslaunch.preflight.check import Check, Finding, Scope
from dslaunch.preflight.conversation import Conversation, Silent
from dslaunch.preflight.judge import Report, judge
from dslaunch.preflight.recording import Recording
from dslaunch.preflight.runner import Survey
from dslaunch.protocol.queries import SURVEYED
from dslaunch.registry import LAUNCHERS
from dslaunch.run.evidence import Inquiry
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.session import LostError, Session
from dslaunch.run.source import script_imports
from dslaunch.transport.base import Transport

OF_THE_JOB = ("py.activate", "py.interpreter", "sw.packages", "sw.torch-build")
"""Checks of the environment that the job will have."""
QUICK = (
    *("clock.skew", "fs.free", "fs.hung", "shm.size"),
    *("gpu.driver-up", "gpu.ecc-uncorrected", "gpu.recovery", "gpu.row-remap", "gpu.vendors"),
    "rocm.count",
    *OF_THE_JOB,
)
"""The checks of the gate, by name: to import all checks takes longer than to ask these."""
OWN = ("code.files", "fs.shared", "gpu.count", "host.names", "host.unique")
"""Checks of its tier that a run leaves out: it finds these out, and gets them right, by itself."""
SOFTER = (("shm.size", "warn"),)
"""What stops no run: many trainings need no shared memory."""


class Gate:
    """Asks the nodes once all agents have greeted, while the run goes on to prepare its start;
    `passed` waits for the findings."""

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
        """Ask the nodes while something else is done."""
        pool = ThreadPoolExecutor(1)
        report = pool.submit(self._ask, chosen)
        pool.shutdown(wait=False)
        return report

    def _ask(self, chosen: Mapping[str, Check]) -> Report:
        sessions = {host: begun.result() for host, begun in self._begun.items()}
        for session in sessions.values():
            session.hello.result()
        talks = {
            node.host: AgentConversation(
                node, b"", self.scope.by_hand(node), session=sessions[node.host]
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
        return judge(facts, chosen)

    def passed(self, decided: Decided, interrupts: Interrupts, *, shipping: bool) -> Decided:
        """Add what people should know.

        With `shipping`, files of the job are still on their way: an activate line may read them,
        and what fails because of it is asked once more by `after_shipping`.
        Raises PreflightError for what must stop the start, Interrupted.
        """
        interrupts.wait([self._report], math.inf)
        report = self._report.result()
        failed = tuple(f for f in report.findings if f.level == "fail")
        if shipping and any(node.activate for node in self.scope.nodes):
            self._later = tuple(f for f in failed if f.check in OF_THE_JOB)
        _refuse(tuple(f for f in failed if f not in self._later))
        warnings = tuple(
            decision(
                DecisionCode.CHECK_WARNING, hosts=f.hosts, found=f.found, check=f.check, fix=f.fix
            )
            for f in report.findings
            if f.level == "warn"
        )
        return replace(decided, decisions=(*decided.decisions, *warnings))

    def after_shipping(self, interrupts: Interrupts) -> None:
        """Ask again what may have failed for want of the job's files. Raises PreflightError,
        Interrupted."""
        if not self._later:
            return
        chosen = {name: check for name, check in self.checks.items() if name in OF_THE_JOB}
        report = self._begin(chosen)
        interrupts.wait([report], math.inf)
        _refuse(tuple(f for f in report.result().findings if f.level == "fail"))


def _refuse(failed: tuple[Finding, ...]) -> None:
    """Raise PreflightError if something failed."""
    if failed:
        fixes = dict.fromkeys(f.fix for f in failed if f.fix)
        raise PreflightError(
            "\n".join(f"{fold(f.hosts)}: {f.check}: {f.found}" for f in failed),
            hint="\n".join([*fixes, "or start with --no-preflight"]),
        )


@dataclass(slots=True, kw_only=True)
class AgentConversation(Conversation):
    """Questions to one node over the session of a run, whose agent has them answered."""

    session: Session
    asked: Future[dict[str, Any]] = field(default_factory=Future)
    """The reply to what was asked last."""
    given_up: Future[None] = field(default_factory=Future)

    def open(self, way: Transport | None) -> None:
        """The agent has greeted already."""
        self.began = time.monotonic()

    def end(self) -> None:
        """Wait for no answer any more; the agent goes on."""
        self.closed = True
        with suppress(InvalidStateError):
            self.given_up.set_result(None)

    close = end

    def _send(self, message: Mapping[str, Any]) -> None:
        self.waiting = True
        self.asked = self.session.request("survey", SURVEYED, request=dict(message))

    def _receive(self, what: str) -> Any:
        either: list[Future[Any]] = [self.asked, self.given_up]
        wait(either, return_when=FIRST_COMPLETED)
        if not self.asked.done():
            raise Silent(self._lost("given up"))
        try:
            reply = self.asked.result()
        except LostError as error:
            raise Silent(error.failure) from None
        self.waiting = False
        if what not in reply:
            raise Silent(self._broken(f"{what}: missing"))
        return reply[what]
