"""The record of a run is read back as it was written; what is none is a named problem."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.json_schema import validate

from dslaunch.cluster.model import Cluster
from dslaunch.errors import UsageError
from dslaunch.recorded import reader
from dslaunch.run.launch import cluster_json
from dslaunch.run.local_runs import LocalRun, local_runs
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.recorded_events import read_events, read_last_attempt
from dslaunch.run.recorded_output import RecordedOutput
from dslaunch.run.recorded_progress import PROGRESS, noted_progress
from dslaunch.run.recorded_run import RecordedRun, recorded_run
from dslaunch.run.run_directory import (
    CLUSTER,
    EVENTS,
    LOCK,
    ORDER,
    RESULT,
    SOURCES,
    RunDirectory,
    is_held,
    log_name,
    log_source,
)
from dslaunch.run.run_record import (
    FILE,
    JobRecord,
    RecordError,
    RecordFault,
    RunRecord,
    json_schema,
    read_record,
)
from dslaunch.run.usage import USAGE, read_usage

SSH = RunRecord(
    program="train.py",
    cluster="pod",
    launcher="torchrun",
    hosts=("n1", "n2"),
    world_size=4,
    detached=True,
    attempt=1,
    agents="0101-000000-train-aaaa+1",
    started=1_700_000_000.5,
    pid=12,
    machine="login",
)
SLURM = SSH.model_copy(
    update={"slurm": JobRecord(job="142", token="dslaunch-1", groups=((2, 4),), direct=True)}
)
WITHOUT_NUMBER = {key: value for key, value in SSH.as_data().items() if key != "format"}


def written(directory: Path, text: str) -> Path:
    """A run directory with that record."""
    (directory / FILE).write_text(text, "utf-8")
    return directory


@pytest.mark.parametrize("record", [SSH, SLURM], ids=["ssh", "slurm"])
def test_a_record_is_read_back_the_same_and_has_the_published_schema(
    tmp_path: Path, record: RunRecord
) -> None:
    assert read_record(written(tmp_path, record.as_json())) == record
    validate(json.loads(record.as_json()), json_schema())


def test_the_keys_of_the_first_versions_are_read(tmp_path: Path) -> None:
    assert "from" in WITHOUT_NUMBER
    assert read_record(written(tmp_path, json.dumps(WITHOUT_NUMBER))) == SSH


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    assert read_record(written(tmp_path, json.dumps({**SSH.as_data(), "new": 1}))) == SSH


def test_a_program_whose_name_is_no_utf_8_is_recorded(tmp_path: Path) -> None:
    record = RunRecord(**{**WITHOUT_NUMBER, "program": "a\udcff.py"})
    assert read_record(written(tmp_path, record.as_json())) == record


def test_a_directory_without_a_record_is_no_run(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None


def fault(directory: Path, text: str) -> RecordFault:
    """Why a record cannot be used."""
    with pytest.raises(RecordError) as refused:
        read_record(written(directory, text))
    assert refused.value.run == directory.name
    return refused.value.code


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "[" * 100_000, "\0", '{"format": 1}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    assert fault(tmp_path, text) is RecordFault.DAMAGED


@pytest.mark.parametrize(
    "changes",
    [{"format": 2}, {"format": "x" * 1000}, {"format": None}],
    ids=["later", "text", "null"],
)
def test_a_record_of_another_format_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    text = json.dumps({**SSH.as_data(), **changes})
    assert fault(tmp_path, text) is RecordFault.OTHER_VERSION


@pytest.mark.parametrize("key", ["hosts", "agents", "started", "world_size"])
def test_a_record_without_a_number_that_lacks_a_field_is_of_another_version(
    tmp_path: Path, key: str
) -> None:
    text = json.dumps({name: value for name, value in WITHOUT_NUMBER.items() if name != key})
    assert fault(tmp_path, text) is RecordFault.OTHER_VERSION


@pytest.mark.parametrize(
    "changes",
    [
        {"hosts": "n1"},
        {"world_size": "4"},
        {"started": -1},
        {"slurm": []},
        {"slurm": {**SLURM.as_data()["slurm"], "job": "12; rm"}},
        {"slurm": {**SLURM.as_data()["slurm"], "groups": [[1]]}},
    ],
)
def test_a_field_of_another_kind_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert fault(tmp_path, json.dumps({**SSH.as_data(), **changes})) is RecordFault.DAMAGED


def test_a_record_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(RecordError) as refused:
        read_record(tmp_path)
    assert refused.value.code is RecordFault.UNREADABLE


def test_no_reader_waits_for_a_writer_of_a_named_pipe(tmp_path: Path) -> None:
    names = (FILE, CLUSTER, EVENTS, RESULT, LOCK, ORDER, SOURCES, USAGE, PROGRESS)
    for name in (*names, "inputs.json", "plan.json", "job.sbatch"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(RecordError) as refused:
        read_record(tmp_path)
    assert refused.value.code is RecordFault.UNREADABLE
    local = LocalRun("run", tmp_path, record=SSH, living=is_held(tmp_path), result=None)
    assert recorded_run(local) == RecordedRun("run", record=SSH, directory=tmp_path)
    with pytest.raises(UsageError):
        local.cluster()
    with RecordedOutput(tmp_path) as output:
        assert (output.sources(), list(output.forward())) == ((), [])
    assert read_events(tmp_path) == read_last_attempt(tmp_path) == list(read_usage(tmp_path)) == []
    assert noted_progress(tmp_path) is None


def state(tmp_path: Path, **records: str) -> dict[str, str]:
    """The environment of a state directory with these records."""
    tmp_path.chmod(0o700)
    for run, text in records.items():
        directory = tmp_path / "runs" / run
        directory.mkdir(parents=True)
        written(directory, text)
    return {"DSLAUNCH_STATE": str(tmp_path)}


def test_one_damaged_record_hides_no_other_and_is_named_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    known = local_runs(state(tmp_path, good=SSH.as_json(), torn="{"))
    assert [run.run for run in known.started] == ["good"]
    assert [error.run for error in known.unreadable] == ["torn"]
    assert known.exactly("good") is not None
    with pytest.raises(RecordError):
        known.exactly("torn")


def test_the_record_of_a_later_attempt_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    environ = state(tmp_path)
    directory = tmp_path / "runs" / "run"
    writer = RunDirectory(directory)
    for attempt in range(2):
        writer.write(FILE, SSH.model_copy(update={"attempt": attempt}).as_json())
    (run,) = local_runs(environ).runs
    assert (run.record.attempt, run.living, run.result) == (1, True, None)
    outcome = Outcome("failed", 3, EndReason(EndCode.RANK_FAILED, "n1", 1, exit_code=3))
    writer.close(outcome.as_data())
    (run,) = local_runs(environ).runs
    assert run.result == outcome
    assert not run.living


def test_a_beginning_that_several_runs_have_is_ambiguous(tmp_path: Path) -> None:
    known = local_runs(state(tmp_path, aa=SSH.as_json(), ab=SSH.as_json()))
    with pytest.raises(UsageError, match="aa, ab"):
        known.find("a")


def test_the_recorded_cluster_has_no_text_of_its_file() -> None:
    cluster = Cluster.parse("name: pod\nnodes: [{host: n1, slots: 1}]  # a comment\n")
    text = cluster_json(cluster)
    assert "a comment" not in text
    assert reader(Cluster)(text.encode()) == replace(cluster, source=None)


@pytest.mark.parametrize(("host", "rank"), [("node1", 0), ("a.b", 12), ("a.b", None)])
def test_the_name_of_a_log_says_whose_it_is(host: str, rank: int | None) -> None:
    assert log_source(log_name(host, rank)) == (host, rank)


@pytest.mark.parametrize("end", ["\u00b2", "\u0661", "9" * 5000, ""])
def test_a_log_whose_name_ends_with_no_rank_is_that_of_a_node(end: str) -> None:
    assert log_source(f"node1.{end}.log") == (f"node1.{end}", None)
