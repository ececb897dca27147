"""The timeouts that a run is given by a caller from Python."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.run.timeouts import DEFAULTS, LONGEST_TIMEOUT, Timeouts

NAMES = Timeouts.__struct_fields__


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 2 * LONGEST_TIMEOUT])
@pytest.mark.parametrize("name", NAMES)
def test_a_timeout_is_a_number_of_seconds_in_the_range_of_timers(name: str, seconds: float) -> None:
    with pytest.raises(UsageError) as caught:
        replace(DEFAULTS, **{name: seconds}).check()
    assert caught.value.error_code is ErrorCode.INVALID_OPTION
    assert str(caught.value.values["option"]).startswith(name)


def test_the_defaults_and_the_longest_timeouts_are_valid() -> None:
    DEFAULTS.check()
    Timeouts(**dict.fromkeys(NAMES, LONGEST_TIMEOUT)).check()
