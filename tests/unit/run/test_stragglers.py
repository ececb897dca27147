"""Which rank is named as slow, by what evidence, and that none is on a sound run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.run.usage_samples import gpu, rank, sample

from dslaunch.run.late_ranks import Lateness, LateRank
from dslaunch.run.progress import Progress
from dslaunch.run.slow_ranks import CLOSE, MOST_CLOSE, SlowRanks
from dslaunch.run.slower_rank import Evidence, Reason, SlowerRank
from dslaunch.run.stragglers import IN_A_ROW, IN_A_ROW_WITHOUT_STEPS, Streak, late_in, suspects
from dslaunch.run.usage_monitor import RankSample, UsageSample

LIMITED = {"cpu_throttled": 0.8}


def named(samples: Iterable[UsageSample]) -> tuple[SlowerRank, ...]:
    streak = Streak()
    for each in samples:
        streak = streak.after(each)
    return streak.named


def slow_on_cpu(step: int | None = None) -> UsageSample:
    return sample(rank(0, busy=0.3), rank(1, busy=0.95, cpu_wait=0.8), step=step, node1=LIMITED)


def test_a_rank_behind_a_cpu_limit_is_named_after_measurements_in_a_row() -> None:
    samples = [slow_on_cpu(step) for step in (4, 6, 8)]
    expected = SlowerRank(1, "node1", Evidence.CPU, (Reason.CPU_LIMIT,))
    assert named(samples) == (expected,)
    assert named(samples[: IN_A_ROW - 1]) == ()


def test_a_rank_is_not_named_while_the_training_makes_no_steps() -> None:
    assert named(slow_on_cpu(step=7) for _ in range(50)) == ()


def test_a_rank_is_not_named_for_one_long_pause_between_two_steps() -> None:
    pause = [slow_on_cpu(step) for step in (4, 4, 4, 4, 9)]
    sound = sample(rank(0), rank(1), step=15)
    assert named(pause) == ()
    assert named([*pause, sound, *pause]) == ()


def test_slow_steps_are_counted_over_measurements_without_one() -> None:
    steps = (4, 4, 5, 5, 6, 6, 7)
    assert named(slow_on_cpu(step) for step in steps[:-1]) == ()
    assert [each.rank for each in named(map(slow_on_cpu, steps))] == [1]


def test_a_new_epoch_that_counts_from_the_beginning_is_a_step() -> None:
    assert [each.rank for each in named(map(slow_on_cpu, (98, 99, 0, 1)))] == [1]


def test_without_steps_more_measurements_are_needed() -> None:
    assert named([slow_on_cpu()] * (IN_A_ROW_WITHOUT_STEPS - 1)) == ()
    assert [each.rank for each in named([slow_on_cpu()] * IN_A_ROW_WITHOUT_STEPS)] == [1]


def test_a_measurement_without_evidence_begins_the_count_again() -> None:
    sound = sample(rank(0), rank(1), step=5)
    samples = [slow_on_cpu(1), slow_on_cpu(3), sound, slow_on_cpu(7), slow_on_cpu(9)]
    assert named(samples) == ()


def test_a_reason_is_named_if_the_latest_two_measurements_have_it() -> None:
    def without(step: int) -> UsageSample:
        return sample(rank(0, busy=0.3), rank(1, busy=0.95), step=step)

    (gone,) = named([slow_on_cpu(1), slow_on_cpu(5), without(8)])
    assert (gone.rank, gone.reasons) == (1, ())
    (begun,) = named([without(1), slow_on_cpu(5), slow_on_cpu(8)])
    assert (begun.rank, begun.reasons) == (1, (Reason.CPU_LIMIT,))


@pytest.mark.parametrize(
    ("ranks", "rank_number", "evidence", "reasons"),
    [
        (
            (rank(0, gpu=gpu()), rank(1, gpu=gpu(busy=0.6)), rank(2, gpu=gpu())),
            1,
            Evidence.GPU_IDLE,
            (),
        ),
        (
            (
                rank(0, gpu=gpu(clock=1200, throttled=("thermal",))),
                rank(1, gpu=gpu()),
                rank(2, gpu=gpu()),
            ),
            0,
            Evidence.GPU_THROTTLED,
            (Reason.THERMAL,),
        ),
        (
            (rank(0, gpu=gpu(power=650)), rank(1, gpu=gpu()), rank(2, gpu=gpu(power=420))),
            0,
            Evidence.GPU_POWER,
            (),
        ),
    ],
)
def test_gpus_that_differ_from_all_others(
    ranks: tuple[RankSample, ...],
    rank_number: int,
    evidence: Evidence,
    reasons: tuple[Reason, ...],
) -> None:
    (slow,) = suspects(sample(*ranks))
    assert (slow.rank, slow.evidence, slow.reasons) == (rank_number, evidence, reasons)


def test_all_ranks_of_a_slow_node_are_named_if_they_are_half_of_all() -> None:
    slow = [rank(number, "b", busy=0.95) for number in (2, 3)]
    found = suspects(sample(rank(0, "a", busy=0.2), rank(1, "a", busy=0.1), *slow))
    assert [each.rank for each in found] == [2, 3]


def test_half_of_the_ranks_on_several_nodes_are_no_stragglers() -> None:
    ranks = [rank(number, f"n{number}", busy=0.9 if number % 2 else 0.1) for number in range(4)]
    assert suspects(sample(*ranks)) == ()


def test_other_processes_and_link_errors_are_reasons() -> None:
    busy = {"cpu": 0.9, "link_errors": 12}
    found = suspects(
        sample(rank(0, busy=0.2), rank(1, busy=0.9, cpu_wait=0.5), node1=busy, node0={})
    )
    assert [each.reasons for each in found] == [(Reason.OTHER_LOAD, Reason.LINK_ERRORS)]


def test_nobody_is_named_while_a_node_does_not_answer() -> None:
    found = slow_on_cpu()
    assert suspects(found) != ()
    assert suspects(UsageSample(found.time, found.nodes, found.ranks, ("node7",))) == ()


SHARES = st.floats(min_value=0.75, max_value=1.0)


@given(st.lists(SHARES, min_size=2, max_size=64))
def test_no_rank_of_a_sound_training_on_cpus_is_named(shares: list[float]) -> None:
    assert suspects(sample(*(rank(at, busy=share) for at, share in enumerate(shares)))) == ()


@given(st.lists(st.floats(min_value=0.0, max_value=0.69), min_size=2, max_size=64))
def test_no_rank_is_named_while_all_mostly_sleep(shares: list[float]) -> None:
    assert suspects(sample(*(rank(at, busy=share) for at, share in enumerate(shares)))) == ()


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=0.8, max_value=1.0),
            st.floats(min_value=560, max_value=700),
            st.integers(min_value=1700, max_value=1980),
            st.sampled_from([(), ("power",)]),
            st.floats(min_value=0, max_value=1),
        ),
        min_size=2,
        max_size=64,
    )
)
def test_no_rank_of_a_sound_training_on_gpus_is_named(
    drawn: list[tuple[float, float, int, tuple[str, ...], float]],
) -> None:
    ranks = [
        rank(at, busy=cpu, gpu=gpu(busy=busy, power=power, clock=clock, throttled=why))
        for at, (busy, power, clock, why, cpu) in enumerate(drawn)
    ]
    assert suspects(sample(*ranks)) == ()


def test_a_single_rank_waits_for_nobody() -> None:
    assert suspects(sample(rank(0, busy=1.0))) == ()


# ---------------------------------------------------------------- events of a run


def test_an_event_names_a_slow_rank_once() -> None:
    slow_ranks = SlowRanks()
    events = [event for step in range(20) for event in slow_ranks.take(slow_on_cpu(step))]
    expected = SlowerRank(1, "node1", Evidence.CPU, (Reason.CPU_LIMIT,))
    assert [(e.kind, e.host, e.slower) for e in events] == [("slow", "node1", (expected,))]


def test_each_node_with_slow_ranks_has_an_event() -> None:
    fast = [rank(number, "a", busy=0.2) for number in range(6)]
    slow = [rank(6, "b", busy=0.9), rank(7, "c", busy=0.9)]
    slow_ranks = SlowRanks()
    events = [e for step in range(9) for e in slow_ranks.take(sample(*fast, *slow, step=step))]
    assert [e.host for e in events] == ["b", "c"]


def test_a_run_does_not_name_a_rank_without_steps() -> None:
    """The others may wait once for the rank that prepares the data."""
    slow_ranks = SlowRanks()
    assert [event for _ in range(50) for event in slow_ranks.take(slow_on_cpu())] == []
    assert not slow_ranks.undecided


def test_a_run_is_measured_closely_only_until_it_is_decided() -> None:
    slow_ranks = SlowRanks()
    slow_ranks.take(sample(rank(0), rank(1), step=5))
    assert not slow_ranks.undecided
    slow_ranks.take(slow_on_cpu(6))
    assert slow_ranks.undecided
    for step in (8, 9):
        slow_ranks.take(slow_on_cpu(step))
    assert not slow_ranks.undecided


def test_a_training_that_stops_to_make_steps_is_not_measured_closely_for_ever() -> None:
    slow_ranks = SlowRanks()
    for _ in range(MOST_CLOSE):
        slow_ranks.take(slow_on_cpu(7))
    assert not slow_ranks.undecided


@pytest.mark.parametrize(
    ("progress", "nodes", "interval"),
    [
        (None, 2, None),
        (Progress(step=3), 2, CLOSE),
        (Progress(step=3, steps_per_second=20.0), 2, CLOSE),
        (Progress(step=3, steps_per_second=20.0), 96, 6.0),
        (Progress(step=3, steps_per_second=1.0), 2, 5.0),
        (Progress(step=3, steps_per_second=float("nan")), 2, CLOSE),
    ],
)
def test_nodes_are_measured_every_few_steps(
    progress: Progress | None, nodes: int, interval: float | None
) -> None:
    slow_ranks = SlowRanks()
    slow_ranks.take(replace(sample(*map(rank, range(nodes))), progress=progress))
    assert slow_ranks.interval == interval


# ---------------------------------------------------------------- ranks that are late


def late(*ranks: RankSample, slow: int = 1, cost: float = 0.09, **nodes: Any) -> UsageSample:
    """A measurement in which a rank is late in collectives."""
    (host,) = (each.host for each in ranks if each.rank == slow)
    found = Lateness({slow: 0.1}, (LateRank(slow, host, cost),), suspected=False, step_seconds=0.2)
    return replace(sample(*ranks, **nodes), lateness=found, lateness_interval=3.2)


def test_a_rank_that_is_late_in_collectives_is_named_at_once_and_with_its_cost() -> None:
    slow_ranks = SlowRanks()
    events = [event for _ in range(5) for event in slow_ranks.take(late(rank(0), rank(1), rank(2)))]
    expected = SlowerRank(1, "node1", Evidence.COLLECTIVES, (), 0.09)
    assert [(e.kind, e.host, e.slower) for e in events] == [("slow", "node1", (expected,))]


def test_a_late_rank_that_is_also_busy_is_named_with_evidence_and_cost() -> None:
    ranks = [rank(0, busy=0.3), rank(1, busy=0.95)]
    streak = Streak()
    for step in (1, 3, 5):
        streak = streak.after(replace(late(*ranks), progress=Progress(step=step)))
    assert streak.named == (SlowerRank(1, "node1", Evidence.CPU, (), 0.09),)


@pytest.mark.parametrize(
    ("ranks", "nodes", "reason"),
    [
        ([rank(0), rank(1), rank(2)], {"node1": {"cpu_throttled": 0.05}}, Reason.CPU_LIMIT),
        ([rank(0), rank(1, cpu_wait=0.1), rank(2)], {"node1": {"cpu": 0.9}}, Reason.OTHER_LOAD),
        ([rank(0), rank(1), rank(2)], {"node1": {"link_errors": 3}}, Reason.LINK_ERRORS),
        ([rank(0), rank(1), rank(2)], {"node1": {"disk_read": 2e8}}, Reason.DISK),
        (
            [rank(0, gpu=gpu()), rank(1, gpu=gpu(clock=1800)), rank(2, gpu=gpu())],
            {},
            Reason.CLOCK,
        ),
        (
            [rank(0, gpu=gpu()), rank(1, gpu=gpu(throttled=("thermal",))), rank(2, gpu=gpu())],
            {},
            Reason.THERMAL,
        ),
    ],
)
def test_a_late_rank_has_the_reason_that_its_node_shows(
    ranks: list[RankSample], nodes: dict[str, Any], reason: Reason
) -> None:
    streak = Streak().after(late(*ranks, **nodes)).after(late(*ranks, **nodes))
    assert [each.reasons for each in streak.named] == [(reason,)]


def test_a_late_rank_has_a_reason_although_the_measurement_before_had_no_rates() -> None:
    ranks = [rank(0), rank(1), rank(2)]
    streak = Streak().after(sample()).after(late(*ranks, node1={"cpu_throttled": 0.05}))
    assert [each.reasons for each in streak.named] == [(Reason.CPU_LIMIT,)]


def test_a_slow_node_is_the_reason_for_all_of_its_ranks() -> None:
    ranks = [rank(number, f"node{number // 2}") for number in range(6)]
    slow = tuple(LateRank(number, "node1", 0.1) for number in (2, 3))
    found = Lateness({}, slow, suspected=False, step_seconds=1.0)
    named = late_in(replace(sample(*ranks), lateness=found))
    assert [(each.rank, each.reasons) for each in named] == [
        (2, (Reason.NODE,)),
        (3, (Reason.NODE,)),
    ]


def test_nodes_are_measured_as_often_as_their_collectives_are_compared() -> None:
    slow_ranks = SlowRanks()
    slow_ranks.take(late(rank(0), rank(1), rank(2)))
    assert slow_ranks.interval == 3.2
