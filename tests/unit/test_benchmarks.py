"""That `make bench` runs every benchmark."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import benchmarks
import pytest
from benchmarks.__main__ import SHORT
from benchmarks.many_nodes import exponent

PARTS = {"__init__", "__main__", "virtual_nodes", "launch_phases"}
"""Modules that are no benchmark, and those that another one starts."""


def test_make_bench_runs_every_benchmark() -> None:
    directory = Path(benchmarks.__path__[0])
    modules = {path.stem for path in directory.glob("*.py")}
    assert modules - PARTS == SHORT.keys()


@pytest.mark.parametrize("name", sorted({*SHORT, *PARTS} - {"__init__", "__main__"}))
def test_a_benchmark_finds_all_that_it_imports(name: str) -> None:
    assert import_module(f"benchmarks.{name}").__doc__


def test_growth_is_the_power_of_the_nodes_that_fits_all_sizes() -> None:
    assert exponent([16, 64, 256], [0.5, 2.0, 8.0]) == "1.00"
    assert exponent([10, 100, 1000], [1.0, 50.0, 10000.0]) == "2.00"
    assert exponent([16, 64], [0.0, 2.0]) == "-"
