"""Supervised jobs on a real SLURM: `dslaunch run` in the job, with what it does over SSH."""

from __future__ import annotations

import json
import re
import sys
from secrets import token_hex
from typing import Any

import pytest

from tests.testbed.scheduler import EXAMPLES, Site, parameters, until
from tests.testbed.test_slurm import NASTY, seen
from tests.testbed.vcluster import CONTROL
from tests.testbed.vcluster.slurm import ASKING

FAILS = """\
import os, sys, time
print("up", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "2":
    raise SystemExit(7)
time.sleep(1000)
"""
FAULTY = """\
import os, sys, time
host = os.uname().nodename
print("attempt", os.environ["DSLAUNCH_RESTART_COUNT"], "on", host, flush=True)
if host == "node2":
    sys.exit("RuntimeError: CUDA error: uncorrectable ECC error encountered")
"""
ELASTIC = """\
import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank, world = dist.get_rank(), dist.get_world_size()
print("begin", rank, "of", world, flush=True)
for step in range(600 if world == 3 else 10):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
print("end", rank, "of", world, flush=True)
"""
HANGS = "import time\nprint('up', flush=True)\ntime.sleep(1000)\n"


@pytest.fixture
def supervised(site: Site) -> Site:
    """A site whose cluster file asks for supervision."""
    site.describe(supervised="true")
    return site


def result(site: Site) -> dict[str, Any]:
    """What the run in the only job wrote about its end."""
    (file,) = site.here.glob("*.run.json")
    assert file.stat().st_mode & 0o777 == 0o600
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def test_what_the_user_wrote_arrives_and_secrets_are_in_no_file(supervised: Site) -> None:
    site, secret = supervised, f"sEcReT-{token_hex(8)}"
    text = (site.here / "c.yaml").read_text()
    (site.here / "c.yaml").write_text(f"{text}secrets: [TOKEN]\n")
    words = ["--env", "VALUE=mlx5_0,mlx5_1 $x", "-N", "2", "witness.py", *NASTY]
    done = site.run("slurm", "c.yaml", *words, TOKEN=secret)
    assert done.returncode == 0, done.stderr + done.stdout
    found = seen(done.stdout)
    assert [args for args, _ in found] == [NASTY, NASTY], done.stdout
    assert [env[:5] for _, env in found] == [
        ["0", "0", "2", "0", "10.77.0.1"], ["1", "0", "2", "1", "10.77.0.1"],
    ]  # fmt: skip
    assert [env[5] for _, env in found] == ["mlx5_0,mlx5_1 $x"] * 2
    # it arrived, and was masked in the output
    assert all(env[6] not in (None, secret) for _, env in found)
    written = [path.read_bytes() for path in site.here.rglob("*") if path.is_file()]
    assert not any(secret.encode() in data for data in written)


@pytest.mark.long
@pytest.mark.torch
def test_a_supervised_job_trains_as_one_process_does(supervised: Site, alone: float) -> None:
    site = supervised
    site.write("train.py", (EXAMPLES / "train_ddp.py").read_text())
    words = ["slurm", "c.yaml", "-N", "2", "-l", "torchrun", "train.py", "--steps", "20"]
    done = site.run(*words, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    assert parameters(done.stdout) == pytest.approx(alone, abs=1e-4)


def test_the_root_cause_is_named_with_its_exit_code(supervised: Site) -> None:
    supervised.write("fails.py", FAILS)
    done = supervised.run("slurm", "c.yaml", "fails.py")
    assert done.returncode == 7, done.stderr
    told = result(supervised)
    assert (told["status"], told["exit_code"]) == ("failed", 7)
    later = json.loads(supervised.run("status", "--json", "latest").stdout)
    assert later["result"]["cause"]["rank"] == 2


def test_a_hang_ends_the_job_with_the_ranks_stacks(supervised: Site) -> None:
    supervised.write("hangs.py", HANGS)
    words = ["slurm", "c.yaml", "-N", "1", "--hang-timeout", "10", "--no-preflight", "hangs.py"]
    done = supervised.run(*words)
    assert done.returncode == 1, done.stderr
    told = result(supervised)
    assert told["reason"]["code"] == "hang", done.stderr
    assert "hangs.py:3" in done.stdout + done.stderr


TRAINS = """\
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.long
@pytest.mark.torch
def test_a_hang_of_a_training_names_the_rank_that_the_others_wait_for(supervised: Site) -> None:
    supervised.write("trains.py", TRAINS)
    words = ["slurm", "c.yaml", "-N", "2", "--hang-timeout", "6", "--no-preflight", "trains.py"]
    done = supervised.run(*words)
    assert done.returncode == 1, done.stderr
    reason = result(supervised)["reason"]
    hang = reason["hang"]
    assert (reason["code"], hang["code"], hang["ranks"]) == ("hang", "not-entered", [["node2", 1]])
    assert (hang["operation"], hang["waiting"], hang["place"]["line"]) == ("all_reduce", [0], 6)


def test_a_restart_leaves_the_faulty_node_out(supervised: Site) -> None:
    supervised.write("faulty.py", FAULTY)
    words = ["slurm", "c.yaml", "-N", "3", "--restarts", "1", "--min-nodes", "2", "faulty.py"]
    done = supervised.run(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    hosts = re.findall(r"│attempt 1 on (\S+)", done.stdout)
    assert sorted(hosts) == ["node1", "node3"]


def test_a_requeue_excludes_the_faulty_node(site: Site) -> None:
    site.describe(supervised="true", requeue="1")
    site.write("faulty.py", FAULTY)
    done = site.run("slurm", "c.yaml", "-N", "3", "faulty.py")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "is requeued without node2" in done.stdout
    hosts = re.findall(r" on (node\d)$", done.stdout, re.M)
    assert sorted(hosts[-3:]) == ["node1", "node3", "node4"]


@pytest.mark.long
def test_a_notice_reaches_the_ranks_and_the_job_resumes(site: Site) -> None:
    site.describe(supervised="true", requeue="1", signal="USR1@60")
    with site.start("slurm", "c.yaml", "-N", "2", "resumes.py") as running:
        number = site.submitted()
        site.says(number, "training 0", "training 1")
        signal = ["scancel", "--batch", "--signal=USR1", number]
        site.cluster.run(CONTROL, signal, check=True)
        out, _ = running.communicate(timeout=300)
    assert running.popen.returncode == 0, out + site.said
    assert {"resumed 0", "resumed 1"} <= set(re.findall(r"resumed \d", out))


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.parametrize("mode", ["--supervised", "--plain"])
def test_an_elastic_job_continues_without_a_lost_node(site: Site, mode: str) -> None:
    site.write("elastic.py", ELASTIC)
    words = ["-i", "node[1-3]", "-l", "elastic", "--min-nodes", "2", "elastic.py"]
    with site.start("slurm", mode, "c.yaml", *words) as running:
        number = site.submitted()
        site.says(number, *(f"begin {rank} of 3" for rank in range(3)), within=240)
        site.cluster.crash("node3")
        out, _ = running.communicate(timeout=300)
    assert running.popen.returncode == 0, out + site.said
    assert {"end 0 of 2", "end 1 of 2"} == set(re.findall(r"end \d of \d", out))


def test_a_canceled_supervised_job_leaves_nothing(supervised: Site) -> None:
    number = supervised.detached("-N", "2", "sleeps.py")
    supervised.says(number, "up 0", "up 1")
    supervised.cluster.run(CONTROL, ["scancel", number], check=True)
    left = supervised.cluster.leftovers
    until(lambda: left() == {}, 300, lambda: str(left()))

    def state() -> str:
        return str(json.loads(supervised.run("status", "--json", number).stdout)["state"])

    # SLURM has the end some time after the processes are gone
    until(lambda: state() == "stopped", 300, state, pause=ASKING)


def test_a_node_without_dslaunch_ends_the_job_at_once(supervised: Site) -> None:
    """The script is the rendered one with other interpreters; the next one is said to be used."""
    script = supervised.run("slurm", "c.yaml", "-N", "1", "--render", "witness.py").stdout
    none = script.replace(sys.executable, "/nowhere/python")
    first = script.replace(f"in {sys.executable}", f"in /nowhere/python {sys.executable}")
    codes, said = [], []
    for number, text in enumerate((none, first)):
        supervised.write(f"job{number}", text)
        command = ["sbatch", "--wait", f"--output=out{number}", f"job{number}"]
        codes.append(supervised.cluster.run(CONTROL, command, cwd=supervised.path).returncode)
        said.append(supervised.read(f"out{number}"))
    assert codes == [6, 0], said
    assert ["/nowhere/python" in text for text in said] == [True, True]
