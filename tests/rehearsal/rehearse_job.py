"""Rehearse one job of the set, and print what was found as one line of JSON.

    python -m tests.rehearsal.rehearse_job NAME CLUSTER [--hang-timeout SECONDS]

The job's files are written to the working directory, which is to be empty.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from dslaunch import api
from dslaunch.cluster.model import Cluster
from dslaunch.errors import DslaunchError, PreflightError
from dslaunch.launch.job import Job as DslaunchJob
from tests.rehearsal.jobs import SCRIPT, Job, broken_jobs, sound_jobs

TIME_LIMIT = 300.0
REFUSED = "refused"
"""The verdict on a job that was not started."""


def rehearse(job: Job, cluster_file: Path, hang_timeout: float) -> Mapping[str, object]:
    """Return the verdict, the codes of errors and warnings, and the first of them as text."""
    for name, text in {SCRIPT: job.script, **job.files}.items():
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    started = DslaunchJob(
        SCRIPT, job.args, launcher=job.launcher, launcher_args=tuple(job.launcher_args)
    )
    try:
        result = api.rehearse(
            Cluster.load(str(cluster_file)),
            started,
            time_limit=TIME_LIMIT,
            grace=5.0,
            hang_timeout=hang_timeout,
        )
    except DslaunchError as error:
        first = error.message.splitlines()[0]
        return {"verdict": REFUSED, "codes": sorted(set(_codes_of(error))), "first": first}
    severe = [each for each in result.findings if each.level != "info"]
    first = f"{severe[0].where}: {severe[0].text}" if severe else ""
    codes = sorted({each.code for each in severe})
    return {"verdict": result.verdict.value, "codes": codes, "first": first}


def _codes_of(error: DslaunchError) -> Iterable[str]:
    """Return the codes of what prevented a start."""
    yield str(error.error_code)
    for problem in getattr(error, "problems", ()):
        yield problem.rule
    if isinstance(error, PreflightError):
        for _, check in error.checks:
            yield check


def main() -> None:
    """Rehearse the job that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal.rehearse_job")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("cluster", metavar="CLUSTER", type=Path, help="a cluster file")
    parser.add_argument("--hang-timeout", metavar="SECONDS", type=float, default=120.0)
    options = parser.parse_args()
    jobs = {job.name: job for job in (*(b.job for b in broken_jobs()), *sound_jobs())}
    found = rehearse(jobs[options.name], options.cluster, options.hang_timeout)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
