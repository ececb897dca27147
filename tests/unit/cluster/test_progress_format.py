"""Patterns of `progress:` in the cluster file."""

from __future__ import annotations

import re

import pytest

from dslaunch.cluster.model import Cluster
from dslaunch.cluster.progress_format import LONGEST, LONGEST_LINE, fault, most_steps
from dslaunch.errors import ConfigError

FILE = "nodes: [{host: node1, slots: 1}]\n"
GOOD = (
    r"batch (?P<step>[0-9]+) of (?P<last_step>[0-9]+)",
    r"step\s+(?P<step>\d+).*?loss[=: ]+(?P<loss>[\d.]+)",
    r"(?:it|step) (?P<step>\d+)/(?P<last_step>\d+)(?: loss (?P<loss>[-\d.]+))?",
    r"(?i)^\[(?P<epoch>\d+)\] (?P<tokens_per_second>\S+) tok",
    r"step (?P<step>\d+) .*loss (?P<loss>[\d.]+) .*tok (?P<tokens_per_second>\d+)",
    r"(?:\w+ )*(?P<step>\d)x",
    r"(?:(?:ab)+c)?(?P<step>\d)",
    r"(?:(?:ab){2,9})?(?P<step>\d)",
    "a?" * 9 + r"(?P<step>\d)",
)
BAD = {
    "(": "invalid-pattern",
    "(?P<step>[0-9]{1,99999999999999})": "invalid-pattern",
    r"\d+": "pattern-groups",
    r"(\d+)": "pattern-groups",
    r"(?P<foo>\d+)": "pattern-groups",
    r"(?P<step>\d+) (?P<foo>\d+)": "pattern-groups",
    r"(?P<step>\d*)": "slow-pattern",
    r"(?:a+)+(?P<step>\d)": "slow-pattern",
    r"(?P<step>(?:\d+,?)+)x": "slow-pattern",
    r"(?:ab|a)*(?P<step>\d)": "slow-pattern",
    r"(?P<step>\d+)\1": "slow-pattern",
    r"(?=.*x)(?P<step>\d)": "slow-pattern",
    r"x.*.*.*(?P<step>\d)": "slow-pattern",
    r"a\w+\d+\w+(?P<step>\d+)x": "slow-pattern",
    "a?" * 20 + r"(?P<step>\d)": "slow-pattern",
    "a?" * 4 + r".*.*(?P<step>\d)": "slow-pattern",
    r"(?:a|a)*(?P<step>\d)": "slow-pattern",
    r"(?:a|a){2,90}(?P<step>\d)": "slow-pattern",
    r"(?:ab|ab)" * 18 + r"(?P<step>\d)": "slow-pattern",
    r"(?:a*)*(?P<step>\d)": "slow-pattern",
    r"(?:(?:ab){2,9})*(?P<step>\d)": "slow-pattern",
    r"(?a)\d+(?P<step>\d)": "slow-pattern",
    "a" * LONGEST + r"(?P<step>\d)": "slow-pattern",
}


@pytest.mark.parametrize("pattern", GOOD)
def test_a_pattern_with_bounded_time_is_accepted(pattern: str) -> None:
    assert fault(pattern) is None


@pytest.mark.parametrize(("pattern", "code"), BAD.items())
def test_a_pattern_that_is_wrong_or_slow_is_refused(pattern: str, code: str) -> None:
    found = fault(pattern)
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize(
    ("pattern", "power"),
    [
        (r"(?P<step>\d)x", 1),
        (r"x\d+ (?P<step>\d)x", 1),
        (r"\d+ (?P<step>\d)x", 2),
        (r"[^a]+(?P<step>\d)x", 2),
        (r"x.*(?P<step>\d)x", 2),
        (r"x.*.*(?P<step>\d)x", 3),
    ],
)
def test_steps_grow_with_the_repeats_that_can_end_at_several_places(
    pattern: str, power: int
) -> None:
    assert LONGEST_LINE**power / 8 < most_steps(pattern) < 16 * LONGEST_LINE**power


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[^a]", "A"),
        (r"[\u4e00-\u9fff]", r"[\u4e00-\u4e10]"),
        (r"\d", "\u0663"),
        (r"\s", "\u00a0"),
        (r"\W", "\u2014"),
        ("(?i:k)", "\u212a"),
    ],
)
def test_classes_with_a_common_character_can_end_at_several_places(one: str, other: str) -> None:
    common, none = rf"x{one}*{other}*y(?P<step>\d)", rf"x{one}*y(?P<step>\d)"
    assert most_steps(common) > 20 * most_steps(none)


def test_patterns_of_the_cluster_file_are_in_the_cluster() -> None:
    cluster = Cluster.parse(FILE + "progress:\n- 'batch (?P<step>[0-9]+)'\n")
    assert cluster.progress == ("batch (?P<step>[0-9]+)",)
    assert re.compile(cluster.progress[0]).search("batch 7")


def test_a_wrong_pattern_is_a_problem_of_the_file() -> None:
    text = FILE + "progress:\n- 'batch (?P<step>[0-9]+)'\n- '(?P<step>(a+)+)'\n"
    with pytest.raises(ConfigError) as wrong:
        Cluster.parse(text)
    (problem,) = wrong.value.problems
    assert (problem.path, problem.line, problem.rule) == ("progress[1]", 4, "slow-pattern")
