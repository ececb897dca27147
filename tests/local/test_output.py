"""Output that would harm a terminal or fill the memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

METER = (
    "import json, resource, subprocess, sys\n"
    "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(json.dumps([done.returncode, used.ru_maxrss // 1024]))\n"
)
MIB = 1 << 20


def run_measured(path: Path, script: str) -> tuple[int, int, Path]:
    """Exit code, peak MiB of the launcher or an agent, and the directory of logs."""
    (path / "job.py").write_text(script)
    (path / "c.yaml").write_text(
        f"nodes: [{{host: n1, slots: 1}}]\npython: {sys.executable}\nlauncher: direct\n"
        "transport: local\nstorage: {workdir: work}\n"
    )
    command = [sys.executable, "-c", METER, sys.executable, "-m", "dslaunch", "run", "c.yaml"]
    done = subprocess.run(
        [*command, "job.py"], cwd=path, capture_output=True, text=True, timeout=300, check=True
    )
    code, peak = json.loads(done.stdout)
    (logs,) = (path / "state" / "runs").glob("*/logs")
    return code, peak, logs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    return tmp_path


def test_200_megabytes_without_a_newline_are_logged_and_fill_no_memory(project: Path) -> None:
    script = "import sys\nfor _ in range(200):\n    sys.stdout.write('x' * (1 << 20))\n"
    code, peak, logs = run_measured(project, script)
    assert code == 0
    assert (logs / "n1.0.log").stat().st_size == 200 * MIB
    assert peak < 150


def test_bytes_that_are_no_text_arrive_in_the_log_unchanged(project: Path) -> None:
    script = "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 100 + b'\\n')\n"
    code, _, logs = run_measured(project, script)
    assert code == 0
    assert (logs / "n1.0.log").read_bytes() == bytes(range(256)) * 100 + b"\n"
