"""States of SLURM's commands become values. Texts recorded from SLURM 22.05."""

from __future__ import annotations

import pytest

from dslaunch.slurm.states import FINAL, GONE, UNKNOWN, JobInfo, moment, state_word


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_listed_state_is_final(state: str) -> None:
    assert JobInfo("12", state).over


@pytest.mark.parametrize(
    "state",
    [
        "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_FED",
        "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SIGNALING",
        "RESIZING", "REVOKED", "EXPEDITING", "POWER_UP_NODE", "LAUNCH_FAILED",
        "A_STATE_OF_TOMORROW", UNKNOWN,
    ],
)  # fmt: skip
def test_every_other_state_is_running(state: str) -> None:
    assert not JobInfo("12", state).over


def test_a_job_that_slurm_forgot_is_over() -> None:
    assert JobInfo("12", GONE).over


@pytest.mark.parametrize("text", ["\x1b[2J", "runs", "", "9", "R", "A" * 99])
def test_what_cannot_be_a_state_is_unknown(text: str) -> None:
    assert state_word(text) == UNKNOWN


@pytest.mark.parametrize("text", ["Unknown", "None", "N/A", "0", "", "2026-11-21T08:00:00", "-1"])
def test_what_is_no_number_is_no_time(text: str) -> None:
    assert moment(text) is None
