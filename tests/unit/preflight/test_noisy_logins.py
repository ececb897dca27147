"""How the program that asks a node gets there, through logins that print."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dslaunch.cluster.model import Node
from dslaunch.preflight.check import Question
from dslaunch.preflight.conversation import Conversation
from dslaunch.preflight.logins import log_in
from dslaunch.preflight.runner import Here
from dslaunch.transport.base import Channel
from dslaunch.transport.future import done_with
from dslaunch.transport.login_shell import NOISE_KEPT
from dslaunch.transport.process import ProcessChannel
from dslaunch.transport.wire import LostError

MORE_THAN_A_PIPE_HOLDS = 300_000
BOUND = 30.0


class Login(Here):
    """This machine, with a start-up file that does something first."""

    def __init__(self, startup: str) -> None:
        self.startup = startup

    def start(self, line: str, text: Sequence[bytes] = ()) -> Channel:
        return ProcessChannel(["/bin/sh", "-c", f"{self.startup}\n{line}"], text=text)


def asked(startup: str, *questions: Question) -> Conversation:
    """A conversation of one round; one that does not end in time is an error."""
    node = Node("localhost", (0,))
    talk = Conversation(node)
    talk.open(done_with(log_in(node, Login(startup)))).result()
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(talk.ask, questions).result(timeout=BOUND)
    finally:
        talk.close()
        pool.shutdown()
    return talk


def test_a_login_that_prints_before_it_reads_gets_a_program_of_any_length() -> None:
    """Both pipes are full at once, unless somebody reads while the program is sent."""
    long = Question("path", f"/{'x' * MORE_THAN_A_PIPE_HOLDS}")
    talk = asked(f"head -c {MORE_THAN_A_PIPE_HOLDS} /dev/zero | tr '\\0' x; echo", long)
    assert talk.hello["python"]
    assert set(talk.noise()) == {"x"}
    assert len(talk.noise()) == NOISE_KEPT
    assert set(talk.answers) == {long.key}


def test_a_login_that_leaves_is_named_by_how_it_left_and_not_by_the_broken_pipe() -> None:
    question = Question("path", f"/{'x' * MORE_THAN_A_PIPE_HOLDS}")
    with pytest.raises(LostError) as lost:
        asked("exec >&2; echo no home; exit 7", question)
    assert lost.value.failure.kind == "noisy-shell"
    assert "code 7" in lost.value.failure.message
    assert "no home" in lost.value.failure.message


def test_a_login_that_prints_in_the_background_after_our_program_has_started_is_named(
    tmp_path: Path,
) -> None:
    started = tmp_path / "started"
    background = f"(until [ -e {started} ]; do sleep 0.05; done; echo You have mail.) &"
    starts = Question("mark", {"paths": [str(tmp_path)], "name": started.name})
    waits = Question("run", {"argv": ["sleep", "60"]}, timeout=60)
    with pytest.raises(LostError) as lost:
        asked(background, starts, waits)
    assert lost.value.failure.kind == "noisy-shell"
    assert "You have mail." in lost.value.failure.message
