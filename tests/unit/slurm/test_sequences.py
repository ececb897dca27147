"""Whatever happens to a site, a living job is never called ended, and a stranger's never touched.

Sequences of failures and of what users and administrators do, drawn from a seed each, against
`simulated_slurm`: dslaunch's own code submits, follows, stops and judges; only SLURM and the time
are simulated.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.testbed.simulated_slurm import (
    LOCAL,
    OTHER,
    OURS,
    RELEASES,
    ROOT,
    RUNNING,
    STRANGER,
    SUSPENDED,
    Fault,
    Job,
    Slurm,
)

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Slurm as Settings
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import DslaunchError
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job as Program
from dslaunch.render.batch import Batch
from dslaunch.render.launch import Launch
from dslaunch.run.events import Event, Line
from dslaunch.run.local_runs import local_runs
from dslaunch.run.view import View as AnyView
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.follow import Following
from dslaunch.slurm.job import Submitted, following_of, query_records, submitted, verdicts
from dslaunch.slurm.query_failures import QueryFailure
from dslaunch.slurm.states import GONE, JobInfo
from dslaunch.slurm.submit import submit
from dslaunch.slurm.verdict import Ending, JobVerdict

SEQUENCES, USUAL = 500, 250
"""How many there are, and how many of them are for every run of the tests."""
AT_ONCE = 25
STRANGERS_LINE = "a stranger's line"
CALM_AFTER = (60.0, 400.0)
"""Seconds after which nothing goes wrong any more, and the job ends by itself."""
PAUSE = (0.5, 25.0)
"""Seconds between two events."""
LONGEST = 4000.0
"""Seconds in which every job has ended, and dslaunch has noticed."""
BEGAN = 1_700_000_000.0
NAMES = (
    "train",
    "a JobState=FAILED b",
    "lr=3e-4 bs=8",
    "x JobId=1 JobState=COMPLETED ExitCode=0:0",
)
CODES = {"COMPLETED": 0, "CANCELLED": 130, "TIMEOUT": 124, "NODE_FAIL": 5}
ENDS = (("COMPLETED", 0), ("FAILED", 3), ("FAILED", 1), ("TIMEOUT", 0), ("NODE_FAIL", 0))


class View(AnyView):
    """A screen that remembers its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, line: Line) -> None:
        """Remember it."""
        self.lines.append(line.text)

    def event(self, event: Event) -> None:
        """Nothing."""


@dataclass
class Story:
    """One sequence: a site, a job of ours that is followed, and what happens to both."""

    seed: int
    directory: Path
    happened: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    lost: bool = False
    """The controller has lost its state, and our job with it."""
    calm: bool = False

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        release = RELEASES[self.seed % len(RELEASES)]
        self.slurm = Slurm(
            release,
            accounting=self.random.random() < 0.7,
            min_job_age=self.random.choice((5.0, 40.0, 300.0)),
            directory=str(self.directory),
        )
        self.slurm.begins = self.write_output
        self.elsewhere = self.slurm.accounting and self.random.random() < 0.4
        self.cluster = OTHER if self.elsewhere else LOCAL
        self.calm_at = self.slurm.now + self.random.uniform(*CALM_AFTER)
        self.next_event = self.slurm.now
        for cluster, number in itertools.product((LOCAL, OTHER), (104, 105, 106)):
            if (cluster, number) != (self.cluster, 105):
                self.add_stranger(cluster, number)
        self.made = self.submit()
        (self.ours,) = (job for job in self.slurm.jobs if job.user == OURS)
        self.ours.lasts = self.random.randint(5, 300)
        self.ours.ends_as = self.random.choice(ENDS)

    @property
    def environ(self) -> dict[str, str]:
        """Of the shell in which the job is submitted."""
        clusters = {"SBATCH_CLUSTERS": OTHER} if self.elsewhere else {}
        return {"DSLAUNCH_STATE": str(self.directory / "state"), **clusters}

    def another_shell(self) -> dict[str, str]:
        """The environment of another shell of the user."""
        zones = ({}, {"TZ": "Asia/Tokyo"}, {"TZ": "America/New_York"})
        formats = ({}, {"SLURM_TIME_FORMAT": "relative"}, {"SLURM_TIME_FORMAT": "%s"})
        clusters = ({}, {"SLURM_CLUSTERS": OTHER}, {"SBATCH_CLUSTERS": OTHER})
        found = [self.random.choice(choices) for choices in (zones, formats, clusters)]
        state = {"DSLAUNCH_STATE": self.environ["DSLAUNCH_STATE"]}
        return {name: value for one in (state, *found) for name, value in one.items()}

    def client(self, environ: dict[str, str]) -> SlurmClient:
        """SLURM's commands as a shell of the user calls them."""
        return SlurmClient(environ, self.slurm.run)

    # ------------------------------------------------------------ jobs

    def submit(self) -> Submitted:
        """Submit our job, as `dslaunch slurm` does. SLURM may fail right after it."""
        cluster = parse_cluster("nodes: [{host: 'node[1-2]', slots: 1}]\n", "c.yaml")
        allocation = select(cluster, Selection())
        program = Program(program="train.py", launcher="direct")
        launch = Launch("c", allocation, program, assume(cluster, allocation, "/tmp"))
        batch = Batch(launch, Settings())
        fails_then = self.random.random() < 0.2

        def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
            done = self.slurm.run(argv, stdin, environ)
            if argv[0] == "sbatch" and fails_then:
                self.break_something()
            return done

        made, record = submit(
            SlurmClient(self.environ, run), "#!/bin/bash\n", batch, cluster, self.environ
        )
        record.let_go()
        return made

    def add_stranger(self, cluster: str, number: int, restarts: int = 0) -> None:
        """Another user's job, which runs on long after ours and ends with code 99."""
        job = Job(
            number=number,
            cluster=cluster,
            user=STRANGER,
            submitted=int(self.slurm.now) - 3,
            output=str(self.directory / f"stranger-{cluster}-{number}.out"),
            state=RUNNING,
            started=int(self.slurm.now) - 1,
            restarts=restarts,
            lasts=1_000_000,
            ends_as=("FAILED", 99),
        )
        self.write_output(self.slurm.add(job))

    def write_output(self, job: Job) -> None:
        """A job that begins writes a line."""
        text = f"start {job.restarts}" if job.user == OURS else STRANGERS_LINE
        with Path(job.output).open("a") as file:
            file.write(f"0: {text}\n")

    # ------------------------------------------------------------ time

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slurm.pass_time(seconds)

    def clock(self) -> float:
        """Seconds, as of time.monotonic."""
        return self.slurm.now

    def step(self) -> None:
        """Let the next event happen, if it is time."""
        if self.calm:
            return
        if self.slurm.now >= self.calm_at:
            self.grow_calm()
        elif self.slurm.now >= self.next_event:
            self.next_event = self.slurm.now + self.random.uniform(*PAUSE)
            event = self.random.choice(EVENTS)
            self.happened.append(f"{self.slurm.now - BEGAN:.0f} s: {event.__name__}")
            event(self)

    def grow_calm(self) -> None:
        """Everything is repaired, and our job runs to its own end."""
        self.calm = True
        self.happened.append(f"{self.slurm.now - BEGAN:.0f} s: calm")
        self.repair()
        self.let_go()
        self.ours.lasts = 20 + (int(self.slurm.now) - self.ours.started if self.ours.started else 0)

    # ------------------------------------------------------------ events

    def break_something(self) -> None:
        """A service stops, or answers in a way of its own."""
        self.slurm.faults.add(self.random.choice(tuple(Fault)))

    def repair(self) -> None:
        """All services work again."""
        self.slurm.faults.clear()

    def rename(self) -> None:
        """The user renames the job, to something that looks like a line of scontrol's."""
        self.ours.name = self.random.choice(NAMES)

    def requeue(self) -> None:
        """An administrator, or a node that fails, puts it back into the queue."""
        if self.ours.state == RUNNING and not self.lost:
            self.slurm.requeue(self.ours)

    def hold(self) -> None:
        """Somebody holds it."""
        if not self.ours.over and not self.lost:
            self.slurm.hold(self.ours, self.random.choice((OURS, ROOT)))

    def suspend(self) -> None:
        """An administrator suspends it."""
        if self.ours.state == RUNNING and not self.lost:
            self.ours.state = SUSPENDED

    def let_go(self) -> None:
        """It may run again."""
        if self.ours.over or self.lost:
            return
        self.slurm.release_job(self.ours)
        if self.ours.state == SUSPENDED:
            self.ours.state = RUNNING

    def cancel_by_another(self) -> None:
        """An administrator cancels it; rarely, since nothing follows."""
        if not self.ours.over and not self.lost and self.random.random() < 0.2:
            self.slurm.end(self.ours, "CANCELLED", by=ROOT)

    def lose_state(self) -> None:
        """The controller comes back without our job; its number is given again at once."""
        if self.ours.over or self.lost or self.random.random() > 0.3:
            return
        self.lost = True
        self.slurm.lose_state(self.ours)
        self.slurm.pass_time(self.random.choice((0.0, 40.0)))
        self.add_stranger(self.cluster, self.ours.number, restarts=self.random.choice((0, 1, 3)))

    def forget(self) -> None:
        """So much time passes that the controller forgets what is over."""
        self.slurm.pass_time(self.slurm.min_job_age + 1)

    def look_and_stop(self) -> None:
        """The user looks at the job from another shell, and sometimes stops it."""
        client = self.client(self.another_shell())
        (run,) = local_runs(self.environ).started
        assert run.record.slurm is not None
        made = submitted(run.directory, run.record.slurm)
        with contextlib.suppress(DslaunchError):
            found = query_records(client, made)
            self.check_not_ended_too_early(found)
        if self.random.random() < 0.2:
            with contextlib.suppress(DslaunchError):
                client.cancel(made.job)

    # ------------------------------------------------------------ what must hold

    @property
    def ended(self) -> bool:
        """Whether our job has ended indeed."""
        return self.ours.over or self.lost

    def check_not_ended_too_early(self, found: Iterable[JobInfo]) -> None:
        """A job that lives is never said to have ended."""
        found = list(found)
        said = bool(found) and all(info.over for info in found)
        assert self.ended or not said, f"a living job is called ended: {found}\n{self}"

    def check_strangers(self, screen: View) -> None:
        """Nobody else's job was touched, and nothing of its output taken."""
        assert [job for job in self.slurm.touched if job.user != OURS] == [], str(self)
        assert STRANGERS_LINE not in "".join(screen.lines), str(self)

    def check_verdicts(self, ends: Sequence[JobVerdict], found: Sequence[JobInfo]) -> None:
        """The verdict is the true one; where nobody could know it, it says so."""
        (verdict,) = ends
        state, code = self.ours.state, self.ours.code
        if {info.state for info in found} == {GONE}:
            nobody_knows = self.lost or not self.slurm.accounting
            assert nobody_knows, f"SLURM knew how the job ended\n{self}"
            assert verdict.code is Ending.GONE, f"{verdict}\n{self}"
            return
        expected = 130 if self.lost else CODES.get(state, code)
        assert verdict.exit_code == expected, f"{state} {code}: {verdict}\n{self}"

    def check_nobody_can_know(self, following: Following) -> None:
        """Only a job that was lost with its number given again may be followed for ever: that it
        is ours is said to be unproven."""
        assert self.lost, f"the end is not noticed\n{self}"
        assert following.unknown is QueryFailure.UNPROVEN, str(self)

    def __str__(self) -> str:
        """What has happened, for a failure's message."""
        about = f"seed {self.seed}, {self.slurm.release.name}, {self.slurm.accounting=}"
        faults = [fault.name for fault in self.slurm.faults]
        lines = [about, *self.happened, *self.told, f"{faults}, lost: {self.lost}", str(self.ours)]
        return "\n".join(lines)


EVENTS: tuple[Callable[[Story], None], ...] = (
    *(Story.break_something,) * 4,
    *(Story.repair,) * 4,
    *(Story.requeue,) * 2,
    Story.rename,
    Story.hold,
    Story.suspend,
    *(Story.let_go,) * 2,
    Story.cancel_by_another,
    Story.lose_state,
    Story.forget,
    *(Story.look_and_stop,) * 2,
)


def follow(story: Story) -> None:
    """Follow the job through its story, as the user's terminal does."""
    screen = View()
    watch = Watch(screen)
    following = following_of(story.client(story.environ), story.made, watch, story.told.append)

    def until() -> bool:
        story.step()
        story.check_not_ended_too_early(following.jobs.values())
        return story.slurm.now > BEGAN + LONGEST

    found = following.to_the_end(until=until, clock=story.clock)
    story.check_strangers(screen)
    if found is None:
        story.check_nobody_can_know(following)
        return
    story.check_not_ended_too_early(found)
    story.check_verdicts(verdicts(following, story.made), found)


def chunk(first: int) -> object:
    """The first of `AT_ONCE` sequences."""
    marks = () if first < USUAL else (pytest.mark.long,)
    return pytest.param(first, marks=marks)


@pytest.mark.parametrize("first", [chunk(first) for first in range(0, SEQUENCES, AT_ONCE)])
def test_no_sequence_of_failures_ends_a_running_job_or_touches_another_users(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + AT_ONCE):
        directory = tmp_path / str(seed)
        directory.mkdir()
        random.seed(seed)  # dslaunch asks at random times
        story = Story(seed, directory)
        monkeypatch.setattr(time, "sleep", story.sleep)
        follow(story)
