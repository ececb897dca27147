"""Commands that contact no node take time in proportion to the nodes of their files."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from benchmarks.offline_scale import COMMANDS, EXPECTED, prepare

from dslaunch.cli.main import main
from tests.growth import Work, grows

NODES = 60
"""Of the small input."""
FIRST = 500
"""Characters of the output of a command that is not printed."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that returns a directory with the files for a number of nodes."""
    made: dict[int, Path] = {}

    def of(nodes: int) -> Path:
        if nodes not in made:
            made[nodes] = tmp_path_factory.mktemp("many") / str(nodes)
            prepare(made[nodes], nodes)
        return made[nodes]

    return of


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command_takes_time_in_proportion_to_the_nodes(
    command: str, files: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the program sets its own

    def on(nodes: int) -> Work:
        directory = files(nodes)

        def work() -> None:
            monkeypatch.chdir(directory)
            monkeypatch.setenv("DSLAUNCH_STATE", str(directory / "state"))
            monkeypatch.setattr(sys, "argv", ["dslaunch", *command.split()])
            output = io.StringIO()
            with pytest.raises(SystemExit) as end, redirect_stdout(output), redirect_stderr(output):
                main()
            code = end.value.code or os.EX_OK
            assert code in EXPECTED, output.getvalue()[:FIRST]

        work()  # imports, and what is made once of each process
        return work

    assert not grows(on, NODES)
