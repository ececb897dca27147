"""The file with which a job keeps its own verdict: written by the shell, read with distrust."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.render.script_functions import VERDICT_SUFFIX, verdict_lines
from dslaunch.slurm.job_files import LARGEST, Written, completed, read_written
from dslaunch.slurm.states import GONE, JobInfo

VARIABLES = {
    "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-2]", "SLURMD_NODENAME": "node1",
    "PATH": os.environ["PATH"],
}  # fmt: skip


def run_job(directory: Path, body: str, **variables: str) -> tuple[int, Path]:
    """Run a script with our lines as slurmstepd does, its output appended to a file."""
    script = directory / "job.sh"
    script.write_text(f"set -euo pipefail\n{verdict_lines('1.2', '$SLURM_JOB_NODELIST')}\n{body}\n")
    output = directory / "train-12.out"
    with output.open("ab") as file:
        done = subprocess.run(
            ["bash", str(script)], env=VARIABLES | variables, stdout=file, stderr=file, check=False
        )
    return done.returncode, output


def written_by(output: Path, job: str = "12", submitted: int | None = None) -> Written | None:
    return read_written(str(output), job=job, submitted=submitted)


# ---------------------------------------------------------------- what the shell writes


@pytest.mark.parametrize("code", [0, 7, 255])
def test_a_job_keeps_its_exit_code_nodes_and_versions(tmp_path: Path, code: int) -> None:
    exit_code, output = run_job(tmp_path, f"exit {code}")
    found = written_by(output)
    assert exit_code == code
    assert found is not None
    assert (found.exit_code, found.start, found.nodes) == (code, 1, "node[1-2]")
    assert found.versions["dslaunch"] == "1.2"
    assert found.ended is not None
    assert output.read_text() == "dslaunch: job 12, start 1 on node[1-2]\n"


def test_the_file_is_for_its_user_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    _, output = run_job(tmp_path, "exit 0")
    path = Path(f"{output}{VERDICT_SUFFIX}")
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"job.sh", output.name, path.name}


def test_the_evidence_is_of_the_last_start_alone(tmp_path: Path) -> None:
    run_job(tmp_path, "echo 'srun: error: node1: task 0: Exited with exit code 3' >&2; exit 3")
    fails = "echo 'srun: error: node2: task 1: Exited with exit code 7' >&2; exit 7"
    _, output = run_job(tmp_path, fails, SLURM_RESTART_COUNT="1")
    found = written_by(output)
    assert found is not None
    assert (found.start, found.exit_code) == (2, 7)
    assert found.evidence == ("srun: error: node2: task 1: Exited with exit code 7",)


def test_a_job_that_is_terminated_did_not_succeed(tmp_path: Path) -> None:
    exit_code, output = run_job(tmp_path, "kill -TERM $$; sleep 5")
    found = written_by(output)
    assert found is not None
    assert (exit_code, found.exit_code) == (143, 143)


def test_a_job_that_was_killed_has_no_end(tmp_path: Path) -> None:
    _, output = run_job(tmp_path, "kill -KILL $$; sleep 5")
    found = written_by(output)
    assert found is not None
    assert (found.exit_code, found.ended) == (None, None)


def test_text_of_ranks_cannot_break_the_file(tmp_path: Path) -> None:
    body = r"""printf 'srun: error: "quoted" \\ back\tslash \001 \303\251\n' >&2"""
    _, output = run_job(tmp_path, body)
    found = written_by(output)
    assert found is not None
    assert found.evidence[0].startswith("srun: error: ?quoted? ? back?slash")


def test_a_job_runs_where_its_directory_cannot_be_written(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mktemp").write_text("#!/bin/sh\nexit 1\n")
    (tools / "mktemp").chmod(0o755)
    exit_code, output = run_job(tmp_path, "exit 7", PATH=f"{tools}:{os.environ['PATH']}")
    assert exit_code == 7
    assert written_by(output) is None


# ---------------------------------------------------------------- what is believed


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output beside which a job has kept its verdict."""
    return run_job(tmp_path, "exit 7")[1]


def test_a_file_about_another_job_is_not_believed(output: Path) -> None:
    assert written_by(output, job="13") is None
    assert written_by(output, submitted=4_000_000_000) is None


def test_a_file_that_others_can_write_is_not_believed(output: Path) -> None:
    Path(f"{output}{VERDICT_SUFFIX}").chmod(0o666)
    assert written_by(output) is None


def test_a_file_of_another_user_is_not_believed(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert written_by(output) is None


def test_what_others_put_in_the_place_of_the_file_is_replaced_or_left(tmp_path: Path) -> None:
    """A link is not followed, and a directory gets nothing."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    path = tmp_path / f"train-12.out{VERDICT_SUFFIX}"
    path.symlink_to(kept)
    run_job(tmp_path, "exit 7")
    assert kept.read_text() == "mine"
    assert not path.is_symlink()
    path.unlink()
    path.mkdir()
    exit_code, output = run_job(tmp_path, "exit 7")
    assert (exit_code, list(path.iterdir())) == (7, [])
    assert {each.name for each in tmp_path.iterdir()} == {"job.sh", "kept", output.name, path.name}


def test_a_pipe_in_the_place_of_the_output_does_not_keep_the_job(tmp_path: Path) -> None:
    swap = f"rm {tmp_path}/train-12.out; mkfifo {tmp_path}/train-12.out; exit 7"
    exit_code, _ = run_job(tmp_path, swap)
    assert exit_code == 7


def test_nodes_cannot_be_an_option(output: Path) -> None:
    path = Path(f"{output}{VERDICT_SUFFIX}")
    path.write_text(path.read_text().replace("node[1-2]", "--help"))
    assert written_by(output) is None


def test_links_pipes_and_large_files_are_not_read(output: Path) -> None:
    path = Path(f"{output}{VERDICT_SUFFIX}")
    real = path.rename(path.with_name("real"))
    path.symlink_to(real)
    assert written_by(output) is None
    path.unlink()
    os.mkfifo(path)
    assert written_by(output) is None
    path.unlink()
    path.write_text(real.read_text() + " " * LARGEST)
    path.chmod(0o600)
    assert written_by(output) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(data=st.data())
def test_no_content_makes_the_reading_fail(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = {
        "version": 1, "job": "12", "array": "", "task": "", "start": 1, "began": 5, "ended": 6,
        "exit_code": 7, "nodes": "n", "batch_host": "n", "versions": {}, "evidence": [],
    }  # fmt: skip
    field = data.draw(st.sampled_from(sorted(good)))
    changed = json.dumps(good | {field: data.draw(JSON)}).encode()
    text = data.draw(st.just(changed) | st.binary(max_size=200))
    output = tmp_path_factory.mktemp("job") / "out"
    path = Path(f"{output}{VERDICT_SUFFIX}")
    path.write_bytes(text)
    path.chmod(0o600)
    found = written_by(output)
    assert found is None or 0 <= (found.exit_code or 0) <= 255


# ---------------------------------------------------------------- what it adds


def test_a_job_that_slurm_forgot_is_known_by_its_own_file(output: Path) -> None:
    info = completed(JobInfo("12", GONE), written_by(output))
    assert (info.state, info.code, info.nodes) == ("FAILED", 7, "node[1-2]")


def test_what_slurm_says_is_not_overruled(output: Path) -> None:
    info = JobInfo("12", "TIMEOUT")
    assert completed(info, written_by(output)) == info


def test_an_exit_code_that_sacct_prints_without_its_highest_bit_is_completed(
    tmp_path: Path,
) -> None:
    """sacct of 22.05 has 9:0 for a job that exited with 137."""
    _, output = run_job(tmp_path, "exit 137")
    info = completed(JobInfo("12", "FAILED", code=9), written_by(output))
    assert info.code == 137


@pytest.mark.parametrize(
    ("why", "state"),
    [("", "CANCELLED"), (" DUE TO TIME LIMIT", "TIMEOUT"), (" DUE TO PREEMPTION", "PREEMPTED")],
)
def test_a_forgotten_job_that_slurm_ended_did_not_just_fail(
    tmp_path: Path, why: str, state: str
) -> None:
    line = f"slurmstepd-a: error: *** JOB 12 ON a CANCELLED AT x{why} ***"
    _, output = run_job(tmp_path, f"echo '{line}' >&2; kill -TERM $$; sleep 5")
    assert completed(JobInfo("12", GONE), written_by(output)).state == state
