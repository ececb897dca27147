from __future__ import annotations

import pytest
from msgspec.structs import replace

from dslaunch.run.endings import exit_code
from dslaunch.run.events import Event
from dslaunch.run.outcome import History, judge
from dslaunch.run.reasons import EndCode, EndReason

SILENT = Event(3, "lost", "n2", failure="lost", error="silence")
LOST = EndReason(EndCode.NODE_LOST, "n2", failure="lost", error="silence")
INTERRUPT = EndReason(EndCode.INTERRUPTED)


def exits(
    time: float,
    rank: int | None,
    code: int | None = None,
    number: int | None = None,
    host: str = "n1",
    asked: bool = False,
) -> Event:
    return Event(time, "exit", host, rank, code=code, signal=number, asked=asked)


def verdict(*events: Event, stopped_at: float | None = None, **more: object):
    history = History(list(events), stopped_at, **more)  # type: ignore[arg-type]
    return judge(
        history, last_lines={("n1", 1): ["one", "ModuleNotFoundError: No module named 'x'"]}
    )


def test_a_run_whose_ranks_all_exit_with_0_is_ok() -> None:
    assert verdict(exits(1, 0, 0), exits(2, 1, 0)).status == "ok"


def test_the_first_failure_by_time_is_the_cause_not_the_first_to_arrive() -> None:
    outcome = verdict(exits(5, 2, 1, host="n2"), exits(4, 1, 3), stopped_at=5)
    assert (outcome.cause.rank, outcome.exit_code) == (1, 3)


def test_a_rank_is_named_rather_than_the_launcher_that_passes_its_failure_on() -> None:
    outcome = verdict(exits(3.9, None, 1), exits(4, 1, None, 9), stopped_at=5)
    assert outcome.reason == EndReason(EndCode.RANK_FAILED, "n1", 1, signal=9)
    assert outcome.exit_code == 137


def test_a_launcher_that_fails_before_any_rank_is_the_cause() -> None:
    outcome = verdict(exits(4, None, 2))
    assert outcome.reason == EndReason(EndCode.LAUNCHER_FAILED, "n1", exit_code=2)


def test_what_ends_after_we_began_to_end_it_is_a_secondary_failure() -> None:
    outcome = verdict(exits(4, 1, 7), exits(3, 0, None, 15, asked=True), stopped_at=4)
    assert outcome.cause.rank == 1


def test_an_interrupted_run_is_interrupted_although_its_ranks_die_of_signals() -> None:
    outcome = verdict(exits(6, 0, None, 15, asked=True), stopped_at=5, stop=INTERRUPT)
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("interrupted", 130, INTERRUPT)


def test_a_failure_before_the_interrupt_stays_the_cause() -> None:
    outcome = verdict(exits(4, 1, 7), stopped_at=5, stop=INTERRUPT)
    assert outcome.exit_code == 7


def test_ranks_that_hang_at_exit_fail_the_run() -> None:
    reason = EndReason(EndCode.EXIT_TIMEOUT, seconds=30, ranks=(("n1", 1),))
    outcome = verdict(exits(1, 0, 0), stopped_at=9, gave_up=reason)
    assert (outcome.exit_code, outcome.reason) == (1, reason)


def test_a_rank_whose_status_was_missed_takes_its_launchers() -> None:
    outcome = verdict(exits(3, 1), exits(4, None, 247))
    assert outcome.exit_code == 247


def test_a_lost_node_is_a_separate_cause() -> None:
    outcome = verdict(SILENT, stopped_at=3)
    assert (outcome.exit_code, outcome.reason) == (5, LOST)


def test_a_program_that_cannot_start_exits_like_in_a_shell() -> None:
    outcome = verdict(Event(3, "unstarted", "n1", 0, error="nope: No such file"), stopped_at=3)
    assert (outcome.exit_code, outcome.reason.code) == (127, EndCode.START_FAILED)


def test_last_lines_bring_their_hint() -> None:
    outcome = verdict(exits(4, 1, 1), stopped_at=4)
    assert "install x" in (outcome.hint or "")


@pytest.mark.parametrize(
    ("code", "number", "shell"),
    [(1, None, 1), (None, 11, 139), (247, None, 247), (None, 40, 168), (None, None, 1)],
)
def test_an_ending_has_the_exit_code_that_a_shell_gives_it(
    code: int | None, number: int | None, shell: int
) -> None:
    assert exit_code(code, number) == shell


# ---------------------------------------------------------------- secondary failures

CLOSED = (
    "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:30868."
)
WAITED = "RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation"


def test_a_secondary_failure_with_the_earlier_time_is_not_the_cause() -> None:
    history = History([exits(4.0, 0, 1), exits(4.2, 1, None, 9)], 4.2)
    outcome = judge(history, last_lines={("n1", 0): [CLOSED]})
    assert outcome.cause is not None
    assert outcome.cause.rank == 1
    assert [(s.host, s.rank, s.ending) for s in outcome.secondary] == [("n1", 0, "gloo-closed")]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_equal_reasons_on_several_ranks_are_one_cause_and_no_consequence() -> None:
    ranks = [exits(4 + rank / 10, rank, 1) for rank in range(3)]
    lines = {("n1", 0): [OOM], ("n1", 1): [f"{OOM} on GPU 1"], ("n1", 2): [CLOSED]}
    outcome = judge(History(ranks, 4.3), last_lines=lines)
    assert outcome.cause is not None
    assert outcome.cause.rank == 0
    assert outcome.alike == (("n1", 1),)
    assert [(s.host, s.rank, s.ending) for s in outcome.secondary] == [("n1", 2, "gloo-closed")]


def test_equal_unknown_exceptions_are_one_cause_and_different_ones_are_not() -> None:
    ranks = [exits(4 + rank / 10, rank, 1) for rank in range(3)]
    said = ["ValueError: bad batch", "ValueError: bad batch", "KeyError: 3"]
    lines = {("n1", rank): [text] for rank, text in enumerate(said)}
    assert judge(History(ranks, 4.3), last_lines=lines).alike == (("n1", 1),)


def test_ranks_that_exit_with_1_and_say_nothing_are_not_called_alike() -> None:
    history = History([exits(4.0, 0, 1), exits(4.1, 1, 1)], 4.1)
    assert judge(history, last_lines={}).alike == ()


def test_killed_ranks_are_alike_by_their_signal() -> None:
    history = History([exits(4.0, 0, None, 9), exits(4.1, 1, None, 9)], 4.1)
    assert judge(history, last_lines={}).alike == (("n1", 1),)


def test_a_killed_rank_whose_config_offloads_hears_about_the_nodes_memory() -> None:
    history = History([exits(4.0, 0, None, 9)], 4.0, offloads=True)
    outcome = judge(history, last_lines={})
    assert outcome.ending == "offload-memory"
    assert "dslaunch estimate" in (outcome.hint or "")
    assert judge(replace(history, offloads=False), last_lines={}).hint is None


def test_a_rank_that_said_why_keeps_its_reason_although_its_config_offloads() -> None:
    history = History([exits(4.0, 0, 1)], 4.0, offloads=True)
    outcome = judge(history, last_lines={("n1", 0): [OOM]})
    assert outcome.ending == "gpu-memory"


def test_a_rank_that_had_exited_is_named_as_the_one_to_which_the_connection_was_lost() -> None:
    history = History([exits(3, 2, 0, host="n2"), exits(4, 0, 1), exits(5, 3, 0, host="n2")])
    outcome = judge(history, last_lines={("n1", 0): [CLOSED]})
    assert outcome.reason.exited == (("n2", 2),)


def test_among_secondary_failures_alone_the_first_is_named() -> None:
    history = History([exits(4.0, 0, 1), exits(4.2, 1, 1)], 4.2)
    outcome = judge(history, last_lines={("n1", 0): [CLOSED], ("n1", 1): [CLOSED]})
    assert outcome.cause is not None
    assert outcome.cause.rank == 0


def test_unresponsive_ranks_are_named_after_a_timeout() -> None:
    started = [Event(1, "started", "n1", rank) for rank in range(3)]
    history = History([*started, exits(9, 0, 1), exits(9.1, 2, 1, asked=True)], 9)
    outcome = judge(history, last_lines={("n1", 0): [WAITED], ("n1", 2): [WAITED]})
    assert outcome.reason.ranks == (("n1", 1),)


def test_a_lost_node_is_the_cause_of_secondary_failures() -> None:
    history = History([exits(4.0, 0, 1), replace(SILENT, time=30)], 30)
    outcome = judge(history, last_lines={("n1", 0): [CLOSED]})
    assert outcome.reason == LOST


def test_a_node_whose_loss_is_noticed_after_secondary_failures_ended_the_run_is_the_cause() -> None:
    history = History([exits(4.0, 0, 1), replace(SILENT, time=24)], 4.0)
    outcome = judge(history, last_lines={("n1", 0): [CLOSED]})
    assert (outcome.reason, outcome.exit_code) == (LOST, 5)
    assert [(s.host, s.rank, s.ending) for s in outcome.secondary] == [("n1", 0, "gloo-closed")]


def test_a_rank_that_failed_by_itself_stays_the_cause_when_a_node_is_lost_later() -> None:
    history = History([exits(4.0, 0, 1), replace(SILENT, time=24)], 4.0)
    outcome = judge(history, last_lines={("n1", 0): ["KeyError: 3"]})
    assert outcome.reason == EndReason(EndCode.RANK_FAILED, "n1", 0, exit_code=1)
