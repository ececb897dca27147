"""Runs that are jobs of SLURM, for `ps`, `status`, `logs` and `stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dslaunch.cli import ui
from dslaunch.errors import DslaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dslaunch.run.state import Local
    from dslaunch.run.watch import Screen
    from dslaunch.slurm.job import Submitted
    from dslaunch.slurm.states import JobInfo

HEAD = ("JOB", "STATE", "NODES", "STARTS", "REASON")


def is_slurm(run: Local | None) -> bool:
    """Whether a recorded run is a job of SLURM."""
    return run is not None and isinstance(run.about.get("slurm"), dict)


def state(run: Local) -> str:
    """How it stands, in a word or two; by the record alone once the end was seen."""
    if run.result is not None:
        words = {"ok": "ended well", "failed": "failed", "interrupted": "stopped"}
        return words.get(str(run.result["status"]), "unknown")
    try:
        return _word(_jobs(run))
    except DslaunchError:
        return "unknown"


def page(run: Local) -> str:
    """The job, each task and component of it, and why it ended or waits. Raises DslaunchError."""
    from dslaunch.cli.ps import ago

    jobs = _jobs(run)
    word = state(run) if run.result is not None else _word(jobs)
    head = f"{run.run}: {word}, job {_made(run).number}, started {ago(run.about['started'])}"
    if run.result is not None and {info.state for info in jobs} == {"GONE"}:
        return f"{head}\n{run.result['message']}\noutput: {_made(run).output}"
    rows = [HEAD, *(_row(info) for info in jobs)]
    result = [f"output: {info.output}" for info in jobs if info.output and info.component == 0]
    return "\n".join([head, ui.table(rows, ui.width()), *result])


def data(run: Local) -> dict[str, Any]:
    """The same for JSON."""
    from dataclasses import asdict

    jobs = [asdict(info) for info in _jobs(run)]
    return {"run": run.run, "state": state(run), "jobs": jobs, "result": run.result}


def show(run: Local, screen: Screen, *, follow: bool) -> None:
    """Give what it has written; with `follow` until it is over or Ctrl-C, which leaves it alone."""
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.watch import Watch
    from dslaunch.slurm.client import here
    from dslaunch.slurm.job import following_of

    following = following_of(here(), _made(run), Watch(screen), _tell)
    if not follow:
        jobs = following.catch_up()
        if not any(tail.seen for tail, _ in following.tails.values()):
            _no_output(jobs)
        return
    with Interrupts() as wishes:
        following.to_the_end(until=lambda: wishes.count > 0)


def by_number(number: str, environ: Mapping[str, str]) -> Local | None:
    """The latest run of this machine whose job has that number; `12_3` is of job 12."""
    from dslaunch.run.state import local_runs

    job = number.partition("_")[0]
    found = [run for run in local_runs(environ) if is_slurm(run) and _made(run).number == job]
    return found[-1] if found else None


def stop(run: Local) -> str:
    """Cancel it; give its number. Raises DslaunchError."""
    from dslaunch.slurm.client import here

    made = _made(run)
    if all(info.over for info in _jobs(run)):
        raise UsageError(f"run {run.run} is over: job {made.number} is not in the queue")
    here().cancel(made.number)
    return made.number


def _made(run: Local) -> Submitted:
    from dslaunch.slurm.job import submitted

    made = submitted(run)
    assert made is not None
    return made


def _jobs(run: Local) -> tuple[JobInfo, ...]:
    from dslaunch.slurm.client import here
    from dslaunch.slurm.job import stand

    return stand(here(), _made(run))


def _word(jobs: tuple[JobInfo, ...]) -> str:
    if any(not info.over and not info.waiting for info in jobs):
        return "running"
    if any(info.waiting for info in jobs):
        return "waiting"
    states = {info.state for info in jobs}
    if states == {"COMPLETED"}:
        return "ended well"
    return "unknown" if "GONE" in states else "stopped" if "CANCELLED" in states else "failed"


def _row(info: JobInfo) -> tuple[str, ...]:
    from dslaunch.slurm.states import how_ended, why_waiting

    name = f"{info.array}_{info.task}" if info.array else info.job
    why = how_ended(info)[0] if info.over else why_waiting(info.reason) if info.waiting else ""
    return (name, info.state, info.nodes or "-", str(info.restarts + 1), why)


def _no_output(jobs: tuple[JobInfo, ...]) -> None:
    """Say why there is nothing to show."""
    for info in jobs:
        where = f"on {info.batch_host}" if info.batch_host else "where it was written"
        if info.waiting:
            ui.say(f"job {info.job} has not begun")
        elif info.output:
            ui.say(f"{info.output} is not on this machine; look for it {where}")


def _tell(words: str) -> None:
    ui.say(f"dslaunch: {words}")
