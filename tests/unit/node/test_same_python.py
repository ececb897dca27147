"""What the job's interpreter has is the same whether it is started or a copy of the program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pythons import interpreter

from dslaunch.cluster.load import parse_cluster
from dslaunch.preflight.check import Scope
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.conversation import Conversation
from dslaunch.preflight.logins import log_in
from dslaunch.preflight.runner import Here
from dslaunch.pysource.imports import Imports
from dslaunch.transport.base import Channel
from dslaunch.transport.future import done_with
from dslaunch.transport.process import ProcessChannel

IMPORTS = Imports(certain=("ours", "beside", "nonesuch", "dslaunch", "select", "json.tool", "zlib"))
STARTED = "PYTHONIOENCODING"
"""A variable with which the interpreter is started."""
WHICH = "import sys; print('copy' if sys.flags.isolated else 'started')\n"
"""A line of a start-up file that says how it was started."""


class Machine(Here):
    """This machine, with another home directory."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        env = {"HOME": str(self.home), "PATH": os.defpath, "LANG": "C.UTF-8"}
        return ProcessChannel(["/bin/sh", "-c", line], text=text, env=env, cwd=str(self.home))


def answer(home: Path, python: str, **env: str) -> dict[str, Any]:
    """Return how the interpreter of a job with these variables ended, and what it reported."""
    settings = {"nodes": [{"host": "n1", "slots": 1, "python": python, "env": env}]}
    cluster = parse_cluster(str(settings), "c.yaml")
    node = cluster.nodes[0]
    scope = Scope(cluster, cluster.nodes, directories=(str(home / "work"),), imports=IMPORTS)
    question = job.ask(scope)["job"]
    talk = Conversation(node)
    try:
        talk.open(done_with(log_in(node, Machine(home)))).result()
        talk.ask([question])
    finally:
        talk.end()
    found: dict[str, Any] = talk.answers[question.key]["value"]
    return found


def executable(minor: int) -> str:
    """Return the path of a Python 3 of that minor version, which no shim hides."""
    command = [interpreter(minor), "-c", "import sys; print(sys.executable)"]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()


def packages_of_user(home: Path, minor: int) -> Path:
    """Return the directory of the user's packages, with one package and a start-up file."""
    (home / "work/beside").mkdir(parents=True)
    packages = home / f".local/lib/python3.{minor}/site-packages"
    (packages / "ours").mkdir(parents=True)
    (packages / "ours/__init__.py").touch()
    (packages / "torch-2.5.1.dist-info").mkdir()
    (packages / "first.pth").write_text(WHICH)
    return packages


@pytest.mark.parametrize("minor", range(8, 15))
def test_a_copy_reports_what_the_interpreter_does(tmp_path: Path, minor: int) -> None:
    packages_of_user(tmp_path, minor)
    python = executable(minor)
    copied, started = answer(tmp_path, python), answer(tmp_path, python, **{STARTED: "utf-8"})
    assert (copied.pop("out"), started.pop("out")) == ("copy\n", "started\n")
    assert copied == started
    assert (copied["code"], copied["err"]) == (0, "")
    assert "site-packages/ours" in copied["report"]
    assert '"torch": ["2.5.1"' in copied["report"]


def test_a_copy_is_in_the_environment_of_its_interpreter(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages_of_user(tmp_path, sys.version_info.minor)  # which an environment hides
    (packages,) = (tmp_path / "venv/lib").glob("python3.*/site-packages")
    (packages / "own.pth").write_text(WHICH)
    python = str(tmp_path / "venv/bin/python")
    copied, started = answer(tmp_path, python), answer(tmp_path, python, **{STARTED: "utf-8"})
    assert {*copied.pop("out").split()} == {"copy"}
    assert {*started.pop("out").split()} == {"started"}
    assert copied == started
    assert f'"prefix": "{tmp_path}/venv"' in copied["report"]
    assert "site-packages/ours" not in copied["report"]


def test_a_copy_ends_as_the_interpreter_does_whose_start_up_file_exits(tmp_path: Path) -> None:
    minor = sys.version_info.minor
    packages = packages_of_user(tmp_path, minor)
    (packages / "usercustomize.py").write_text("raise SystemExit(3)\n")
    python = executable(minor)
    copied, started = answer(tmp_path, python), answer(tmp_path, python, **{STARTED: "utf-8"})
    assert copied["code"] == started["code"] == 1
    assert copied["err"] == started["err"] != ""
    assert copied["report"] == started["report"] == f"activated\n{python}\n"


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONPATH": "/somewhere"},
        {"LD_LIBRARY_PATH": "/somewhere"},
        {"LC_ALL": "C"},
        {"PATH": "/nowhere"},
        {"LONG": "x" * 70_000},
    ],
    ids=lambda env: " ".join(env),
)
def test_an_interpreter_is_started_if_variables_may_make_a_difference(
    tmp_path: Path, env: dict[str, str]
) -> None:
    packages_of_user(tmp_path, 11)
    assert answer(tmp_path, "python3", **env)["out"] != "copy\n"


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUNBUFFERED"]
)
def test_other_variables_make_no_difference(tmp_path: Path, name: str) -> None:
    minor = sys.version_info.minor
    packages = packages_of_user(tmp_path, minor)
    (packages / "usercustomize.py").touch()
    assert answer(tmp_path, executable(minor), **{name: "1"})["out"] == "copy\n"
    assert (packages / "__pycache__").exists() == (name != "PYTHONDONTWRITEBYTECODE")
