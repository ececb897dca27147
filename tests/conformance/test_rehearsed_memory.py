"""The memory of rehearsed trainings: what is estimated of the records, and what it took."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from dslaunch.node import rank_hooks, rehearsal
from dslaunch.protocol.rehearsal import REHEARSAL, Step
from dslaunch.protocol.values import parse
from dslaunch.rehearsal.memory import machines, model_states
from dslaunch.rehearsal.ranks import RankRecords

pytestmark = [pytest.mark.torch, pytest.mark.long]  # each case starts processes that import torch
TRAIN = """\
import os, resource, sys, torch, torch.distributed as dist
import torch._dynamo  # which an optimizer imports in its first step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
dtype, sharded = getattr(torch, sys.argv[2]), len(sys.argv) > 3
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
layers = [torch.nn.Linear(1600, 1600, bias=False, dtype=dtype) for _ in range(16)]
model = torch.nn.Sequential(*layers)
if sharded:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = eval(f"torch.optim.{sys.argv[1]}")
for step in range(2):
    model(torch.ones(1, 1600, dtype=dtype)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PARAMETERS = 16 * 1600 * 1600
ERROR = 0.25
"""How far the resident memory may be from the estimate: it includes buffers and what was freed."""


def trained(directory: Path, ranks: int, *words: str) -> tuple[list[RankRecords], int]:
    """Train on some ranks; return their records, and what the first had used before."""
    variables = rehearsal.prepare(str(directory), 2)
    variables |= rank_hooks.arm(str(directory), {}, {**rank_hooks.HOOKS, **rehearsal.HOOKS})
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, *words],
            env={**os.environ, **variables, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    before = [int(process.communicate(timeout=300)[0].split()[0]) for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    found = rehearsal.records(str(directory), range(ranks), {})
    for answer in found.values():
        answer["records"] = [on_gpu(record) for record in answer["records"]]
    told = parse(REHEARSAL, found)
    records = [RankRecords(int(rank), "n0", tuple(new.records)) for rank, new in told.items()]
    return records, before[0]


def on_gpu(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as if the training had used a GPU instead of the CPU: of others there is no
    estimate."""
    names = {"devices", "states"} & record.keys()
    moved = {name: {"cuda": sum(record[name].values())} for name in names if record[name]}
    return {**record, **moved}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("optimizer", "dtype", "each"),
    [
        ("SGD(model.parameters())", "float32", 8),
        ("SGD(model.parameters(), momentum=0.9)", "float32", 12),
        ("Adafactor(model.parameters())", "float32", 8),
        ("AdamW(model.parameters())", "float32", 16),
        ("AdamW(model.parameters())", "bfloat16", 8),
        ("Muon(model.parameters())", "float32", 12),
    ],
)
def test_a_training_takes_what_is_estimated(
    directory: Path, optimizer: str, dtype: str, each: int
) -> None:
    (rank,), before = trained(directory, 1, optimizer, dtype)
    estimate = model_states(rank, machines(1, 1), ranks=1)
    assert estimate == pytest.approx(each * PARAMETERS, rel=0.01)
    assert rank.every(Step)[-1].memory - before == pytest.approx(estimate, rel=ERROR)


def test_fsdp_is_estimated_by_the_part_that_each_of_two_ranks_has(directory: Path) -> None:
    # of no GPU: on CPUs FSDP and gloo have buffers of several times the model
    ranks, _ = trained(directory, 2, "AdamW(model.parameters())", "float32", "fsdp")
    gathered = 3 * 4 * 1600 * 1600
    for count in (2, 8):
        estimate = model_states(ranks[0], machines(count, 1), ranks=2)
        assert estimate == pytest.approx(16 * PARAMETERS / count + gathered, rel=0.01)
