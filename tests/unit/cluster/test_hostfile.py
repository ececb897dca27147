from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.hostfile import Line, parse_hostfile
from dslaunch.errors import ConfigError


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_hostfile(text, "f")
    return [str(problem) for problem in caught.value.problems]


def test_comments_blank_lines_and_indentation_are_read_over() -> None:
    text = """
        # this is a comment
        worker-1 slots=2
        #worker-1 slots=3

        worker-2\tslots=2
        localhost   slots=1   # ours
        123.23.12.10 slots=2 max_slots=4
    """
    assert parse_hostfile(text, "f") == (
        Line("worker-1", 2), Line("worker-2", 2), Line("localhost", 1), Line("123.23.12.10", 2)
    )  # fmt: skip


def test_windows_line_ends_are_line_ends() -> None:
    assert parse_hostfile("a slots=1\r\nb slots=2\r\n", "f") == (Line("a", 1), Line("b", 2))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "missingslots",
            "f:1:1: expected `host slots=N`, got 'missingslots'; name the slots with --slots N",
        ),
        ("this is bad slots=1", "expected `host slots=N`"),
        ("w:4:5", "expected `host slots=N`"),
        ("w slots = 4", "expected `host slots=N`"),
        ("w SLOTS=4", "expected `host slots=N`"),
        ("w slots=-1", "expected `host slots=N`"),
        ("w slots=٤", "expected `host slots=N`"),
        ("w max_slots=8 slots=4", "expected `host slots=N`"),
        ("w slots=4abc", "'abc' after `slots=4`, which DeepSpeed ignores"),
        ("a slots=4,b slots=2", "',b slots=2' after `slots=4`, which DeepSpeed ignores"),
        ("w slots=4 slots=5", "'slots=5' after `slots=4`"),
        ("w slots=4#c", "'#c' after `slots=4`"),
        ("w slots=1025", "host 'w' has 1025 slots, at most 1024 can be"),
        ("w slots=0", "host 'w' has no slots; leave it out"),
        ("w slots=4 max_slots=2", "has more slots, 4, than max_slots, 2"),
        ("@h slots=2", "'@h' is no host name"),
        ("fe80::1 slots=2", "'fe80::1' is no host name"),
        ("w-[0-3] slots=8", "'w-[0-3]' is no host name"),
        ("a,b slots=8", "'a,b' is no host name"),
        ("\ufeffw slots=1", "a byte order mark"),
    ],
)
def test_a_line_that_deepspeed_refuses_or_misreads_is_a_problem(line: str, problem: str) -> None:
    (found,) = problems(line)
    assert problem in found


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n"])
def test_a_hostfile_without_hosts_is_a_problem(text: str) -> None:
    assert problems(text) == ["f: has no host, expected lines of `host slots=N`"]


def test_every_bad_line_is_told() -> None:
    text = "a slots=1\nbad\na slots=2\nb slots=0\n"
    assert [line.split(":")[1] for line in problems(text)] == ["2", "3", "4"]


@given(st.text() | st.text(alphabet="ab slots=01,#\t\r\n\ufeff@"))
def test_no_text_raises_anything_but_config_errors(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_hostfile(text, "f")


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("w slots=4 max_slots=8", Line("w", 4)),
        ("w slots=4 max-slots=8", Line("w", 4)),
        ("w slots=4 max-slots=4  # all", Line("w", 4)),
        ("w:8", Line("w", 8)),
        ("10.0.0.1:8", Line("10.0.0.1", 8)),
        ("w", Line("w", 6)),
        ("w # the first", Line("w", 6)),
        ("ml@w slots=4", Line("w", 4, "ml")),
        ("ml@w:4", Line("w", 4, "ml")),
        ("ml@w", Line("w", 6, "ml")),
    ],
)
def test_hostfiles_of_mpi_are_read_and_slots_are_for_lines_without(line: str, read: Line) -> None:
    assert parse_hostfile(line, "f", slots=6) == (read,)


def test_a_host_is_one_host_whichever_user_logs_in() -> None:
    assert problems("ml@a slots=1\nroot@a:2\n") == ["f:2:1: host 'a' is there already"]
