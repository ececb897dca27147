"""Output that is gathered: what is written after a pause is sent at once, then less often."""

from __future__ import annotations

from dslaunch.node.gathering import LARGEST, Gatherer

LONG = 3600.0


def taken(gatherer: Gatherer) -> list[tuple[int, int, bytes]]:
    """What is sent, without its time."""
    return [(rank, stream, data) for rank, stream, _, data in gatherer.take()]


def test_output_after_a_pause_is_due_at_once() -> None:
    gatherer = Gatherer(LONG)
    gatherer.add(0, 1, b"first\n")
    assert gatherer.is_due()


def test_output_after_output_waits_and_is_one_piece_for_each_stream() -> None:
    gatherer = Gatherer(LONG)
    gatherer.add(0, 1, b"first\n")
    gatherer.take()
    for number in range(3):
        gatherer.add(0, 1, b"line %d\n" % number)
        gatherer.add(1, 2, b"error %d\n" % number)
    assert gatherer.wait is not None
    assert 0 < gatherer.wait <= LONG
    assert taken(gatherer) == [
        (0, 1, b"line 0\nline 1\nline 2\n"),
        (1, 2, b"error 0\nerror 1\nerror 2\n"),
    ]
    assert gatherer.wait is None


def test_a_large_piece_does_not_wait() -> None:
    gatherer = Gatherer(LONG)
    gatherer.add(0, 1, b"first\n")
    gatherer.take()
    gatherer.add(0, 1, b"x" * LARGEST)
    assert gatherer.is_due()
    gatherer.take()
    gatherer.add(0, 1, b"next\n")
    assert not gatherer.is_due()


def test_taking_nothing_lets_later_output_not_wait() -> None:
    gatherer = Gatherer(LONG)
    assert gatherer.take() == []
    gatherer.add(0, 1, b"first\n")
    assert gatherer.is_due()


def test_nothing_waits_without_an_interval() -> None:
    gatherer = Gatherer()
    for _ in range(2):
        gatherer.add(0, 1, b"line\n")
        assert gatherer.is_due()
        gatherer.take()
