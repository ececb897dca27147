"""Runs that are jobs of SLURM, found by their names and numbers, and listed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.unit.slurm.squeue import SUBMITTED, row

from dslaunch.cli import status
from dslaunch.errors import DslaunchError, ErrorCode, UsageError
from dslaunch.report.status import RUNS_HEAD, run_row
from dslaunch.run.handle import RunHandle
from dslaunch.run.local_runs import local_runs
from dslaunch.run.run_record import FILE
from dslaunch.run.run_state import State
from dslaunch.run.status import Reports
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.known_runs import handles, recorded_run
from dslaunch.slurm.query_failures import QueryFailure
from dslaunch.slurm.slurm_run import JobName

LATER = 5000.0
NODES = RUNS_HEAD.index("NODES")


@pytest.fixture(autouse=True)
def state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path))
    return tmp_path


def record(state: Path, run: str, number: str, started: float, cluster: str = "") -> None:
    """What a run leaves on this machine."""
    slurm = {
        "job": number, "cluster": cluster, "name": "train", "submitted": SUBMITTED, "output": "",
        "groups": [[2, 1]], "direct": True, "elastic": False,
    }  # fmt: skip
    about = {
        "hosts": ["filed1", "filed2", "filed3"], "world_size": 2, "launcher": "direct",
        "program": "train.py", "cluster": "pod", "started": started, "detached": False,
        "agents": run, "slurm": slurm,
    }  # fmt: skip
    directory = state / "runs" / run
    directory.mkdir(parents=True, mode=0o700)
    (directory.parent).chmod(0o700)
    (directory / FILE).write_text(json.dumps(about))


def environ(state: Path) -> dict[str, str]:
    return {"DSLAUNCH_STATE": str(state)}


def by_number(state: Path, word: str) -> str | None:
    job = JobName.parse(word)
    found = job and job.find(local_runs(environ(state)).started)
    return found.run if found else None


def test_a_job_is_found_by_its_own_number_alone(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "142", 1.0)
    record(state_directory, "1122-101010-b-0002", "11", 2.0)
    for word in ("11", "11_3", "11+1"):
        assert by_number(state_directory, word) == "1122-101010-b-0002"
    for word in ("1", "112", "14", "1421", "11x", "11_", ""):
        assert by_number(state_directory, word) is None


def test_a_number_is_never_the_beginning_of_another_jobs_run(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "142", 1.0)
    with pytest.raises(UsageError, match="11"):
        recorded_run("11", SlurmClient(environ(state_directory)))


def test_of_a_number_that_was_given_again_the_latest_run_counts(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "11", 1.0)
    record(state_directory, "0102-101010-b-0002", "11", LATER)
    assert by_number(state_directory, "11") == "0102-101010-b-0002"


def test_a_number_of_several_clusters_is_ambiguous(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "11", 1.0)
    record(state_directory, "1122-101010-b-0002", "11", 2.0, cluster="tiger")
    with pytest.raises(UsageError, match="1122-101010-a-0001, 1122-101010-b-0002"):
        by_number(state_directory, "11")
    assert by_number(state_directory, "11;tiger") == "1122-101010-b-0002"


def test_the_latest_run_is_the_one_that_was_started_last(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "11", LATER)
    record(state_directory, "1122-101010-b-0002", "12", 1.0)  # its directory is the newest
    found = local_runs(environ(state_directory)).find("latest")
    assert found is not None
    assert found.run == "1122-101010-a-0001"


DOWN = Done(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")


class Site:
    """A SLURM that answers every question with the same words."""

    def __init__(self, done: Done) -> None:
        self.done = done
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        if "--version" in argv:
            return Done(0, "slurm 22.05.8\n", "")
        self.asked.append(argv[0])
        return self.done


def asked(site: Site, state: Path) -> list[RunHandle]:
    """The runs of this machine, at a site that answers so."""
    return handles(local_runs(environ(state)).started, SlurmClient(environ(state), site))


def test_a_list_shows_the_nodes_that_slurm_gave(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "12", 1.0)
    (run,) = asked(Site(Done(0, row(), "")), state_directory)
    found = run.summary(Reports())
    assert (found.state, found.may_continue) == (State.RUNNING, True)
    assert (run_row(found)[1], run_row(found)[NODES]) == ("running", "node[1-2]")


def test_a_controller_that_is_down_is_asked_once_and_all_its_jobs_are_unknown(
    state_directory: Path,
) -> None:
    for number in range(5):
        record(state_directory, f"1122-101010-a-000{number}", str(number + 1), 1.0)
    site = Site(DOWN)
    found = [run.summary(Reports()) for run in asked(site, state_directory)]
    assert {one.state for one in found} == {State.UNKNOWN}
    assert {one.unknown.code for one in found if one.unknown} == {"no-contact"}
    assert all(one.may_continue for one in found)
    assert {run_row(one)[NODES] for one in found} == {"-"}
    assert site.asked == ["squeue"]


def test_the_status_of_a_job_is_unknown_while_the_controller_is_down(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "12", 1.0)
    (run,) = asked(Site(DOWN), state_directory)
    told = run.status()
    assert told.as_data() == {
        **run.record.as_data(),
        "run": run.name,
        "state": "unknown",
        "nodes": {},
        "jobs": [],
        "result": None,
        "unknown": "no-contact",
        "ended": None,
        "duration": None,
        "exit_code": None,
        "signal": None,
        "progress": None,
        "slower": [],
        "rehearsal": None,
        "directory": str(state_directory / "runs" / run.name),
        "output": [],
    }
    head, why = status.page(told).splitlines()
    assert head.startswith(f"{run.name}: unknown, job 12")
    assert why == f"reason: {QueryFailure.NO_CONTACT.text}"


def test_a_job_that_slurm_has_forgotten_is_not_reported_as_ended(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "12", 1.0)
    said = "slurm_load_jobs error: Invalid job id specified\nSlurm accounting storage is disabled\n"
    (run,) = asked(Site(Done(1, "", said)), state_directory)
    assert run.status().state is State.UNKNOWN
    with pytest.raises(UsageError, match="job 12"):
        run.stop(None, "me")


def test_a_part_of_a_job_is_not_stopped_with_the_whole(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "12", 1.0)
    client = SlurmClient(environ(state_directory), Site(Done(0, row(), "")))
    for part in ("12_3", "12+1"):
        run = recorded_run(part, client)
        assert run is not None
        with pytest.raises(UsageError, match="1122-101010-a-0001"):
            run.stop(None, "me")


def test_runs_of_both_kinds_have_one_shape_in_json(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "12", 1.0)
    record(state_directory, "1122-101010-b-0002", "13", 2.0)
    file = state_directory / "runs/1122-101010-b-0002" / FILE
    ssh = {**json.loads(file.read_text()), "slurm": None}
    file.write_text(json.dumps(ssh))
    runs = asked(Site(Done(0, row(), "")), state_directory)
    shapes = {tuple(sorted(run.summary(Reports()).as_data())) for run in runs}
    assert len(shapes) == 1


def test_the_run_within_a_supervised_job_is_no_run_beside_it(state_directory: Path) -> None:
    record(state_directory, "1122-101010-a-0001", "11", 1.0)
    record(state_directory, "1122-101010-b-0002", "12", 2.0)
    runs = state_directory / "runs"
    job, inner = runs / "1122-101010-a-0001" / FILE, runs / "1122-101010-b-0002" / FILE
    about = json.loads(job.read_text())
    about["slurm"]["token"] = "dslaunch-0123456789abcdef"
    job.write_text(json.dumps(about))
    within = {**json.loads(inner.read_text()), "submission": "dslaunch-0123456789abcdef"}
    del within["slurm"]
    inner.write_text(json.dumps(within))
    known = local_runs(environ(state_directory))
    assert [run.run for run in known.started] == ["1122-101010-a-0001"]
    assert known.exactly("1122-101010-b-0002") is not None


def task(index: int, state: str = "RUNNING") -> str:
    """A row of a task of the job array 12."""
    return row(jobid=str(12 + index), arrayjobid="12", arraytaskid=str(index), state=state)


@pytest.mark.parametrize(
    ("answer", "part", "code"),
    [
        (row(state="PENDING", nodelist=""), "", ErrorCode.JOB_NOT_RUNNING),
        (task(1) + task(2), "", ErrorCode.SEVERAL_TASKS),
        (task(1) + task(2, "PENDING"), "12_2", ErrorCode.JOB_NOT_RUNNING),
        (task(1) + task(2), "12_2", ErrorCode.STEPS_REFUSED),
        (task(1) + task(2, "PENDING"), "", ErrorCode.STEPS_REFUSED),
    ],
)
def test_the_nodes_of_one_running_task_are_measured(
    state_directory: Path, answer: str, part: str, code: ErrorCode
) -> None:
    record(state_directory, "1122-101010-a-0001", "12", 1.0)
    without_srun = {"DSLAUNCH_STATE": str(state_directory), "PATH": str(state_directory)}
    client = SlurmClient(without_srun, Site(Done(0, answer, "")))
    (run,) = handles(local_runs(without_srun).started, client, part)
    with pytest.raises(DslaunchError) as refused, run.usage_source():
        pass
    assert refused.value.error_code is code
