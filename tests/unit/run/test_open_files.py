"""How many files a run may open."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from dslaunch.run.open_files import allow_open_files

soft, hard, nodes, ranks = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow_open_files(nodes, ranks), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def allowed(soft: int, hard: int, *, nodes: int, ranks: int) -> tuple[int, int]:
    """Return how many logs may be open, and the soft limit after that."""
    words = [str(number) for number in (soft, hard, nodes, ranks)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True
    )
    logs, limit = map(int, done.stdout.split())
    return logs, limit


@pytest.mark.parametrize(
    ("nodes", "ranks", "logs", "limit"),
    [(4, 32, 100, 232), (10, 100, 100, 280), (100, 800, 100, 1000)],
    ids=["enough", "raised", "up to the hard limit"],
)
def test_the_soft_limit_is_raised_as_far_as_a_run_needs_it(
    nodes: int, ranks: int, logs: int, limit: int
) -> None:
    assert allowed(232, 1000, nodes=nodes, ranks=ranks) == (logs, limit)
