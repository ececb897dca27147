from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.hostfile import HostLine, parse_hostfile
from dslaunch.errors import ConfigError


def problems(text: str) -> list[tuple[int, str]]:
    """The line and the code of each problem."""
    with pytest.raises(ConfigError) as caught:
        parse_hostfile(text, "f")
    return [(problem.line, problem.rule) for problem in caught.value.problems]


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
        HostLine("worker-1", 2),
        HostLine("worker-2", 2),
        HostLine("localhost", 1),
        HostLine("123.23.12.10", 2),
    )


def test_windows_line_ends_are_line_ends() -> None:
    assert parse_hostfile("a slots=1\r\nb slots=2\r\n", "f") == (HostLine("a", 1), HostLine("b", 2))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("missingslots", "no-slots-given"),
        ("this is bad slots=1", "invalid-line"),
        ("w:4:5", "invalid-line"),
        ("w slots = 4", "invalid-line"),
        ("w SLOTS=4", "invalid-line"),
        ("w slots=-1", "invalid-line"),
        ("w slots=٤", "invalid-line"),
        ("w max_slots=8 slots=4", "invalid-line"),
        ("w slots=4abc", "ignored-text"),
        ("a slots=4,b slots=2", "ignored-text"),
        ("w slots=4 slots=5", "ignored-text"),
        ("w slots=4#c", "ignored-text"),
        ("w slots=1025", "too-many-slots"),
        ("w slots=0", "zero-slots"),
        ("w slots=4 max_slots=2", "above-max-slots"),
        ("@h slots=2", "user-or-port"),
        ("fe80::1 slots=2", "ipv6-host"),
        ("w-[0-3] slots=8", "invalid-host"),
        ("a,b slots=8", "invalid-host"),
        ("\ufeffw slots=1", "byte-order-mark"),
    ],
)
def test_a_line_that_deepspeed_refuses_or_misreads_is_a_problem(line: str, code: str) -> None:
    assert problems(line) == [(1, code)]


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n"])
def test_a_hostfile_without_hosts_is_a_problem(text: str) -> None:
    assert problems(text) == [(0, "no-host")]


def test_every_invalid_line_is_reported() -> None:
    text = "a slots=1\nbad\na slots=2\nb slots=0\n"
    assert [line for line, _ in problems(text)] == [2, 3, 4]


@given(st.text() | st.text(alphabet="ab slots=01,#\t\r\n\ufeff@"))
def test_no_text_raises_anything_but_config_errors(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_hostfile(text, "f")


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("w slots=4 max_slots=8", HostLine("w", 4)),
        ("w slots=4 max-slots=8", HostLine("w", 4)),
        ("w slots=4 max-slots=4  # all", HostLine("w", 4)),
        ("w:8", HostLine("w", 8)),
        ("10.0.0.1:8", HostLine("10.0.0.1", 8)),
        ("w", HostLine("w", 6)),
        ("w # the first", HostLine("w", 6)),
        ("ml@w slots=4", HostLine("w", 4, "ml")),
        ("ml@w:4", HostLine("w", 4, "ml")),
        ("ml@w", HostLine("w", 6, "ml")),
    ],
)
def test_hostfiles_of_mpi_are_read_and_slots_are_for_lines_without(
    line: str, read: HostLine
) -> None:
    assert parse_hostfile(line, "f", slots=6) == (read,)


def test_a_host_is_one_host_whichever_user_logs_in() -> None:
    assert problems("ml@a slots=1\nroot@a:2\n") == [(2, "repeated-host")]
