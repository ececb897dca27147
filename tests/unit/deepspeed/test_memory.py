"""Model states: DeepSpeed's estimates, and what is mended in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.deepspeed.memory import (
    FASTEST_FIRST,
    FAULTS,
    GIB,
    Machines,
    MemoryNeed,
    MemorySettings,
    Model,
    Strategy,
    bucket_parts,
    corrected,
    deepspeed_estimate,
    faults,
    peak,
    state_parts,
)

T0_3B = Model(2_783_959_040, 65_798_144)
ONE = Machines(1, 1)


@pytest.mark.parametrize(
    ("strategy", "cpu", "gpu"),
    [
        (Strategy(3, "cpu", "cpu"), "70.00", "0.25"),
        (Strategy(3, "cpu", "cpu", zero_init=False), "70.00", "0.25"),
        (Strategy(3, "cpu"), "62.23", "5.43"),
        (Strategy(3, "cpu", zero_init=False), "62.23", "5.43"),
        (Strategy(3), "0.37", "46.91"),
        (Strategy(3, zero_init=False), "15.56", "46.91"),
    ],
    ids=str,
)
def test_the_table_of_the_hugging_face_guide_is_met_to_the_cent(
    strategy: Strategy, cpu: str, gpu: str
) -> None:
    need = deepspeed_estimate(T0_3B, ONE, strategy)
    assert need is not None
    assert (f"{need.cpu / GIB:.2f}", f"{need.gpu / GIB:.2f}") == (cpu, gpu)


def test_there_is_no_estimate_of_deepspeed_for_other_stages_and_nvme() -> None:
    without = [s for s in FASTEST_FIRST if deepspeed_estimate(T0_3B, ONE, s) is None]
    assert {(s.stage, s.optimizer) for s in without} == {
        (0, "gpu"),
        (1, "gpu"),
        (1, "cpu"),
        (3, "nvme"),
    }


MACHINES = st.builds(Machines, st.integers(1, 64), st.integers(1, 16))
MODELS = st.builds(Model, st.integers(10**6, 10**12), st.integers(10**4, 10**6))


@given(MODELS, MACHINES, st.sampled_from(FASTEST_FIRST))
def test_the_figures_differ_only_where_a_fault_is_named(
    model: Model, machines: Machines, strategy: Strategy
) -> None:
    theirs, ours = (
        deepspeed_estimate(model, machines, strategy),
        corrected(model, machines, strategy),
    )
    named = faults(model, machines, strategy)
    assert set(named) <= set(FAULTS)
    if theirs is not None and not named:
        assert abs(theirs.gpu - ours.gpu) <= 1  # the order of roundings
        assert theirs.cpu == pytest.approx(ours.cpu, abs=1, rel=1e-12)


def test_offload_of_zero_2_needs_no_more_of_a_node_when_there_are_more_nodes() -> None:
    needs = [corrected(T0_3B, Machines(n, 8), Strategy(2, "cpu")).cpu for n in (1, 2, 4)]
    theirs = [deepspeed_estimate(T0_3B, Machines(n, 8), Strategy(2, "cpu")) for n in (1, 2, 4)]
    assert len(set(needs)) == 1
    assert [round(t.cpu / n) for t, n in zip(theirs, needs, strict=True) if t] == [1, 2, 4]


def test_zero_3_has_the_16_bit_parameters_and_gradients_that_the_estimator_forgets() -> None:
    machines = Machines(2, 8)
    theirs = deepspeed_estimate(T0_3B, machines, Strategy(3))
    assert theirs
    more = corrected(T0_3B, machines, Strategy(3)).gpu - theirs.gpu
    assert more == pytest.approx(4 * T0_3B.params / 16, abs=2)


def test_the_step_of_a_huge_part_is_made_one_sub_group_after_the_other() -> None:
    huge = Model(100 * 10**9, 10**6)
    assert "c" in faults(huge, ONE, Strategy(3))
    assert corrected(huge, ONE, Strategy(3)) == MemoryNeed(
        16 * huge.params + 6 * MemorySettings().sub_group + 4 * huge.largest_layer,
        int(4 * huge.largest_layer * 1.5),
    )


def test_full_precision_needs_no_upcast_gradients() -> None:
    half, full = (corrected(T0_3B, ONE, Strategy(2), MemorySettings(width=w)).gpu for w in (2, 4))
    assert (half, full) == (22 * T0_3B.params, 24 * T0_3B.params)
    assert faults(T0_3B, ONE, Strategy(2), MemorySettings(width=4)) == ("e",)


@given(MODELS, MACHINES)
def test_each_stage_needs_no_more_of_a_gpu_than_the_one_before(
    model: Model, machines: Machines
) -> None:
    needs = [corrected(model, machines, Strategy(stage)).gpu for stage in (1, 2)]
    offloaded = corrected(model, machines, Strategy(2, "cpu")).gpu
    assert needs[0] >= needs[1] >= offloaded


def test_a_small_model_is_whole_on_every_gpu_under_stage_3() -> None:
    small = Model(67_108_864, 4_194_304)
    settings = MemorySettings(reduce_bucket=1_000_000)
    assert peak(bucket_parts(small, Strategy(3), settings), "gpu") == 2 * (
        10**6 + small.params + 5 * 10**7
    )
    bounded = MemorySettings(
        reduce_bucket=10**6, max_reuse_distance=6 * 10**7, prefetch_bucket=10**6
    )
    assert peak(bucket_parts(small, Strategy(3), bounded), "gpu") == 2 * (10**6 + 62 * 10**6)


def test_overlapping_communication_takes_a_second_bucket_in_stage_2() -> None:
    one, two = (
        peak(bucket_parts(T0_3B, Strategy(2), MemorySettings(overlap_comm=overlap)), "gpu")
        for overlap in (False, True)
    )
    assert (one, two) == (10**9, 2 * 10**9)


def test_nvme_takes_what_the_cpu_would() -> None:
    parts = state_parts(T0_3B, Machines(2, 8), Strategy(3, "nvme", "nvme"))
    assert peak(parts, "nvme") == 18 * T0_3B.params // 2
    assert str(Strategy(3, "nvme", "cpu")) == "ZeRO-3, optimizer on NVMe, parameters on CPU"
