"""Trainings that hang over NCCL: the ranks that the others wait for are named.

Four nodes share one GPU, so that one GPU is enough; their ranks reach each other by the network.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu.hangs import CASES, NODES, Case
from tests.gpu.machine import JOBS, versions

if TYPE_CHECKING:
    from tests.gpu.machine import Machine

pytestmark = pytest.mark.gpu
RECORD = "DSLAUNCH_HANGS"
"""Names a file to which each case adds a line of JSON, for docs/reference/hangs.md."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.how)
def test_a_hang_over_nccl_names_the_rank_that_the_others_wait_for(
    machine: Machine, case: Case
) -> None:
    machine.describe_shared(NODES)
    options = ("--no-preflight", "--hang-timeout", "10", "--grace", "2", *case.options)
    run = machine.run(JOBS / "hang.py", case.how, options=options)
    assert run.outcome["reason"]["code"] == "hang", run.text
    hang = run.outcome["reason"]["hang"]
    assert hang["code"] == case.code, hang
    everybody = [[f"node{rank + 1}", rank] for rank in range(NODES)]
    assert hang["ranks"] == (everybody[-1:] if case.last_alone else everybody)
    if case.last_alone:
        assert (hang["operation"], hang["waiting"]) == (case.operation, [0, 1, 2])
    if case.function:
        place = hang["place"]
        assert (place["file"], place["function"]) == ("hang.py", case.function)
    if case.how == "order":
        assert [side["group"] for side in hang["sides"]] == ["pair", "default_pg"]
    if RECORD in os.environ:
        row = {
            "date": datetime.now(UTC).date().isoformat(),
            "how": case.how,
            "versions": versions(),
            "seconds": round(run.outcome["reason"]["seconds"], 1),
            "hang": hang,
        }
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(json.dumps(row) + "\n")
