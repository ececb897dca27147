"""A rank that is slower by a tenth is named within 50 steps, and none of a sound run is."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.growth import result_within
from tests.unit.run.simulated_job import (
    SimulatedJob,
    heavy_tails,
    jitter,
    lognormal,
    none,
    normal,
)

from dslaunch.run.collective_steps import (
    EnteredCollective,
    GroupHistory,
    StepLateness,
    step_lateness,
    step_length,
)
from dslaunch.run.late_ranks import (
    KNOWN_STEPS,
    LateRank,
    late_ranks,
    lateness_of,
    slow_in,
)

NOISES = {
    "none": none(),
    "normal": normal(0.03),
    "lognormal": lognormal(0.03),
    "heavy-tails": heavy_tails(0.01),
}
SLOW = 5
TENTH = {SLOW: 0.1}


def with_noise(jobs: dict[str, SimulatedJob]) -> list[object]:
    """Each job with each noise. Pairs of an unusual job with an unusual noise are long: they show
    nothing that neither of the two shows."""
    usual_job = next(iter(jobs))
    pairs = []
    for name, job in jobs.items():
        for kind, noise in NOISES.items():
            usual = name == usual_job or kind == "lognormal"
            marks = () if usual else (pytest.mark.long,)
            pairs.append(pytest.param(replace(job, noise=noise), id=f"{name}-{kind}", marks=marks))
    return pairs


def named(job: SimulatedJob, seed: int = 1) -> list[int]:
    """The ranks that are named at the end of a job."""
    return [each.rank for each in late_ranks(job.group(Random(seed)))]


# ---------------------------------------------------------------- a slow rank


@pytest.mark.parametrize(
    "job",
    with_noise(
        {
            "3-buckets": SimulatedJob(),
            "1-bucket": SimulatedJob(buckets=1),
            "2-buckets": SimulatedJob(buckets=2),
            "12-buckets": SimulatedJob(buckets=12),
            "slow-from-step-40": SimulatedJob(begin=40, steps=90),
            "lost": SimulatedJob(lost=0.05),
            "16-ranks": SimulatedJob(ranks=16, nodes=2),
        }
    ),
)
def test_a_rank_slower_by_a_tenth_is_named_within_50_steps(job: SimulatedJob) -> None:
    found = [named(replace(job, slower=TENTH), seed) for seed in range(20)]
    assert found.count([SLOW]) >= 18
    assert found.count([SLOW]) + found.count([]) == 20


def test_the_cost_is_the_time_that_all_others_lose() -> None:
    job = SimulatedJob(noise=none(), slower=TENTH)
    (found,) = late_ranks(job.group(Random(1)))
    assert found.cost == pytest.approx(0.1 / 1.11, abs=0.005)
    (in_between,) = late_ranks(
        replace(job, waits_in_between=True, noise=normal(0.001)).group(Random(1))
    )
    assert in_between.cost == pytest.approx(0.1 / 1.13, abs=0.01)


def test_one_of_two_ranks_is_named() -> None:
    job = SimulatedJob(ranks=2, nodes=2, slower={1: 0.1})
    assert named(job) == [1]


def test_a_slow_rank_is_named_although_another_one_saves_with_a_barrier() -> None:
    job = SimulatedJob(slower=TENTH, begin=40, steps=90, pauses=(0, 10, 0.5), barrier=True)
    assert [named(job, seed) for seed in range(4)].count([SLOW]) >= 3


def test_one_of_two_ranks_that_became_slow_is_named_within_50_steps() -> None:
    """Each is the last one in half of the steps, so this needs the steps before."""
    job = SimulatedJob(ranks=2, nodes=2, slower={1: 0.1}, begin=40, steps=90)
    assert [named(job, seed) for seed in range(20)].count([1]) >= 18


def test_a_rank_that_was_always_late_is_named_although_nothing_has_changed() -> None:
    job = SimulatedJob(slower=TENTH, steps=KNOWN_STEPS + 2)
    assert named(job) == [SLOW]


def test_all_ranks_of_a_slow_node_are_named() -> None:
    assert named(SimulatedJob(slower={4: 0.1, 5: 0.1})) == [4, 5]
    assert named(SimulatedJob(ranks=8, nodes=2, slower=dict.fromkeys(range(4), 0.1))) == [
        0,
        1,
        2,
        3,
    ]


def test_half_of_the_ranks_on_several_nodes_are_not_named() -> None:
    assert named(SimulatedJob(slower=dict.fromkeys(range(0, 8, 2), 0.1))) == []


def test_two_slow_ranks_of_different_nodes_are_named() -> None:
    assert named(SimulatedJob(slower={1: 0.1, 6: 0.25})) == [1, 6]


def noisy(steps: list[list[float]], *, seconds: float) -> tuple[LateRank, ...]:
    """The ranks that are named if all are late by so much in each step, and by a fifth of a step at
    random."""
    random = Random(1)
    late = (tuple(by + random.gauss(0, seconds / 5) for by in step) for step in steps)
    ranks = tuple(range(len(steps[0])))
    hosts = tuple(f"node{rank // 8}" for rank in ranks)
    lateness = StepLateness(ranks, hosts, tuple(late), seconds, waits=1)
    return slow_in(lateness, dict.fromkeys(hosts, 0.0))


def test_a_rank_is_named_if_thousands_of_steps_are_compared() -> None:
    """Steps of 2 ms: there are more sets of them than a float can count."""
    found = noisy([[0.0006, 0.0, 0.0, 0.0]] * 1600, seconds=0.002)
    assert [each.rank for each in found] == [0]


def test_many_slow_ranks_among_hundreds_are_compared_in_a_second() -> None:
    """The launcher supervises the run in the same thread."""
    steps = [[0.03] * 100 + [0.0] * 156] * KNOWN_STEPS
    found = result_within(30, lambda: noisy(steps, seconds=0.1))
    assert {each.rank for each in found} <= set(range(100))


def test_steps_shorter_than_a_microsecond_are_none() -> None:
    times = [(at * 1e-9, at * 1e-9) for at in range(50)]
    collectives = [EnteredCollective(at, "all_reduce", each) for at, each in enumerate(times)]
    group = GroupHistory((0, 1), ("node1", "node2"), collectives, {"node1": 0.0, "node2": 0.0})
    assert step_lateness(group, steps=50, seconds=0.0) is None


def test_a_rank_is_named_with_few_steps_only_if_they_take_long_enough() -> None:
    job = SimulatedJob(noise=none(), slower=TENTH, seconds=0.01, clock_error=0.0)
    assert named(replace(job, steps=KNOWN_STEPS)) == []
    assert named(replace(job, steps=350)) == [SLOW]


# ---------------------------------------------------------------- a sound run


@pytest.mark.parametrize(
    "job",
    with_noise(
        {
            "8": SimulatedJob(),
            "buckets": SimulatedJob(buckets=12),
            "waits": SimulatedJob(waits_in_between=True),
            "2-ranks": SimulatedJob(ranks=2, nodes=2),
            "memory": SimulatedJob(memory=0.8),
            "pauses": SimulatedJob(pauses=(0, 10, 1.0)),
            "slower-by-3-%": SimulatedJob(slower={3: 0.03}),
            "lost": SimulatedJob(lost=0.2),
            "rank-0-saves": SimulatedJob(pauses=(0, 50, 3.0)),
            "rank-0-varies-more": SimulatedJob(noise_of={0: normal(0.3)}),
        }
    ),
)
def test_no_rank_of_a_sound_run_is_named(job: SimulatedJob) -> None:
    sound = replace(job, steps=100)
    assert [found for seed in range(8) if (found := named(sound, seed))] == []


@pytest.mark.parametrize(
    "job",
    [
        SimulatedJob(pauses=(0, 5, 0.5), steps=200),
        SimulatedJob(pauses=(0, 5, 0.5), steps=200, buckets=12),
        SimulatedJob(pauses=(0, 5, 0.5), steps=200, waits_in_between=True),
        SimulatedJob(pauses=(0, 10, 1.0), steps=400),
        SimulatedJob(pauses=(0, 10, 0.5), steps=400, ranks=2, nodes=2),
        SimulatedJob(pauses=(0, 5, 0.5), steps=250, barrier=True),
    ],
    ids=[
        "every-5",
        "every-5-of-12-buckets",
        "every-5-with-waits",
        "every-10",
        "2-ranks",
        "barrier",
    ],
)
def test_no_rank_is_named_that_saves_or_evaluates_every_few_steps(job: SimulatedJob) -> None:
    """However long the run is: such a period is no step of its own."""
    assert [named(job, seed) for seed in range(2)] == [[], []]


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_no_rank_is_named_whose_data_loader_is_late_now_and_then(memory: float) -> None:
    job = SimulatedJob(noise=jitter(0.1, 0.5), memory=memory, steps=100)
    assert [found for seed in range(8) if (found := named(job, seed))] == []


def test_a_rank_that_evaluates_for_15_of_50_steps_is_not_named() -> None:
    late = [[0.3 if step % 50 < 15 else 0.0, 0.0, 0.0, 0.0] for step in range(KNOWN_STEPS)]
    assert noisy(late, seconds=0.1) == ()


LONG_RUNS = {
    "normal": SimulatedJob(noise=normal(0.05)),
    "lognormal": SimulatedJob(noise=lognormal(0.05)),
    "heavy-tails": SimulatedJob(noise=heavy_tails(0.03)),
    "heavy-tails-with-memory": SimulatedJob(noise=heavy_tails(0.01), memory=0.8),
    "jitter": SimulatedJob(noise=jitter(0.3, 0.2)),
    "rank-0-varies-more": SimulatedJob(noise_of={0: normal(0.3)}),
    "rank-0-saves": SimulatedJob(pauses=(0, 20, 1.0)),
    "rank-0-saves-with-barrier": SimulatedJob(pauses=(0, 10, 0.5), barrier=True),
    "lengths": SimulatedJob(lengths=lognormal(0.3)),
}


@pytest.mark.long  # minutes: 100 runs of 200 steps each
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("job", LONG_RUNS.values(), ids=LONG_RUNS.keys())
def test_no_rank_of_a_hundred_sound_runs_is_named(job: SimulatedJob, ranks: int) -> None:
    random = Random(7)
    sound = replace(job, ranks=ranks, nodes=min(ranks, 4), steps=KNOWN_STEPS + 8)
    assert sum(bool(late_ranks(sound.group(random))) for _ in range(100)) == 0


def test_a_clock_that_is_wrong_by_less_than_its_error_names_no_rank() -> None:
    job = SimulatedJob(offsets=(0, 0, 0.009, 0), clock_error=0.005)
    assert [found for seed in range(10) if (found := named(job, seed))] == []
    drifting = SimulatedJob(drift=(0, 0, 50e-6, 0), steps=100)
    assert [found for seed in range(10) if (found := named(drifting, seed))] == []


def test_a_rank_is_named_by_others_of_its_node_whatever_the_clocks_show() -> None:
    job = SimulatedJob(ranks=4, nodes=1, slower={2: 0.1}, clock_error=10.0)
    assert named(job) == [2]


@given(st.integers(0, 2**32), st.floats(0, 0.3), st.integers(2, 9), st.integers(1, 5))
def test_the_median_rank_of_a_job_is_never_named(
    seed: int, sigma: float, ranks: int, buckets: int
) -> None:
    job = SimulatedJob(
        ranks=ranks, nodes=1, buckets=buckets, noise=normal(sigma), steps=40, slower={0: sigma}
    )
    assert len(named(job, seed)) <= ranks // 2


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("buckets", [1, 3, 12])
def test_a_step_is_told_by_the_pauses_even_if_all_collectives_are_alike(buckets: int) -> None:
    group = SimulatedJob(buckets=buckets).group(Random(1))
    assert step_length(group.collectives) == buckets


def test_the_cost_of_a_slow_rank_is_right_even_if_all_pauses_are_equal() -> None:
    """Only the waiting at the end of a step tells it from its buckets."""
    job = SimulatedJob(buckets=2, noise=normal(0.01), slower=TENTH)
    (found,) = late_ranks(job.group(Random(1)))
    assert found.cost == pytest.approx(0.08, abs=0.02)


def test_a_step_is_told_by_the_kinds() -> None:
    kinds = ["gloo:all_gather [[8]]", "gloo:all_reduce [[8]]"]
    collectives = [
        EnteredCollective(number, kinds[number % 2], (float(number), float(number)))
        for number in range(60)
    ]
    assert step_length(collectives) == 2


def test_collectives_that_do_not_repeat_have_no_steps() -> None:
    collectives = [
        EnteredCollective(number, f"gloo:all_reduce [[{number}]]", (float(number), float(number)))
        for number in range(60)
    ]
    assert step_length(collectives) is None
    assert step_length(collectives[:2]) is None


def test_a_broadcast_delays_no_rank() -> None:
    """Its root does not wait for the others."""
    group = SimulatedJob(noise=none(), slower=TENTH).group(Random(1))
    broadcasts = [structs.replace(each, all_wait=False) for each in group.collectives]
    assert (
        step_lateness(structs.replace(group, collectives=broadcasts), steps=50, seconds=0.0) is None
    )


def test_delays_in_collectives_that_overlap_count_once() -> None:
    """The second bucket carries the delay of the first one along."""
    job = SimulatedJob(noise=normal(0.01), slower=TENTH)
    found = step_lateness(job.group(Random(1)), steps=50, seconds=0.0)
    assert found is not None
    assert found.waits == 1


def test_a_rank_that_became_slow_is_suspected_before_it_is_named() -> None:
    job = SimulatedJob(slower=TENTH, begin=40, steps=56)
    found = lateness_of([job.group(Random(1))])
    assert found is not None
    assert (found.suspected, found.slow) == (True, ())
    assert found.step_seconds == pytest.approx(0.1, rel=0.2)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from("ab"), st.floats(-1e12, 1e12)),
        max_size=60,
    )
)
def test_any_times_are_compared(drawn: list[tuple[int, str, float]]) -> None:
    by_number = {
        number: EnteredCollective(number, kind, (time, -time, time / 3))
        for number, kind, time in drawn
    }
    collectives = [by_number[number] for number in sorted(by_number)]
    group = GroupHistory((0, 1, 2), ("a", "a", "b"), collectives, {"a": 0.0, "b": float("inf")})
    lateness_of([group])
