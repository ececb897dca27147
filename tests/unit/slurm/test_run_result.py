"""What the run in a supervised job wrote of its end, and how far it is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.slurm.job_files import of_job, read_result, with_cause
from dslaunch.slurm.output import Layout, OutputReader

CAUSE = Event(3.0, "exit", "n2", 5, code=7)
REASON = EndReason(EndCode.RANK_FAILED, "n2", 5, exit_code=7, ranks=(("n1", 0),))
RUN = Outcome("failed", 7, REASON, CAUSE, last_lines=("boom",))


def job(said: str) -> EndReason:
    return EndReason(EndCode.SLURM_JOB, job=said)


JOB = Outcome("failed", 7, job("job 12 failed: exit code 7"))


OF_JOB = of_job({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1"})


def written(path: Path, text: bytes) -> str:
    file = path / "job.out.run.json"
    file.write_bytes(text)
    file.chmod(0o600)
    return str(path / "job.out")


def result_of(output: str, job: str = "12", start: int = 2) -> Outcome | None:
    return read_result(output, job=job, start=start)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    text = json.dumps(RUN.as_data() | {"run": "0101-x", "directory": "/d"} | OF_JOB)
    assert result_of(written(tmp_path, text.encode())) == RUN


def test_a_result_is_accepted_for_its_job_and_last_start_only(tmp_path: Path) -> None:
    output = written(tmp_path, json.dumps(RUN.as_data() | OF_JOB).encode())
    assert result_of(output, start=1) == RUN
    assert result_of(output, start=3) is None
    assert result_of(output, job="13") is None
    (tmp_path / "job.out.run.json").chmod(0o620)
    assert result_of(output) is None
    assert result_of(written(tmp_path, json.dumps(RUN.as_data()).encode())) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.just(b'{"status": "fine", "exit_code": 0}'))
def test_a_damaged_result_is_none(tmp_path: Path, data: bytes) -> None:
    assert result_of(written(tmp_path, data)) is None


def test_a_link_in_the_place_of_the_result_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(json.dumps(RUN.as_data() | OF_JOB))
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "job.out.run.json").symlink_to(tmp_path / "real")
    assert result_of(str(tmp_path / "job.out")) is None


def test_a_failed_job_has_the_root_cause_of_its_run() -> None:
    told = with_cause(JOB, RUN)
    assert (told.cause, told.exit_code, told.last_lines) == (CAUSE, 7, ("boom",))
    assert told.reason == replace(REASON, job=JOB.reason.job)


@pytest.mark.parametrize(
    "ended",
    [
        Outcome("ok", 0, job("job 12 ended well")),
        Outcome("failed", 124, job("job 12 reached its time limit")),
        Outcome("interrupted", 130, job("job 12 was cancelled")),
    ],
)
def test_what_slurm_itself_ended_is_not_blamed_on_a_rank(ended: Outcome) -> None:
    assert with_cause(ended, RUN) == ended
    assert with_cause(ended, None) == ended


def test_lines_of_the_run_in_the_job_keep_their_host_and_rank() -> None:
    reader = OutputReader(Layout(((2, 4),), direct=False, supervised=True))
    text = "node2:5│loss 1│2\nnode2│launcher\ndslaunch: 8 ranks\n  3: x\n│y\n"
    assert list(reader.feed(text.encode())) == [
        ("node2", 5, "loss 1│2\n".encode()),
        ("node2", None, b"launcher\n"),
        ("slurm", None, b"dslaunch: 8 ranks\n"),
        ("slurm", None, b"  3: x\n"),
        ("slurm", None, "│y\n".encode()),
    ]
