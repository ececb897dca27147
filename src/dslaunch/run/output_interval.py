"""How often the nodes of a run send the output of their ranks."""

from __future__ import annotations

MOST_PIECES = 10_000
"""Pieces of output in a second that all ranks send, at most: nodes gather what is more. Each takes
some 12 to 27 microseconds of the launcher's CPU: together a quarter of one."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.02, 1.0
"""Seconds between two pieces of output of a rank: no user sees the shorter one."""


def output_interval(ranks: int) -> float:
    """Return the seconds between two pieces of output of a rank, if it writes more often."""
    return min(max(SHORTEST_INTERVAL, ranks / MOST_PIECES), LONGEST_INTERVAL)
