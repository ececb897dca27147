"""Runs on nodes emulated on this machine: real agents, real processes, no SSH."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Cluster, Network, Node, SecretSource, Storage
from dslaunch.launch.job import Job
from dslaunch.launch.plan import Plan
from dslaunch.node import processes
from dslaunch.run.events import Event, Line
from dslaunch.run.launch import run_job
from dslaunch.run.outcome import Outcome
from dslaunch.run.request import RunRequest
from dslaunch.run.timeouts import Timeouts
from dslaunch.run.view import StartStep, View


@dataclass
class Seen(View):
    """What a run showed."""

    lines: list[Line] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    plan_: Plan | None = None
    directory: Path | None = None
    outcome: Outcome | None = None
    unseen: bool = False
    output_closed: bool = False

    def line(self, line: Line) -> None:
        self.lines.append(line)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def begin(self, step: StartStep, late: Collection[str]) -> None:
        """Nothing."""

    def plan(self, plan: Plan, directory: Path) -> None:
        self.plan_, self.directory = plan, directory

    def text(self, rank: int) -> list[str]:
        return [line.text for line in self.lines if line.rank == rank]


@dataclass
class Emulated:
    """A directory with a script, and two nodes to run it on."""

    path: Path
    environ: dict[str, str]

    def run(
        self,
        script: str,
        *args: str,
        slots: tuple[int, ...] = (2, 1),
        workdir: str | None = "work",
        timeouts: Timeouts = Timeouts(grace=10, exit_timeout=120),  # noqa: B008 - frozen
        secrets: tuple[SecretSource, ...] = (),
        sync: bool = True,
        network: Network = Network(),  # noqa: B008 - frozen
        notice: signal.Signals | None = None,
        **job: object,
    ) -> Seen:
        (self.path / "job.py").write_text(script)
        nodes = tuple(
            Node(f"n{i}", tuple(range(count)), python=sys.executable)
            for i, count in enumerate(slots)
        )
        cluster = Cluster(
            "test", nodes, transport="local", storage=Storage(workdir=workdir), network=network
        )
        allocation = Allocation.of([(node, node.slots) for node in nodes])
        task = Job("job.py", args, launcher="direct", secrets=secrets)
        task = replace(task, **job)  # type: ignore[arg-type]
        seen = Seen()
        request = RunRequest(
            cluster, allocation, task, self.path, self.environ, sync, timeouts, notice=notice
        )
        seen.outcome, seen.directory = run_job(request, lambda: seen)
        assert left_over(seen.directory.name) == {}
        return seen


def left_over(run: str) -> dict[int, bytes]:
    """Processes on this machine that carry the run's id."""
    tag = run.encode()
    return {
        pid: environment.get(b"DSLAUNCH_HOST", b"")
        for pid in processes.pids()
        if (environment := processes.environment(pid)).get(b"DSLAUNCH_RUN_ID") == tag
        and (processes.stat(pid) or ["X"])[0] not in "ZX"
    }


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    state = tmp_path / "state"
    monkeypatch.setenv("DSLAUNCH_STATE", str(state))
    project = tmp_path / "project"
    project.mkdir()
    return Emulated(project, {**os.environ, "DSLAUNCH_STATE": str(state)})
