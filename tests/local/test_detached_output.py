"""The output of runs in the background: what is read of the journals on their nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

JOB = """\
import os, pathlib, sys, time
rank = int(os.environ["RANK"])
print("filler " * 4000, flush=True)
if rank == 0:
    print("step 3/9 loss 1.5", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
if rank == 0:
    print("step 9/9 loss 0.5", flush=True)
print("done", flush=True)
"""
HOSTS = ("n1", "n2")


class Project:
    """A run in the background on two nodes, which ends when `end` is called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "c.yaml").write_text(
            f"nodes: [{{host: 'n[1-2]', slots: 2}}]\npython: {sys.executable}\nlauncher: direct\n"
            "transport: local\nstorage: {workdir: work}\n"
        )
        (path / "job.py").write_text(JOB)
        self.may_end = path / "may-end"

    def dslaunch(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dslaunch", *words]
        return subprocess.run(
            command, cwd=self.path, capture_output=True, text=True, timeout=240, check=False
        )

    def listed(self) -> dict[str, Any]:
        """Return the only run of `ps`."""
        (run,) = json.loads(self.dslaunch("ps", "--all", "--json").stdout)
        assert isinstance(run, dict)
        return run

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """List the run until something is so."""
        deadline = time.monotonic() + 300
        while not is_so(run := self.listed()):
            assert time.monotonic() < deadline, run
        return run

    def end(self) -> dict[str, Any]:
        """End the run; return it as it is listed."""
        self.may_end.touch()
        self.dslaunch("attach", "latest")  # until it has ended
        return self.until(lambda run: run["state"] == "succeeded")

    def journal(self, host: str) -> Path:
        (found,) = (self.path / "state").glob(f"emulated/*/{host}/**/journal")
        return found


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    state = tmp_path / "state"
    monkeypatch.setenv("DSLAUNCH_STATE", str(state))
    project = Project(tmp_path)
    done = project.dslaunch("run", "--detach", "c.yaml", "job.py", str(project.may_end))
    assert done.returncode == 0, done.stderr
    yield project
    project.dslaunch("stop", "latest", "--grace", "0")


def test_the_step_of_a_detached_run_is_listed_while_it_runs_and_after_its_end(
    running: Project,
) -> None:
    listed = running.until(lambda run: run["progress"] is not None)
    assert (listed["state"], listed["progress"]["step"]) == ("running", 3)
    assert running.end()["progress"]["step"] == 9
    for host in HOSTS:
        running.journal(host).unlink()
    status = json.loads(running.dslaunch("status", "latest", "--json").stdout)
    assert (status["progress"]["step"], status["progress"]["loss"]) == (9, 0.5)


def test_logs_show_the_other_nodes_if_the_journal_of_one_is_damaged(running: Project) -> None:
    running.end()
    running.journal("n2").write_bytes(bytes(1 << 20))
    for words in (["logs"], ["logs", "--tail", "100"], ["logs", "--follow"]):
        shown = running.dslaunch(*words, "latest")
        assert shown.returncode == 0, shown.stderr
        assert "n1:0│step 9/9 loss 0.5" in shown.stdout.splitlines()
        assert "n2:" not in shown.stdout
        (error,) = shown.stderr.splitlines()
        assert "n2" in error
