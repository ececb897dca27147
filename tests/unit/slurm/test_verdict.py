"""How a job ended: codes and parameters, from what SLURM 22.05 really said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.run.outcome import Outcome
from dslaunch.run.run_state import State
from dslaunch.run.view import QuietView
from dslaunch.run.watch import Watch
from dslaunch.slurm.output import Layout, OutputReader
from dslaunch.slurm.output_evidence import (
    Cut,
    LaunchError,
    MemoryExceeded,
    OutputEvidence,
    Starts,
)
from dslaunch.slurm.reported_ends import task_ends
from dslaunch.slurm.states import JobInfo
from dslaunch.slurm.verdict import (
    Account,
    EndDetails,
    Ending,
    JobVerdict,
    decide,
    state_of,
    worst,
)
from dslaunch.slurm.verdict_text import message, outcome_of

ALICE = 2001
DIRECT = Layout(((2, 1),), direct=True)
TWO_PER_NODE = Layout(((2, 2),), direct=True)


NOTHING, NOT_ASKED = OutputEvidence(), EndDetails()


def observe(text: str, layout: Layout = DIRECT) -> Starts:
    """What a job's output tells of its last start."""
    starts, reader = Starts(layout), OutputReader(layout, ("node1", "node2"))
    for line in text.splitlines():
        host, rank, piece = reader.read(line.encode())
        plain = piece.decode().rstrip()
        starts.begins(host, plain)
        starts.feed(host, rank, plain)
    return starts


def verdict(
    info: JobInfo,
    observed: OutputEvidence = NOTHING,
    root: Outcome | None = None,
    after: EndDetails = NOT_ASKED,
) -> JobVerdict:
    return decide(info, observed=observed, root=root, after=after, own_uid=ALICE)


def root_cause(line: str, layout: Layout = DIRECT) -> Outcome:
    """The outcome of a run of which srun said this."""
    watch = Watch(QuietView())
    for event in task_ends(line, layout, 1.0):
        watch.happened(event)
    return watch.outcome()


# ---------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("info", "code", "exit_code"),
    [
        (JobInfo("12", "COMPLETED", code=0), Ending.SUCCEEDED, 0),
        (JobInfo("12", "FAILED", code=7, reason="NonZeroExitCode"), Ending.FAILED, 7),
        (JobInfo("12", "TIMEOUT", signal=15), Ending.TIME_LIMIT, 124),
        (JobInfo("12", "DEADLINE"), Ending.DEADLINE, 124),
        (JobInfo("12", "OUT_OF_MEMORY", signal=125), Ending.OUT_OF_MEMORY, 137),
        (JobInfo("12", "NODE_FAIL"), Ending.NODE_FAILED, 5),
        (JobInfo("12", "BOOT_FAIL"), Ending.BOOT_FAILED, 5),
        (JobInfo("12", "PREEMPTED"), Ending.PREEMPTED, 143),
        (JobInfo("12", "CANCELLED"), Ending.CANCELED, 130),
        (JobInfo("12", "REVOKED"), Ending.REVOKED, 1),
        (JobInfo("12", "GONE"), Ending.GONE, 1),
        (JobInfo("12", "EXPLODED"), Ending.OTHER, 1),
        (JobInfo("12", "CANCELLED", "DependencyNeverSatisfied"), Ending.NEVER_STARTED, 1),
        (JobInfo("12", "FAILED", "JobLaunchFailure", signal=9), Ending.SIGNALED, 137),
        (JobInfo("12", "FAILED", "JobLaunchFailure", code=1), Ending.LAUNCH_FAILED, 1),
        (JobInfo("12", "FAILED", "JobLaunchFailure", signal=54), Ending.PROLOG_FAILED, 5),
    ],
)
def test_every_state_has_a_code_and_an_exit_code(
    info: JobInfo, code: Ending, exit_code: int
) -> None:
    found = verdict(info)
    assert (found.code, found.exit_code) == (code, exit_code)


@pytest.mark.parametrize("code", list(Ending))
def test_every_code_has_a_text_with_the_job_and_the_start(code: Ending) -> None:
    found = JobVerdict(code=code, job="12", exit_code=1, start=2)
    assert message(found).startswith("job 12 ")
    assert message(found).endswith(", in start 2")
    assert found.as_data()["code"] == code.value


# ---------------------------------------------------------------- who canceled it


@pytest.mark.parametrize(
    ("by", "code"),
    [
        (None, Ending.CANCELED),
        (Account(ALICE, "alice"), Ending.CANCELED),
        (Account(0, "root"), Ending.CANCELED_BY_ROOT),
        (Account(2002, "bob"), Ending.CANCELED_BY_USER),
    ],
)
def test_a_cancellation_names_who_did_it(by: Account | None, code: Ending) -> None:
    found = verdict(JobInfo("12", "CANCELLED"), after=EndDetails(canceled_by=by))
    assert found.code is code
    assert outcome_of([found]).status == "interrupted"
    if code is Ending.CANCELED_BY_USER:
        assert found.as_data()["by"] == {"uid": 2002, "name": "bob"}


def test_a_job_whose_prolog_failed_was_not_canceled() -> None:
    """Recorded: a job with --no-requeue is CANCELLED by 0, its node drained for `Prolog error`."""
    after = EndDetails(canceled_by=Account(0, "root"), prolog="node2")
    found = verdict(JobInfo("13", "CANCELLED", nodes="node2"), after=after)
    assert (found.code, found.node, found.exit_code) == (Ending.PROLOG_FAILED, "node2", 5)


# ---------------------------------------------------------------- output that cannot be opened


def test_an_output_that_could_not_be_opened_is_named_with_its_node() -> None:
    """Recorded: JobState=FAILED Reason=JobLaunchFailure ExitCode=0:53."""
    info = JobInfo(
        "1", "FAILED", "JobLaunchFailure", signal=53, nodes="node1", batch_host="node1",
        output="/nodir/x.out",
    )  # fmt: skip
    found = verdict(info)
    assert (found.code, found.path, found.node) == (
        Ending.OUTPUT_NOT_OPENED, "/nodir/x.out", "node1",
    )  # fmt: skip
    assert found.exit_code == 1


def test_exit_code_181_is_that_of_a_step_without_output_unless_a_rank_had_it() -> None:
    info = JobInfo("12", "FAILED", "NonZeroExitCode", code=181)
    assert verdict(info).code is Ending.STEP_OUTPUT_FAILED
    assert verdict(info).exit_code == 181
    own = root_cause("srun: error: node1: task 0: Exited with exit code 181")
    assert verdict(info, root=own).code is Ending.FAILED


def test_a_step_that_was_not_launched_is_no_success() -> None:
    """Recorded: srun of 22.05 exits with 0 then, and the job is COMPLETED."""
    line = "srun: error: task 0 launch failed: Slurmd could not connect IO"
    observed = observe(line).last
    (failed,) = observed.launch
    assert failed.error is LaunchError.OUTPUT
    found = verdict(JobInfo("2", "COMPLETED", code=0), observed)
    assert (found.code, found.exit_code) == (Ending.STEP_OUTPUT_FAILED, 1)


def test_a_prolog_that_failed_for_a_step_names_the_node() -> None:
    line = "srun: error: Task launch for StepId=4.0 failed on node node2: Job prolog failed"
    found = verdict(JobInfo("4", "FAILED", code=1), observe(line).last)
    assert (found.code, found.node) == (Ending.PROLOG_FAILED, "node2")


# ---------------------------------------------------------------- memory

EXCEEDED = """\
1: slurmstepd-node2: error: StepId=3.0 exceeded memory limit (325894144 > 104857600), being killed
slurmstepd-node1: error: Exceeded job memory limit
0: slurmstepd-node1: error: *** STEP 3.0 ON node1 CANCELLED AT 2026-11-22T20:39:43 ***
srun: Job step aborted: Waiting up to 5 seconds for job step to finish.
srun: error: node1: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=3.0
slurmstepd-node1: error: Exceeded job memory limit
srun: error: node2: task 1: Killed
"""
"""Recorded: SLURM names the rank that it killed as a consequence before the one that exceeded."""


def test_the_rank_that_exceeded_its_memory_is_named_and_not_the_one_killed_first() -> None:
    observed = observe(EXCEEDED).last
    assert observed.memory == (MemoryExceeded("node2", "0", (1,), used=325894144, limit=104857600),)
    blamed = root_cause("srun: error: node1: task 0: Killed")
    found = verdict(JobInfo("3", "FAILED", "NonZeroExitCode", code=137), observed, blamed)
    assert (found.code, found.node, found.ranks) == (Ending.OUT_OF_MEMORY, "node2", (1,))
    assert (found.used, found.limit) == (325894144, 104857600)


@pytest.mark.parametrize(
    "line",
    [
        "1: slurmstepd: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks "
        "have been OOM Killed.",
        "1: slurmstepd: error: Detected 2 oom_kill events in StepId=3.0. Some of the step tasks "
        "have been OOM Killed.",
        "1: slurmstepd-node2: error: Detected 1 oom-kill event(s) in StepId=3.0. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
        "1: slurmstepd: error: Detected 3 oom-kill event(s) in step 3.0 cgroup. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
    ],
)
def test_the_out_of_memory_killer_is_recognized_in_texts_of_every_release(line: str) -> None:
    """task_cgroup_memory.c of 26.05, 22.05 and 20.02."""
    assert observe(line).last.memory == (MemoryExceeded("node2", "0", (1,)),)


def test_of_several_ranks_on_a_node_srun_names_the_one() -> None:
    """The label of slurmstepd's line is that of the node's first task."""
    text = (
        "2: slurmstepd: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks "
        "have been OOM Killed.\n"
        "srun: error: node2: task 3: Out Of Memory\n"
    )
    found = verdict(JobInfo("3", "OUT_OF_MEMORY", signal=125), observe(text, TWO_PER_NODE).last)
    assert (found.node, found.ranks, found.step) == ("node2", (3,), "0")


def test_accounting_names_node_and_rank_where_the_output_does_not() -> None:
    after = EndDetails(memory=MemoryExceeded("node2", "0", (1,), used=318256 << 10))
    found = verdict(JobInfo("3", "OUT_OF_MEMORY", signal=125), after=after)
    assert (found.node, found.ranks, found.step) == ("node2", (1,), "0")


# ---------------------------------------------------------------- starts

REQUEUED = """\
dslaunch: job 8, start 1 on node1
srun: error: node1: task 0: Out Of Memory
slurmstepd-node1: error: *** JOB 8 ON node1 CANCELLED AT 2026-11-22T20:39:46 DUE TO JOB REQUEUE ***
dslaunch: job 8, start 2 on node1
srun: error: node1: task 0: Exited with exit code 7
"""


def test_what_an_earlier_start_wrote_is_no_reason_for_the_end() -> None:
    observed = observe(REQUEUED).last
    assert observed == OutputEvidence(start=2)
    found = verdict(JobInfo("8", "FAILED", code=7, restarts=1), observed)
    assert (found.code, found.start) == (Ending.FAILED, 2)


def test_starts_are_distinguished_without_our_marker() -> None:
    """Of a script of the user's: what follows SLURM's line and is not SLURM's is the next start."""
    text = REQUEUED.replace("dslaunch: job 8, start 1 on node1\n", "").replace(
        "dslaunch: job 8,", ""
    )
    assert observe(text).last == OutputEvidence()


def test_a_start_that_left_no_output_is_not_blamed_on_the_one_before() -> None:
    first = "dslaunch: job 8, start 1 on node1\nsrun: error: node1: task 0: Out Of Memory\n"
    found = verdict(JobInfo("8", "FAILED", code=1, restarts=1), observe(first).last)
    assert (found.code, found.start) == (Ending.FAILED, 2)


def test_the_output_counts_the_starts_where_slurm_forgot_them() -> None:
    """Accounting says nothing of restarts."""
    assert verdict(JobInfo("8", "FAILED", code=7), observe(REQUEUED).last).start == 2


def test_why_slurm_ended_a_start_is_a_code() -> None:
    line = "slurmstepd-a: error: *** JOB 12 ON a CANCELLED AT x DUE TO {} ***"
    found = {
        words: observe(line.format(words)).last.cut
        for words in ("TIME LIMIT", "PREEMPTION", "NODE FAILURE, SEE SLURMCTLD LOG", "JOB REQUEUE")
    }
    assert list(found.values()) == [
        Cut.TIME_LIMIT, Cut.PREEMPTED, Cut.NODE_FAILED, Cut.REQUEUED,
    ]  # fmt: skip


# ---------------------------------------------------------------- arrays


def test_an_array_fails_if_any_task_failed() -> None:
    tasks = [
        verdict(JobInfo("9", "COMPLETED", code=0, array="4", task="0")),
        verdict(JobInfo("10", "FAILED", code=3, array="4", task="1")),
        verdict(JobInfo("11", "CANCELLED", array="4", task="2")),
        verdict(JobInfo("12", "GONE", array="4", task="3")),
    ]
    outcome = outcome_of(tasks)
    assert (outcome.status, outcome.exit_code) == ("failed", 3)
    assert worst(tasks).task == "4_1"
    assert [job["task"] for job in outcome.jobs] == ["4_0", "4_1", "4_2", "4_3"]
    assert [job["code"] for job in outcome.jobs] == ["succeeded", "failed", "canceled", "gone"]


def test_the_highest_exit_code_of_an_arrays_tasks_counts() -> None:
    tasks = [
        verdict(JobInfo(str(9 + n), "FAILED", code=code, array="4", task=str(n)))
        for n, code in enumerate((3, 6, 1))
    ]
    assert outcome_of(tasks).exit_code == 6


# ---------------------------------------------------------------- hostile text


@given(st.lists(st.text(max_size=200), max_size=30))
def test_no_output_makes_the_reading_fail_or_grow(lines: list[str]) -> None:
    starts = Starts(DIRECT)
    for line in lines:
        starts.begins("slurm", line)
        starts.feed("slurm", None, line)
    found = verdict(JobInfo("12", "FAILED", code=1), starts.last)
    assert found.exit_code in (1, 5, 137)


def test_what_is_kept_of_one_start_is_bounded() -> None:
    line = "srun: error: node1: task 0: Out Of Memory\n"
    assert len(observe(line * 1000).last.memory) == 64


def test_a_rank_cannot_begin_another_start_or_end_its_own() -> None:
    """Lines of ranks are labeled by srun."""
    mark = "0: dslaunch: job 8, start 9 on node1\n"
    text = f"{mark}0: slurmstepd: error: *** JOB 8 ON a CANCELLED AT x\n"
    assert observe(text).last == OutputEvidence()


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("COMPLETED",), State.SUCCEEDED),
        (("COMPLETED", "RUNNING"), State.RUNNING),
        (("PENDING", "RUNNING"), State.RUNNING),
        (("FAILED", "PENDING"), State.WAITING),
        (("COMPLETED", "TIMEOUT"), State.FAILED),
        (("FAILED", "CANCELLED"), State.STOPPED),
        (("COMPLETED", "GONE"), State.UNKNOWN),
        (("A_NEW_STATE",), State.RUNNING),
    ],
    ids=str,
)
def test_the_tasks_of_a_job_make_one_state(states: tuple[str, ...], state: State) -> None:
    assert state_of([JobInfo(str(number), each) for number, each in enumerate(states)]) is state
