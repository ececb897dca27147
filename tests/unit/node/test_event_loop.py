"""The event loop of programs on a node."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from dslaunch.node.event_loop import READ, WRITE, EventLoop

FOREVER = 300.0
Pipe = tuple[int, int]


@pytest.fixture
def pipes() -> Iterator[list[Pipe]]:
    """Two pipes with something to read."""
    made = [os.pipe() for _ in range(2)]
    for _, end in made:
        os.write(end, b"x")
    yield made
    for ends in made:
        for fd in ends:
            os.close(fd)


def test_work_of_another_thread_ends_the_wait_for_descriptors() -> None:
    loop, done = EventLoop(), list[threading.Thread]()
    thread = threading.Thread(
        target=lambda: loop.hand_over(lambda: done.append(threading.current_thread()))
    )
    thread.start()
    while not done:
        loop.turn(FOREVER)
    assert done == [threading.main_thread()]


def test_a_descriptor_that_is_ignored_is_not_called_for_in_the_same_turn(
    pipes: list[Pipe],
) -> None:
    loop, called = EventLoop(), list[int]()

    def take(own: int, other: int) -> None:
        called.append(own)
        loop.ignore(other)

    (first, _), (second, _) = pipes
    loop.watch(first, lambda: take(first, second))
    loop.watch(second, lambda: take(second, first))
    loop.turn(FOREVER)
    assert len(called) == 1


def test_a_descriptor_that_is_watched_in_another_way_is_called_for_in_the_same_turn(
    pipes: list[Pipe],
) -> None:
    """Otherwise two that change each other's ways again and again could starve one of them."""
    loop, called = EventLoop(), list[int]()

    def take(own: int, other: int) -> None:
        called.append(own)
        loop.watch(other, lambda: called.append(other), READ | WRITE)

    (first, _), (second, _) = pipes
    loop.watch(first, lambda: take(first, second))
    loop.watch(second, lambda: take(second, first))
    loop.turn(FOREVER)
    assert sorted(called) == sorted([first, second])
