"""The job of a simulated cluster, for real nodes: each rank does what is drawn for it.

python job.py SCENARIO
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulated.drawn import MISTAKE, from_json, line, rank_draw


def main() -> None:
    """Print the lines of this rank, and end as it is drawn."""
    scenario = from_json(sys.argv[1])
    rank = int(os.environ["RANK"])
    draw = rank_draw(scenario, rank)
    for number in range(draw.lines):
        print(line(rank, number), flush=True)
        if (number + 1) % scenario.burst == 0:
            time.sleep(scenario.interval)
    time.sleep(draw.rest)
    if draw.fails:
        sys.exit(MISTAKE)


main()
