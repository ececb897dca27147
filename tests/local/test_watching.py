"""Metrics, recorded usage and notifications of real runs on this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dslaunch.run.usage import read_usage

UNTIL_MEASURED = """\
import pathlib, sys, time
print("step 5 loss 1.5", flush=True)
metrics = pathlib.Path(sys.argv[1])
while not metrics.exists() or "dslaunch_node_cpus" not in metrics.read_text():
    time.sleep(0.1)
print(metrics.read_text(), flush=True)
"""
TELLS = "import json, sys; json.dump(json.load(sys.stdin), open(sys.argv[1], 'w'))"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    (tmp_path / "c.yaml").write_text(
        f"nodes: [{{host: n1, slots: 1}}]\npython: {sys.executable}\nlauncher: direct\n"
        "transport: local\nstorage: {workdir: work}\n"
    )
    (tmp_path / "tells.py").write_text(TELLS)
    return tmp_path


def run(project: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (project / "job.py").write_text(script)
    options, arguments = words[: words.index("--")], words[words.index("--") + 1 :]
    command = [sys.executable, "-m", "dslaunch", "run", *options, "c.yaml", "job.py", *arguments]
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_run_exports_metrics_and_records_usage_until_its_end(project: Path) -> None:
    metrics = project / "dslaunch.prom"
    done = run(project, UNTIL_MEASURED, "--metrics", str(metrics), "--", str(metrics))
    assert done.returncode == 0, done.stderr
    assert re.search(r'dslaunch_node_cpus\{run="\S+",node="n1"\} \d+', done.stdout)
    assert re.search(r'dslaunch_rank_step\{run="\S+",node="n1",rank="0"\} 5', done.stdout)
    assert not metrics.exists()
    (directory,) = (project / "state/runs").iterdir()
    usage = next(read_usage(directory))
    assert (usage.host, [rank.rank for rank in usage.ranks]) == ("n1", [0])


def test_who_is_named_is_told_of_a_failure_and_cannot_change_it(project: Path) -> None:
    command = f"{sys.executable} tells.py told.json"
    nowhere = "http://127.0.0.1:1/T0/secret"
    script = "import sys; sys.exit(7)"
    done = run(project, script, "--notify", command, "--notify", nowhere, "--")
    assert done.returncode == 7
    told = json.loads((project / "told.json").read_text())
    assert (told["status"], told["exit_code"]) == ("failed", 7)
    assert (told["reason"]["code"], told["reason"]["rank"]) == ("rank-failed", 0)
    (directory,) = (project / "state/runs").iterdir()
    assert told["run"] == directory.name
    (warning,) = [line for line in done.stderr.splitlines() if "--notify" in line]
    assert "127.0.0.1:1" in warning
    assert "secret" not in warning


def test_a_run_that_cannot_be_started_is_told_too(project: Path) -> None:
    cluster = project / "c.yaml"
    cluster.write_text(cluster.read_text().replace(sys.executable, "/missing/python"))
    command = f"{sys.executable} tells.py told.json"
    done = run(project, "", "--notify", command, "--")
    assert done.returncode != 0
    told = json.loads((project / "told.json").read_text())
    assert (told["run"], told["reason"]["code"]) == (None, "not-started")
    assert told["exit_code"] == done.returncode


@pytest.mark.parametrize("option", [("--notify", "true"), ("--metrics", "x.prom")])
def test_a_detached_run_has_no_launcher_for_it(project: Path, option: tuple[str, str]) -> None:
    done = run(project, "", "--detach", *option, "--")
    assert done.returncode == 2
    assert not (project / "state").exists()
