"""A value that is there later: it is set once, waited for, and told to those that asked for it."""

from __future__ import annotations

import threading

import pytest

from dslaunch.transport.future import Future, done_with, wait_for


def test_the_first_value_counts_and_is_told_once() -> None:
    future: Future[int] = Future()
    told: list[int] = []
    future.add_done_callback(lambda done: told.append(done.result()))
    assert not future.done()
    future.set_result(1)
    future.set_result(2)
    future.set_exception(ValueError())
    future.add_done_callback(lambda done: told.append(-done.result()))
    assert future.result() == 1
    assert told == [1, -1]


def test_an_exception_is_raised_where_the_value_is_taken() -> None:
    future: Future[int] = Future()
    error = ValueError("no value")
    future.set_exception(error)
    assert future.exception() is error
    with pytest.raises(ValueError, match="no value"):
        future.result()


def test_a_callback_that_fails_does_not_keep_the_others_from_being_called() -> None:
    future: Future[int] = Future()
    told: list[int] = []

    def fail(done: Future[int]) -> None:
        raise ValueError

    future.add_done_callback(fail)
    future.add_done_callback(lambda done: told.append(done.result()))
    future.set_result(1)
    assert told == [1]


def test_a_thread_waits_until_the_value_is_set() -> None:
    future: Future[int] = Future()
    thread = threading.Thread(target=lambda: future.set_result(1))
    thread.start()
    assert future.result(timeout=150) == 1
    thread.join()


def test_waiting_ends_in_time_or_when_all_are_done() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    assert not wait_for([done_with(1), future], timeout=0)
    future.set_result(2)
    assert wait_for([done_with(1), future], timeout=0)
    assert wait_for([], timeout=0)
