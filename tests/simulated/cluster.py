"""Start a simulated cluster, and run the real launcher on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.simulated.drawn import Scenario, host_of
from tests.simulated.phases import CpuSample, CpuSampler
from tests.simulated.server import Report, report_from_json
from tests.simulated.transport import PATH

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """\
[dslaunch.transports]
simulated = tests.simulated.transport:FLAT
simulated-tree = tests.simulated.transport:TREE
"""
FAN_OUT = 32
END_TIMEOUT = 300.0
"""Seconds for the server to exit after its input has ended."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher has used, and what is left of its run."""

    code: int
    wall: float
    """Seconds."""
    cpu: float
    """Seconds, of the user and the system."""
    peak: float
    """MiB of memory."""
    output: Path
    """The file with what it has printed."""
    errors: Path
    record: Path | None
    """The directory of its run; None: it has started none."""
    samples: Sequence[CpuSample]
    """Of its processor time."""


class SimulatedCluster:
    """A simulated cluster in a directory. As a context manager it runs; then it has a `report`."""

    report: Report

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        transport: str = "simulated",
        fan_out: int = FAN_OUT,
    ) -> None:
        """`transport`: `simulated-tree` has relays, each with at most `fan_out` children; those of
        dslaunch reach real nodes, which do what is drawn for them."""
        self.scenario, self.directory, self.transport = scenario, directory, transport
        self.fan_out = fan_out
        self._socket = directory / "nodes"
        self._state = directory / "state"

    def __enter__(self) -> Self:
        self._describe()
        command = [sys.executable, "-m", "tests.simulated.server", str(self._socket)]
        self._server = subprocess.Popen(
            [*command, self.scenario.as_json()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "listening\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        told, _ = self._server.communicate(timeout=END_TIMEOUT)
        self.report = report_from_json(told)

    def run(self, *options: str) -> Launched:
        """Run the job of the scenario with the real launcher."""
        program = ROOT / "tests/simulated/job.py"
        words = ["run", *options, "cluster.yaml", str(program), self.scenario.as_json()]
        command = [sys.executable, "-m", "dslaunch", *words]
        output, errors = self.directory / "output", self.directory / "errors"
        began = time.monotonic()
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            launcher = subprocess.Popen(
                command, cwd=self.directory, env=self._environment(), stdout=stdout, stderr=stderr
            )
            sampler = CpuSampler(launcher.pid)
            sampler.start()
        samples = sampler.join()
        _, status, used = os.wait4(launcher.pid, 0)
        launcher.returncode = os.waitstatus_to_exitcode(status)
        records = sorted((self._state / "runs").glob("*"), key=lambda path: path.stat().st_mtime)
        return Launched(
            code=launcher.returncode,
            wall=time.monotonic() - began,
            cpu=used.ru_utime + used.ru_stime,
            peak=sampler.peak,
            output=output,
            errors=errors,
            record=records[-1] if records else None,
            samples=samples,
        )

    def _describe(self) -> None:
        """Write the cluster file, and what makes the transport known as a plugin."""
        metadata = self.directory / "site/simulated_cluster-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Name: simulated-cluster\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(PLUGIN)
        last = host_of(self.scenario.nodes - 1)[1:]
        nodes = f"{{host: 'n[00001-{last}]', slots: {self.scenario.slots}}}"
        (self.directory / "cluster.yaml").write_text(
            f"nodes: [{nodes}]\ntransport: {self.transport}\nlauncher: direct\n"
            f"ssh: {{tree_fanout: {self.fan_out}}}\n"
            f"python: {sys.executable}\nstorage: {{workdir: {self.directory / 'work'}}}\n"
        )

    def _environment(self) -> dict[str, str]:
        python = f"{self.directory / 'site'}:{ROOT}:{ROOT / 'src'}"
        state = str(self._state)
        return {
            **os.environ,
            "PYTHONPATH": python,
            "DSLAUNCH_STATE": state,
            PATH: str(self._socket),
        }
