"""A job followed: whose line it is, what SLURM says, and how it ends."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dslaunch.errors import DslaunchError
from dslaunch.run.events import Event, Line
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import Client, DownError
from dslaunch.slurm.follow import Following, state_words
from dslaunch.slurm.job import judge
from dslaunch.slurm.output import Layout, Reader, RootCauses, task_ends
from dslaunch.slurm.states import JobInfo, parse_job

TWO_BY_TWO = Layout(((2, 2),), direct=False)
HOSTS = ("a", "b")


class Seen:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int | None, str]] = []

    def line(self, line: Line) -> None:
        self.lines.append((line.host, line.rank, line.text))

    def event(self, event: Event) -> None:
        """Not looked at."""


@pytest.mark.parametrize(
    ("layout", "line", "expected"),
    [
        (TWO_BY_TWO, b"1: [default1]:loss", ("b", 3, b"loss\n")),
        (TWO_BY_TWO, b" 0: agent", ("a", None, b"agent\n")),
        (TWO_BY_TWO, b"1: ", ("b", None, b"\n")),
        (TWO_BY_TWO, b"no label: of srun", ("slurm", None, b"no label: of srun\n")),
        (Layout(((2, 2),), direct=True), b"2: x", ("b", 2, b"x\n")),
        (Layout(((2, 2),), False, elastic=True), b"0: [default3]:x", ("a", 3, b"x\n")),
        (Layout(((1, 4), (1, 2)), direct=False), b"1: [default1]:x", ("b", 5, b"x\n")),
        (Layout(((1, 4), (1, 2)), direct=True), b"5: x", ("b", 5, b"x\n")),
    ],
)
def test_a_line_is_told_with_its_host_and_rank(
    layout: Layout, line: bytes, expected: tuple[str, int | None, bytes]
) -> None:
    assert Reader(layout, HOSTS).read(line) == expected


def test_lines_that_come_in_pieces_are_put_together() -> None:
    reader = Reader(TWO_BY_TWO, HOSTS)
    assert list(reader.feed(b"0: [defa")) == []
    assert list(reader.feed(b"ult0]:x\n0: r")) == [("a", 0, b"x\n")]
    assert list(reader.end()) == [("a", None, b"r\n")]


def test_what_srun_says_of_tasks_becomes_their_endings() -> None:
    direct = Layout(((2, 2),), direct=True)
    line = "srun: error: b: tasks 2-3: Exited with exit code 7"
    assert [(e.host, e.rank, e.code) for e in task_ends(line, direct, 0)] == [
        ("b", 2, 7), ("b", 3, 7),
    ]  # fmt: skip
    (killed,) = task_ends("srun: error: a: task 0: Killed", TWO_BY_TWO, 0)
    assert (killed.host, killed.rank, killed.signal) == ("a", None, 9)
    assert list(task_ends("srun: Job step aborted: Waiting up to 32 seconds", direct, 0)) == []


SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_08:57:01
  host      : node2
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 1234)
  error_file: <N/A>
"""


def test_torchs_summary_says_which_rank_of_a_node_failed_first() -> None:
    causes = RootCauses()
    found = [e for line in SUMMARY.splitlines() for e in causes.feed("node2", line)]
    assert [(e.kind, e.host, e.rank, e.code, e.signal) for e in found] == [
        ("exit", "node2", 3, None, 9),
    ]  # fmt: skip
    assert list(causes.feed("node2", "  exitcode  : 1 (pid: 9)")) == []


class Scripted(Client):
    """A client whose jobs are what was written down, the last one again and again."""

    def __init__(self, *answers: list[JobInfo] | DslaunchError) -> None:
        super().__init__({})
        object.__setattr__(self, "answers", itertools.chain(answers, itertools.repeat(answers[-1])))

    __slots__ = ("answers",)

    def jobs(self, number: str) -> tuple[JobInfo, ...]:
        answer = next(self.answers)
        if isinstance(answer, DslaunchError):
            raise answer
        return tuple(answer)


def following(client: Client, layout: Layout = TWO_BY_TWO) -> tuple[Following, Seen, list[str]]:
    screen, told = Seen(), []
    return Following(client, "12", layout, Watch(screen), told.append), screen, told


def seconds() -> itertools.count[float]:
    return itertools.count(0, 0.6)


def test_a_job_is_followed_from_the_queue_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "train-12.out"
    out.write_bytes(b"0: [default0]:step 1\n1: [default1]:step 1")
    running = JobInfo("12", "RUNNING", nodes="a,b", output=str(out))
    ended = JobInfo("12", "COMPLETED", code=0, nodes="a,b", output=str(out))
    client = Scripted([JobInfo("12", "PENDING", "Resources")], [running], [ended])
    job, screen, told = following(client)
    clock = seconds()
    assert job.to_the_end(until=lambda: False, clock=lambda: next(clock)) == (ended,)
    assert screen.lines == [("a", 0, "step 1"), ("b", 3, "step 1")]
    assert told == [
        "job 12 waits: the nodes it needs are busy; it is next (Resources)",
        "job 12 runs on a,b",
    ]


def test_a_controller_that_is_down_is_asked_again_and_said_once() -> None:
    down = DownError("SLURM's controller does not answer")
    job, _, told = following(Scripted(down, down, [JobInfo("12", "COMPLETED", code=0)]))
    clock = seconds()
    assert job.to_the_end(until=lambda: False, clock=lambda: next(clock)) is not None
    assert told == [
        "SLURM's controller does not answer; the job does not mind, asking again",
        "SLURM's controller answers again",
    ]


def test_a_job_that_slurm_forgot_is_over() -> None:
    job, _, _ = following(Scripted([JobInfo("12", "RUNNING", nodes="a")], []))
    clock = seconds()
    ended = job.to_the_end(until=lambda: False, clock=lambda: next(clock))
    assert ended is not None
    outcome = judge(ended, job.watch)
    assert outcome.message == "job 12 is not known to SLURM any more"


def test_who_has_seen_enough_leaves() -> None:
    job, _, _ = following(Scripted([JobInfo("12", "RUNNING")]))
    assert job.to_the_end(until=lambda: True) is None


def test_the_first_rank_that_failed_is_the_cause() -> None:
    watch = Watch(Seen())
    layout = Layout(((2, 2),), direct=True)
    for line in (
        "srun: error: b: task 3: Exited with exit code 7",
        "srun: error: a: task 0: Killed",
    ):
        for event in task_ends(line, layout, 1.0 if "7" in line else 2.0):
            watch.happened(event)
    outcome = judge((JobInfo("12", "FAILED", code=143),), watch)
    assert outcome.exit_code == 7
    assert "rank 3 on b failed first: exit code 7" in outcome.message


@pytest.mark.parametrize(
    ("state", "words", "status"),
    [
        ("TIMEOUT", "reached its time limit", "failed"),
        ("NODE_FAIL", "lost a node", "failed"),
        ("OUT_OF_MEMORY", "was killed for its memory", "failed"),
        ("PREEMPTED", "had to make room", "failed"),
        ("CANCELLED", "was cancelled", "interrupted"),
        ("COMPLETED", "ended well", "ok"),
    ],
)
def test_every_ending_has_words(state: str, words: str, status: str) -> None:
    outcome = judge((JobInfo("12", state),), Watch(Seen()))
    assert words in outcome.message
    assert outcome.status == status


OUT_OF_MEMORY = (
    "JobId=12 JobName=train JobState=OUT_OF_MEMORY Reason=OutOfMemory Requeue=0 Restarts=0 "
    "ExitCode=0:125 NodeList=node1 BatchHost=node1"
)
"""Made after what SLURM tells where cgroups hold a job to its memory; only there is such a state,
and the tests' machines have no cgroup of their own. SIG_OOM is 253, of which 125 is left
(slurm.h)."""
NEVER = (
    "JobId=12 JobName=train JobState=CANCELLED Reason=DependencyNeverSatisfied "
    "Dependency=afterok:1(failed) Requeue=0 Restarts=0 ExitCode=0:0 NodeList= NumNodes=2"
)


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (OUT_OF_MEMORY, 137, "job 12 was killed for its memory"),
        (NEVER, 1, "job 12 never started: the job that it depends on ended otherwise "
         "(DependencyNeverSatisfied)"),
    ],
)  # fmt: skip
def test_an_ending_that_slurm_tells_has_its_exit_code(said: str, code: int, message: str) -> None:
    outcome = judge((parse_job(said),), Watch(Seen()))
    assert (outcome.status, outcome.exit_code) == ("failed", code)
    assert outcome.message == message


def test_a_lost_node_is_named() -> None:
    outcome = judge((JobInfo("12", "NODE_FAIL", nodes="a[1-2]"),), Watch(Seen()), "a2")
    assert outcome.message == "job 12 lost a node of a[1-2]: a2 is down"


def test_a_job_that_made_room_and_waits_again_says_so(tmp_path: Path) -> None:
    out = tmp_path / "train-12.out"
    out.write_text("slurmstepd-a: error: *** JOB 12 ON a CANCELLED AT x DUE TO PREEMPTION ***\n")
    running = JobInfo("12", "RUNNING", nodes="a", output=str(out))
    again = JobInfo("12", "PENDING", "BeginTime", restarts=1, output=str(out))
    ended = JobInfo("12", "COMPLETED", code=0, restarts=1, nodes="a", output=str(out))
    job, _, told = following(Scripted([running], [again], [ended]))
    clock = seconds()
    job.to_the_end(until=lambda: False, clock=lambda: next(clock))
    assert told[1] == "job 12 had to make room for another job, and goes back into the queue"


def test_of_an_array_the_worst_task_counts() -> None:
    tasks = (
        JobInfo("12", "COMPLETED", code=0, array="12", task="0"),
        JobInfo("13", "FAILED", code=4, array="12", task="1"),
    )
    outcome = judge(tasks, Watch(Seen()))
    assert (outcome.exit_code, outcome.message) == (4, "job 12_1 failed: exit code 4")


def test_a_start_after_a_requeue_is_counted() -> None:
    assert state_words(JobInfo("12", "RUNNING", nodes="a", restarts=1)).endswith("on a, start 2")
