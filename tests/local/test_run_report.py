"""Real runs: their page, and what differs between them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest
from tests.local.conftest import Emulated, Seen

import dslaunch
from dslaunch.report.run_page import run_page
from dslaunch.run.compare_runs import Topic
from dslaunch.run.recorded_events import read_events
from dslaunch.run.run_inputs import FILE, RunInputs, read_inputs
from dslaunch.run.run_state import State

TRAIN = """
import os, sys, time
rank = int(os.environ["RANK"])
for step in range(5):
    time.sleep(0.01)
    print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
if "--crash" in sys.argv and rank == 1:
    raise RuntimeError("CUDA out of memory <script>alert(1)</script>")
"""
CONFIG = (
    '{"train_batch_size": 12, "zero_optimization": {"stage": 2}, "comet": {"api_key": "sesame"}}'
)
"""With a secret in it."""


def inputs_of(seen: Seen) -> RunInputs:
    assert seen.directory is not None
    found = read_inputs(seen.directory / FILE)
    assert found is not None
    return found


def called(emulated: Emulated, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dslaunch", *words]
    return subprocess.run(
        command,
        cwd=emulated.path,
        env=emulated.environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def good(emulated: Emulated) -> Seen:
    """A run that has succeeded, with a DeepSpeed config."""
    (emulated.path / "ds.json").write_text(CONFIG)
    return emulated.run(TRAIN, "--lr", "1e-4", "--deepspeed_config", "ds.json")


def test_a_run_records_what_it_was_started_from(good: Seen) -> None:
    inputs = inputs_of(good)
    assert inputs.args == ("--lr", "1e-4", "--deepspeed_config", "ds.json")
    assert {path for path, _ in inputs.files} == {"ds.json", "job.py"}
    assert inputs.checked
    assert {name for group in inputs.versions for name in group.versions} >= {"python", "torch"}


def test_a_run_records_its_config_before_and_after_without_secrets(good: Seen) -> None:
    (config,) = inputs_of(good).configs
    assert "sesame" not in config.model_dump_json()
    assert "checkpoint" not in json.loads(config.given)
    assert json.loads(config.used or "")["checkpoint"] == {"use_node_local_storage": True}


def test_the_record_is_private(good: Seen) -> None:
    assert good.directory is not None
    assert stat.S_IMODE((good.directory / FILE).stat().st_mode) == 0o600


def test_connections_and_shipped_files_are_recorded(good: Seen) -> None:
    assert good.directory is not None
    events = read_events(good.directory)
    kinds = {event.kind for event in events}
    assert {"connected", "shipped", "started", "exit", "ended"} <= kinds
    assert {event.host for event in events if event.kind == "connected"} == {"n0", "n1"}


def test_details_have_progress_and_last_lines(good: Seen) -> None:
    details = dslaunch.run_details()
    assert details.status.state is State.SUCCEEDED
    assert [point.step for point in details.progress.points] == [0, 1, 2, 3, 4]
    assert details.last_lines["n0", 0][-1] == "step 4 loss 0.200"
    assert details.ended is not None


def test_page_of_a_failed_run_has_its_root_cause(emulated: Emulated) -> None:
    emulated.run(TRAIN, "--crash")
    page = run_page(dslaunch.run_details())
    assert "rank 1 on n0 failed first: exit code 1" in page
    assert "GPU out of memory" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>" not in page


def test_damaged_records_are_left_out_of_the_page(emulated: Emulated, good: Seen) -> None:
    assert good.directory is not None
    for name in ("plan.json", FILE, "cluster.json"):
        (good.directory / name).write_text("{")
    with (good.directory / "events.jsonl").open("a") as file:
        file.write("no event\n")
    done = called(emulated, "report", "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 damaged line" in (emulated.path / "page.html").read_text()


def test_report_writes_a_file_named_after_the_run(emulated: Emulated, good: Seen) -> None:
    assert good.directory is not None
    done = called(emulated, "report", "latest")
    assert done.stderr == f"wrote {good.directory.name}.html\n"
    assert called(emulated, "report", "-o", "-").stdout.startswith("<!DOCTYPE html>")


def test_diff_compares_with_the_last_good_run(emulated: Emulated, good: Seen) -> None:
    emulated.run(TRAIN, "--lr", "3e-4", "--crash", "--deepspeed_config", "ds.json")
    bad = emulated.run(TRAIN + "#\n", "--lr", "3e-4", "--crash", env=(("DEBUG", "1"),))
    assert good.directory is not None
    assert bad.directory is not None
    done = called(emulated, "diff", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["first"], found["second"]) == (good.directory.name, bad.directory.name)
    names = {topic["topic"]: [c["name"] for c in topic["changes"]] for topic in found["topics"]}
    assert names["arguments"] == ["--lr", "--deepspeed_config", "--crash"]
    assert names["code"] == ["job.py"]
    assert names["environment"] == ["DEBUG"]


def test_runs_that_differ_in_nothing_are_equal(emulated: Emulated, good: Seen) -> None:
    emulated.run(TRAIN, "--lr", "1e-4", "--deepspeed_config", "ds.json")
    done = called(emulated, "diff", "latest~1", "latest")
    assert done.stdout.splitlines()[1:] == ["no differences found"]
    assert done.returncode == 0


def test_runs_to_compare_must_exist(emulated: Emulated, good: Seen) -> None:
    assert called(emulated, "diff", "latest~7", "latest").returncode == 2
    assert called(emulated, "diff", "nothing", "latest").returncode == 2
    with pytest.raises(dslaunch.UsageError):
        dslaunch.compare_runs()


def test_comparison_by_the_python_api(emulated: Emulated, good: Seen) -> None:
    emulated.run(TRAIN, "--lr", "2e-4", "--deepspeed_config", "ds.json")
    (topic,) = dslaunch.compare_runs("latest~1", "latest").topics
    assert topic.topic is Topic.ARGUMENTS
    assert [(c.name, c.first, c.second) for c in topic.changes] == [("--lr", "1e-4", "2e-4")]
