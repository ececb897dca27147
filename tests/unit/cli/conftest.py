"""Calling the whole program, in this process where that is enough."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch.cli.main import main

TWO_NODES = """\
name: pod
nodes:
  - {host: "gpu[01-02]", slots: 8}
  - {host: spare01, slots: 4, spare: true}
"""

Called = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and nothing about clusters in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("DSLAUNCH_CLUSTER", "COLUMNS", "NO_COLOR", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cluster_file(directory: Path) -> Path:
    """A small cluster as c.yaml."""
    path = directory / "c.yaml"
    path.write_text(TWO_NODES)
    return path


@pytest.fixture
def dslaunch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Called]]:
    """Call the program with these words, in this process."""
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def call(*words: str) -> Called:
        monkeypatch.setattr(sys, "argv", ["dslaunch", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        code = left.value.code
        assert code is None or isinstance(code, int)
        return subprocess.CompletedProcess(list(words), code or 0, out, err)

    yield call
    signal.signal(signal.SIGINT, handler)
