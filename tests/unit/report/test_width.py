"""How wide what people read may be."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dslaunch.report.width import columns


def test_the_width_is_what_the_environment_says_then_the_terminals_then_80(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "file").open("w") as file:
        assert columns(file) == 80
        monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((132, 40)))
        assert columns(file) == 132
        monkeypatch.setenv("COLUMNS", "100")
        assert columns(file) == 100
        monkeypatch.setenv("COLUMNS", "0")
        assert columns(sys.stdout) == 80
