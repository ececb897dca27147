from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.deepspeed.batch import (
    MICRO,
    MISSING,
    STEPS,
    TRAIN,
    BatchError,
    BatchSizes,
    Parallelism,
    parallelism,
    resolve,
    valid_changes,
)

SIZES = st.none() | st.integers(1, 64)


@pytest.mark.parametrize(
    ("given_sizes", "filled"),
    [
        ((32, 2, 1), BatchSizes(32, 2, 1)),
        ((32, 1, None), BatchSizes(32, 1, 2)),
        ((32, None, 2), BatchSizes(32, 1, 2)),
        ((None, 2, 3), BatchSizes(96, 2, 3)),
        ((32, None, None), BatchSizes(32, 2, 1)),
        ((None, 2, None), BatchSizes(32, 2, 1)),
    ],
)
def test_what_is_not_given_follows_on_16_ranks(
    given_sizes: tuple[int | None, int | None, int | None], filled: BatchSizes
) -> None:
    assert resolve(*given_sizes, 16) == filled


@pytest.mark.parametrize(
    ("given_sizes", "words"),
    [
        ((None, None, 2), MISSING),
        ((None, None, None), MISSING),
        ((8, None, None), "Micro batch size per gpu: 0 has to be greater than 0"),
        ((-1, 1, 1), "Train batch size: -1 has to be greater than 0"),
        ((8, 1, None), "Gradient accumulation steps: 0 has to be greater than 0"),
        ((33, 2, 1), "33 != 2 * 1 * 16"),
        ((30, None, None), "30 != 1 * 1 * 16"),
        ((16, 0, None), "division"),
    ],
)
def test_what_does_not_go_together_fails_in_deepspeeds_words(
    given_sizes: tuple[int | None, int | None, int | None], words: str
) -> None:
    result = resolve(*given_sizes, 16)
    assert isinstance(result, BatchError)
    assert words in result.message
    assert result.fix


@given(SIZES, SIZES, SIZES, st.integers(1, 32))
def test_sizes_that_are_taken_multiply_to_the_whole(
    train: int | None, micro: int | None, steps: int | None, data: int
) -> None:
    result = resolve(train, micro, steps, data)
    if isinstance(result, BatchSizes):
        assert result.train == result.micro * result.steps * data
        assert train in (None, result.train)
        assert micro in (None, result.micro)
        assert steps in (None, result.steps)


def test_tensor_and_pipeline_ranks_are_one_replica_but_automatic_ones_are_not() -> None:
    assert Parallelism(16, tensor=2, pipeline=2).data == 4
    assert Parallelism(16, autotp=4).data == 16
    assert Parallelism(16, sequence=4).data == 4
    assert Parallelism(16, sequence=3).data == pytest.approx(16 / 3)


def test_the_config_says_how_sequences_and_layers_are_divided() -> None:
    config = {"sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 4}}
    assert parallelism(config, 8) == Parallelism(8, sequence=2, autotp=4)
    assert parallelism({"sequence_parallel_size": "x"}, 8, 2) == Parallelism(8, tensor=2)
    assert parallelism([], 8) == Parallelism(8)


@given(SIZES, SIZES, SIZES, st.integers(1, 32))
def test_every_way_out_fits(
    train: int | None, micro: int | None, steps: int | None, data: int
) -> None:
    for way in valid_changes((train, micro, steps), data):
        sizes = {TRAIN: train, MICRO: micro, STEPS: steps} | way
        assert isinstance(resolve(sizes[TRAIN], sizes[MICRO], sizes[STEPS], data), BatchSizes)


def test_a_way_out_changes_as_little_as_can_be() -> None:
    assert valid_changes((256, 2, 18), 7) == ({TRAIN: 252},)
    assert valid_changes((8, 2, 1), 2) == ({TRAIN: 4}, {STEPS: 2}, {MICRO: 4}, {MICRO: 2, STEPS: 2})
    assert valid_changes((30, None, None), 8) == ({TRAIN: 24}, {TRAIN: 32})
    assert valid_changes((None, None, None), 8) == ()
    assert valid_changes(("8", 2, 1), 0) == ()
