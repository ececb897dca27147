"""Clusters with a compromised node, emulated on this machine: real agents, no SSH."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from dslaunch.cluster.model import Allocation, Cluster, Node, Storage
from dslaunch.errors import NodeError
from dslaunch.launch.job import Job
from dslaunch.run.checkpoint_stores import LocalStore
from dslaunch.run.launch import run_job
from dslaunch.run.outcome import Outcome
from dslaunch.run.request import RunRequest
from dslaunch.run.timeouts import Timeouts
from tests.hostile.lying_stores import a_checkpoint, tree
from tests.hostile.neighbor import Victim, ranks, until
from tests.hostile.node import compromised
from tests.local.conftest import Seen, left_over


@dataclass
class HostileCluster:
    """Nodes `good` and `bad`, of which the second is compromised, and the user's directory."""

    home: Path
    state: Path
    bad_python: Path
    cluster: Cluster

    def run(self, script: str, *, preflight: bool = False) -> tuple[Seen, Outcome]:
        """Run a script on both nodes, the user being in `home/project`."""
        project = self.home / "project"
        project.mkdir(exist_ok=True)
        (project / "train.py").write_text(script)
        allocation = Allocation.of([(node, node.slots) for node in self.cluster.nodes])
        request = RunRequest(
            cluster=self.cluster,
            allocation=allocation,
            job=Job("train.py", (), launcher="direct"),
            cwd=project,
            environ=dict(os.environ),
            timeouts=Timeouts(grace=1, exit_timeout=60, reconnect=1),
            preflight=preflight,
        )
        seen = Seen()
        outcome, directory = run_job(request, lambda: seen)
        seen.directory = directory
        wait_until_gone(directory.name)
        return seen, outcome

    def refused(self, script: str = "print('hello')\n") -> NodeError:
        """Run a script and return the error that prevents the start."""
        with pytest.raises(NodeError) as caught:
            self.run(script)
        return caught.value


def wait_until_gone(run: str) -> None:
    """Wait until no process of a run is left: a node that was given up ends its own."""
    deadline = time.monotonic() + 300
    while left_over(run):
        assert time.monotonic() < deadline, left_over(run)
        time.sleep(0.05)


@pytest.fixture(scope="session")
def mutation_count(request: pytest.FixtureRequest) -> int:
    """How many hostile variants a suite tries of what nodes send (`--mutations`)."""
    count: int = request.config.getoption("--mutations")
    return count


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HostileCluster]:
    """Make a cluster; the messages of its node `bad` go through the given function `tamper`."""
    state = tmp_path / "state"
    monkeypatch.setenv("DSLAUNCH_STATE", str(state))

    def make(tamper: str, bad_first: bool = False) -> HostileCluster:
        bad_python = compromised(tmp_path / "bad", tamper)
        nodes = (
            Node("good", (0,), python=sys.executable),
            Node("bad", (0,), python=str(bad_python)),
        )
        ordered = nodes[::-1] if bad_first else nodes
        cluster = Cluster("test", ordered, transport="local", storage=Storage(workdir="work"))
        return HostileCluster(tmp_path, state, bad_python, cluster)

    return make


@pytest.fixture
def live(victim: Victim) -> Iterator[str]:
    """A detached run of `victim`, which each module defines."""
    run = victim.detach()
    yield run
    victim.dslaunch("stop", run, "--grace", "0")
    assert until(lambda: ranks(run) == set())


@pytest.fixture
def here() -> Iterator[LocalStore]:
    """The user's machine as a place for checkpoints."""
    with ThreadPoolExecutor(4) as pool:
        yield LocalStore(pool)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """A directory with a node's checkpoint, a private file, and room for a copy; nothing but the
    copy may change in it."""
    a_checkpoint(tmp_path / "node")
    (tmp_path / "private").write_text("secret")
    (tmp_path / "private").chmod(0o600)
    before = tree(tmp_path)
    yield tmp_path
    after = {p: v for p, v in tree(tmp_path).items() if not f"{p}/".startswith("copy/")}
    assert after == before
