"""What a login prints before our program: found in any pieces, in linear time, and bounded."""

from __future__ import annotations

import pytest
from tests.growth import Work, grows

from dslaunch.cluster.failures import folded
from dslaunch.errors import NODE
from dslaunch.node.frames import GREETING
from dslaunch.transport.login_shell import (
    MOST_NOISE,
    NOISE_KEPT,
    STARTED,
    LoginOutput,
    first_line,
    hung,
)

SENT = b"Welcome\n" + STARTED + b"a warning\n" + GREETING + b"frames"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_login_output_is_the_same_in_pieces_of_any_size(size: int) -> None:
    output = LoginOutput(GREETING)
    rest = b""
    for at in range(0, len(SENT), size):
        piece = SENT[at : at + size]
        rest += piece if output.greeted else output.add(piece)
    assert (output.greeted, output.started, rest) == (True, True, b"frames")
    assert output.parts() == (b"Welcome\n", b"a warning\n")
    assert output.noise() == b"Welcome\na warning\n"


def test_a_login_that_ends_within_a_mark_has_all_that_it_printed() -> None:
    output = LoginOutput(GREETING)
    assert output.add(b"no home" + STARTED[:5]) == b""
    assert (output.greeted, output.started) == (False, False)
    assert output.noise() == b"no home" + STARTED[:5]


def test_noise_without_an_end_is_noticed_and_its_beginning_kept() -> None:
    output = LoginOutput(GREETING)
    for _ in range(MOST_NOISE // 65536):
        output.add(b"x" * 65536)
        assert not output.endless
    output.add(b"x" * 65536)
    assert output.endless
    assert len(output.noise()) < NOISE_KEPT + len(STARTED) + len(GREETING)


def test_a_program_is_seen_behind_more_noise_than_is_kept() -> None:
    output = LoginOutput(GREETING)
    output.add(b"x" * 2 * NOISE_KEPT + STARTED + GREETING)
    assert (output.greeted, output.started) == (True, True)


def reading(pieces: int) -> Work:
    def read() -> None:
        output = LoginOutput(GREETING)
        output.add(b"x" * NOISE_KEPT)
        for _ in range(pieces):
            output.add(b"x" * 64)

    return read


def test_time_grows_as_the_bytes_that_are_read() -> None:
    assert not grows(reading, 1000)


@pytest.mark.parametrize("character", ["\u0378", "\ue000", "\u00ad", "\x1b", "\u202e"])
def test_what_a_login_printed_is_quoted_in_printable_characters(character: str) -> None:
    quoted = first_line(f"a{character}b\n".encode())
    assert quoted.isprintable()
    assert quoted.startswith("a")
    assert quoted.endswith("b")


def test_equal_failures_of_many_logins_are_one() -> None:
    failures = [hung(host, b"menu: ") for host in ("n1", "n2", "n3")]
    (one,) = folded(failures)
    assert one.hosts == ("n1", "n2", "n3")
    assert one.hint is not None
    assert f"ssh {NODE} " in one.hint
    (alone,) = folded(failures[:1])
    assert alone.hint is not None
    assert "ssh n1 " in alone.hint
