"""Whether a record of SLURM is of the job that is meant: requeues, reused numbers, lost states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.slurm.identity import JobId, Whose, proven_by_starts, seen, whose
from dslaunch.slurm.states import JobInfo

TOKEN = "dslaunch-0123456789abcdef"
OTHER = "dslaunch-ffffffffffffffff"
AT = 1_795_248_000
JOB = JobId("12", submitted=AT, token=TOKEN, user=1000)
NO_TOKEN = replace(JOB, token="")


def info(
    at: int | None, restarts: int = 0, command: str | None = None, user: int = 1000
) -> JobInfo:
    return JobInfo(
        "12", "RUNNING", submitted=at, restarts=restarts, command=command, user=user
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (info(AT, command=f"/dev/stdin {TOKEN}"), Whose.OURS),
        (info(AT + 99, 3, f"/dev/stdin {TOKEN}"), Whose.OURS),
        (info(AT, command=f"sbatch --parsable /dev/stdin {TOKEN}"), Whose.OURS),
        (info(AT, command=f"/dev/stdin {OTHER}"), Whose.OTHERS),
        (info(AT + 99, 1, f"/dev/stdin {OTHER}"), Whose.OTHERS),
        (info(AT + 99, 1, "/home/me/train.sh"), Whose.OTHERS),
        (info(AT + 99, 1, "/home/me/train.sh a JobState=FAILED b"), Whose.OTHERS),
        (info(AT + 99, 1, ""), Whose.OTHERS),
        (info(AT, command=None, user=1001), Whose.OTHERS),
        (info(AT + 99, 1, "/dev/stdin"), Whose.UNPROVEN),
    ],
)
def test_the_token_of_the_submission_decides(record: JobInfo, expected: Whose) -> None:
    assert whose(JOB, record) is expected


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (info(AT), Whose.OURS),
        (info(AT, restarts=1), Whose.OURS),
        (info(AT + 99), Whose.OTHERS),
        (info(AT - 99), Whose.OTHERS),
        (info(AT + 99, restarts=1), Whose.UNPROVEN),
        (info(None), Whose.UNPROVEN),
        (info(AT, user=1001), Whose.OTHERS),
    ],
)
def test_without_a_token_the_submission_time_decides(record: JobInfo, expected: Whose) -> None:
    assert whose(NO_TOKEN, record) is expected


def test_a_job_whose_time_was_never_seen_is_unproven_without_a_token() -> None:
    assert whose(JobId("12"), info(AT)) is Whose.UNPROVEN
    assert whose(JobId("12", token=TOKEN), info(AT, 2, f"/dev/stdin {TOKEN}")) is Whose.OURS


def test_a_controller_that_read_back_an_old_state_shows_an_earlier_start_of_ours() -> None:
    later = replace(NO_TOKEN, submitted=AT + 50, restarts=1, earlier=(AT,))
    assert whose(later, info(AT)) is Whose.OURS
    assert whose(later, info(AT + 20, restarts=1)) is Whose.UNPROVEN


def test_a_requeue_is_seen_with_the_time_that_belongs_to_it() -> None:
    """SLURM raises the restarts first, and sets the time once the nodes are free."""
    during = seen(NO_TOKEN, [info(AT, restarts=1)])
    assert (during.submitted, during.restarts) == (AT, 0)
    after = seen(during, [info(AT + 9, restarts=1)])
    assert (after.submitted, after.restarts, after.earlier) == (AT + 9, 1, (AT,))
    assert whose(after, info(AT + 9, restarts=1)) is Whose.OURS


def start(at: int, state: str, user: int = 1000) -> JobInfo:
    return JobInfo("12", state, submitted=at, user=user)


@pytest.mark.parametrize(
    ("starts", "proven"),
    [
        ([start(AT, "REQUEUED")], True),
        ([start(AT, "NODE_FAIL"), start(AT + 9, "RUNNING")], True),
        ([], False),
        ([start(AT, "COMPLETED")], False),
        ([start(AT, "CANCELLED")], False),
        ([start(AT, "REQUEUED", user=1001)], False),
        ([start(AT, "REQUEUED"), start(AT + 5, "REQUEUED")], False),
        ([start(AT + 5, "REQUEUED")], False),
    ],
)
def test_the_accounting_proves_an_unobserved_requeue(starts: list[JobInfo], proven: bool) -> None:
    """Two starts before this one are a restart too many: a later job, itself requeued."""
    assert proven_by_starts(NO_TOKEN, info(AT + 9, restarts=1), starts) is proven


STATES = st.sampled_from(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"))


@given(requeues=st.integers(1, 5), last=STATES, gap=st.integers(1, 10**6))
def test_a_later_job_of_the_number_is_never_ours(requeues: int, last: str, gap: int) -> None:
    """However often it was requeued, and whatever ended ours."""
    others = [start(AT + gap * (1 + count), "REQUEUED") for count in range(requeues)]
    now = info(AT + gap * (1 + requeues), restarts=requeues)
    assert whose(NO_TOKEN, now) is not Whose.OURS
    for ended in (last, "NODE_FAIL"):
        assert not proven_by_starts(NO_TOKEN, now, [start(AT, ended), *others])


@given(times=st.lists(st.integers(1, 10**6), min_size=1, max_size=5), looks=st.data())
def test_a_requeued_job_stays_ours_whenever_it_is_looked_at(
    times: list[int], looks: st.DataObject
) -> None:
    job, at, starts = NO_TOKEN, AT, [start(AT, "REQUEUED")]
    for restarts, gap in enumerate(times, 1):
        at += gap
        now = info(at, restarts)
        if looks.draw(st.booleans()):
            assert whose(job, now) is Whose.OURS or proven_by_starts(job, now, starts)
            job = seen(job, [now])
            assert whose(job, now) is Whose.OURS
        starts.append(start(at, "REQUEUED"))
