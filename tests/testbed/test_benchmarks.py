"""Benchmarks on virtual nodes, in their smallest form: that they run, not what they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 800
"""Seconds, for one that hangs."""


@pytest.mark.long  # `make bench` starts each of them, and takes minutes
@pytest.mark.sshd
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("peers", "3 --rounds 1 --deepspeed 0"),
        ("many_nodes", "2 3"),
        ("output", "1600"),
        ("shipping", "--size 20 --rate 200 1 2"),
    ],
)
def test_a_benchmark_on_virtual_nodes_runs(name: str, arguments: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments.split()]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
