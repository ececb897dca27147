"""Which names patterns with `*` mean."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.protocol.name_patterns import MOST_PATTERNS, NamePatterns
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
