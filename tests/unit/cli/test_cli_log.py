"""`--verbose` and `--log-file`: what is logged, where, and what never is."""

from __future__ import annotations

import json
import logging
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.streams import read_terminal

from dslaunch.report.output_stream import ERASE

Dslaunch = Callable[..., subprocess.CompletedProcess[str]]
DSLAUNCH = [sys.executable, "-m", "dslaunch"]
SECRET = "correct horse battery staple"
EMULATED = """\
nodes: [{host: "node[1-2]", slots: 1}]
transport: local
launcher: direct
storage: {workdir: work}
secrets: [TOKEN]
"""
RUN = ["run", "--no-python", "e.yaml", "--no-preflight", "--grace", "1"]


@pytest.fixture
def environment(directory: Path) -> dict[str, str]:
    """That of a run on emulated nodes with a secret."""
    (directory / "e.yaml").write_text(EMULATED)
    return os.environ | {"DSLAUNCH_STATE": str(directory / "state"), "TOKEN": SECRET}


def logged(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_logs_its_steps_with_node_run_and_time(environment: dict[str, str], directory: Path):
    words = [*RUN, "--log-file", "log", "echo", "x"]
    subprocess.run([*DSLAUNCH, *words], env=environment, check=True, capture_output=True)
    found = logged(directory / "log")
    (run,) = (directory / "state" / "runs").iterdir()
    steps = {(each["event"], each.get("node"), each.get("run")) for each in found}
    for node in ("node1", "node2"):
        assert {("connected", node, None)} <= steps
        assert {(e, node, run.name) for e in ("agent-started", "asked", "planned", "sent")} <= steps
    assert ("decided", None, run.name) in steps
    timed = [e for e in found if e["event"] in ("connected", "agent-started", "answered")]
    assert len(timed) > 6
    assert all(isinstance(each["seconds"], int | float) for each in timed)


@pytest.mark.parametrize("option", ["-v", "-vv"])
def test_no_log_has_a_secret(environment: dict[str, str], directory: Path, option: str):
    program = ["echo", f"--token={SECRET}"]
    words = [option, "--log-file", "log", *RUN, "--env", f"COPY={SECRET}", *program]
    done = subprocess.run(
        [*DSLAUNCH, *words], env=environment, check=True, capture_output=True, text=True
    )
    text = (directory / "log").read_text()
    assert SECRET not in text + done.stderr
    planned = [each for each in logged(directory / "log") if each["event"] == "planned"]
    assert planned[0]["argv"] == ["echo", "--token=***"]
    assert '"COPY=***"' in text


def test_a_log_file_is_for_this_user_alone_and_is_appended_to(
    dslaunch: Dslaunch, cluster_file: Path, directory: Path
):
    file = directory / "log"
    file.write_text("{}\n")
    file.chmod(0o644)
    assert dslaunch("nodes", "c.yaml", "--log-file", "log").returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith("{}\n")


@pytest.mark.parametrize("file", [".", "no/log", "link"])
def test_a_log_file_that_cannot_be_written_is_refused(
    dslaunch: Dslaunch, cluster_file: Path, directory: Path, file: str
):
    (directory / "link").symlink_to(directory / "c.yaml")
    done = dslaunch("nodes", "c.yaml", "--log-file", file)
    assert done.returncode == 2
    assert f"--log-file {file}" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-v", "config", "examples"],
        ["config", "examples", "-v"],
        ["nodes", "-v", "c.yaml"],
        ["render", "hostfile", "c.yaml", "-v"],
    ],
    ids=" ".join,
)
def test_the_options_stand_before_and_behind_every_command(
    dslaunch: Dslaunch, cluster_file: Path, words: list[str]
):
    before = (logging.getLogger().level, list(logging.getLogger().handlers))
    assert dslaunch(*words).returncode == 0
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before


def test_what_stands_behind_the_script_is_the_scripts(environment: dict[str, str]):
    done = subprocess.run(
        [*DSLAUNCH, *RUN, "echo", "-v"], env=environment, check=True, capture_output=True, text=True
    )
    assert "node1:0│-v" in done.stdout.splitlines()
    assert "agent-started" not in done.stderr


def test_a_log_line_takes_the_place_of_the_progress_line(environment: dict[str, str]):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*DSLAUNCH, *RUN, "-v", "echo", "x"], stdout=subprocess.DEVNULL, stderr=theirs,
        env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = read_terminal(ours)
    os.close(ours)
    lines = shown.decode().splitlines()
    ends = [line.rpartition(ERASE)[2] for line in lines if "agent-started" in line]
    assert process.returncode == 0
    assert len(ends) == 2
    assert not any("nodes connected" in end for end in ends)
