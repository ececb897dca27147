"""Where a run has a status line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from dslaunch.cli.run_views import has_status_line


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A terminal."""
    reader, writer = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writer, "w") as file, os.fdopen(reader, "rb"):
        yield file


def test_a_terminal_has_a_status_line(terminal: TextIO) -> None:
    assert has_status_line(terminal, terminal)


def test_a_dumb_terminal_has_none(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not has_status_line(terminal, terminal)


def test_a_run_before_a_pipe_has_none(terminal: TextIO) -> None:
    """As in `dslaunch run ... | head`: head writes to the terminal, too."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        assert not has_status_line(pipe, terminal)


def test_a_run_with_its_output_in_a_file_has_one(terminal: TextIO, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert has_status_line(file, terminal)
