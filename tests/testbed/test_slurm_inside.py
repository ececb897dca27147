"""Inside an allocation of a real SLURM: its nodes are reached by steps, not by SSH."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.testbed.scheduler import EXAMPLES, PROGRAM, Site, parameters, submit, until
from tests.testbed.vcluster import CONTROL
from tests.testbed.vcluster.api import Text

TOLD = """\
import os, time
print(sorted(name for name in os.environ if name.startswith(("SLURM_NTASKS", "SLURM_PROCID"))))
print("in", os.environ["SLURM_JOB_ID"], os.getcwd())
open("up" + os.environ["RANK"], "w").close()
time.sleep(1000)
"""
INTERRUPTED = """\
"$@" & launcher=$!
until [ -e up0 ] && [ -e up1 ]; do sleep 0.1; done
kill -INT $launcher
wait $launcher
"""
CUT = """\
"$@" & launcher=$!
until [ -e up0 ] && [ -e up1 ]; do sleep 0.1; done
squeue --steps --noheader --format='%N %i' | sed -n 's/^node2 //p' | xargs scancel
wait $launcher
"""
GIVEN = """\
import os
from dslaunch.slurm.client import here
from dslaunch.slurm.node_discovery import allocated, by_steps
print([(node.host, node.slots) for node in by_steps(here(), allocated(here(), None)).nodes])
"""


def inside(site: Site, *words: str, options: tuple[str, ...] = ("--nodes=2",)) -> Text:
    """Run words as the user in an allocation, waited for."""
    command = ["salloc", "--quiet", *options, *words]
    return site.cluster.run(CONTROL, command, cwd=site.path, env=site.env(), timeout=300)


def transport_of_the_only_run(site: Site) -> str:
    (file,) = (site.here / "state/runs").glob("*/cluster.json")
    return str(json.loads(file.read_text())["transport"])


@pytest.mark.long  # the test below shows it without PyTorch, and test_slurm.py trains
@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["direct", "accelerate", "torchrun", "deepspeed"])
def test_a_training_goes_by_the_allocations_own_steps(
    site: Site, alone: float, launcher: str
) -> None:
    site.write("train.py", (EXAMPLES / "train_ddp.py").read_text())
    words = ["run", "--slurm", "c.yaml", "-l", launcher, "train.py", "--steps", "20"]
    done = inside(site, *PROGRAM, *words)
    assert done.returncode == 0, done.stderr + done.stdout
    assert parameters(done.stdout) == pytest.approx(alone, abs=1e-4)
    assert {"rank 0 of 2", "rank 1 of 2"} == set(re.findall(r"rank \d of 2", done.stdout))
    assert transport_of_the_only_run(site) == "srun"


def test_ranks_run_on_all_components_of_a_heterogeneous_job(site: Site) -> None:
    site.write(
        "job.py", "import os\nprint('rank', os.environ['RANK'], 'on', os.uname().nodename)\n"
    )
    words = [*PROGRAM, "run", "--slurm", "c.yaml", "job.py"]
    done = inside(site, *words, options=("--nodes=1", ":", "--nodes=1"))
    assert done.returncode == 0, done.stderr + done.stdout
    found = dict(re.findall(r"rank (\d) on (node\d)", done.stdout))
    assert (found.keys(), len(set(found.values()))) == ({"0", "1"}, 2)
    assert transport_of_the_only_run(site) == "srun"


@pytest.mark.long  # the test above shows it without PyTorch
@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_a_training_goes_over_all_components_of_a_heterogeneous_job(
    site: Site, alone: float, launcher: str
) -> None:
    site.write("train.py", (EXAMPLES / "train_ddp.py").read_text())
    words = ["run", "--slurm", "c.yaml", "-l", launcher, "train.py", "--steps", "20"]
    done = inside(site, *PROGRAM, *words, options=("--nodes=1", ":", "--nodes=1"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert parameters(done.stdout) == pytest.approx(alone, abs=1e-4)
    assert {"rank 0 of 2", "rank 1 of 2"} == set(re.findall(r"rank \d of 2", done.stdout))


def test_ctrl_c_ends_all_ranks_and_leaves_nothing(site: Site) -> None:
    site.write("told.py", TOLD)
    words = ["sh", "-c", INTERRUPTED, "sh", *PROGRAM, "run", "--slurm", "c.yaml", "told.py"]
    done = inside(site, *words, options=("--nodes=2", "--gres=gpu:1", "--cpus-per-task=2"))
    assert done.returncode == 130, done.stderr + done.stdout
    outcome = site.outcome()
    assert (outcome["reason"]["code"], outcome["unconfirmed"]) == ("interrupted", [])
    lines = done.stdout.splitlines()
    assert {"node1:0│[]", "node2:1│[]"} <= set(lines)  # the ranks are no tasks of SLURM
    later = site.run("status", "latest", "--json")  # outside of the allocation
    assert json.loads(later.stdout)["result"]["reason"]["code"] == "interrupted", later.stderr
    assert sum(bool(re.search(rf"│in \d+ {site.path}$", line)) for line in lines) == 2


def test_a_cancelled_job_takes_its_run_with_it(site: Site) -> None:
    """The fixture of the cluster proves that nothing is left."""
    site.write("told.py", TOLD)
    env = " ".join(f"{name}={value}" for name, value in site.env().items())
    script = f"cd {site.path}; exec env {env} {' '.join(PROGRAM)} run --slurm c.yaml told.py"
    job = submit(site.cluster, script, "--nodes=2", f"--output={site.path}/out")
    until(
        lambda: (site.here / "up0").exists() and (site.here / "up1").exists(),
        40,
        lambda: (site.here / "out").read_text(),
    )
    site.cluster.run(CONTROL, ["scancel", job.number], check=True)
    job.wait("CANCELLED")
    until(lambda: site.cluster.leftovers() == {}, 300, lambda: str(site.cluster.leftovers()))


def test_a_step_that_dies_is_a_lost_node(site: Site) -> None:
    site.write("told.py", TOLD)
    words = ["sh", "-c", CUT, "sh", *PROGRAM, "run", "--slurm", "c.yaml", "told.py"]
    done = inside(site, *words)
    assert done.returncode == 5, done.stderr
    reason = site.outcome()["reason"]
    assert (reason["code"], reason["host"]) == ("node-lost", "node2")


def test_a_detached_run_with_steps_is_rejected_with_the_reason(site: Site) -> None:
    done = inside(site, *PROGRAM, "run", "--slurm", "-d", "c.yaml", "sleeps.py")
    assert done.returncode == 2
    assert not (site.here / "state/runs").exists()


def test_gpus_are_numbered_as_a_step_sees_them(site: Site) -> None:
    """Another job has the first two of each node."""
    holder = submit(site.cluster, "sleep 100", "--nodes=2", "--gres=gpu:a100:2", "--mem=100")
    holder.wait("RUNNING")
    options = ("--nodes=1", "--gres=gpu:a100:2", "--mem=100", ":", "--nodes=1", "--gres=gpu:h100:1")
    done = inside(site, sys.executable, "-c", GIVEN, options=options)
    assert done.stdout.strip() == "[('node1', (2, 3)), ('node3', (0,))]", done.stderr


def asked(
    *options: str,
    found: list[tuple[str, tuple[int, ...]]],
    marks: tuple[pytest.MarkDecorator, ...] = (),
) -> object:
    """Options of a job, and the GPUs that its steps should find on each node."""
    return pytest.param(options, found, id=" ".join(options), marks=marks)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        asked("--nodes=2", "--gpus=4", found=[("node1", (0, 1, 2)), ("node2", (0,))]),
        asked("--nodes=1", "--ntasks=2", "--gpus-per-task=1", found=[("node1", (0, 1))]),
        asked(
            "--nodes=2",
            "--ntasks-per-node=2",
            "--gpus-per-task=1",
            found=[("node1", (0, 1))],
            marks=(pytest.mark.long,),
        ),
        asked(
            "--nodes=1",
            "--gres=gpu:2",
            "--exclusive",
            found=[("node1", (0, 1, 2, 3))],
            marks=(pytest.mark.long,),
        ),
        asked(
            "--nodes=1", "--exclusive", found=[("node1", (0, 1, 2, 3))], marks=(pytest.mark.long,)
        ),
    ],
)
def test_steps_get_all_gpus_that_the_job_has(
    site: Site, options: tuple[str, ...], found: list[tuple[str, tuple[int, ...]]]
) -> None:
    """Left to themselves they get fewer, or cannot be started."""
    done = inside(site, sys.executable, "-c", GIVEN, options=options)
    assert done.stdout.startswith(str(found)[:-1]), done.stderr


def test_a_preflight_asks_the_allocations_nodes_and_no_login(site: Site) -> None:
    text = (site.here / "c.yaml").read_text()
    (site.here / "strict.yaml").write_text(
        f"{text}preflight: {{limits: {{shm.size: {{fail: 999999}}}}}}\n"
    )
    tried = "; ".join(
        f"{' '.join(PROGRAM)} preflight --slurm {words}; echo code $?"
        for words in (
            "c.yaml --tier gate --json > gate.json",
            "c.yaml --all --save s.json",
            "strict.yaml --only shm",
        )
    )
    done = inside(site, "sh", "-c", tried)
    assert re.findall(r"code \d", done.stdout) == ["code 0", "code 0", "code 4"], done.stdout
    gate = json.loads(site.read("gate.json"))["findings"]
    assert {host for finding in gate for host in finding["hosts"]} == {"node1", "node2"}
    assert "node3" not in done.stdout
    again = site.run("preflight", "--from", "s.json", "--json")
    found = {f["check"]: (f["level"], f["hosts"]) for f in json.loads(again.stdout)["findings"]}
    assert found["ssh.client"] == ("skip", ["node1", "node2"]), again.stderr
    assert found["host.names"][1] == ["node1", "node2"]


def test_other_launchers_lines_are_rendered_from_the_allocation(site: Site) -> None:
    tried = "; ".join(
        f"{' '.join(PROGRAM)} render {form} --slurm"
        for form in ("hostfile", "include", "torchrun", "deepspeed", "accelerate")
    )
    done = inside(site, "sh", "-c", tried, options=("--nodes=2", "--gres=gpu:h100:3"))
    assert "node3 slots=3\nnode4 slots=3\n" in done.stdout
    assert "node3:0,1,2@node4:0,1,2" in done.stdout
    assert "--nnodes=2 --nproc-per-node=3 --node-rank=1 --master-addr=node3" in done.stdout
    assert "--include=node3:0,1,2@node4:0,1,2 --master_addr=node3" in done.stdout
    assert "--num_processes=6 --num_machines=2 --machine_rank=1" in done.stdout
