"""`dslaunch clean --runs-older-than`: the records of this machine."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.slurm.squeue import SUBMITTED, row

from dslaunch.cli import clean, ps
from dslaunch.errors import DslaunchError, NodeFailure, UsageError
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.status import Reports, RunStatus
from dslaunch.slurm import known_runs
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.query_failures import QueryFailure

JOB = {"job": "12", "groups": [[2, 1]], "direct": True, "submitted": SUBMITTED}
CLUSTER = """\
{"name": "pod", "nodes": [{"host": "n1", "slots": [0]}, {"host": "n2", "slots": [0]}]}
"""


@dataclass
class Records:
    """A state directory with runs of chosen ages."""

    home: Path

    def add(self, name: str, *, days: float, **about: Any) -> Path:
        """A run to which nothing was written for so many days."""
        directory = self.home / "runs" / name
        (directory / "logs").mkdir(parents=True)
        told = {
            "program": "job.py", "cluster": "pod", "launcher": "direct", "world_size": 2,
            "detached": False, "hosts": ["n1", "n2"], "agents": name, "started": 1.0, **about,
        }  # fmt: skip
        (directory / "run.json").write_text(json.dumps(told))
        (directory / "cluster.json").write_text(CLUSTER)
        (directory / "lock").touch()
        (directory / "logs/n1.0.log").write_text("step 1\n")
        when = time.time() - days * 86400
        for path in (directory, *directory.rglob("*")):
            os.utime(path, (when, when))
        return directory

    @property
    def left(self) -> set[str]:
        """The runs that are there."""
        return {path.name for path in (self.home / "runs").iterdir()}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path))
    return Records(tmp_path)


def test_records_of_runs_that_have_been_over_for_so_long_are_removed(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add("old", days=40)
    records.add("new", days=2)
    appended = records.add("long", days=40)
    (appended / "logs/n1.0.log").write_text("step 2\n")  # it began long ago and ended just now
    clean.clean(older="30d", json=True)
    assert records.left == {"new", "long"}
    told = json.loads(capsys.readouterr().out)
    assert (list(told["removed"]), told["kept"]) == (["old"], {})


def test_a_run_whose_launcher_lives_is_kept_however_old_it_is(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = records.add("old", days=40)
    with (directory / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean.clean(older="30d")
    assert records.left == {"old"}
    said = capsys.readouterr()
    assert (said.out, said.err) == ("nothing to remove\n", "kept old: its launcher is running\n")


def reported(run: str, state: State) -> RunStatus:
    """What nodes report of a run."""
    record = RunRecord(
        program="", cluster="pod", launcher="direct", hosts=("n1", "n2"), world_size=2,
        detached=True, agents=run, started=0.0,
    )  # fmt: skip
    return RunStatus(run, state, record)


def test_a_detached_run_is_kept_unless_all_its_nodes_say_that_it_is_over(
    records: Records, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add("gone", days=40, detached=True, hosts=["n1"])
    records.add("goes-on", days=40, detached=True)
    records.add("unsure", days=40, detached=True)
    records.add("unknown", days=40, detached=True)
    (records.home / "runs/unknown/cluster.json").write_text("{}")
    os.utime(records.home / "runs/unknown/cluster.json", (0, 0))
    records.add("half", days=40, detached=True)
    answers = {
        "goes-on": reported("goes-on", State.RUNNING),
        "half": reported("half", State.SUCCEEDED),
    }
    reports = Reports(answers, {"n2": NodeFailure("n2", "refused", "no route")})
    monkeypatch.setattr(known_runs, "ask_clusters", lambda clusters, has_progress: reports)
    clean.clean(older="30d")
    assert records.left == {"goes-on", "half", "unsure", "unknown"}
    said = capsys.readouterr()
    assert said.out == "removed gone (0.0 MB)\n"
    assert "kept goes-on: " in said.err
    assert "kept unsure: " in said.err
    assert "kept half: " in said.err
    assert "kept unknown: " in said.err


GONE = "slurm_load_jobs error: Invalid job id specified\nSlurm accounting storage is disabled\n"
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Done(0, row(), ""), "its job is running"),
        (Done(0, row(state="PENDING", nodes=""), ""), "its job is waiting"),
        (Done(1, "", DOWN), f"{QueryFailure.NO_CONTACT.text}; "),
        (Done(1, "", GONE), None),
    ],
    ids=["running", "waiting", "no answer", "forgotten"],
)
def test_a_job_of_slurm_is_kept_unless_slurm_says_that_it_is_over(
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: Done,
    why: str | None,
) -> None:
    def slurm(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        return Done(0, "slurm 22.05.8\n", "") if "--version" in argv else answer

    monkeypatch.setattr(clean, "here", lambda: SlurmClient({}, slurm))
    records.add("job", days=40, slurm=JOB)
    clean.clean(older="30d")
    assert bool(records.left) is (why is not None)
    said = capsys.readouterr().err
    assert said.startswith(f"kept job: {why}") if why else said == ""


def test_an_age_that_is_none_and_options_about_nodes_are_refused(records: Records) -> None:
    records.add("old", days=40)
    with pytest.raises(UsageError, match=r"--runs-older-than.*old"):
        clean.clean(older="old")
    with pytest.raises(UsageError, match="this machine"):
        clean.clean(older="30d", ended=True)
    assert records.left == {"old"}


def test_a_record_of_another_version_does_not_keep_ps_from_the_others(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    records.add("old", days=1, detached=True)
    records.home.joinpath("runs/old/cluster.json").write_text('{"nodes": 3}')
    ps.ps(everything=True)
    told = capsys.readouterr()
    assert told.out.splitlines()[1].split()[:2] == ["old", "unknown"]
    assert "old: cannot read its cluster" in told.err


def test_nodes_that_could_not_remove_their_leftovers_are_an_error() -> None:
    cleaned = {"killed": [], "removed": ["run"]}
    clean.check_cleaned({"node1": cleaned})
    with pytest.raises(DslaunchError, match=r"node\[2-3\]$"):
        clean.check_cleaned({"node1": cleaned, "node2": {"error": "x"}, "node3": {"error": "y"}})
