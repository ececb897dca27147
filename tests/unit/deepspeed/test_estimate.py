"""What fits, what to do, and how long the network takes."""

from __future__ import annotations

import json
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.deepspeed.activations import MicroBatch, activations
from dslaunch.deepspeed.architectures import Shape
from dslaunch.deepspeed.communication import Bandwidth, collectives, seconds
from dslaunch.deepspeed.estimate import (
    EstimateInput,
    Limits,
    Outcome,
    by_nodes,
    estimate,
    recommend,
)
from dslaunch.deepspeed.memory import GB, GIB, Machines, MemorySettings, Model, Strategy
from dslaunch.deepspeed.model_size import Sized, from_config
from dslaunch.deepspeed.quantities import parse_bytes, parse_count, parse_nodes, parse_rate
from dslaunch.errors import UsageError

SEVEN = Model(7 * 10**9, 65 * 10**6)
PODS = Machines(2, 8)
LLAMA = Shape(32, 4096, 32, 32, 128, 11008, 32000, gated=True, rms=True)
ROOM = Limits(80 * GB, 1000 * GB)


def question(
    limits: Limits, shape: Shape | None = None, machines: Machines = PODS
) -> EstimateInput:
    return EstimateInput(Sized(SEVEN, "", shape), machines, limits=limits)


def test_the_fastest_that_fits_is_recommended_with_the_reason() -> None:
    asked = question(ROOM)
    advice = recommend(asked, estimate(asked))
    assert advice.row is not None
    assert advice.row.strategy == Strategy(1)
    assert advice.shortage is not None
    assert (advice.shortage.strategy, advice.shortage.place) == (Strategy(0), "gpu")
    assert advice.shortage.need / GIB == pytest.approx(130.4, abs=0.05)


@pytest.mark.parametrize(
    ("gpu", "cpu", "machines", "expected"),
    [
        (200, 1000, PODS, "ZeRO-0"),
        (40, 1000, PODS, "ZeRO-1"),
        (26, 1000, PODS, "ZeRO-2"),
        (17, 1000, PODS, "ZeRO-2, optimizer on CPU"),
        (17, 200, PODS, "ZeRO-3"),
        (6, 200, PODS, "ZeRO-3, optimizer on CPU"),
        (10, 240, Machines(1, 1), "ZeRO-3, optimizer and parameters on CPU"),
    ],
)
def test_less_memory_takes_a_slower_way(
    gpu: int, cpu: int, machines: Machines, expected: str
) -> None:
    asked = question(Limits(gpu * GB, cpu * GB), machines=machines)
    row = recommend(asked, estimate(asked)).row
    assert str(row.strategy if row else None) == expected


def test_nvme_is_offered_only_where_there_is_some() -> None:
    tight = Limits(5 * GB, 70 * GB)
    without = question(tight, machines=Machines(1, 1))
    assert recommend(without, estimate(without)).row is None
    having = replace(without, limits=replace(tight, nvme=1000 * GB))
    row = recommend(having, estimate(having)).row
    assert row is not None
    assert row.strategy.optimizer == "nvme"


def test_checkpointing_comes_before_offload_and_after_the_stages_without_it() -> None:
    asked = replace(question(Limits(75 * GB, 1000 * GB), LLAMA), batch=MicroBatch(8, 2048))
    rows = estimate(asked)
    assert [row.fits for row in rows[:3]] == ["no", "checkpointing", "checkpointing"]
    advice = recommend(asked, rows)
    assert advice.checkpointing
    assert advice.row is rows[1]


def test_where_nothing_fits_the_number_of_nodes_that_would_do_is_said() -> None:
    big = EstimateInput(Sized(Model(10**12, 10**9), ""), PODS, limits=ROOM)
    (more,) = recommend(big, estimate(big)).alternatives
    assert (str(more.row.strategy), more.nodes) == ("ZeRO-3, optimizer on CPU", 32)
    layer = EstimateInput(Sized(Model(10**12, 10**11), ""), PODS, limits=ROOM)
    advice = recommend(layer, estimate(layer))
    assert (advice.outcome, advice.alternatives) == ("does-not-fit", ())


def test_without_limits_nothing_is_said_to_fit() -> None:
    asked = question(Limits())
    rows = estimate(asked)
    assert {row.fits for row in rows} == {"unknown"}
    advice = recommend(asked, rows)
    assert (advice.row, advice.outcome) == (None, "unknown")
    assert advice.missing == ("--gpu-memory", "--cpu-memory")


@pytest.mark.parametrize(
    ("limits", "missing"),
    [
        (Limits(gpu=6 * GB), ("--cpu-memory",)),
        (Limits(cpu=1000 * GB), ("--gpu-memory",)),
        (Limits(5 * GB, 90 * GB), ("--nvme",)),
    ],
)
def test_what_was_not_given_is_unknown_and_named_and_never_called_too_small(
    limits: Limits, missing: tuple[str, ...]
) -> None:
    advice = recommend(question(limits), estimate(question(limits)))
    assert (advice.row, advice.outcome, advice.missing) == (None, "unknown", missing)


def test_a_size_that_is_given_and_too_small_decides_whatever_else_is_unknown() -> None:
    rows = estimate(question(Limits(gpu=1 * GB)))
    assert {row.fits for row in rows} == {"no"}
    assert recommend(question(Limits(gpu=1 * GB)), rows).outcome == "does-not-fit"


def test_the_nodes_memory_is_not_asked_for_where_nothing_is_kept_in_it() -> None:
    asked = question(Limits(gpu=80 * GB))
    advice = recommend(asked, estimate(asked))
    assert advice.outcome == "fits"
    assert advice.row is not None
    assert advice.row.strategy == Strategy(1)


def test_where_nothing_fits_the_largest_micro_batch_that_would_is_named() -> None:
    asked = replace(question(ROOM, LLAMA), batch=MicroBatch(64, 8192))
    advice = recommend(asked, estimate(asked))
    assert advice.outcome == "does-not-fit"
    assert advice.micro_batch is not None
    smaller = [
        recommend(again, estimate(again)).outcome
        for micro in (advice.micro_batch, advice.micro_batch + 1)
        for again in [replace(asked, batch=MicroBatch(micro, 8192))]
    ]
    assert smaller == ["fits", "does-not-fit"]
    assert advice.alternatives[0].accumulation == math.ceil(64 / advice.micro_batch)


def test_no_micro_batch_is_named_where_the_model_alone_is_too_large() -> None:
    asked = replace(question(Limits(2 * GB, 10 * GB, 10 * GB), LLAMA), batch=MicroBatch(8, 2048))
    assert recommend(asked, estimate(asked)).micro_batch is None


def test_activations_are_part_of_the_peak_and_checkpointing_lowers_it() -> None:
    rows = estimate(question(ROOM, LLAMA))
    acts = activations(LLAMA, MicroBatch())
    assert acts.full > 4 * acts.checkpointed
    for row in rows:
        assert row.gpu >= max(row.states.gpu, acts.full)
        assert row.states.gpu <= row.gpu_checkpointed <= row.gpu


def test_eager_attention_keeps_a_square_of_the_sequence() -> None:
    eager = activations(LLAMA, MicroBatch(1, 4096, "eager")).full
    sdpa = activations(LLAMA, MicroBatch(1, 4096, "sdpa")).full
    assert eager - sdpa == 32 * 32 * 4096 * 4096 * 6


def test_traffic_is_that_of_the_papers_rings_but_for_the_all_reduce_of_stages_1_and_2() -> None:
    volumes = [sum(c.sent for c in collectives(SEVEN, PODS, Strategy(n))) for n in range(3)]
    ring = 2 * SEVEN.params * 15 / 16
    assert [v / ring for v in volumes] == pytest.approx([2, 3, 3])
    far = MemorySettings(max_reuse_distance=0)
    assert sum(c.sent for c in collectives(SEVEN, PODS, Strategy(3), far)) / ring == pytest.approx(
        3
    )


def test_gradient_accumulation_multiplies_the_traffic_of_stages_2_and_3_alone() -> None:
    def sent(stage: int, accumulation: int) -> float:
        moved = collectives(SEVEN, PODS, Strategy(stage), MemorySettings(), accumulation)
        return sum(each.sent for each in moved) / (2 * SEVEN.params * 15 / 16)

    assert [round(sent(stage, 4), 1) for stage in (0, 1, 2)] == [2, 3, 9]
    assert sent(3, 4) == pytest.approx(4 * sent(3, 1))


def test_time_is_by_the_slowest_path() -> None:
    moved = collectives(SEVEN, PODS, Strategy(1))
    network = seconds(moved, PODS, Bandwidth(12.5e9, 450e9))
    assert network == pytest.approx(39.375 / 12.5)
    assert seconds(moved, PODS, Bandwidth(None, 450e9)) is None
    one = Machines(1, 8)
    assert seconds(collectives(SEVEN, one, Strategy(1)), one, Bandwidth(None, 450e9))
    alone = Machines(1, 1)
    assert seconds(collectives(SEVEN, alone, Strategy(1)), alone, Bandwidth()) == 0


def test_gb_is_a_power_of_ten_and_gib_one_of_two() -> None:
    assert parse_bytes("80GB", "") == 80 * GB
    assert parse_bytes("80 GiB", "") == 80 * GIB
    assert parse_bytes("1.5tb", "") == 1_500_000_000_000
    assert parse_rate("100Gbit", "") == parse_rate("100Gb/s", "") == parse_rate("12.5GB/s", "")
    assert [parse_count(t, "") for t in ("7e9", "7B", "7_000_000_000")] == [7 * 10**9] * 3


@pytest.mark.parametrize("text", ["", "80", "GB", "-1GB", "80iB", "80 GB of it", "nanGB"])
def test_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--gpu-memory"):
        parse_bytes(text, "--gpu-memory")


@pytest.mark.parametrize("text", ["", "0", "-7e9", "7e99", "1e999", "seven", "nan"])
def test_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--params"):
        parse_count(text, "--params")


@pytest.mark.parametrize("text", ["", "100", "0Gbit", "1e99Gbit", "fast", "1Gbit/h"])
def test_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--bandwidth"):
        parse_rate(text, "--bandwidth")


def test_numbers_of_nodes_are_sorted_and_each_is_there_once() -> None:
    assert parse_nodes("4, 1,2,2", "--by-nodes") == (1, 2, 4)
    for text in ("", "0", "1,", "1-4", "x", "9999999"):
        with pytest.raises(UsageError, match="--by-nodes"):
            parse_nodes(text, "--by-nodes")


def test_more_nodes_never_need_more_of_a_gpu() -> None:
    grid = by_nodes(question(ROOM, LLAMA), (1, 2, 4, 8))
    for same in zip(*grid.values(), strict=True):
        assert [row.gpu for row in same] == sorted((row.gpu for row in same), reverse=True)


@given(st.integers(1, 40), st.integers(1, 16), st.integers(8, 12))
def test_any_question_has_an_answer(nodes: int, gpus: int, size: int) -> None:
    model = Model(10**size, 10 ** (size - 2))
    asked = EstimateInput(Sized(model, ""), Machines(nodes, gpus), limits=ROOM)
    rows = estimate(asked)
    advice = recommend(asked, rows)
    assert advice.outcome in get_args(Outcome)
    assert advice.row is None or advice.row.fits in ("yes", "checkpointing")


def test_a_family_without_gate_has_a_shape_too() -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}
    text = json.dumps({**config, "n_positions": 1024, "vocab_size": 50257})
    shape = from_config(text, "config.json").shape
    assert shape is not None
    assert (shape.intermediate, shape.act_copies) == (3072, 5)
