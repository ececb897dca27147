"""The Python API with real processes on this machine, as the pages and the example use it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.conftest import left_over

import dslaunch

ROOT = Path(__file__).parents[2]
HELLO = """
import os, sys, time
print("rank", os.environ["RANK"], *sys.argv[1:], flush=True)
time.sleep(float(os.environ.get("SECONDS_TO_SLEEP", "0")))
"""
NO_CLI = (
    'import sys; assert not {"typer", "click", "rich"} & {n.partition(".")[0] for n in sys.modules}'
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script and the cluster files."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    shutil.copytree(ROOT / "clusters", work / "clusters")
    (work / "hello.py").write_text(HELLO)
    return work


Job = Callable[..., dslaunch.Job]


@pytest.fixture
def cluster(project: Path) -> dslaunch.Cluster:
    return dslaunch.Cluster.load("clusters/local.yaml")


@pytest.fixture
def job(cluster: dslaunch.Cluster) -> Job:
    def make(*args: str, seconds: float = 0) -> dslaunch.Job:
        env = {"SECONDS_TO_SLEEP": str(seconds)}
        return dslaunch.Job.on(cluster, "hello.py", args, launcher="direct", env=env)

    return make


def test_a_run_is_followed_and_ends(cluster: dslaunch.Cluster, job: Job) -> None:
    lines: list[dslaunch.Line] = []
    events: list[dslaunch.Event] = []
    with dslaunch.run(cluster, job("--x"), on_line=lines.append, on_event=events.append) as run:
        followed = [(line.rank, line.text) for line in run.logs(follow=True)]
        outcome = run.wait(timeout=60)
    assert (outcome.status, outcome.exit_code) == ("ok", 0)
    assert sorted(followed) == [(rank, f"rank {rank} --x") for rank in range(4)]
    assert sorted((line.rank, line.text) for line in lines) == sorted(followed)
    assert [line.text for line in run.logs(ranks=[2])] == ["rank 2 --x"]
    assert {"connected", "started", "exit"} <= {event.kind for event in events}
    assert run.status().state == "succeeded"
    assert run.plan.world_size == 4
    assert left_over(run.name) == {}


def test_a_run_is_stopped_from_another_thread(cluster: dslaunch.Cluster, job: Job) -> None:
    run = dslaunch.run(cluster, job(seconds=300))
    next(iter(run.logs(follow=True)))
    assert run.status().state == "running"
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.1)
    stopper = threading.Thread(target=run.stop)
    stopper.start()
    stopper.join()
    outcome = run.wait(timeout=60)
    assert (outcome.status, outcome.reason.code) == ("interrupted", "interrupted")
    assert left_over(run.name) == {}


def test_a_run_does_not_outlive_its_block(cluster: dslaunch.Cluster, job: Job) -> None:
    with pytest.raises(KeyError), dslaunch.run(cluster, job(seconds=300)) as run:
        raise KeyError("of the user's code")
    assert run.done
    assert left_over(run.name) == {}


def test_a_run_that_cannot_start_raises_its_error(cluster: dslaunch.Cluster) -> None:
    with pytest.raises(dslaunch.PlanError) as told:
        dslaunch.run(cluster, dslaunch.Job.on(cluster, "gone.py"))
    assert told.value.exit_code == 3


def test_two_runs_go_on_at_the_same_time_in_an_event_loop(
    cluster: dslaunch.Cluster, job: Job
) -> None:
    async def both() -> list[str]:
        runs = [asyncio.to_thread(dslaunch.run, cluster, job(str(n))) for n in range(2)]
        ends = [asyncio.to_thread(run.wait) for run in await asyncio.gather(*runs)]
        return [outcome.status for outcome in await asyncio.gather(*ends)]

    assert asyncio.run(both()) == ["ok", "ok"]


def test_a_preflight_reports_what_each_node_answered(cluster: dslaunch.Cluster) -> None:
    seen: set[tuple[str, str]] = set()
    report = dslaunch.preflight(
        cluster, only=["fs.free"], on_progress=lambda host, step: seen.add((host, step))
    )
    assert {finding.check for finding in report.findings} == {"ssh.connect", "fs.free"}
    assert {("node1", "answered"), ("node2", "answered")} <= seen


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, timeout=120, check=False
    )


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


@pytest.mark.usefixtures("project")
def test_the_code_of_the_page_runs_and_loads_nothing_of_the_command_line() -> None:
    code = blocks(ROOT / "docs/howto/use-from-python.md")
    assert len(code) >= 7
    done = python("\n".join([*code, NO_CLI]))
    assert done.returncode == 0, done.stderr
    assert "rank 0 --steps 3" in done.stdout
    assert "PlanError 3" in done.stdout
    assert "zero_optimzation" in done.stdout
    assert done.stderr == ""


@pytest.mark.usefixtures("project")
def test_the_code_of_the_reference_and_the_readme_runs() -> None:
    for page in (ROOT / "docs/reference/api.md", ROOT / "README.md"):
        code = [block for block in blocks(page) if "import dslaunch" in block]
        assert code
        done = python("\n".join(code).replace("train.py", "hello.py"))
        assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("project")
def test_the_example_runs() -> None:
    example = ROOT / "examples/from_python.py"
    command = [sys.executable, str(example), "clusters/local.yaml", "hello.py", "--epochs", "1"]
    done = subprocess.run(
        command, text=True, capture_output=True, env=os.environ, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node1 0 rank 0 --epochs 1" in done.stdout.splitlines()
