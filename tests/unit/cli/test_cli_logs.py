"""The values of options of `logs`, `attach` and `ps`: times, numbers of lines, nodes, states."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.conftest import Called

from dslaunch.cli.logs import line_count
from dslaunch.cli.lookup import hosts_of
from dslaunch.cli.moments import age, moment
from dslaunch.cli.ps import state_of
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.report.log_view import utc
from dslaunch.run.run_state import State


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("1.5h", 5400), ("1d1s", 86401)],
)
def test_a_duration_is_a_time_before_now(text: str, seconds: float) -> None:
    before = time.time()
    found = moment(text, "--since")
    assert found is not None
    assert before - seconds <= found <= time.time() - seconds
    assert before - seconds <= age(text, "--since") <= time.time() - seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T15:00:00Z", datetime(2026, 1, 31, 15, tzinfo=UTC)),
        ("2026-01-31T15:00:00+02:00", datetime(2026, 1, 31, 13, tzinfo=UTC)),
        ("2026-01-31T15:00", datetime(2026, 1, 31, 15).astimezone()),
        ("2026-01-31 15:00:01.5", datetime(2026, 1, 31, 15, 0, 1, 500_000).astimezone()),
        ("2026-01-31", datetime(2026, 1, 31).astimezone()),
    ],
)
def test_a_time_is_local_unless_it_names_its_offset(text: str, expected: datetime) -> None:
    assert moment(text, "--since") == expected.timestamp()


def test_seconds_since_the_epoch_are_a_time_too() -> None:
    assert moment("1795474776.5", "--since") == 1795474776.5
    assert moment(None, "--since") is None


@pytest.mark.parametrize("text", ["yesterday", "", "10", "10x", "m", "1m1h", "-5m", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        moment(text, "--since")
    assert refused.value.error_code is ErrorCode.INVALID_OPTION


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_a_usage_error(text: str) -> None:
    for read in (moment, age):
        try:
            read(text, "--since")
        except UsageError as error:
            assert error.error_code is ErrorCode.INVALID_OPTION


def test_a_line_is_stamped_in_utc_with_milliseconds() -> None:
    assert utc(1795474776.4394543) == "2026-11-23T22:59:36.439Z"


@pytest.mark.parametrize(("text", "count"), [(None, None), ("all", None), ("0", 0), ("20", 20)])
def test_a_number_of_lines_is_counted_and_all_is_no_limit(
    text: str | None, count: int | None
) -> None:
    assert line_count(text) == count


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "9" * 20, "٣"])
def test_what_is_no_number_of_lines_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        line_count(text)
    assert refused.value.error_code is ErrorCode.INVALID_OPTION


def test_nodes_are_given_folded() -> None:
    assert hosts_of("n[1-2],m") == {"n1", "n2", "m"}
    with pytest.raises(UsageError):
        hosts_of("n[1-")


def test_a_state_is_named_as_in_json() -> None:
    assert state_of("partly-running") is State.PARTLY_RUNNING
    with pytest.raises(UsageError) as refused:
        state_of("fine")
    assert refused.value.error_code is ErrorCode.UNKNOWN_CHOICE


def test_a_list_of_no_runs_says_how_to_list_ended_ones(
    dslaunch: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("DSLAUNCH_STATE", f"{tmp_path}/state")
    assert "--all" in dslaunch("ps").stdout
    assert dslaunch("ps", "--state", "failed").stdout == "no runs\n"
    assert dslaunch("ps", "-a", "-q").stdout == ""
    assert dslaunch("ps", "-a", "--json").stdout == "[]\n"
