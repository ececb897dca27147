"""Rehearsals of real jobs on the virtual cluster: what is broken is named within a minute, and what
is sound is not called broken.

`DSLAUNCH_REHEARSALS=FILE` appends what each rehearsal has found to a file, from which
`tests.rehearsal.table` makes docs/reference/rehearsals.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.jobs import NODES, BrokenJob, Job, Outcome, broken_jobs, sound_jobs
from tests.testbed.project import Project
from tests.testbed.vcluster import VirtualCluster

RECORD = "DSLAUNCH_REHEARSALS"
IN_EVERY_TEST_RUN = frozenset({"no-distributed-sampler"})
"""The representative of all jobs: each starts processes that import torch, 9 to 15 s of processor
time, so that the others are long. `tests/local` rehearses a sound job and one that fails."""
HANG_TIMEOUT = 20.0
"""Seconds without progress of a job that hangs; it need not be waited for longer."""
OTHER_TIMEOUT = 120.0
LIMIT = 2400
"""Seconds for one rehearsal: the time limit does not count half an hour of building kernels."""
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of a job."""

    verdict: str
    codes: frozenset[str]
    """Of errors and warnings."""
    first: str
    """The first finding as text."""
    seconds: float
    """How long the command took, with logins and all checks."""
    load: float
    """Processes that wanted one of the CPUs of this machine, on average while it ran."""
    processor: float
    """Seconds of processor time of the command and of all that it started on the nodes."""


def rehearse(project: Project, job: Job, *, hang_timeout: float) -> Result:
    """Rehearse a job on two nodes of the cluster."""
    workdir = f"/shared/{job.name}" if job.shared else "work"
    project.describe(
        f"nodes: [{{host: 'node[1-{NODES}]', slots: {job.slots}}}]",
        storage=f"{{workdir: {workdir}}}",
    )
    words = [job.name, "../c.yaml", "--hang-timeout", str(hang_timeout)]
    here = f"{project.path}/job"
    project.cluster.run("control", ["mkdir", here], check=True)
    used_before = processor_time(project.cluster)
    began = time.monotonic()
    done = project.cluster.run(
        "control",
        [sys.executable, "-m", "tests.rehearsal.rehearse_job", *words],
        cwd=here,
        env={"PYTHONPATH": str(CHECKOUT)},
        timeout=LIMIT,
    )
    seconds = time.monotonic() - began
    used = processor_time(project.cluster) - used_before
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    codes = frozenset(found["codes"])
    load, _, _ = os.getloadavg()
    return Result(found["verdict"], codes, found["first"], seconds, load, used)


def processor_time(cluster: VirtualCluster) -> float:
    """Return the seconds of processor time of this process's children and of the nodes' processes
    so far, with those that have ended and that their parents have waited for."""
    ticks = 0
    for node in cluster.names:
        stats = cluster.run(node, ["sh", "-c", "cat /proc/[0-9]*/stat"]).stdout
        ticks += sum(_ticks(line) for line in stats.splitlines())
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def _ticks(stat: str) -> int:
    """Return utime, stime, cutime and cstime of a line of /proc/PID/stat (proc(5)) together."""
    _, _, behind_name = stat.rpartition(")")
    return sum(map(int, behind_name.split()[11:15]))


def record(name: str, result: Result, named: frozenset[str] | None) -> None:
    """Add a row for the table, if that is wanted. `named`: the expected codes that were found."""
    if RECORD not in os.environ:
        return
    row = {
        "date": datetime.now(UTC).date().isoformat(),
        "job": name,
        "recognized": None if named is None else bool(named),
        "verdict": result.verdict,
        "codes": sorted(named or result.codes),
        "first": result.first,
        "seconds": round(result.seconds, 1),
        "load": round(result.load, 1),
        "processor": round(result.processor, 1),
    }
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
def test_a_broken_job_is_named_by_one_of_its_codes(broken: BrokenJob, project: Project) -> None:
    hangs = broken.outcome is Outcome.HANGS
    result = rehearse(project, broken.job, hang_timeout=HANG_TIMEOUT if hangs else OTHER_TIMEOUT)
    named = result.codes & broken.expect
    record(broken.job.name, result, named)
    assert named, result


@pytest.mark.parametrize("job", [parameter(each, each) for each in sound_jobs()])
def test_a_sound_job_is_not_called_broken(job: Job, project: Project) -> None:
    result = rehearse(project, job, hang_timeout=OTHER_TIMEOUT)
    record(job.name, result, None)
    assert result.verdict in ("would-run", "not-rehearsed"), result
