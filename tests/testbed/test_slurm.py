"""`dslaunch slurm` on a real SLURM of four nodes with GPUs by name: a100 on two, h100 on two."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from secrets import token_hex
from signal import SIGINT, SIGKILL

import pytest

from dslaunch.cluster.load import parse_cluster
from dslaunch.slurm.refusal import EXPLANATIONS, Refused
from tests.testbed.scheduler import EXAMPLES, Job, Site, parameters, submit, until
from tests.testbed.vcluster import CONTROL, VirtualCluster
from tests.testbed.vcluster.slurm import ASKING

NASTY = ["a,b", "it's", "$HOME", 'say "x"', "a\r\nb", "`id`", "\\", "#", "*", "", "$(id)", "é"]


def seen(text: str) -> list[list[list[str]]]:
    """What the witnesses say, below whatever is put in front of it, in the order of ranks."""
    found = [json.loads(line) for line in re.findall(r"\[\[.*\]\]$", text, re.M)]
    return sorted(found, key=lambda one: int(one[1][0]))


# ---------------------------------------------------------------- trainings


@pytest.mark.torch
@pytest.mark.parametrize(
    "launcher",
    [
        "elastic",
        # how ranks start without a launcher is what most tests below show, without torch
        pytest.param("direct", marks=pytest.mark.long),
        pytest.param("torchrun", marks=pytest.mark.long),
        pytest.param("deepspeed", marks=pytest.mark.long),
        pytest.param("accelerate", marks=pytest.mark.long),
    ],
)
def test_every_launcher_trains_as_one_process_does(site: Site, alone: float, launcher: str) -> None:
    site.write("train.py", (EXAMPLES / "train_ddp.py").read_text())
    env = ["--env", "ACCELERATE_USE_CPU=true"] if launcher == "accelerate" else []
    words = ["slurm", "c.yaml", *env, "-N", "2", "-l", launcher, "train.py", "--steps", "20"]
    done = site.run(*words, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    assert parameters(done.stdout) == pytest.approx(alone, abs=1e-4)
    assert {"rank 0 of 2", "rank 1 of 2"} == set(re.findall(r"rank \d of \d", done.stdout))


@pytest.mark.parametrize("launcher", ["direct", pytest.param("torchrun", marks=pytest.mark.long)])
def test_a_program_of_the_working_directory_runs_as_every_rank(site: Site, launcher: str) -> None:
    site.write("job.sh", '#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $1"\n')
    (site.here / "job.sh").chmod(0o755)
    words = ["slurm", "c.yaml", "-l", launcher, "--no-python", "./job.sh", "a b"]
    done = site.run(*words, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    for rank in range(4):
        assert f"rank {rank} of 4: a b" in done.stdout


@pytest.mark.long
@pytest.mark.torch
def test_types_of_gpus_train_together(site: Site, alone: float) -> None:
    site.write("train.py", (EXAMPLES / "train_ddp.py").read_text())
    site.describe("{host: node1, slots: 2}, {host: 'node[3-4]', slots: 1}")
    done = site.run("slurm", "c.yaml", "-l", "torchrun", "train.py", "--steps", "20", timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    assert parameters(done.stdout) == pytest.approx(alone, abs=1e-4)


# ---------------------------------------------------------------- what arrives


def test_arguments_environment_and_secrets_arrive_unchanged(site: Site) -> None:
    text = (site.here / "c.yaml").read_text()
    (site.here / "c.yaml").write_text(f"{text}secrets: [TOKEN]\n")
    words = ["--env", "VALUE=mlx5_0,mlx5_1 $x", "witness.py", *NASTY]
    done = site.run("slurm", "c.yaml", *words, TOKEN="s3,cret")
    assert done.returncode == 0, done.stderr
    for args, env in seen(done.stdout):
        assert args == NASTY
        assert env[5:] == ["mlx5_0,mlx5_1 $x", "s3,cret"]
    assert "s3,cret" not in "".join(f.read_text() for f in site.here.rglob("job.sbatch"))


def test_slurm_stores_secrets_in_the_job_environment_and_nowhere_else(site: Site) -> None:
    """What docs/explanation/security.md tells sites. SLURM forgets the job after MinJobAge."""
    text = (site.here / "c.yaml").read_text()
    (site.here / "c.yaml").write_text(f"{text}secrets: [TOKEN]\n")
    site.write("quiet.py", "import os\nassert os.environ['TOKEN']\n")
    secret = f"sEcReT-{token_hex(8)}"
    done = site.run("slurm", "c.yaml", "quiet.py", TOKEN=secret)
    assert done.returncode == 0, done.stderr
    # the nodes' own disks, and no environment of these tests that they see below /tmp
    search = ["find", "/var", "/tmp", site.path, "-xdev", "-type", "f"]
    search += ["-exec", "grep", "-l", secret, "{}", "+"]
    on_nodes = [site.cluster.run(node, search).stdout for node in site.cluster.names]
    assert on_nodes == [""] * len(on_nodes)
    (path,) = site.cluster.run(CONTROL, search).stdout.split()
    assert re.fullmatch(r"/var/spool/slurmctld/hash\.\d+/job\.\d+/environment", path)
    assert site.cluster.run(CONTROL, ["stat", "-c", "%a", path]).stdout == "600\n"


def test_kinds_of_gpus_are_components_and_ranks_go_on_through_them(site: Site) -> None:
    nodes = (
        "{host: 'node[1-2]', slots: 2, labels: {gpu: a100}}, "
        "{host: node3, slots: 3, labels: {gpu: h100}}"
    )
    site.describe(nodes, gpu_label="gpu")
    done = site.run("slurm", "c.yaml", "witness.py")
    assert done.returncode == 0, done.stderr + done.stdout
    places = [env[:4] for _, env in seen(done.stdout)]
    assert places == [
        ["0", "0", "7", "0"], ["1", "1", "7", "0"], ["2", "0", "7", "1"], ["3", "1", "7", "1"],
        ["4", "0", "7", "2"], ["5", "1", "7", "2"], ["6", "2", "7", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted((EXAMPLES.parent / "clusters").glob("*.yaml")), ids=str)
def test_sbatch_reads_the_script_of_every_example_cluster(
    slurm_cluster: VirtualCluster, path: Path
) -> None:
    """With fewer nodes and GPUs, and without the names of a site that this one does not have."""
    golden = Path(__file__).parents[1] / "golden" / path.stem / "sbatch-torchrun.sh"
    text = re.sub(r"(?m)^#SBATCH --(partition|account)=.*\n", "", golden.read_text())
    text = re.sub(r"--nodes=\d+", "--nodes=1", re.sub(r"gpu:\d+", "gpu:1", text))
    command = ["sbatch", "--test-only"]
    done = slurm_cluster.run(CONTROL, command, stdin=text, cwd="/shared")
    assert (done.returncode, "to start at" in done.stderr) == (0, True), done.stderr


def test_a_job_without_shared_storage_is_read_through_its_first_node(site: Site) -> None:
    """The program is on each node, and the output on the first alone."""
    alone = f"/tmp/{site.name}"
    slow = (
        "import os, time\nfor i in range(60):\n    print('at', i, flush=True)\n    time.sleep(.2)\n"
    )
    for node in site.cluster.names:
        site.cluster.run(node, ["mkdir", "-p", alone], check=True)
    site.cluster.put("node*", f"{alone}/slow.py", slow)
    done = site.run("slurm", "c.yaml", "--workdir", alone, "slow.py")
    assert done.returncode == 0, done.stderr
    assert f"{alone}/slow" in done.stderr
    assert {f"node{n}:{n - 1}│at 0" for n in (1, 2, 3, 4)} <= set(done.stdout.splitlines())
    assert "at 50" in done.stdout


INSIDE = """
import os
from dslaunch.slurm.client import here
from dslaunch.slurm.node_discovery import allocated, partition
cluster = allocated(here(), None)
print([(node.host, node.slots) for node in cluster.nodes])
print([(node.host, node.gpus) for node in partition(here(), "main").nodes])
"""


def test_an_allocation_and_a_partition_are_known_with_their_gpus(site: Site) -> None:
    program = [sys.executable, "-c", INSIDE]
    command = ["salloc", "--nodes=2", "--gres=gpu:h100:3", "--quiet", *program]
    done = site.cluster.run(CONTROL, command, cwd=site.path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[('node3', (0, 1, 2)), ('node4', (0, 1, 2))]",
        "[('node1', (('a100', 4),)), ('node2', (('a100', 4),)), "
        "('node3', (('h100', 4),)), ('node4', (('h100', 4),))]",
    ]


@pytest.mark.usefixtures("can_have_slurm")
def test_the_file_of_a_partition_without_gres_is_accepted_by_its_site(tmp_path: Path) -> None:
    """There `--gres=gpu:1` is refused: "Requested node configuration is not available"."""
    with VirtualCluster(nodes=1, directory=tmp_path, slurm=True) as bare:
        site = Site(bare, "bare")
        site.here.mkdir()
        site.write("train.py", "print('trained')")
        made = site.run("init", "--slurm", "main", "--slots", "2")
        assert made.returncode == 0, made.stderr
        checked = site.run("slurm", "--check", "cluster.yaml", "train.py")
        assert checked.returncode == 0, checked.stderr
        refused = site.here / "cluster.yaml"
        refused.write_text(refused.read_text().replace("gpus: none", "gpus: gres"))
        assert site.run("slurm", "--check", "cluster.yaml", "train.py").returncode != 0


def test_the_file_of_a_partition_with_types_of_gpus_is_accepted_by_its_site(site: Site) -> None:
    """One node is drained, and its reason looks like other fields."""
    reason = "reason=State=IDLE Gres=gpu:9 | b"
    drain = ["scontrol", "update", "nodename=node4", "state=drain", reason]
    site.cluster.run(CONTROL, drain, check=True)
    try:
        made = site.run("init", "--slurm", "short", "--output", "made.yaml")
        assert made.returncode == 0, made.stderr
        text = site.read("made.yaml")
        assert re.search(r"(?m)^#.* node4$", text), text
        assert 'time: "0:10:00"' in text
        cluster = parse_cluster(text, "made.yaml")
        assert [(n.host, len(n.slots), dict(n.labels)) for n in cluster.nodes] == [
            ("node1", 4, {"gpu": "a100"}),
            ("node2", 4, {"gpu": "a100"}),
            ("node3", 4, {"gpu": "h100"}),
        ]
        site.write("train.py", "print('trained')")
        checked = site.run("slurm", "--check", "made.yaml", "train.py")
        assert checked.returncode == 0, checked.stderr
        script = site.run("slurm", "--render", "made.yaml", "train.py").stdout
        assert ("--gres=gpu:a100:4" in script, "--gres=gpu:h100:4" in script) == (True, True)
    finally:
        resume = ["scontrol", "update", "nodename=node4", "state=resume"]
        site.cluster.run(CONTROL, resume, check=True)


def test_a_partition_that_is_not_there_is_named(site: Site) -> None:
    done = site.run("init", "--slurm", "nope", "--output", "-")
    assert done.returncode == 2
    assert "nope" in done.stderr


# ---------------------------------------------------------------- before the start


@pytest.mark.parametrize(
    ("setting", "slurms", "reasons", "line"),
    [
        (
            {"partition": "nope"},
            "invalid partition specified: nope",
            (Refused.PARTITION,),
            "slurm.partition: nope",
        ),
        (
            {"partition": "short", "time": "60"},
            "Requested time limit is invalid",
            (Refused.TIME,),
            "slurm.time: 60",
        ),
        (
            {"mem": "9000G"},
            "Memory specification can not be satisfied|Requested node configuration",
            (Refused.MEMORY, Refused.CONFIGURATION),
            "slurm.mem: 9000G",
        ),
    ],
)
def test_a_refusal_has_our_words_the_line_of_the_cluster_file_and_those_of_slurm(
    site: Site, setting: dict[str, str], slurms: str, reasons: tuple[Refused, ...], line: str
) -> None:
    site.describe(**setting)
    for how in ("--detach", "--check"):
        done = site.run("slurm", how, "c.yaml", "witness.py")
        assert done.returncode == 1
        said = done.stderr
        ours = "|".join(re.escape(EXPLANATIONS[reason].meaning) for reason in reasons)
        assert re.search(f"(?s)({ours}).*({slurms})", said), said
        assert re.search(rf"c\.yaml:\d+:\d+: {re.escape(line)}", said), said
    assert list(site.here.glob("*.out")) == []


def test_directives_win_and_what_depends_on_them_follows(site: Site) -> None:
    given = [
        *("-J mine", "-o logs/%x.out", "-e errors/%x.err", "-c 3", "--mem-per-cpu=100"),
        *("--oversubscribe", "--gpus-per-node=2", "--ntasks-per-node=4", "-N 2", "-t 3"),
    ]
    site.describe(mem="500000M", exclusive="true", directives=json.dumps(given))
    site.write("cpus.py", (
        "import json, os, sys\n"
        "print('cpus', os.environ['SLURM_CPUS_PER_TASK'])\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], file=sys.stderr)\n"
    ))  # fmt: skip
    done = site.run("slurm", "c.yaml", "cpus.py")
    assert done.returncode == 0, done.stderr
    assert (site.here / "logs/mine.out").read_text().count("cpus 3") == 2
    ranks = (site.here / "errors/mine.err").read_text()
    both = ["rank 0 of 2", "rank 1 of 2"]
    assert sorted(re.findall(r"rank \d of \d", ranks)) == both
    assert sorted(re.findall(r"rank \d of \d", done.stdout)) == both, done.stdout


@pytest.mark.parametrize(
    "given",
    [
        ["--oversubscribe", "--gpus-per-node=1", "--mem-per-gpu=1G", "--cpus-per-gpu=2"],
        ["--exclusive=user", "--gres=gpu:1", "--mem-per-cpu=1G", "--ntasks-per-gpu=1"],
    ],
)
def test_no_directive_makes_a_script_that_sbatch_refuses(site: Site, given: list[str]) -> None:
    site.describe("{host: node1, slots: 1}", mem="1G", directives=json.dumps(given))
    done = site.run("slurm", "--check", "c.yaml", "witness.py")
    assert done.returncode == 0, done.stderr


def test_a_check_says_when_the_job_would_start_and_submits_nothing(site: Site) -> None:
    done = site.run("slurm", "--check", "c.yaml", "witness.py")
    assert done.returncode == 0, done.stderr
    # the time and the nodes that `sbatch --test-only` has
    assert re.search(r"\d\d:\d\d.*node\[1-4\]", done.stdout), done.stdout
    assert not (site.here / "state").exists()


def test_the_directory_of_the_output_is_made_before(site: Site) -> None:
    site.describe(output="logs/deep/%x.out")
    assert site.run("slurm", "c.yaml", "witness.py").returncode == 0
    assert len(seen((site.here / "logs/deep/witness.out").read_text())) == 4


# ---------------------------------------------------------------- the end


TORCHRUN = pytest.param("torchrun", marks=(pytest.mark.torch, pytest.mark.long))
"""Torch's launcher starts the ranks of the training above."""


@pytest.mark.parametrize("launcher", ["direct", TORCHRUN])
def test_the_first_rank_that_fails_is_named_and_its_code_handed_on(
    site: Site, launcher: str
) -> None:
    site.write("fails.py", (
        "import os, time\n"
        "if os.environ['RANK'] == '1': raise ValueError('no such data')\n"
        "time.sleep(60)\n"
    ))  # fmt: skip
    notify = ("--notify", "sh -c 'echo $DSLAUNCH_STATUS; cat > told.json'")
    done = site.run("slurm", "c.yaml", "-N", "2", "-l", launcher, *notify, "fails.py")
    assert done.returncode == 1
    cause = site.verdict()["root_cause"]
    assert (cause["rank"], cause["host"]) == (1, "node2"), done.stderr
    assert "ValueError: no such data" in done.stderr
    told = json.loads((site.here / "told.json").read_text())
    assert (told["status"], told["exit_code"]) == ("failed", 1)
    assert (told["cause"]["rank"], told["cause"]["host"]) == (1, "node2")
    assert told["jobs"][0]["state"] == "FAILED"


FROM_PYTHON = """
import json
import dslaunch

cluster = dslaunch.Cluster.load("c.yaml")
first = dslaunch.slurm_job(cluster, dslaunch.Job.on(cluster, "rank.py"), nodes=2)
estimate = first.test()
run = first.submit()
lines = [line for line in run.logs(ranks=[0, 1], follow=True) if "dslaunch" not in line.text]
end = run.wait(timeout=300)

sleeping = dslaunch.slurm_job(cluster, dslaunch.Job.on(cluster, "sleeps.py"), nodes=1).submit()
stopped = dslaunch.find_run(sleeping.record.slurm.job).stop()
sleeping.wait(timeout=300)
known = dslaunch.runs()
told = {
    "lines": sorted((line.rank, line.text) for line in lines),
    "status": end.status,
    "canceled": stopped.job == sleeping.record.slurm.job,
    "states": [status.state for status in known.statuses],
}
print(json.dumps(told))
"""


def test_a_program_submits_follows_and_stops_jobs(site: Site) -> None:
    site.write("rank.py", 'import os; print("rank", os.environ["RANK"])\n')
    python = [sys.executable, "-c", FROM_PYTHON]
    done = site.cluster.run(CONTROL, python, cwd=site.path, env=site.env(), timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "lines": [[0, "rank 0"], [1, "rank 1"]],
        "status": "ok",
        "canceled": True,
        "states": ["succeeded", "stopped"],
    }


def test_ctrl_c_cancels_the_job(site: Site) -> None:
    with site.start("slurm", "c.yaml", "sleeps.py") as running:
        until(lambda: bool(list(site.here.glob("*.out"))), 300)
        until(lambda: "up 3" in site.output(""), 300, lambda: site.output(""))
        running.send_signal(SIGINT)
        running.communicate(timeout=300)
    assert running.popen.returncode == 130, site.said
    assert site.verdict()["code"] == "canceled"


def test_a_job_continues_if_its_follower_is_killed(site: Site) -> None:
    with site.start("slurm", "c.yaml", "resumes.py") as running:
        until(lambda: "training 3" in site.output(""), 300, lambda: site.output(""))
        running.send_signal(SIGKILL)
    number = site.number()
    done = site.cluster.run(CONTROL, ["scontrol", "show", "job", number])
    assert "JobState=RUNNING" in done.stdout


def test_what_slurm_ends_has_its_words_and_its_exit_code(site: Site) -> None:
    """All at once, since SLURM looks for such jobs twice a minute."""
    held = submit(site.cluster, "sleep 1000", "--nodelist=node2", "--mem=100")
    depends = f"dependency=afterok:{held.number}"
    with (
        site.start("slurm", "c.yaml", "-i", "node1", "sleeps.py", said="late") as late,
        site.start("slurm", "c.yaml", "-i", "node[3-4]", "sleeps.py", said="lost") as lost,
        site.start("slurm", "c.yaml", "-N1", "--set", depends, "sleeps.py", said="never") as never,
    ):
        for said, text in (("late", "up 0"), ("lost", "up 1")):
            site.says(site.submitted(said), text)
        site.submitted("never")
        soon = ["scontrol", "update", f"jobid={site.submitted('late')}", "EndTime=now+3seconds"]
        site.cluster.run(CONTROL, soon, check=True)
        site.cluster.run(CONTROL, ["scancel", held.number], check=True)
        site.cluster.crash("node4")
        for running in (late, lost, never):
            running.communicate(timeout=300)
    assert (late.popen.returncode, lost.popen.returncode, never.popen.returncode) == (124, 5, 1)
    codes = [site.verdict(said)["code"] for said in ("late", "lost", "never")]
    assert codes == ["time-limit", "node-failed", "never-started"]
    assert "slurm.time" in site.outcome("late")["hint"]
    lost_job = site.verdict("lost")
    assert (lost_job["nodes"], lost_job["node"]) == ("node[3-4]", "node4")


@pytest.mark.parametrize(
    ("setting", "code", "ending"),
    [("requeue=0", 143, "preempted"), ("requeue=1", 130, "canceled")],
)
def test_a_job_that_has_to_make_room_says_so(
    site: Site, setting: str, code: int, ending: str
) -> None:
    site.describe("{host: 'node[1-2]', slots: 1}")
    urgent = ("--partition=urgent", "--exclusive", "--nodes=4", "--mem=100")
    with site.start("slurm", "c.yaml", "--set", setting, "sleeps.py") as running:
        number = site.submitted()
        site.says(number, "up 1")
        site.tells_of_nodes("node[1-2]")
        urgent_job = submit(site.cluster, "sleep 1", *urgent)
        site.tells_more(urgent_job.wait)
        if setting == "requeue=1":
            until(lambda: site.output(number).count("up 1") == 2, 300, lambda: site.said)
            site.cluster.run(CONTROL, ["scancel", number], check=True)
        running.communicate(timeout=300)
    assert running.popen.returncode == code, site.said
    verdict = site.verdict()
    assert (verdict["code"], verdict["start"]) == (ending, 2 if setting == "requeue=1" else 1)
    assert ("slurm.requeue" in (site.outcome()["hint"] or "")) == (setting == "requeue=0")


# ---------------------------------------------------------------- again and again


def test_a_signal_saves_and_the_job_goes_back_into_the_queue_and_resumes(site: Site) -> None:
    site.describe(requeue="2", signal="USR1@60")
    with site.start("slurm", "c.yaml", "resumes.py") as running:
        number = site.submitted()
        site.says(number, *(f"training {rank}" for rank in range(4)))
        # as SLURM does it before the limit
        site.cluster.run(CONTROL, ["scancel", "--batch", "--signal=USR1", number], check=True)
        output, _ = running.communicate(timeout=300)
    assert running.popen.returncode == 0, site.said + output
    assert sorted(re.findall(r"resumed \d", output)) == [f"resumed {rank}" for rank in range(4)]
    verdict = site.verdict()
    assert (verdict["code"], verdict["start"]) == ("succeeded", 2)


def test_a_canceled_job_does_not_start_again_for_its_notice(site: Site) -> None:
    """What cancels a job is the signal that it takes for the notice, too."""
    site.describe("{host: node1, slots: 1}", requeue="2", signal="TERM@60")
    number = site.detached("sleeps.py")
    site.says(number, "up 0")
    site.cluster.run(CONTROL, ["scancel", number], check=True)
    Job(site.cluster, number).wait("CANCELLED", within=150)
    assert "requeued" not in site.output(number)


def test_a_job_that_loses_a_node_starts_again_on_others(site: Site) -> None:
    site.describe("{host: 'node[1-3]', slots: 1}", requeue="1")
    number = site.detached("sleeps.py")
    site.says(number, "up 2")
    lost = site.cluster.run(CONTROL, ["squeue", "-h", "-o", "%N", "-j", number]).stdout.strip()
    assert lost == "node[1-3]"
    site.cluster.crash("node3")
    until(lambda: site.output(number).count("up 2") == 2, 300, lambda: site.output(number))
    again = site.cluster.run(CONTROL, ["squeue", "-h", "-o", "%N", "-j", number]).stdout.strip()
    assert again == "node[1-2,4]"


def test_a_job_that_depends_on_another_waits_for_it(site: Site) -> None:
    site.describe("{host: node1, slots: 1}")
    first = site.detached("sleeps.py")
    with site.start("slurm", "c.yaml", "--set", f"dependency=afterany:{first}", "witness.py") as it:
        until(lambda: "(Dependency)" in site.said, 300, lambda: site.said)
        site.cluster.run(CONTROL, ["scancel", first], check=True)
        it.communicate(timeout=300)
    assert it.popen.returncode == 0, site.said


# ---------------------------------------------------------------- looked after later


def test_a_job_is_seen_read_and_stopped_like_any_other_run(site: Site) -> None:
    number = site.detached("sleeps.py")
    site.says(number, *(f"up {rank}" for rank in range(4)))
    assert [run["state"] for run in json.loads(site.run("ps", "--json").stdout)] == ["running"]
    found = json.loads(site.run("status", "latest", "--json").stdout)
    assert (found["state"], found["slurm"]["job"]) == ("running", number)
    lines = site.run("logs", "latest").stdout.splitlines()
    script = [line for line in lines if "│dslaunch" in line]
    assert number in script[0]
    assert "node[1-4]" in script[0]
    said = sorted(line for line in lines if line not in script)
    assert said == [f"node{rank + 1}:{rank}│up {rank}" for rank in range(4)]
    stacks = json.loads(site.run("stacks", "latest", "--json").stdout)
    assert {host: [*ranks] for host, ranks in stacks.items()} == {
        f"node{rank + 1}": [str(rank)] for rank in range(4)
    }
    assert site.run("stop", "latest", "--grace", "20").returncode == 0

    def state() -> str:
        return str(json.loads(site.run("status", "latest", "--json").stdout)["state"])

    until(lambda: state() == "stopped", 300, state, pause=ASKING)


def test_a_controller_that_is_away_is_waited_for(site: Site) -> None:
    with site.start("slurm", "c.yaml", "resumes.py") as running:
        until(lambda: "training 3" in site.output(""), 300, lambda: site.output(""))
        site.tells_of_nodes("node[1-4]")
        # what the follower tells is that it cannot ask, then that it can again
        site.tells_more(lambda: site.cluster.service(CONTROL, "slurmctld", "stop"))
        site.tells_more(lambda: site.cluster.service(CONTROL, "slurmctld", "start"))
        number = site.number()
        until(
            lambda: site.cluster.run(CONTROL, ["scancel", number]).returncode == 0,
            30,
            pause=ASKING,
        )
        running.communicate(timeout=300)
    assert running.popen.returncode == 130, site.said
