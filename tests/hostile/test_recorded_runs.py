"""Records of a run whose texts and numbers others chose: no command about runs passes them on."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dslaunch.run.recorded_events import read_events
from dslaunch.run.recorded_output import sample_output
from dslaunch.run.run_directory import EVENTS, LOGS, RESULT, SOURCES, RunDirectory
from dslaunch.run.run_inputs import FILE as INPUTS
from dslaunch.run.run_inputs import RunInputs
from dslaunch.run.run_record import FILE, RunRecord
from dslaunch.run.usage import USAGE, read_usage
from tests.hostile.laden_text import harmful

EVIL = (
    "<script>alert(1)</script><svg onload=x()>\"'><img src=x onerror=a()>&amp;]]>"
    "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\u2066\nanother line\rthird\u2028"
)
"""Markup, control sequences, directions of text, and ends of lines."""
RUN, OTHER = "1123-100000-train-0001", "1123-100001-train-0002"
EVIL_NAME = f"1123-100002-{EVIL.replace('/', '')[:150]}"
START = time.time() - 1000
WRONG_NUMBERS = (math.nan, math.inf, 1e308, -1, 10**30)


def impossible_events() -> list[dict[str, Any]]:
    """Events that no run has; each one names the node `impossible`."""
    event = {"time": START, "kind": "exit", "host": "impossible"}
    slower = {"rank": -3, "host": "impossible", "evidence": "cpu"}
    names = ("time", "rank", "signal", "pid", "seconds", "ranks", "nodes", "sent")
    changed = [{name: value} for name in names for value in WRONG_NUMBERS]
    more: list[dict[str, Any]] = [{"slower": [slower]}, {"kind": "x"}, {"host": "x" * 10_000}]
    return [event | each for each in (*changed, *more)]


def impossible_usage() -> list[dict[str, Any]]:
    usage = {"host": "impossible", "cpu": 0.5, "load": 1.0, "memory_used": 1, "memory_total": 2}
    names = ("time", "cpu", "load", "memory_used", "memory_total")
    return [{"time": START} | usage | {name: value} for name in names for value in WRONG_NUMBERS]


def json_lines(values: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def write_run(state: Path, name: str, arguments: tuple[str, ...], started: float = START) -> Path:
    """Write the record of a run that failed, with texts of others wherever there may be one."""
    host = f"n0{EVIL}"
    record = RunDirectory(state / "runs" / name)
    about = RunRecord(
        program=f"train.py{EVIL}",
        cluster=EVIL,
        launcher=EVIL,
        hosts=(host, "n1"),
        world_size=2,
        detached=False,
        agents="a",
        started=started,
        machine=EVIL,
    )
    record.write(FILE, about.as_json())
    inputs = RunInputs(
        kind="script", program=f"train.py{EVIL}", args=arguments, env=((EVIL, EVIL),), checked=True
    )
    record.write(INPUTS, inputs.as_json())
    ended = {"time": START + 9, "kind": "exit", "host": host, "rank": 0, "code": 1, "error": EVIL}
    events = [
        {"time": START + 1, "kind": "connected", "host": host},
        {"time": START + 2, "kind": "started", "host": host, "rank": 0},
        *impossible_events(),
        ended,
    ]
    record.write(EVENTS, json_lines(events))
    used = {"time": START + 3, "host": host, "cpu": 0.5, "load": 1.0}
    used |= {"memory_used": 1, "memory_total": 2}
    record.write(USAGE, json_lines([used, *impossible_usage()]))
    values = ("2.0", "nan", "1e308", "-1e308", "inf", "1e999", "1.5")
    output = [f"step {step} loss {loss}" for step, loss in enumerate(values)]
    output += ["step 9 loss 1 train_step_timing in s: 1e-310", EVIL]
    for number, text in enumerate(output):
        record.output("n0", 0, f"{text}\n".encode(), START + number, 1)
    failure = {"host": host, "rank": 1, "code": 1, "what": EVIL}
    result = {
        "status": "failed",
        "exit_code": 1,
        "reason": {"code": "rank-failed", "host": host, "rank": 0, "exit_code": 1},
        "cause": ended,
        "what": EVIL,
        "hint": EVIL,
        "last_lines": [EVIL, "x" * 100_000],
        "secondary": [failure],
        "left": [EVIL],
        "alike": [[host, 3]],
        "unconfirmed": [],
    }
    record.write(RESULT, json.dumps(result))
    record.let_go()
    return record.directory


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with three such runs; the name of one is hostile too."""
    state = tmp_path_factory.mktemp("records") / "state"
    write_run(state, RUN, ("--lr", "1", f"--{EVIL}", EVIL))
    write_run(state, OTHER, ("--lr", "2", f"--{EVIL}", f"{EVIL}x"), START + 1)
    write_run(state, EVIL_NAME, (), START + 2)
    return state


def called(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the program; its exit code is that of success, or of runs that differ."""
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "dslaunch", *words],
        cwd=state.parent,
        env=environ | {"DSLAUNCH_STATE": str(state)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert harmful(done.stdout + done.stderr) == set()
    return done


def test_output_is_read_from_the_logs_of_the_record_alone(tmp_path: Path) -> None:
    """Whoever made a record gets no other file of its reader into a page about the run."""
    (tmp_path / "secret").write_text("a secret\n")
    record = RunDirectory(tmp_path / "runs" / RUN)
    for rank in range(4):
        record.output("n0", rank, b"its log\n", START, 1)
    record.let_go()
    logs = record.directory / LOGS
    for rank in (1, 2):
        (logs / f"n0.{rank}.log").unlink()
    (logs / "n0.1.log").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "n0.2.log")
    names = ("../../../secret", "n0.1.log", "n0.2.log", "n0.3.log")
    (record.directory / SOURCES).write_text("".join(f"{name}\n" for name in names))
    found = [piece.data for piece in sample_output(record.directory, most=1000)]
    assert found == [b"", b"", b"", b"its log\n"]
    logs.rename(tmp_path / "logs")
    logs.symlink_to(tmp_path / "logs")
    assert not any(piece.data for piece in sample_output(record.directory, most=1000))


def test_events_that_are_impossible_are_left_out(state: Path) -> None:
    found = read_events(state / "runs" / RUN)
    assert [event.kind for event in found] == ["connected", "started", "exit"]


def test_measurements_that_are_impossible_are_left_out(state: Path) -> None:
    (found,) = read_usage(state / "runs" / RUN)
    assert found.cpu == 0.5


def test_a_list_of_runs_has_a_line_per_run(state: Path) -> None:
    assert len(called(state, "ps", "--all").stdout.splitlines()) == 4
    assert len(called(state, "ps", "--all", "--quiet").stdout.splitlines()) == 3
    assert len(json.loads(called(state, "ps", "--all", "--json").stdout)) == 3


def test_the_state_of_a_run_has_a_line_per_value(state: Path) -> None:
    shown = called(state, "status", RUN).stdout
    assert "another line" in shown
    assert not re.search(r"^\s*(?:another line|third)", shown, re.MULTILINE)
    assert "impossible" not in shown


def test_differences_of_runs_have_a_line_per_value(state: Path) -> None:
    shown = called(state, "diff", RUN, OTHER).stdout
    assert shown.startswith(f"{RUN} -> {OTHER}\n")
    assert not re.search(r"^\s*(?:another line|third)", shown, re.MULTILINE)
    named = called(state, "diff", RUN, EVIL_NAME).stdout
    assert len(named.partition("\n\n")[0].splitlines()) == 1


def test_the_page_of_a_run_has_no_markup_and_no_impossible_numbers(state: Path) -> None:
    called(state, "report", RUN, "--output", "page.html")
    page = (state.parent / "page.html").read_text()
    assert harmful(page) == set()
    assert not re.search(r"<(?:script|img)\b|<[^>]*\son\w+=", page)
    assert not re.search(r'="[^"]*\b(?:nan|inf)\b', page, re.IGNORECASE)
    assert "impossible" not in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)
