"""Rehearsals of real jobs: what is broken is named, and what is sound is not called broken.

`DSLAUNCH_REHEARSALS=FILE` appends what each rehearsal has found to a file, from which
`tests.rehearsal.table` makes docs/reference/rehearsals.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dslaunch import api
from dslaunch.cluster.model import Cluster, Node, Storage
from dslaunch.errors import DslaunchError, PreflightError
from dslaunch.launch.job import Job as DslaunchJob
from tests.rehearsal.jobs import NODES, SCRIPT, BrokenJob, Job, Outcome, broken_jobs, sound_jobs

RECORD = "DSLAUNCH_REHEARSALS"
IN_EVERY_TEST_RUN = frozenset({"no-distributed-sampler"})
"""The representative of all jobs: each starts processes that import torch, 9 to 15 s of processor
time, so that the others are long. `tests/local` rehearses a sound job and one that fails."""
TIME_LIMIT = 300.0
HANG_TIMEOUT = 20.0
"""Seconds without progress of a job that hangs; it need not be waited for longer."""
OTHER_TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def _own_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test separate emulated nodes, whose directories are below the state directory."""
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of a job."""

    verdict: str
    """`refused`: it was not started."""
    codes: frozenset[str]
    """Of errors and warnings."""
    first: str
    """The first finding as text."""
    seconds: float
    """How long the rehearsal took, with connecting and all checks."""


def rehearse(job: Job, path: Path, *, hang_timeout: float) -> Result:
    """Rehearse a job on two nodes emulated on this machine."""
    project = path / "project"
    for name, text in {SCRIPT: job.script, **job.files}.items():
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shared = path / "shared"
    shared.mkdir()
    slots = tuple(range(job.slots))
    nodes = tuple(Node(f"n{number}", slots, python=sys.executable) for number in range(NODES))
    storage = Storage(workdir=str(shared) if job.shared else "work")
    began = time.monotonic()
    try:
        result = api.rehearse(
            Cluster("test", nodes, transport="local", storage=storage),
            DslaunchJob(
                SCRIPT, job.args, launcher=job.launcher, launcher_args=tuple(job.launcher_args)
            ),
            cwd=project,
            time_limit=TIME_LIMIT,
            grace=5.0,
            hang_timeout=hang_timeout,
        )
    except DslaunchError as error:
        seconds = time.monotonic() - began
        first = error.message.splitlines()[0]
        return Result("refused", frozenset(_codes_of(error)), first, seconds)
    seconds = time.monotonic() - began
    severe = [each for each in result.findings if each.level != "info"]
    first = f"{severe[0].where}: {severe[0].text}" if severe else ""
    codes = frozenset(each.code for each in severe)
    return Result(result.verdict.value, codes, first, seconds)


def _codes_of(error: DslaunchError) -> Iterable[str]:
    """Return the codes of what prevented a start."""
    yield str(error.error_code)
    for problem in getattr(error, "problems", ()):
        yield problem.rule
    if isinstance(error, PreflightError):
        for _, check in error.checks:
            yield check


def record(row: dict[str, object]) -> None:
    """Add a row for the table, if that is wanted."""
    if RECORD in os.environ:
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(json.dumps(row) + "\n")


def parameter(job: Job, value: BrokenJob | Job) -> object:
    """A job as a parameter; all but the representatives are long."""
    missing = [name for name in job.requires if importlib.util.find_spec(name) is None]
    marks = [pytest.mark.torch]
    if job.name not in IN_EVERY_TEST_RUN:
        marks.append(pytest.mark.long)
    if missing:
        marks.append(pytest.mark.skip(reason=f"needs {', '.join(missing)}"))
    return pytest.param(value, id=job.name, marks=marks)


@pytest.mark.parametrize("broken", [parameter(each.job, each) for each in broken_jobs()])
def test_a_broken_job_is_named_by_one_of_its_codes(broken: BrokenJob, tmp_path: Path) -> None:
    hangs = broken.outcome is Outcome.HANGS
    result = rehearse(broken.job, tmp_path, hang_timeout=HANG_TIMEOUT if hangs else OTHER_TIMEOUT)
    named = result.codes & broken.expect
    codes = sorted(named or result.codes)
    record(
        {
            "job": broken.job.name,
            "recognized": bool(named),
            "verdict": result.verdict,
            "codes": codes,
            "first": result.first,
            "seconds": result.seconds,
        }
    )
    assert named, result


@pytest.mark.parametrize("job", [parameter(each, each) for each in sound_jobs()])
def test_a_sound_job_is_not_called_broken(job: Job, tmp_path: Path) -> None:
    result = rehearse(job, tmp_path, hang_timeout=OTHER_TIMEOUT)
    row = {"job": job.name, "recognized": None, "verdict": result.verdict}
    record({**row, "seconds": result.seconds})
    assert result.verdict in ("would-run", "not-rehearsed"), result
