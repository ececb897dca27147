"""The quick part of a preflight, before every run and over the connections that it has anyway."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from dslaunch.cluster.model import Node
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import PreflightError
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Decided, Decision
from dslaunch.preflight import checks
from dslaunch.preflight.check import Scope
from dslaunch.preflight.facts import Facts
from dslaunch.preflight.judge import Report, judge
from dslaunch.preflight.runner import Survey
from dslaunch.run.evidence import Inquiry
from dslaunch.transport.base import Channel, Connection

QUICK = (
    *("clock.skew", "fs.free", "fs.hung", "shm.size"),
    *("gpu.driver-up", "gpu.ecc-uncorrected", "gpu.recovery", "gpu.row-remap"),
)
"""The checks of the gate, by name: to import all checks takes longer than to ask these."""
OWN = ("code.files", "fs.shared", "gpu.count", "host.names", "host.unique", "py.interpreter")
"""Checks of its tier that a run leaves out: it finds these out, and gets them right, by itself."""
SOFTER = (("shm.size", "warn"),)
"""What stops no run: many trainings need no shared memory."""
BY_CLOCK = ("elastic",)
"""Launchers that clocks which differ break; with the others only logs are hard to compare."""


class Gate:
    """Asks the nodes once all are connected, while the run goes on to prepare its start; `passed`
    waits for the findings."""

    def __init__(
        self, inquiry: Inquiry, job: Job, connections: Mapping[str, Future[Connection]]
    ) -> None:
        cluster = inquiry.cluster
        softer = SOFTER if job.launcher in BY_CLOCK else (*SOFTER, ("clock.skew", "warn"))
        severity = (*softer, *cluster.preflight.severity)
        cluster = replace(cluster, preflight=replace(cluster.preflight, severity=severity))
        self.scope = Scope(
            cluster,
            tuple(placement.node for placement in inquiry.allocation.placements),
            job.launcher,
            directories=inquiry.directories,
            token=secrets.token_hex(8),
        )
        skip = cluster.preflight.skip
        quick = checks.some(QUICK)
        self.checks = {n: c for n, c in quick.items() if not {n, n.split(".")[0]} & set(skip)}
        self._pool = ThreadPoolExecutor(1)
        self._report: Future[Report] = self._pool.submit(self._ask, connections)
        self._pool.shutdown(wait=False)

    def _ask(self, connections: Mapping[str, Future[Connection]]) -> Report:
        way = Borrowed({host: future.result() for host, future in connections.items()})
        survey = Survey(self.scope, self.checks, lambda host, stage: None, way)
        began = time.time()
        try:
            nodes = survey.run()
        finally:  # nobody waits for the programs' ends
            threading.Thread(target=survey.close, daemon=True).start()
        facts = Facts("", "", self.scope.token, began, nodes, survey.failures)
        return judge(self.scope, facts, self.checks)

    def passed(self, decided: Decided) -> Decided:
        """Add what people should know. Raises PreflightError for what must stop the start."""
        report = self._report.result()
        failed = [f for f in report.findings if f.level == "fail"]
        if failed:
            raise PreflightError(
                "\n".join(f"{fold(f.hosts)}: {f.check}: {f.found}" for f in failed),
                hint="\n".join(
                    [*dict.fromkeys(f.fix for f in failed if f.fix), "or start with --no-preflight"]
                ),
            )
        warnings = tuple(
            Decision("warning", f"{fold(f.hosts)}: {f.found}", f"{f.check}: {f.fix}")
            for f in report.findings
            if f.level == "warn"
        )
        return replace(decided, decisions=(*decided.decisions, *warnings))


class Borrowed:
    """A transport whose connections are there already, and stay."""

    def __init__(self, opened: Mapping[str, Connection]) -> None:
        self._opened = opened

    def connect(self, node: Node) -> Connection:
        """The connection that is open."""
        return Lent(self._opened[node.host])

    def close(self) -> None:
        """It is not ours to close."""


class Lent:
    """A connection on which programs may be run, and no more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self, line: str) -> Channel:
        """Run a shell line on the node."""
        return self._connection.start(line)

    def close(self) -> None:
        """It is not ours to close."""
