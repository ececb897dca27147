"""The output of a job: its last lines are found from its end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slurm.squeue import SUBMITTED, row

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.run.events import Event, Line
from dslaunch.run.handle import RunHandle
from dslaunch.run.local_runs import local_runs
from dslaunch.run.log_selection import LogSelection
from dslaunch.run.run_record import FILE
from dslaunch.run.view import View as AnyView
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.known_runs import handles
from dslaunch.slurm.output_tail import BLOCK, lines_backward

SAID = "slurm_load_jobs error: Invalid job id specified\nSlurm accounting storage is disabled\n"
FORGOTTEN = Done(1, "", SAID)


@dataclass
class View(AnyView):
    """Keeps what it is shown."""

    shown: list[str] = field(default_factory=list)

    def line(self, line: Line) -> None:
        self.shown.append(f"{line.host}:{line.rank} {line.text}")

    def event(self, event: Event) -> None:
        """Nothing."""


def job(state: Path, output: Path, done: Done) -> RunHandle:
    """A recorded job of two tasks, whose SLURM answers so."""

    def answer(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        return Done(0, "slurm 22.05.8\n", "") if "--version" in argv else done

    slurm = {
        "job": "12", "name": "train", "submitted": SUBMITTED, "output": str(output),
        "groups": [[2, 1]], "direct": True,
    }  # fmt: skip
    about = {
        "hosts": ["filed1", "filed2"], "world_size": 2, "launcher": "direct", "program": "t.py",
        "cluster": "pod", "started": 1.0, "detached": False, "agents": "run", "slurm": slurm,
    }  # fmt: skip
    directory = state / "runs" / "run"
    directory.mkdir(parents=True, mode=0o700)
    state.chmod(0o700)
    (directory / FILE).write_text(json.dumps(about))
    environ = {"DSLAUNCH_STATE": str(state)}
    (handle,) = handles(local_runs(environ).started, SlurmClient(environ, answer))
    return handle


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output whose beginning names the nodes, much longer than a block."""
    lines = [f"{number % 2}: step {number} loss 1.5\n" for number in range(9000)]
    path = tmp_path / "train.out"
    path.write_text("".join(["dslaunch: job 12, start 1 on a,b\n", *lines]))
    assert path.stat().st_size > 2 * BLOCK
    return path


@pytest.mark.parametrize("done", [Done(0, row(), ""), FORGOTTEN], ids=["running", "forgotten"])
def test_the_last_lines_have_their_nodes_and_ranks(
    tmp_path: Path, output: Path, done: Done
) -> None:
    if done is not FORGOTTEN:
        done = Done(0, row(nodelist="a,b", stdout=str(output)), "")
    handle = job(tmp_path / "state", output, done)
    view = View()
    handle.show_logs(view, print, LogSelection(tail=3), follow=False)
    assert view.shown == [
        "b:1 step 8997 loss 1.5", "a:0 step 8998 loss 1.5", "b:1 step 8999 loss 1.5",
    ]  # fmt: skip
    view.shown.clear()
    handle.show_logs(view, print, LogSelection(tail=2, ranks=frozenset((0,))), follow=False)
    assert view.shown == ["a:0 step 8996 loss 1.5", "a:0 step 8998 loss 1.5"]
    progress = handle.progress()
    assert progress is not None
    assert progress.step == 8998


def test_ranks_nodes_and_times_that_a_job_does_not_have_are_refused(
    tmp_path: Path, output: Path
) -> None:
    handle = job(tmp_path / "state", output, Done(0, row(nodelist="a,b"), ""))
    handle.check(LogSelection(ranks=frozenset((1,)), hosts=frozenset("ab")))
    for selection, code in (
        (LogSelection(ranks=frozenset((2,))), ErrorCode.RANKS_NOT_IN_RUN),
        (LogSelection(hosts=frozenset(("filed1",))), ErrorCode.NODES_NOT_IN_RUN),
        (LogSelection(since=1.0), ErrorCode.NO_LINE_TIMES),
        (LogSelection(until=1.0), ErrorCode.NO_LINE_TIMES),
    ):
        with pytest.raises(UsageError) as refused:
            handle.check(selection)
        assert refused.value.error_code is code


LINE = st.binary(max_size=5).map(lambda line: line.replace(b"\n", b" "))


@given(st.lists(LINE, min_size=1, max_size=8))
def test_lines_from_the_end_are_those_from_the_beginning(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("out") / "file"
    for text in (b"".join(line + b"\n" for line in lines), b"\n".join([*lines, b"end"])):
        path.write_bytes(text)
        with path.open("rb") as file:
            found = list(lines_backward(file.fileno(), os.fstat(file.fileno()).st_size))
        assert [line for _, line in reversed(found)] == text.removesuffix(b"\n").split(b"\n")
        assert all(text[start:].startswith(line) for start, line in found)
