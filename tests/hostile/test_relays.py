"""Hostile inner nodes of a tree: what their relays send harms nobody but the nodes behind them."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch.node import relay_frames
from dslaunch.transport.base import End
from dslaunch.transport.channel import ChannelOutput
from dslaunch.transport.node_login import Child
from dslaunch.transport.process import ProcessChannel
from dslaunch.transport.relay_link import RelayedChannel, RelayLink, RelayLostError
from tests.unit.transport.test_relay_link import SSH, drained, run, start

PRELUDE = """
import os, sys
{frames}
def send(*frames):
    data = memoryview(b"".join(frames))
    while data:
        data = data[os.write(1, data):]
def wait_for(kind):
    while True:
        for found, number, body in decoder.feed(os.read(0, 1 << 20) or sys.exit()):
            if found == kind:
                return
decoder = Decoder()
os.write(1, GREETING)
"""
"""A relay that does what a test says, with the codec of the real one."""
LET_IN = "wait_for(OPEN); send(frame(OPENED, 1))"
HONEST = f"{LET_IN}; send(frame(DATA, 1, b'as usual'), finished(1, 0, EXITED, b''))"

Make = Callable[[str], RelayLink]


def program_of(script: str) -> str:
    """Return a relay that runs a script after its greeting; it then sends no more, and reads on."""
    frames = inspect.getsource(relay_frames).replace("from __future__ import annotations", "")
    prelude = "from __future__ import annotations" + PRELUDE.format(frames=frames)
    return f"{prelude}\n{script}\nwait_for(None)\n"


@pytest.fixture
def relay() -> Iterator[Make]:
    """Start the relay of a script."""
    links = []

    def make(script: str) -> RelayLink:
        links.append(RelayLink(ProcessChannel([sys.executable, "-c", program_of(script)])))
        links[-1].begin(timeout=60)
        return links[-1]

    yield make
    for link in links:
        link.abandon()


@pytest.fixture
def real_relay(tmp_path: Path) -> Iterator[RelayLink]:
    """Start dslaunch's own relay, with an `ssh` that runs the line of a login on this machine."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o700)
    link = start(f"{tmp_path}:{os.environ['PATH']}")
    yield link
    link.close()


def log_in(link: RelayLink) -> RelayedChannel:
    return link.open(Child("leaf"), timeout=60)


INVALID = {
    "no frames": "send(b'GET / HTTP/1.1' * 9)",
    "an unknown kind": "send(header(77, 1, 0))",
    "a frame that is too large": "send(header(DATA, 1, PIECE + 1))",
    "errors that are too large": "send(header(FINISHED, 1, END.size + STDERR_KEPT + 1))",
    "an amount that is no number": "send(header(PASSED, 1, 3) + b'abc')",
    "that input was passed on which was not sent": "send(passed(1, 1))",
    "a request to log in": "send(frame(OPEN, 1, b'{}'))",
    "a text to keep": "send(text(1, 0))",
    "a request to close": "send(frame(CLOSE, 1))",
}


@pytest.mark.parametrize("sent", INVALID.values(), ids=INVALID)
def test_a_relay_that_sends_what_it_may_not_is_lost_and_no_other_is(relay: Make, sent: str) -> None:
    hostile, honest = relay(f"{LET_IN}; {sent}"), relay(HONEST)
    _, end = drained(log_in(hostile))
    assert end.code is None
    assert hostile.over
    with pytest.raises(RelayLostError):
        log_in(hostile)
    assert drained(log_in(honest)) == (b"as usual", End(0))


def test_a_relay_cannot_forge_frames_of_logins_that_it_does_not_have(relay: Make) -> None:
    forged = "send(frame(OPENED, 2), frame(DATA, 2, b'forged'), finished(2, 0, EXITED, b'forged'))"
    honest = relay(f"{HONEST}; wait_for(OPEN); send(frame(OPENED, 2), frame(DATA, 2, b'second'))")
    hostile = relay(f"{LET_IN}; {forged}; send(finished(1, 3, EXITED, b''))")
    first, only = log_in(honest), log_in(hostile)
    second = log_in(honest)
    assert drained(only) == (b"", End(3))
    assert drained(first) == (b"as usual", End(0))
    assert ChannelOutput(second).read() == b"second"


FORGED = (
    relay_frames.frame(relay_frames.DATA, 2, b"forged")
    + relay_frames.finished(2, 9, relay_frames.EXITED, b"forged")
    + relay_frames.frame(relay_frames.DATA, 1, b"forged")
    + relay_frames.header(77, 1, 0)
)
"""Frames of several logins, and one that ends the connection to a relay that sends it."""


def test_frames_that_a_child_sends_are_its_own_output_and_no_other_child_speaks_them(
    real_relay: RelayLink, tmp_path: Path
) -> None:
    (tmp_path / "forged").write_bytes(FORGED)
    hostile = run(real_relay, f"exec cat {tmp_path / 'forged'}")
    sibling = run(real_relay, "read line; echo $line")
    assert drained(hostile) == (FORGED, End(0))
    sibling.write(b"as usual\n")
    assert drained(sibling) == (b"as usual\n", End(0))
    assert not real_relay.over


def test_a_relay_behind_a_relay_cannot_speak_for_nodes_that_are_not_behind_it(
    real_relay: RelayLink, tmp_path: Path
) -> None:
    """Its login is the first of the outer relay, and its sibling is the second."""
    (tmp_path / "inner.py").write_text(program_of(f"{LET_IN}; send({FORGED!r})"))
    inner = RelayLink(run(real_relay, f"exec {sys.executable} {tmp_path / 'inner.py'}"))
    inner.begin(timeout=60)
    sibling = run(real_relay, "read line; echo $line")
    _, end = drained(log_in(inner))
    assert end.code is None
    assert inner.over
    sibling.write(b"as usual\n")
    assert drained(sibling) == (b"as usual\n", End(0))
    assert not real_relay.over


def test_frames_that_are_sent_again_change_nothing(relay: Make) -> None:
    again = (
        f"{LET_IN}; output = frame(DATA, 1, b'once'); end = finished(1, 0, EXITED, b'')\n"
        "send(frame(OPENED, 1), output, *[frame(OUTPUT_ENDED, 1)] * 1000, end)\n"
        "send(end, output, frame(OPENED, 1), finished(1, 9, NO_LOGIN, b''))"
    )
    link = relay(again)
    assert drained(log_in(link)) == (b"once", End(0))
    assert not link.over


def test_a_relay_that_withholds_the_end_of_a_login_is_given_up(relay: Make) -> None:
    link = relay("while True: wait_for(PING); send(frame(PING, 0))")
    with pytest.raises(RelayLostError):
        link.open(Child("leaf"), timeout=0.5)
    assert link.over


def test_a_login_can_be_closed_although_its_relay_does_not_answer(relay: Make) -> None:
    channel = log_in(relay(LET_IN))
    channel.close()
    assert drained(channel) == (b"", End())


def test_output_in_single_bytes_is_kept_as_one_piece(relay: Make) -> None:
    """As objects of their own, the bytes of a window would take 40 times its size."""
    single = "send(*[frame(DATA, 1, b'x')] * 200000)"
    link = relay(f"{LET_IN}; {single}; wait_for(OPEN); send(frame(OPENED, 2))")
    channel = log_in(link)
    pieces: list[bytes] = []
    ended = threading.Event()

    class Slow:
        def received(self, data: bytes) -> None:
            pieces.append(data)

        def ended(self, end: End) -> None:
            ended.set()

    channel.pause()
    channel.listen(Slow())
    log_in(link)  # its frames come after all output
    channel.resume()
    channel.close()
    assert ended.wait(60)
    assert pieces == [b"x" * 200000]


def test_a_login_that_prints_without_end_is_given_up(relay: Make) -> None:
    link = RelayLink(ProcessChannel(["yes"]))
    with pytest.raises(RelayLostError):
        link.begin(timeout=60)
    assert link.over
