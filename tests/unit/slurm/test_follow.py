"""A job followed: whose line it is, what SLURM says, and how it ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.errors import DslaunchError
from dslaunch.run.events import Event, Line
from dslaunch.run.view import View
from dslaunch.run.watch import Watch
from dslaunch.slurm.client import SlurmClient
from dslaunch.slurm.follow import Following
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.job_status import JobPhase, JobStatus
from dslaunch.slurm.notices import JobNotice, NoticeCode
from dslaunch.slurm.output import SRUN_PIECE, Layout, OutputReader
from dslaunch.slurm.output_evidence import Cut
from dslaunch.slurm.query_failures import QueryError, QueryFailure
from dslaunch.slurm.reported_ends import RootCauses, task_ends
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.stream import Stream
from dslaunch.slurm.verdict import Ending

TWO_BY_TWO = Layout(((2, 2),), direct=False)
HOSTS = ("a", "b")


class Seen(View):
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
def test_a_line_is_reported_with_its_host_and_rank(
    layout: Layout, line: bytes, expected: tuple[str, int | None, bytes]
) -> None:
    assert OutputReader(layout, HOSTS).read(line) == expected


def test_a_progress_bar_that_srun_has_cut_is_one_line(tmp_path: Path) -> None:
    states = b"".join(b"\rtrain: %3d%%|####| %d/300 " % (at // 3, at) for at in range(300))
    pieces = [states[at : at + SRUN_PIECE] for at in range(0, len(states), SRUN_PIECE)]
    cut = [b"2: " + piece + b"\n" for piece in pieces]
    cut.insert(-1, b"2: saved\n")  # of the other stream
    output = tmp_path / "out"
    output.write_bytes(b"".join(cut))
    seen = Seen()
    stream = Stream.of(str(output), Layout(((2, 2),), direct=True), Watch(seen))
    stream.reader.hosts = HOSTS
    while stream.read():
        pass
    stream.end()
    assert [line for line in seen.lines if "299/300" in line[2]] == [
        ("b", 2, "train:  99%|####| 299/300 ")
    ]
    assert ("b", 2, "saved") in seen.lines


def test_lines_that_arrive_in_pieces_are_joined() -> None:
    reader = OutputReader(TWO_BY_TWO, HOSTS)
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
    other = "srun: Job step aborted: Waiting up to 32 seconds"
    assert list(task_ends(other, direct, 0)) == []


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
    outside = "  exitcode  : 1 (pid: 9)"
    assert list(causes.feed("node2", outside)) == []


class Scripted(SlurmClient, frozen=True):
    """A client whose jobs are what was written down."""

    answers: Iterator[list[JobInfo] | DslaunchError] = iter(())

    def jobs(self, job: JobId) -> tuple[JobInfo, ...]:
        answer = next(self.answers)
        if isinstance(answer, DslaunchError):
            raise answer
        return tuple(answer)


def scripted(*answers: list[JobInfo] | DslaunchError) -> Scripted:
    """Return a client with these answers; it gives the last one again and again."""
    return Scripted({}, answers=itertools.chain(answers, itertools.repeat(answers[-1])))


def following(
    client: SlurmClient, layout: Layout = TWO_BY_TWO
) -> tuple[Following, Seen, list[JobNotice]]:
    screen = Seen()
    told: list[JobNotice] = []
    return Following(client, JobId("12"), layout, Watch(screen), told.append), screen, told


def seconds() -> itertools.count[float]:
    return itertools.count(0, 0.6)


def test_a_job_is_followed_from_the_queue_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "train-12.out"
    out.write_bytes(b"0: [default0]:step 1\n1: [default1]:step 1")
    running = JobInfo("12", "RUNNING", nodes="a,b", output=str(out))
    ended = JobInfo("12", "COMPLETED", code=0, nodes="a,b", output=str(out))
    client = scripted([JobInfo("12", "PENDING", "Resources")], [running], [ended])
    job, screen, told = following(client)
    clock = seconds()
    assert job.to_the_end(until=lambda: False, clock=lambda: next(clock)) == (ended,)
    assert screen.lines == [("a", 0, "step 1"), ("b", 3, "step 1")]
    assert [notice.status for notice in told] == [
        JobStatus(JobPhase.PENDING, name="12", state="PENDING", reason="Resources"),
        JobStatus(JobPhase.RUNNING, name="12", state="RUNNING", nodes="a,b"),
    ]


def test_a_separate_standard_error_is_read_and_followed(tmp_path: Path) -> None:
    out, err = tmp_path / "12.out", tmp_path / "12.err"
    out.write_bytes(b"0: step 1\n")
    err.write_bytes(b"2: ValueError: no data\nsrun: error: b: task 2: Exited with exit code 7\n")
    ended = JobInfo("12", "FAILED", code=7, nodes="a,b", output=str(out), error=str(err))
    running = replace(ended, state="RUNNING", code=None)
    job, screen, _ = following(scripted([running], [ended]), Layout(((2, 2),), direct=True))
    clock = seconds()
    assert job.to_the_end(until=lambda: False, clock=lambda: next(clock)) == (ended,)
    assert ("a", 0, "step 1") in screen.lines
    assert ("b", 2, "ValueError: no data") in screen.lines
    cause = job.watch.outcome().cause
    assert cause is not None
    assert (cause.host, cause.rank, cause.code) == ("b", 2, 7)


def test_an_unknown_state_is_reported_once_per_reason_and_queried_again() -> None:
    away, busy = QueryError(QueryFailure.NO_CONTACT), QueryError(QueryFailure.BUSY)
    ended = [JobInfo("12", "COMPLETED", code=0)]
    job, _, told = following(scripted(away, away, busy, busy, ended))
    clock = itertools.count(0.0, 20.0)  # simulated seconds, at each look
    assert job.to_the_end(until=lambda: False, clock=lambda: next(clock)) is not None
    assert [(notice.code, notice.failure) for notice in told] == [
        (NoticeCode.STATE_UNKNOWN, QueryFailure.NO_CONTACT),
        (NoticeCode.STATE_UNKNOWN, QueryFailure.BUSY),
        (NoticeCode.SLURM_ANSWERS, None),
    ]
    assert job.unknown is None


@pytest.mark.parametrize("code", list(QueryFailure))
def test_no_failure_ends_a_job_however_long_it_lasts(code: QueryFailure) -> None:
    running = [JobInfo("12", "RUNNING", nodes="a")]
    values = dict.fromkeys(("command", "error", "job", "seconds"), "x")
    job, _, _ = following(scripted(running, *([QueryError(code, **values)] * 50)))
    for _ in range(50):
        job.ask()
        assert not job.over
    assert job.unknown is code
    assert job.poll.failures == 49


def test_a_job_that_was_requeued_is_noted_so_that_it_is_recognized_later() -> None:
    first = JobInfo("12", "RUNNING", submitted=100)
    again = JobInfo("12", "PENDING", submitted=200, restarts=1)
    job, _, _ = following(scripted([first], [again]))
    noted: list[JobId] = []
    job.note = noted.append
    job.ask()
    job.ask()
    job.ask()
    assert [(seen.submitted, seen.restarts, seen.earlier) for seen in noted] == [
        (100, 0, ()), (200, 1, (100,)),
    ]  # fmt: skip


def test_a_job_that_slurm_forgot_is_over() -> None:
    job, _, _ = following(scripted([JobInfo("12", "RUNNING", nodes="a")], []))
    clock = seconds()
    ended = job.to_the_end(until=lambda: False, clock=lambda: next(clock))
    assert ended is not None
    (verdict,) = job.verdicts({}, own_uid=0)
    assert verdict.code is Ending.GONE


def test_who_has_seen_enough_leaves() -> None:
    job, _, _ = following(scripted([JobInfo("12", "RUNNING")]))
    assert job.to_the_end(until=lambda: True) is None


def test_a_job_that_made_room_and_waits_again_says_so(tmp_path: Path) -> None:
    out = tmp_path / "train-12.out"
    out.write_text("slurmstepd-a: error: *** JOB 12 ON a CANCELLED AT x DUE TO PREEMPTION ***\n")
    running = JobInfo("12", "RUNNING", nodes="a", output=str(out))
    again = JobInfo("12", "PENDING", "BeginTime", restarts=1, output=str(out))
    ended = JobInfo("12", "COMPLETED", code=0, restarts=1, nodes="a", output=str(out))
    job, _, told = following(scripted([running], [again], [ended]))
    clock = seconds()
    job.to_the_end(until=lambda: False, clock=lambda: next(clock))
    assert told[1] == JobNotice(NoticeCode.REQUEUED, job="12", cut=Cut.PREEMPTED)


def test_a_requeued_job_fails_by_its_last_start_alone(tmp_path: Path) -> None:
    out = tmp_path / "train-12.out"
    out.write_text(
        "dslaunch: job 12, start 1 on a\n"
        "srun: error: a: task 0: Exited with exit code 3\n"
        "slurmstepd-a: error: *** JOB 12 ON a CANCELLED AT x DUE TO JOB REQUEUE ***\n"
        "dslaunch: job 12, start 2 on a\n"
        "srun: error: b: task 1: Exited with exit code 7\n"
    )
    ended = JobInfo("12", "FAILED", code=143, restarts=1, nodes="a,b", output=str(out))
    job, _, _ = following(scripted([ended]), Layout(((2, 1),), direct=True))
    job.catch_up()
    (verdict,) = job.verdicts({}, own_uid=0)
    assert (verdict.code, verdict.exit_code, verdict.start) == (Ending.FAILED, 7, 2)
    assert verdict.root is not None
    assert verdict.root.cause is not None
    assert (verdict.root.cause.host, verdict.root.cause.rank) == ("b", 1)
    assert verdict.root.secondary == ()


def test_lines_that_come_before_slurm_names_the_nodes_have_their_nodes(tmp_path: Path) -> None:
    out = tmp_path / "train-12.out"
    out.write_text("dslaunch: job 12, start 1 on a,b\n1: ValueError: no data\n")
    waiting = JobInfo("12", "PENDING", restarts=1, output=str(out))
    job, screen, _ = following(scripted([waiting]), Layout(((2, 1),), direct=True))
    job.catch_up()
    assert ("b", 1, "ValueError: no data") in screen.lines


def test_each_task_of_an_array_has_its_own_lines_and_root_cause(tmp_path: Path) -> None:
    tasks = []
    for task, code in ((0, 0), (1, 3)):
        out = tmp_path / f"train-12_{task}.out"
        said = f"0: task {task}\n"
        said += f"srun: error: a: task 0: Exited with exit code {code}\n" if code else ""
        out.write_text(said)
        state = "FAILED" if code else "COMPLETED"
        tasks.append(JobInfo(
            str(12 + task), state, code=code, nodes="a", output=str(out), array="12",
            task=str(task),
        ))  # fmt: skip
    screen = Tasks()
    layout = Layout(((1, 1),), direct=True)
    job = Following(scripted(tasks), JobId("12"), layout, Watch(screen), lambda words: None)
    job.catch_up()
    assert ("12_0", "a", 0, "task 0") in screen.lines
    assert ("12_1", "a", 0, "task 1") in screen.lines
    first, second = job.verdicts({}, own_uid=0)
    assert (first.code, first.root, second.code) == (Ending.SUCCEEDED, None, Ending.FAILED)
    assert second.exit_code == 3


class Tasks(View):
    """A screen that remembers lines with the task that they are of."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int | None, str]] = []

    def line(self, line: Line) -> None:
        self.lines.append((line.task, line.host, line.rank, line.text))

    def event(self, event: Event) -> None:
        """Not looked at."""


class Forgetful(Scripted, frozen=True):
    """A client whose controller forgets tasks that its accounting still has."""

    def starts(self, job: JobId) -> tuple[JobInfo, ...]:
        return (
            JobInfo("12", "COMPLETED", code=0, array="12", task="0"),
            JobInfo("13", "FAILED", code=4, array="12", task="1"),
        )


def test_a_task_that_the_controller_forgot_is_asked_of_accounting() -> None:
    running = JobInfo("13", "RUNNING", nodes="a", array="12", task="1")
    last = JobInfo("12", "COMPLETED", code=0, array="12", task="0")
    answers = [[replace(last, state="RUNNING"), running], *([[last]] * 3)]
    job, _, _ = following(Forgetful({}, answers=iter(answers)))
    clock = seconds()
    assert job.to_the_end(until=lambda: False, clock=lambda: next(clock)) is not None
    ends = {verdict.task: verdict.code for verdict in job.verdicts({}, own_uid=0)}
    assert ends == {"12_0": Ending.SUCCEEDED, "12_1": Ending.FAILED}


def test_an_output_that_is_not_here_is_not_sought_in_a_job_of_the_number_here() -> None:
    """srun knows the jobs of its own cluster."""
    running = JobInfo("12", "RUNNING", cluster="other", nodes="a", batch_host="a", output="/no/x")
    job, _, told = following(scripted([running]))
    job.ask()
    stream = job.streams["/no/x"]
    stream.since = -100.0
    job.ask()
    assert stream.far is None
    assert [notice.code for notice in told] == [NoticeCode.STATUS]
