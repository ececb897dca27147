"""The memory of trainings on GPUs is what was estimated."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from dslaunch.deepspeed.memory import Strategy
from tests.conformance.memory_runs import Case

if TYPE_CHECKING:
    from tests.gpu.machine import Device

pytestmark = pytest.mark.gpu
MIB = 2**20
STRATEGIES = [Strategy(stage) for stage in range(4)]
ERROR = 0.1
"""How far a run may be from its estimate, as a part of it: the headroom of `dslaunch estimate`."""


@pytest.fixture(scope="module")
def case(devices: tuple[Device, ...]) -> Case:
    """Return a model with 100 million parameters on all GPUs."""
    return Case(hidden=2048, layers=24, ranks=len(devices))


@pytest.fixture(scope="module")
def runs(case: Case, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the ranks took, for each of STRATEGIES."""
    wanted: list[tuple[Strategy, dict[str, Any]]] = [(each, {}) for each in STRATEGIES]
    return case.measured(tmp_path_factory.mktemp("memory"), wanted, os.environ)


@pytest.mark.parametrize("number", range(len(STRATEGIES)), ids=map(str, STRATEGIES))
def test_a_training_takes_what_was_estimated(
    case: Case,
    runs: list[dict[str, Any]],
    number: int,
    record_property: Callable[[str, object], None],
) -> None:
    gpu, _ = case.estimates(STRATEGIES[number])
    figures = f"{runs[number]['peak'] / MIB:.0f} MiB per GPU, estimated {gpu / MIB:.0f} MiB"
    record_property(str(STRATEGIES[number]), figures)
    assert runs[number]["params"] == case.model.params
    assert runs[number]["peak"] == pytest.approx(gpu, rel=ERROR)
