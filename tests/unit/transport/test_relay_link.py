"""A relay and the launcher's end of it, with a program `ssh` that lets everybody in at once."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pythons import interpreter
from tests.unit.transport.fake import Answer, FakeChannel

from dslaunch.cluster.model import Node
from dslaunch.node import relay_frames
from dslaunch.transport import program
from dslaunch.transport.base import Channel, End, others_began
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.loop import shared
from dslaunch.transport.node_login import Child
from dslaunch.transport.process import ProcessChannel
from dslaunch.transport.relay_link import (
    LoginRefusedError,
    RelayedChannel,
    RelayLink,
    RelayLostError,
)

SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ "$2" != locked ] || { echo "root@locked: Permission denied (publickey)." >&2; exit 255; }
[ "$2" != silent ] || exec sleep 100
echo
exec /bin/sh -c "$3"
"""
"""Logs in to everybody but `locked`, in the form in which the relay calls ssh."""
NODE = Node("inner", (0,), python=sys.executable)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[RelayLink]:
    with_ssh = tmp_path / "ssh"
    with_ssh.write_text(SSH)
    with_ssh.chmod(0o700)
    made = start(f"{tmp_path}:{os.environ['PATH']}")
    yield made
    made.close()


def start(path: str, node: Node = NODE) -> RelayLink:
    env = {**os.environ, "PATH": path}
    command = ["/bin/sh", "-c", program.line(node)]
    made = RelayLink(ProcessChannel(command, env=env, text=relay_program()))
    made.begin(timeout=300)
    return made


def relay_program() -> tuple[bytes, ...]:
    return program.text("relay", {"options": {}, "login_timeout": 1.5})


def run(link: RelayLink, line: str, host: str = "leaf") -> RelayedChannel:
    channel = link.open(Child(host), timeout=300)
    channel.write(line.encode() + b"\n")
    return channel


def drained(channel: Channel) -> tuple[bytes, End]:
    """Return all output of a program, and its end."""
    output = ChannelOutput(channel)
    pieces = list(iter(output.read, b""))
    return b"".join(pieces), output.end()


def printed(channel: Channel) -> bytes:
    """Return all output of a program."""
    return drained(channel)[0]


def test_any_bytes_arrive_unchanged_both_ways(link: RelayLink) -> None:
    sent = bytes(range(256)) + os.urandom(3_000_000)
    channel = run(link, "cat")
    channel.write(sent)
    channel.close_input()
    assert drained(channel) == (sent, End(0))


@pytest.mark.parametrize("minor", [8, 13])
def test_a_relay_runs_under_every_python_of_a_node(tmp_path: Path, minor: int) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o700)
    node = Node("inner", (0,), python=interpreter(minor))
    link = start(f"{tmp_path}:{os.environ['PATH']}", node)
    assert printed(run(link, "echo hello")) == b"hello\n"
    with pytest.raises(LoginRefusedError):
        link.open(Child("locked"), timeout=300)
    link.close()


def test_exit_codes_and_both_streams_are_distinguished(link: RelayLink) -> None:
    channel = run(link, "echo words >&2; printf '%s' 'a  b'; exit 3")
    assert drained(channel) == (b"a  b", End(3, "words\n"))


def test_a_program_whose_output_nobody_reads_blocks_itself_and_no_other(
    link: RelayLink, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    flood = run(link, f"head -c 5000000 /dev/zero | tr '\\0' x; touch {written}; echo end")
    assert printed(run(link, "echo other")) == b"other\n"
    assert not written.exists()
    assert printed(flood) == b"x" * 5_000_000 + b"end\n"


def test_input_that_a_program_does_not_read_is_kept_and_blocks_no_other(link: RelayLink) -> None:
    deaf = run(link, "exec sleep 100")
    deaf.write(bytes(5_000_000))
    assert printed(run(link, "echo other")) == b"other\n"
    assert deaf.unsent > 5_000_000 - 2 * relay_frames.INPUT_WINDOW
    deaf.close()
    assert drained(deaf)[1].code != 0
    assert deaf.unsent == 0


def test_a_text_of_many_children_is_sent_to_the_relay_once(link: RelayLink) -> None:
    text = os.urandom(300_000)
    found = []
    for _ in range(5):
        channel = run(link, "sha256sum")
        channel.write_text(text)
        channel.close_input()
        found.append(printed(channel).split()[0].decode())
    assert found == [hashlib.sha256(text).hexdigest()] * 5
    assert link.sent < 2 * len(text)


def test_more_texts_than_a_relay_keeps_arrive_unchanged(link: RelayLink) -> None:
    pieces = [os.urandom(relay_frames.MOST_TEXT) for _ in range(relay_frames.PLACES + 3)]
    text = b"".join([*pieces, *pieces[:5]])
    channel = run(link, "sha256sum")
    channel.write_text(text)
    channel.close_input()
    assert printed(channel).split()[0].decode() == hashlib.sha256(text).hexdigest()


def start_behind(link: RelayLink) -> RelayLink:
    """Start a relay on a node behind a relay."""
    channel = run(link, program.line(NODE))
    for piece in relay_program():
        channel.write_text(piece)
    made = RelayLink(channel)
    made.begin(timeout=300)
    return made


def test_a_relay_can_be_behind_a_relay(link: RelayLink) -> None:
    inner = start_behind(link)
    sent = os.urandom(1_000_000)
    channel = run(inner, "sha256sum")
    channel.write(sent)
    channel.close_input()
    assert printed(channel).split()[0].decode() == hashlib.sha256(sent).hexdigest()
    inner.close()


def test_a_text_is_sent_once_to_a_relay_that_passes_it_on_to_many_relays(link: RelayLink) -> None:
    text = os.urandom(300_000)
    for inner in (start_behind(link), start_behind(link)):
        channel = run(inner, "sha256sum")
        channel.write_text(text)
        channel.close_input()
        assert printed(channel).split()[0].decode() == hashlib.sha256(text).hexdigest()
        inner.close()
    assert link.sent < 2 * len(text)


def test_a_refused_login_has_the_words_of_ssh(link: RelayLink) -> None:
    with pytest.raises(LoginRefusedError) as refused:
        link.open(Child("locked"), timeout=300)
    assert refused.value.how == relay_frames.EXITED
    assert "Permission denied" in refused.value.words


def test_a_login_that_takes_too_long_is_ended(link: RelayLink) -> None:
    with pytest.raises(LoginRefusedError) as refused:
        link.open(Child("silent"), timeout=300)
    assert refused.value.how == relay_frames.NO_LOGIN


def test_a_node_without_ssh_says_so(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    link = start(str(tmp_path))
    with pytest.raises(LoginRefusedError) as refused:
        link.open(Child("leaf"), timeout=300)
    assert refused.value.how == relay_frames.NO_SSH
    link.close()


def test_the_end_of_a_relay_is_the_end_of_its_programs(link: RelayLink) -> None:
    channel = run(link, "echo $$; exec cat")
    output = ChannelOutput(channel)
    pid = int(output.read())
    link.close()
    assert output.read() == b""
    assert output.end().code != 0
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(RelayLostError):
        link.open(Child("leaf"), timeout=300)


def test_a_program_that_is_no_relay_is_given_up() -> None:
    link = RelayLink(ProcessChannel(["sh", "-c", "echo hello; exec cat >/dev/null"]))
    with pytest.raises(RelayLostError):
        link.begin(timeout=0.5)


def unanswered_after_ping(link: RelayLink) -> int:
    """Ping a relay; return how many pings in a row it has not answered."""
    pinged = threading.Event()
    link.ping()
    shared().call_when_handled(pinged.set)
    pinged.wait()
    return link.unanswered


def test_logins_and_programs_behind_the_same_relays_count_once_when_they_begin() -> None:
    outer = RelayLink(FakeChannel(Answer()))
    inner = RelayLink(RelayedChannel(outer, 1))
    waiting = RelayedChannel(inner, 1)
    assert others_began(waiting) == 0.0
    latest = [0.0]
    for link in (inner, outer):
        other = RelayedChannel(link, 2)
        for kind, body in ((relay_frames.OPENED, b""), (relay_frames.DATA, b"x")):
            other.take(kind, body)
            latest.append(others_began(waiting))
            other.take(kind, body)
            assert others_began(waiting) == latest[-1]
    assert latest == sorted(set(latest))


def test_a_relay_that_reads_what_waits_for_it_is_there_although_it_does_not_answer() -> None:
    channel = FakeChannel(Answer())
    link = RelayLink(channel)
    program, counted = 3000, []
    for taken in (0, 1000, 2000, 2000, 2000):
        channel.unsent = program + link.sent - taken
        counted.append(unanswered_after_ping(link))
    assert counted == [1, 1, 1, 2, 3]


def test_a_ping_that_only_a_buffer_has_taken_is_no_sign_of_a_relay() -> None:
    link = RelayLink(FakeChannel(Answer()))
    assert [unanswered_after_ping(link) for _ in range(3)] == [1, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 12), st.binary(max_size=12)), max_size=30))
def test_a_relay_that_sends_anything_is_refused_or_harmless(
    sent: list[tuple[int, bytes]],
) -> None:
    link = RelayLink(FakeChannel(Answer()))
    channel = RelayedChannel(link, 1)
    try:
        for kind, body in sent:
            for frame in relay_frames.Decoder().feed(relay_frames.frame(kind, 1, body)):
                channel.take(frame[0], frame[2])
    except relay_frames.RelayFrameError:
        pass
    channel.lose()
    output = b"".join(body for kind, body in sent if kind == relay_frames.DATA)
    found, end = drained(channel)
    assert output.startswith(found)
    assert end.code is None or end.code >= 0
    channel.write(b"x")
    assert channel.unsent == 0


def test_a_relay_that_sends_more_than_its_window_is_refused() -> None:
    channel = RelayedChannel(RelayLink(FakeChannel(Answer())), 1)
    piece = bytes(relay_frames.PIECE)
    for _ in range(relay_frames.OUTPUT_WINDOW // relay_frames.PIECE):
        channel.take(relay_frames.DATA, piece)
    with pytest.raises(relay_frames.RelayFrameError):
        channel.take(relay_frames.DATA, b"x")


def test_a_relay_that_passes_on_more_than_it_got_is_refused() -> None:
    channel = RelayedChannel(RelayLink(FakeChannel(Answer())), 1)
    with pytest.raises(relay_frames.RelayFrameError):
        channel.take(relay_frames.PASSED, relay_frames.AMOUNT.pack(1))
