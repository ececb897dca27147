"""Runs that are jobs of SLURM, for `ps`, `status`, `logs` and `stop`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dslaunch.cli import ui
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.slurm.states import GONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dslaunch.report.live import JsonScreen, TerminalScreen
    from dslaunch.run.local import LocalRun, LocalRuns
    from dslaunch.run.outcome import Outcome
    from dslaunch.run.watch import Screen
    from dslaunch.slurm.job import Submitted
    from dslaunch.slurm.states import JobInfo

HEAD = ("JOB", "STATE", "NODES", "STARTS", "REASON")


def is_slurm(run: LocalRun | None) -> bool:
    """Whether a recorded run is a job of SLURM."""
    return run is not None and run.record.slurm is not None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands, for a list of runs."""

    word: str
    nodes: str
    """Folded, as SLURM has them now; `-`: it has none, or they are not known."""
    goes_on: bool
    """Whether it is not over, or may not be."""
    unknown: str | None = None
    """The code of why it cannot be told now."""


def state(run: LocalRun) -> str:
    """How it stands, in a word or two; by the record alone once the end was seen."""
    return standings([run])[run.run].word


def standings(runs: Sequence[LocalRun]) -> dict[str, Standing]:
    """How runs stand, by name. A cluster that does not answer is asked once."""
    from dslaunch.slurm.client import here
    from dslaunch.slurm.failures import OF_THE_JOB, UnknownNow
    from dslaunch.slurm.job import stand

    client = here()
    failed: dict[str, str] = {}
    found: dict[str, Standing] = {}
    for run in runs:
        if run.result is not None:
            found[run.run] = Standing(_word_of(run.result), "-", goes_on=False)
            continue
        made = _made(run)
        why = failed.get(made.job.cluster)
        if why is None:
            try:
                found[run.run] = _standing(stand(client, made))
                continue
            except DslaunchError as error:
                why = code_of(error)
                if not (isinstance(error, UnknownNow) and error.code in OF_THE_JOB):
                    failed[made.job.cluster] = why
        found[run.run] = Standing("unknown", "-", goes_on=True, unknown=why)
    return found


def code_of(error: DslaunchError) -> str:
    """The code of why SLURM did not tell how a job stands."""
    from dslaunch.slurm.failures import Failure, UnknownNow

    return error.code.value if isinstance(error, UnknownNow) else Failure.NO_SLURM.value


def _standing(jobs: tuple[JobInfo, ...]) -> Standing:
    nodes = ",".join(dict.fromkeys(info.nodes for info in jobs if info.nodes))
    return Standing(_word(jobs), nodes or "-", goes_on=not all(info.over for info in jobs))


def _word_of(result: Outcome) -> str:
    return {"ok": "ended well", "failed": "failed", "interrupted": "stopped"}[result.status]


@dataclass(frozen=True, slots=True)
class Told:
    """What SLURM and the record tell of a run."""

    jobs: tuple[JobInfo, ...]
    result: Outcome | None
    """Once it is over."""
    unknown: DslaunchError | None = None
    """Why SLURM does not tell how it stands now; None: it does, or the end was seen before."""

    @property
    def word(self) -> str:
        """How it stands."""
        if self.unknown is not None:
            return "unknown"
        return _word(self.jobs) if self.result is None else _word_of(self.result)


def page(run: LocalRun) -> str:
    """The job, each task and component of it, and why it ended, waits or is unknown."""
    from dslaunch.cli.ps import ago

    told = _told(run)
    head = f"{run.run}: {told.word}, job {_made(run).number}, started {ago(run.record.started)}"
    rows = [HEAD, *(_row(info) for info in told.jobs)] if told.jobs else []
    outputs = {info.output or _made(run).output for info in told.jobs if info.component == 0}
    lines = [head, *([ui.table(rows, ui.width())] if rows else []), *_why(told.result)]
    if told.unknown is not None:
        lines.append(f"reason: {told.unknown.message}")
    lines += [f"output: {output}" for output in sorted(outputs or {_made(run).output}) if output]
    return "\n".join(lines)


def _why(result: Outcome | None) -> list[str]:
    """The verdict: the rank or node that failed first, the reason, what to do."""
    if result is None:
        return []
    lines = [result.message]
    lines += [f"reason: {result.what}"] if result.what else []
    lines += [f"hint: {result.hint}"] if result.hint else []
    return lines


def data(run: LocalRun) -> dict[str, Any]:
    """The same for JSON."""
    from dataclasses import asdict

    from dslaunch.cli.ps import result_data

    told = _told(run)
    jobs = [asdict(info) for info in told.jobs]
    unknown = None if told.unknown is None else code_of(told.unknown)
    found = {"run": run.run, "state": told.word, "jobs": jobs, "result": result_data(told.result)}
    return {**found, "unknown": unknown}


def _told(run: LocalRun) -> Told:
    """The jobs as SLURM has them, and the result once they are over. SLURM is not needed for a run
    whose end was seen before."""
    from dslaunch.run.local import recorded_outcome

    try:
        jobs = _jobs(run)
    except DslaunchError as error:
        return Told((), run.result, error if run.result is None else None)
    known = tuple(info for info in jobs if info.state != GONE)
    result = recorded_outcome(run.directory)
    return Told(known or (jobs if run.result is None else ()), result)


def show(run: LocalRun, screen: Screen, *, follow: bool) -> None:
    """Give what it has written; with `follow` until it is over or Ctrl-C, which leaves it alone."""
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.watch import Watch
    from dslaunch.slurm.client import here
    from dslaunch.slurm.job import following_of

    following = following_of(here(), _made(run), Watch(screen), _tell)
    if not follow:
        jobs = following.catch_up()
        if not any(stream.tail.seen for stream in following.streams.values()):
            _no_output(jobs)
        return
    with Interrupts() as wishes:
        following.to_the_end(until=lambda: wishes.count > 0)


def attach(run: LocalRun, screen: JsonScreen | TerminalScreen) -> int:
    """Follow it to its end, say how it ended, and give its exit code.

    Ctrl-C leaves it alone: 130.
    """
    from dslaunch.run.interrupts import Interrupts
    from dslaunch.run.watch import Watch
    from dslaunch.slurm.client import here
    from dslaunch.slurm.job import follow, note_end

    made = _made(run)
    if run.result is not None:
        ui.say(f"run {run.run} is over: {run.result.message}")
        ui.say(f"`dslaunch logs {run.run}` prints what it wrote")
        return run.result.exit_code
    with Interrupts() as wishes:
        outcome = follow(here(), made, Watch(screen), _tell, until=lambda: wishes.count > 0)
    if outcome is None:
        ui.say(f"run {run.run} continues; `dslaunch stop {run.run}` ends it")
        return 130
    note_end(made.directory, outcome)
    screen.outcome(outcome, made.directory)
    return outcome.exit_code


JOB = re.compile(r"(?P<number>[0-9]{1,18})(?:[_+][0-9]{1,9})?(?:;(?P<cluster>[^\s;]{1,255}))?")
"""A job as SLURM's commands name it: 12, a task of it, 12_3, a component, 12+1; 12;tiger is of
another cluster."""


def is_part(name: str) -> bool:
    """Whether a name is that of a task or a component, 12_3 or 12+1."""
    said = JOB.fullmatch(name)
    return said is not None and ("_" in name or "+" in name)


def by_number(name: str, local: LocalRuns) -> LocalRun | None:
    """The latest run of this machine whose job has that number. Raises UsageError for a number
    that jobs of several clusters have."""
    said = JOB.fullmatch(name)
    if said is None:
        return None
    found: dict[str, LocalRun] = {}
    for run in local.started:
        job = _made(run).job if is_slurm(run) else None
        if job is not None and job.number == said["number"]:
            found[job.cluster] = run
    if said["cluster"] is not None:
        return found.get(said["cluster"])
    if len(found) > 1:
        runs = ", ".join(run.run for run in found.values())
        raise UsageError(f"job {name} is of several clusters; name the run: {runs}")
    return next(iter(found.values()), None)


def stop(run: LocalRun, grace: float | None) -> str:
    """Cancel it; give its number.

    With `grace` the ranks get TERM and so many seconds before. Without, the site's KillWait says
    how long after TERM scancel kills.

    Raises UsageError for a run that is over or that SLURM has forgotten, UnknownNow where its state
    cannot be told, DslaunchError where SLURM refuses.
    """
    from dslaunch.cli.lookup import caller
    from dslaunch.slurm.client import here
    from dslaunch.slurm.failures import UnknownNow
    from dslaunch.slurm.job import end_gently, note_stop

    made, client = _made(run), here()
    try:
        jobs = _jobs(run)
        if all(info.state == GONE for info in jobs):
            raise UsageError(f"SLURM does not know job {made.number} of run {run.run} any more")
        if all(info.over for info in jobs):
            raise UsageError(f"run {run.run} is over: job {made.number} is not in the queue")
        if grace is not None:
            note_stop(made.directory, caller())
        if grace is None or not end_gently(client, made.job, grace):
            client.cancel(made.job)
    except UnknownNow as error:
        hint = f"try again; `scontrol show job {made.number}` shows whose job it is"
        raise UnknownNow(
            error.code, f"run {run.run} was not stopped: {error.message}", hint=hint
        ) from None
    return made.number


def no_stacks(run: LocalRun) -> UsageError:
    """Why stacks of a SLURM job cannot be shown, and what to do instead."""
    made = _made(run)
    number = made.number
    why = (
        "its agents are reached from inside the job alone"
        if made.layout.supervised
        else "no agent of dslaunch runs in it to read stacks"
    )
    return UsageError(
        f"run {run.run} is SLURM job {number}: {why}",
        hint=f"read them by a step: srun --jobid={number} --overlap --pty bash, and there for the "
        "process of a rank: py-spy dump --pid PID",
    )


def _made(run: LocalRun) -> Submitted:
    from dslaunch.slurm.job import submitted

    made = submitted(run)
    assert made is not None
    return made


def _jobs(run: LocalRun) -> tuple[JobInfo, ...]:
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
    if "GONE" in states:
        return "unknown"
    if "CANCELLED" in states:
        return "stopped"
    return "failed"


def _row(info: JobInfo) -> tuple[str, ...]:
    import time

    from dslaunch.slurm.follow import state_reason
    from dslaunch.slurm.waiting import Estimates

    name = f"{info.array}_{info.task}" if info.array else info.job
    start = Estimates().news(info, time.time())
    why = ", ".join(filter(None, (state_reason(info), start)))
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
