"""Which runs are listed, and which records are read for that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.run.local_runs import local_runs
from dslaunch.run.recorded_progress import recorded_progress
from dslaunch.run.run_directory import RESULT, RunDirectory
from dslaunch.run.run_record import FILE, JobRecord, RunRecord
from dslaunch.run.run_selection import SPARE, RunSelection
from dslaunch.run.run_state import State
from dslaunch.run.status import RunStatus

RECORD = RunRecord(
    program="jobs/train.py",
    cluster="pod-1",
    launcher="direct",
    hosts=("n1",),
    world_size=1,
    detached=False,
    agents="run",
    started=1000.0,
)


def status(state: State = State.SUCCEEDED, **changes: object) -> RunStatus:
    return RunStatus("run", state, RECORD.model_copy(update=changes))


@pytest.mark.parametrize(
    ("selection", "listed"),
    [
        (RunSelection(ended=True), True),
        (RunSelection(), False),
        (RunSelection(ended=True, script="train.py"), True),
        (RunSelection(ended=True, script="jobs/*"), True),
        (RunSelection(ended=True, script="eval*"), False),
        (RunSelection(ended=True, cluster="pod-?"), True),
        (RunSelection(ended=True, cluster="pod"), False),
        (RunSelection(ended=True, since=1000.0), True),
        (RunSelection(ended=True, since=1000.1), False),
        (RunSelection(ended=True, states=frozenset((State.SUCCEEDED,))), True),
        (RunSelection(ended=True, states=frozenset((State.FAILED,))), False),
    ],
)
def test_a_run_is_listed_if_it_meets_all_conditions(selection: RunSelection, listed: bool) -> None:
    assert bool(selection.of([status()])) is listed


def test_the_newest_are_listed_first_and_only_as_many_as_wanted() -> None:
    runs = [replace(status(started=float(start)), run=str(start)) for start in (2, 3, 1)]
    assert [run.run for run in RunSelection(ended=True).of(runs)] == ["3", "2", "1"]
    assert [run.run for run in RunSelection(ended=True, count=2).of(runs)] == ["3", "2"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A state directory with the records of 40 ended runs, and of one whose end is not known."""
    tmp_path.chmod(0o700)
    for number in range(41):
        directory = tmp_path / "runs" / f"run-{number:02}"
        directory.mkdir(parents=True)
        record = RECORD.model_copy(update={"started": float(number)})
        (directory / FILE).write_text(record.as_json())
        os.utime(directory / FILE, (number, number))
        if number != 7:
            (directory / RESULT).write_text("{}")
    return {"DSLAUNCH_STATE": str(tmp_path)}


def read(environ: dict[str, str], selection: RunSelection) -> list[str]:
    """The runs whose records are read."""
    return [run.run for run in local_runs(environ, selection.pick).runs]


def test_few_records_are_read_where_the_files_tell_enough(environ: dict[str, str]) -> None:
    assert read(environ, RunSelection()) == ["run-07"]
    assert read(environ, RunSelection(ended=True, count=3))[-1] == "run-40"
    assert len(read(environ, RunSelection(ended=True, count=3))) == 3 + SPARE
    assert read(environ, RunSelection(ended=True, since=39.0)) == ["run-39", "run-40"]
    assert len(read(environ, RunSelection(ended=True))) == 41
    assert len(read(environ, RunSelection(ended=True, count=3, script="*.py"))) == 41


def test_a_run_within_a_job_is_not_listed_however_few_records_are_read(
    environ: dict[str, str], tmp_path: Path
) -> None:
    job = JobRecord(job="12", token="word", groups=((1, 1),), direct=True)
    early = RECORD.model_copy(update={"started": 1.0, "slurm": job})
    inside = RECORD.model_copy(update={"started": 99.0, "submission": "word"})
    for name, record in (("run-01", early), ("run-40", inside)):
        (tmp_path / "runs" / name / FILE).write_text(record.as_json())
    chosen = local_runs(environ, RunSelection(ended=True, count=1).pick)
    assert chosen.started[-1].run == "run-39"


def test_the_step_of_a_run_is_in_its_last_output_by_the_lowest_rank(tmp_path: Path) -> None:
    record = RunDirectory(tmp_path / "run")
    for step in range(1, 500):
        for rank in (1, 0):
            record.output("n1", rank, b"step %d loss %d.5\n" % (step, rank), float(step), 1)
    record.let_go()
    found = recorded_progress(record.directory)
    assert found is not None
    assert (found.step, found.loss) == (499, 0.5)
    assert recorded_progress(tmp_path) is None
