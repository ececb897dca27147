"""Whether the ranks of a node make progress, where no launcher watches them."""

from __future__ import annotations

import pytest

from dslaunch.node.rank_progress import Quiet, quiet_seconds

COMPUTES = Quiet(idle=0.0, printed=90.0, moved=None)
"""A node whose rank computes and has recorded no collective."""
WAITS = Quiet(idle=0.0, printed=80.0, moved=70.0)
"""A node whose rank waits in a collective, in a loop that uses the CPU."""


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        # the CPU counts where no rank has recorded a collective
        ((COMPUTES, Quiet(idle=50.0, printed=90.0, moved=None)), 0.0),
        ((Quiet(idle=40.0, printed=90.0, moved=None), Quiet(50.0, 90.0, None)), 40.0),
        # and nowhere else, also if only some have
        ((COMPUTES, WAITS), 70.0),
        # output of any rank is progress
        ((Quiet(idle=0.0, printed=3.0, moved=None), WAITS), 3.0),
        # all nodes have ended
        ((), 0.0),
    ],
)
def test_progress_is_output_and_collectives_and_otherwise_the_cpu(
    nodes: tuple[Quiet, ...], seconds: float
) -> None:
    assert quiet_seconds(nodes) == seconds
