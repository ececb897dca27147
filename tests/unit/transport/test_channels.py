from __future__ import annotations

import ast
import marshal
import os
import subprocess
import zlib
from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pythons import interpreter
from tests.unit.transport.fake import Answer, FakeTransport

from dslaunch import transport
from dslaunch.cluster.model import Cluster, Node, SecretSource
from dslaunch.errors import NodeFailure, UsageError
from dslaunch.node.frames import GREETING
from dslaunch.registry import TRANSPORTS
from dslaunch.run.agent_program import AgentStart, boot_text
from dslaunch.run.inbox import Inbox
from dslaunch.run.session import Session
from dslaunch.transport import login_shell, program
from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.process import ProcessChannel, login_line
from dslaunch.transport.transports.local import LocalTransport
from dslaunch.transport.wire import LostError

NODE = Node("n1", (0,))
LINES = st.text(st.characters(exclude_characters="\0\n", exclude_categories=("Cs",)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(LINES)
def test_a_login_shell_hands_any_line_on_unchanged(line: str) -> None:
    quoted = "printf %s '" + line.replace("'", "'\\''") + "'"
    done = subprocess.run(["bash", "-c", login_line(quoted)], capture_output=True, check=True)
    assert done.stdout.decode() == line


@pytest.mark.parametrize("bad", ["a\nb", "a\0b"])
def test_a_line_that_not_every_shell_can_carry_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="no newline"):
        login_line(bad)


def test_bytes_go_both_ways_unchanged() -> None:
    channel = ProcessChannel(["cat"], text=[b"first ", b"second "])
    data = bytes(range(256)) * 2000
    output = ChannelOutput(channel)
    channel.write(data)
    channel.close_input()
    assert b"".join(iter(output.read, b"")) == b"first second " + data
    assert output.end() == End(0)


def test_a_program_is_blocked_while_its_output_is_not_taken() -> None:
    channel = ProcessChannel(["sh", "-c", "for i in 1 2 3; do head -c 300000 /dev/zero; done"])
    taken: Queue[bytes | End] = Queue()

    class OneByOne:
        def received(self, data: bytes) -> None:
            channel.pause()
            taken.put(data)

        def ended(self, end: End) -> None:
            taken.put(end)

    channel.listen(OneByOne())
    size = 0
    while not isinstance(piece := taken.get(timeout=300), End):
        assert taken.empty()
        size += len(piece)
        channel.resume()
    assert (size, piece) == (900_000, End(0))


def test_what_a_program_does_not_read_is_queued_and_counted() -> None:
    channel = ProcessChannel(["sh", "-c", "read line; cat >/dev/null"])
    channel.write(b"x" * 1_000_000)
    assert channel.unsent > 0
    assert not channel.flush(0.01)
    channel.write(b"\n")
    assert channel.flush(60)
    channel.close()
    assert channel.wait(300)


def test_a_signal_and_standard_error_are_reported() -> None:
    channel = ProcessChannel(["sh", "-c", "echo why >&2; kill -9 $$"])
    assert ChannelOutput(channel).end() == End(137, "why\n")


def test_closing_ends_a_program_that_would_not(tmp_path: Path) -> None:
    channel = ProcessChannel(["sh", "-c", "trap '' TERM; sleep 100 & wait; sleep 100"])
    channel.close()
    assert ChannelOutput(channel).end().code == 137


def test_emulated_nodes_have_homes_of_their_own(tmp_path: Path) -> None:
    channel = LocalTransport(tmp_path, os.environ).connect(NODE).start("echo $HOME; pwd")
    said = b"".join(iter(ChannelOutput(channel).read, b""))
    assert said.decode().split() == [str(tmp_path / "n1")] * 2
    channel.close()


@pytest.mark.parametrize("name", ["local", "srun"])
def test_programs_on_nodes_do_not_inherit_the_clusters_secrets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nwhile [ "$1" != /bin/sh ]; do shift; done\nexec "$@"\n')
    srun.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("TOKEN", "hunter2hunter2")
    monkeypatch.setenv("PLAIN", "kept")
    secrets = (SecretSource("TOKEN"),)
    way = transport.get(name, Cluster("c", (NODE,), secrets=secrets))
    channel = way.connect(NODE).start("echo ${TOKEN-unset} $PLAIN")
    assert b"".join(iter(ChannelOutput(channel).read, b"")).split() == [b"unset", b"kept"]
    channel.close()
    way.close()


def test_every_built_in_transport_can_be_had() -> None:
    assert TRANSPORTS.names() == ("auto", "fabric", "local", "openssh", "srun", "tree")
    for name in ("fabric", "local", "openssh", "srun"):
        transport.get(name, Cluster("c", (NODE,))).close()


def test_a_name_that_does_not_exist_comes_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="`opnssh`") as caught:
        transport.get("opnssh", Cluster("c", (NODE,)))
    assert caught.value.hint == "did you mean `openssh`?"


def failure_of(answer: Answer) -> NodeFailure:
    """What a session says of an agent that starts like this."""
    fake = FakeTransport({("*", "command -v"): answer})
    connection = fake.connect(NODE)
    session = Session(NODE, connection, AgentStart("run", "n1"), Inbox(), fake)
    session.begin()
    with pytest.raises(LostError) as caught:
        session.hello.result(60)
    return caught.value.failure


def test_a_node_without_python_is_reported() -> None:
    assert failure_of(Answer(exit_code=login_shell.NO_PYTHON)).kind == "no-python"


def test_the_boot_line_has_a_separate_exit_code_if_python_is_missing() -> None:
    line = program.line(Node("n", (0,), python="/nowhere/python"))
    done = subprocess.run(["/bin/sh", "-c", line], env={"PATH": "/nowhere"}, check=False)
    assert done.returncode == login_shell.NO_PYTHON


def test_a_shell_that_prints_and_exits_is_reported_with_its_output() -> None:
    found = failure_of(Answer(stdout=b"This account is closed.\n", exit_code=1))
    assert found.kind == "noisy-shell"
    assert "This account is closed." in found.message


def test_an_old_python_says_which() -> None:
    words = "Python 3.8 or newer is needed, this is 3.6.8"
    found = failure_of(Answer(stderr=words, exit_code=login_shell.OLD_PYTHON))
    assert (found.kind, found.message) == ("no-python", words)
    assert "`python:`" in found.hint


@pytest.mark.parametrize("minor", [6, 7])
def test_an_old_python_exits_with_a_separate_code(minor: int) -> None:
    line = program.line(Node("n", (0,), python=interpreter(minor)))
    text = b"".join(boot_text(AgentStart("run", "n1")))
    done = subprocess.run(["/bin/sh", "-c", line], input=text, capture_output=True, check=False)
    assert done.returncode == login_shell.OLD_PYTHON
    assert f"this is 3.{minor}.".encode() in done.stderr


def test_bytes_that_are_no_frames_are_a_broken_agent() -> None:
    found = failure_of(Answer(stdout=GREETING + b"\xff\xfe\x80" * 10))
    assert found.kind == "protocol"


@pytest.mark.parametrize("text", [b"m", b"You have mail.\n", b"\n\x1b[1mWelcome\x1b[0m\tto n1\n"])
def test_text_after_the_first_message_is_of_a_background_process_of_the_login(text: bytes) -> None:
    found = failure_of(Answer(stdout=GREETING + text))
    assert found.kind == "noisy-shell"


def test_the_agents_text_is_a_program_and_a_length() -> None:
    length, _, text = boot_text(AgentStart("run", "n1"))[0].partition(b"\n")
    # a Python that is too old must be able to read that it is
    ast.parse(text[: int(length)].decode(), feature_version=(3, 4))
    assert b"main({'run': 'run', 'host': 'n1'" in text[: int(length)]


def test_the_program_contains_no_path_of_this_machine() -> None:
    here = str(Path(program.__file__).parents[2]).encode()
    *loader, packed_texts, packed_codes = program.packed_modules("guardian")
    texts = {name: zlib.decompress(text) for name, text in marshal.loads(packed_texts).items()}
    codes = zlib.decompress(packed_codes)
    assert "dslaunch.node.agent" in texts
    assert b"dslaunch/node/agent.py" in codes
    assert all(here not in sent for sent in (*loader, *texts.values(), codes))


def test_an_agent_loads_the_code_for_checkpoints_only_if_needed() -> None:
    text = b"".join(boot_text(AgentStart("no such run", "n1"), join=True))
    line = program.line(Node("n", (0,))).replace("-I -S", "-I -S -X importtime")
    done = subprocess.run(["/bin/sh", "-c", line], input=text, capture_output=True, check=False)
    loaded = {line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines()}
    assert b"no agent of this run" in done.stderr
    assert b"subprocess" in loaded
    assert not loaded & {b"pickle", b"zipfile"}


def test_the_boot_line_tries_the_jobs_interpreter_first() -> None:
    line = program.line(Node("n", (0,), python="~/my env/bin/python"))
    assert """for p in "$HOME"'/my env/bin/python' python3; do""" in line
