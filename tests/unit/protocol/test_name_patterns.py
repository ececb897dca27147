"""Which names patterns with `*` mean."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.protocol.name_patterns import (
    LONGEST_KNOWN,
    MOST_KNOWN,
    MOST_PATTERNS,
    NamePatterns,
)
from dslaunch.protocol.values import InvalidAnswer

TEXT = st.text("ab/*\n", max_size=8)


@given(TEXT, TEXT)
def test_a_star_stands_for_a_part_of_one_component(pattern: str, name: str) -> None:
    expression = r"[^/\n]*".join(map(re.escape, pattern.split("*")))
    assert (name in NamePatterns([pattern])) is bool(re.fullmatch(expression, name))


def test_each_pattern_means_other_names() -> None:
    patterns = NamePatterns(["/proc/a", "/sys/*/state", "NCCL_*"])
    asked = ("/proc/a", "/sys/x/state", "NCCL_", "NCCL_DEBUG")
    others = ("/proc/ab", "/sys/x/y/state", "/sys//state/", "NCCL", "NCCL_\x1b", "")
    assert [name for name in (*asked, *others) if name in patterns] == list(asked)


def test_names_may_be_many_and_patterns_few() -> None:
    assert "9" in NamePatterns(map(str, range(2 * MOST_PATTERNS)))
    with pytest.raises(InvalidAnswer):
        NamePatterns(["*"] * (MOST_PATTERNS + 1))


def test_a_name_means_the_same_however_often_it_is_compared() -> None:
    patterns = NamePatterns(["/sys/*/state"])
    for _ in range(2):
        assert "/sys/x/state" in patterns
        assert "/sys/x/rate" not in patterns


def test_few_short_names_are_kept() -> None:
    patterns = NamePatterns(["a*"])
    long = "a" * (LONGEST_KNOWN + 1)
    names = [f"a{number}" for number in range(MOST_KNOWN + 1)]
    assert all(name in patterns for name in (long, *names))
    assert patterns.known == MOST_KNOWN
