"""Where a run has a status line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from dslaunch.cli.run_views import has_status_line


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal that is standard error and standard output."""
    reader, writer = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writer, "w") as file, os.fdopen(reader, "rb"):
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setattr(sys, "stdout", file)
        yield writer


def test_a_terminal_has_a_status_line(terminal: int) -> None:
    assert has_status_line()


def test_a_dumb_terminal_has_none(terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not has_status_line()


def test_a_run_before_a_pipe_has_none(terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `dslaunch run ... | head`: head writes to the terminal, too."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert not has_status_line()


def test_a_run_with_its_output_in_a_file_has_one(
    terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert has_status_line()
