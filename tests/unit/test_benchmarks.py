"""That `make bench` runs every benchmark."""

from __future__ import annotations

from pathlib import Path

import benchmarks
from benchmarks.__main__ import SHORT

PARTS = {"__init__", "__main__", "virtual_nodes", "launch_phases"}
"""Modules that are no benchmark, and those that another one starts."""


def test_make_bench_runs_every_benchmark() -> None:
    directory = Path(benchmarks.__path__[0])
    modules = {path.stem for path in directory.glob("*.py")}
    assert modules - PARTS == SHORT.keys()
