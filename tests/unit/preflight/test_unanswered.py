"""What nodes write about failures becomes a code: texts of Linux and of the program there."""

from __future__ import annotations

import errno
import os

import pytest

from dslaunch.node import survey
from dslaunch.preflight.unanswered import CallFailure, UnansweredReason, lacks_program, reason_of

ERRNO = {
    errno.ENOENT: UnansweredReason.MISSING,
    errno.EINVAL: UnansweredReason.INVALID_ARGUMENT,
    errno.ESTALE: UnansweredReason.FILE_SERVER_GONE,
    errno.ENOTCONN: UnansweredReason.FILE_SERVER_GONE,
    errno.EHOSTDOWN: UnansweredReason.FILE_SERVER_GONE,
    errno.EIO: UnansweredReason.FILE_SERVER_GONE,
    errno.ESHUTDOWN: UnansweredReason.FILE_SERVER_GONE,
    errno.EACCES: UnansweredReason.OTHER,
}


@pytest.mark.parametrize(("number", "reason"), ERRNO.items())
def test_an_error_of_linux_has_its_code(number: int, reason: UnansweredReason) -> None:
    assert reason_of(os.strerror(number)) is reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ModuleNotFoundError: No module named 'torch'", UnansweredReason.NOT_INSTALLED),
        ("/usr/bin/python3: No module named torch", UnansweredReason.NOT_INSTALLED),
        ("small packets arrive, big ones do not", UnansweredReason.LARGE_PACKETS_LOST),
        ("the last line says: no answer within 5 s", UnansweredReason.OTHER),
        ("", UnansweredReason.OTHER),
    ],
)
def test_a_text_of_a_program_has_its_code(text: str, reason: UnansweredReason) -> None:
    assert CallFailure.parse(text) == CallFailure(text, reason)


def test_a_question_that_is_late_on_the_node_is_a_timeout_here() -> None:
    late = {"kind": "run", "argument": {"argv": ["sleep", "9"]}, "timeout": 0.1}
    children = survey.Children()
    answers = survey.ask({"late": late}, children)
    children.end()
    assert reason_of(answers["late"]["error"]) is UnansweredReason.TIMEOUT


@pytest.mark.parametrize(
    ("code", "written", "lacks"),
    [
        (127, "ssh: not found", True),
        (127, "bash: line 1: echo: command not found", False),
        (255, "ssh: connect to host n1 port 22: Connection refused", False),
    ],
)
def test_a_program_that_is_missing_here_is_not_one_that_is_missing_there(
    code: int, written: str, lacks: bool
) -> None:
    assert lacks_program("ssh", {"code": code, "out": "", "err": written}) is lacks
