"""Rehearsals on nodes emulated on this machine: real agents, real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.conftest import left_over

from dslaunch import Cluster, Rehearsal, api
from dslaunch.cluster.model import Node, SecretSource, Storage
from dslaunch.launch.job import Job
from dslaunch.rehearsal.judge import Gap
from dslaunch.run.events import Event, Line
from dslaunch.run.rehearsal_result import Verdict

Rehearse = Callable[..., Rehearsal]
TRAINING = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
for step, (inputs, targets) in enumerate(loader, 1):
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("finished", step, flush=True)
    if step == 2 and dist.get_rank() == 0:
        torch.save(model.state_dict(), "model.pt")
print("after the training")
"""


class Seen:
    """What a rehearsal showed."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.events: list[Event] = []


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def rehearse(tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Rehearse:
    """Rehearse a script with one rank on each of two nodes."""
    # the directories of emulated nodes are below it
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))

    def start(
        script: str,
        launcher: str = "direct",
        time_limit: float = 300.0,
        hang_timeout: float = 120.0,
        secrets: tuple[SecretSource, ...] = (),
        **environ: str,
    ) -> Rehearsal:
        (tmp_path / "train.py").write_text(script)
        nodes = tuple(Node(f"n{number}", (0,), python=sys.executable) for number in range(2))
        cluster = Cluster("test", nodes, transport="local", storage=Storage(workdir="work"))
        return api.rehearse(
            cluster,
            Job("train.py", launcher=launcher, secrets=secrets),
            cwd=tmp_path,
            environ={**os.environ, **environ},
            time_limit=time_limit,
            hang_timeout=hang_timeout,
            on_line=seen.lines.append,
            on_event=seen.events.append,
        )

    return start


UNEVEN = """\
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(4, 8)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if step == 2 and dist.get_rank() == 0:
        PAUSE
    optimizer.step()
    optimizer.zero_grad()
"""
"""Rank 1 is held before its third step, which rank 0 begins later or never."""


def run_directory(tmp_path: Path) -> Path:
    (directory,) = (tmp_path / "state/runs").iterdir()
    return directory


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> object:
    yield None
    for run in (tmp_path / "state/runs").glob("*"):
        assert left_over(run.name) == {}


@pytest.mark.torch
def test_a_training_is_held_after_its_steps_and_measured(
    rehearse: Rehearse, seen: Seen, tmp_path: Path
) -> None:
    result = rehearse(TRAINING)
    assert result.verdict is Verdict.WOULD_RUN
    assert (result.outcome.status, result.outcome.reason.code) == ("ok", "rehearsed")
    measured = result.measured
    assert (measured.steps, measured.world, measured.backend) == (2, 2, "gloo")
    assert (measured.parameters, measured.wrapper) == (9, "DistributedDataParallel")
    assert (measured.optimizer, measured.learning_rates) == ("AdamW", (0.01, 0.01))
    assert (measured.batch, measured.samples, measured.sampler) == (4, 64, "DistributedSampler")
    # what follows the last step is rehearsed too, and no further step is made
    texts = {line.text for line in seen.lines}
    assert {"finished 1", "finished 2"} <= texts
    assert not {"finished 3", "after the training"} & texts
    assert [each.code for each in result.findings] == ["rehearsal.checkpoint-incomplete"]
    assert json.loads((run_directory(tmp_path) / "rehearsal.json").read_text()) == json.loads(
        json.dumps(result.as_data())
    )


def test_a_failure_is_named_with_its_place_and_secrets_are_masked(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    script = "import os\nraise ValueError(os.environ['TOKEN'])"
    secrets = (SecretSource("TOKEN"),)
    result = rehearse(script, secrets=secrets, TOKEN="hunter2-and-more")
    (found,) = (each for each in result.findings if each.level == "error")
    assert (found.where, found.evidence) == ("train.py:2", "ValueError: ***")
    assert (result.verdict, result.exit_code) == (Verdict.WOULD_FAIL, 1)
    assert "hunter2" not in (run_directory(tmp_path) / "rehearsal.json").read_text()


@pytest.mark.torch
@pytest.mark.long  # a second representative of rehearsals that import torch
def test_an_exception_after_the_last_step_is_the_failure(rehearse: Rehearse) -> None:
    failing = TRAINING.replace(
        "    if step == 2 and",
        "    if step == 2 and dist.get_rank() == 1:\n        open('missing')\n    if step == 2 and",
    )
    result = rehearse(failing)
    assert result.verdict is Verdict.WOULD_FAIL
    assert result.findings[0].where == "train.py:19"
    assert "FileNotFoundError" in (result.findings[0].evidence or "")
    assert "rehearsal.uneven-steps" not in {found.code for found in result.findings}


def test_a_script_without_pytorch_is_not_rehearsed(rehearse: Rehearse) -> None:
    result = rehearse("print('done')")
    assert (result.verdict, result.exit_code) == (Verdict.NOT_REHEARSED, 1)
    assert result.not_rehearsed == (Gap.NO_TORCH,)


def test_a_script_that_makes_no_step_is_stopped_at_the_time_limit(rehearse: Rehearse) -> None:
    result = rehearse("import time\ntime.sleep(600)", time_limit=10)
    assert (result.outcome.status, result.outcome.reason.code) == ("failed", "rehearsal-limit")
    assert result.outcome.stacks.keys() == {"n0", "n1"}
    assert result.verdict is Verdict.NOT_REHEARSED


def test_a_rehearsal_that_finds_an_error_prevents_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "local.yaml").write_text(
        "name: local\ntransport: local\nlauncher: direct\n"
        "nodes: [{host: 'node[1-2]', slots: 1}]\nstorage: {workdir: work}\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dslaunch", "run", "--rehearse", "--result", "result.json"),
            *("local.yaml", "train.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state")},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert "train.py: would fail" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert result["reason"]["problem"] == "would-fail"
    assert len(list((tmp_path / "state/runs").iterdir())) == 1


def test_a_rehearsal_is_a_check_of_a_preflight_and_makes_no_node_unfit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nraise ValueError(sys.argv[1])\n")
    (tmp_path / "local.yaml").write_text(
        "name: local\ntransport: local\nlauncher: direct\n"
        "nodes: [{host: 'node[1-2]', slots: 1}]\nstorage: {workdir: work}\n"
    )
    options = ("--only", "job.rehearsal", "--script", "train.py", "--json", "--junit", "r.xml")
    done = subprocess.run(
        [sys.executable, "-m", "dslaunch", "preflight", *options, "local.yaml", "--", "--lr"],
        cwd=tmp_path,
        env={**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state")},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    report = json.loads(done.stdout)
    (failed,) = (each for each in report["findings"] if each["level"] == "fail")
    assert (failed["check"], failed["code"]) == ("job.rehearsal", "rehearsal.failed")
    assert "train.py:2" in failed["found"] and "ValueError: --lr" in failed["found"]
    assert [each["fitness"] for each in report["verdicts"]] == ["fit", "fit"]
    assert 'failures="1"' in (tmp_path / "r.xml").read_text()


@pytest.mark.torch
@pytest.mark.long  # 17 s of processor time, most of them for importing torch
def test_a_rank_that_waits_in_a_collective_for_a_held_rank_makes_uneven_steps(
    rehearse: Rehearse, seen: Seen
) -> None:
    result = rehearse(UNEVEN.replace("PAUSE", "dist.barrier()"))
    assert [each.code for each in result.findings] == ["rehearsal.uneven-steps"]
    assert result.verdict is Verdict.WOULD_FAIL
    assert (result.outcome.status, result.outcome.reason.code) == ("ok", "rehearsed")
    assert not {"stalled", "hang"} & {event.kind for event in seen.events}


@pytest.mark.torch
@pytest.mark.long  # as above
def test_ranks_in_different_collectives_are_named_before_the_hang_timeout(
    rehearse: Rehearse,
) -> None:
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 0:\n"
        "    dist.barrier()\n"
        "dist.all_reduce(torch.ones(8))\n"
    )
    result = rehearse(script, time_limit=600, hang_timeout=600)
    assert [each.code for each in result.findings] == ["hang.mismatch"]
    assert result.findings[0].where == "train.py:4"
    assert result.outcome.reason.seconds is not None
    assert result.outcome.reason.seconds < 600


@pytest.mark.torch
@pytest.mark.long  # it waits for 20 s
def test_a_rank_that_only_takes_longer_than_a_held_rank_is_not_called_broken(
    rehearse: Rehearse, seen: Seen
) -> None:
    result = rehearse(UNEVEN.replace("PAUSE", "time.sleep(20)"))
    assert result.findings == ()
    assert result.verdict is Verdict.WOULD_RUN
    assert "stalled" not in {event.kind for event in seen.events}


SPAWNS = """\
import os
import time
import torch.distributed as dist
import torch.multiprocessing as mp

def train(local_rank, nprocs):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29600 + os.getppid() % 1000))
    dist.init_process_group("gloo", rank=local_rank, world_size=nprocs)
    while True:
        time.sleep(1)

if __name__ == "__main__":
    mp.spawn(train, args=(1,), nprocs=1)
"""


@pytest.mark.torch
@pytest.mark.long  # 17 s of processor time, most of them for importing torch
def test_a_script_that_starts_its_ranks_itself_is_named_before_the_time_limit(
    rehearse: Rehearse,
) -> None:
    result = rehearse(SPAWNS)
    assert [each.code for each in result.findings] == ["rehearsal.spawns-ranks"]
    assert result.verdict is Verdict.WOULD_FAIL
    assert result.outcome.reason.code == "rehearsal-spawns"
