"""The scenarios of SLURM, played on the real one: many jobs side by side, then what breaks a site.

DSLAUNCH_SCENARIOS=/tmp/seen.jsonl pytest tests/testbed/test_slurm_scenarios.py records them;
`python -m tests.testbed.slurm_scenarios /tmp/seen.jsonl` makes the page of it. SCENARIO=munge plays
those whose name has the word.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from signal import SIGKILL

import pytest

from tests.testbed.conftest import MIN_JOB_AGE
from tests.testbed.scheduler import await_answers, until
from tests.testbed.slurm_scenarios import (
    COMPLETED,
    GPUS,
    LONG,
    PAIR,
    PENDING,
    SCENARIOS,
    TOPICS,
    Scenario,
)
from tests.testbed.slurm_stage import PATIENCE, Seen, Stage
from tests.testbed.vcluster import CONTROL, VirtualCluster
from tests.testbed.vcluster.slurm import ASKING

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/slurm-scenarios.md"
RECORD = "DSLAUNCH_SCENARIOS"
"""Names a file to which each scenario adds a line of JSON."""
WANTED = os.environ.get("SCENARIO", "")
"""Plays only those scenarios whose first name has this in it."""
LENGTHS = pytest.mark.parametrize(
    "long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "long"]
)
AT_ONCE = 6
OTHER = {"SBATCH_CLUSTERS": "other"}
ONE_NODE = "{host: node3, slots: 1}"
HOLD_SAME_NUMBERS = """\
hold() { sbatch --parsable --hold --wrap=true "$@" 2>/dev/null | cut -d ";" -f 1; }
last=$(hold)
until [ "$(hold --clusters=other)" -ge "$last" ]; do :; done
for i in $(seq 60); do hold; done
"""
"""The next 60 jobs of the other cluster get numbers that pending jobs of the local one have."""
Play = Callable[["Ground"], list[Seen]]
PLAYS: dict[tuple[str, ...], Play] = {}


class Ground:
    """A site on which scenarios are played, each on a stage of its own."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        slurm = cluster.cluster.settings.slurm
        self.has_gpus = slurm is not None and bool(slurm.gres)

    def stage(self, *, user: str | None = None, **slurm: str) -> Stage:
        """A stage with a cluster file, over two nodes."""
        name = f"stage-{token_hex(4)}"
        made = Stage(self.cluster, name, user=user, has_gpus=self.has_gpus)
        made.set(**slurm)
        return made

    def other(self) -> Stage:
        """A stage from which jobs go to the other cluster."""
        made = Stage(self.cluster, f"stage-{token_hex(4)}", nodes=ONE_NODE, environ=dict(OTHER))
        made.set()
        return made

    def service(self, name: str, action: str) -> None:
        """Stop, start, pause or resume a daemon of the control machine."""
        self.cluster.service(CONTROL, name, action)
        if action in ("start", "resume"):
            await_answers(self.cluster)

    def as_root(self, shell: str) -> None:
        """A shell line on the control machine."""
        self.cluster.run(CONTROL, ["sh", "-c", shell], user="root", check=True)


def plays(*names: str) -> Callable[[Play], Play]:
    """The function plays these scenarios, and returns what was seen of each in this order."""

    def register(play: Play) -> Play:
        PLAYS[names] = play
        return play

    return register


def submits(name: str, *words: str, program: str = "ok.py", **slurm: str) -> None:
    """A scenario in which `dslaunch slurm` with these words is waited for."""
    PLAYS[name,] = lambda ground: [ground.stage(**slurm).to_the_end(*words, program=program)]


def checks(name: str, *words: str, **slurm: str) -> None:
    """The same of `dslaunch slurm --check`."""
    PLAYS[name,] = lambda ground: [ground.stage(**slurm).to_the_end("--check", *words)]


def lasting(seconds: float) -> Iterator[None]:
    """How long a fault lasts: that is what the scenario is about."""
    until_then = time.monotonic() + seconds
    until(lambda: time.monotonic() > until_then, seconds + 1)
    yield


# ---------------------------------------------------------------- which job


@plays("SBATCH_CLUSTERS=other: followed to its end")
def _(ground: Ground) -> list[Seen]:
    return [ground.other().to_the_end()]


@plays("directives: --clusters=other: followed to its end")
def _(ground: Ground) -> list[Seen]:
    stage = Stage(ground.cluster, f"stage-{token_hex(4)}", nodes=ONE_NODE)
    stage.set(directives="['--clusters=other']")
    done = stage.call("slurm", "c.yaml", "ok.py")
    number = re.findall(r"job (\d+)", done.stderr)[0]
    return [Seen(done.returncode, stage.state(number, **OTHER), done.stderr + done.stdout)]


@plays(
    "SBATCH_CLUSTERS=other: `status`",
    "SBATCH_CLUSTERS=other: `logs`",
    "SBATCH_CLUSTERS=other: `ps`",
    "SBATCH_CLUSTERS=other: `stop`; a local job has the same number",
)
def _(ground: Ground) -> list[Seen]:
    stage = ground.other()
    number = stage.leave()
    stage_here = ground.stage()
    stage_here.environ = {}
    commands = (("status", "latest", "--json"), ("logs", "latest"), ("ps",))
    seen = [stage.ask(number, *words) for words in commands]
    assert stage_here.state(number) == PENDING, "a local job has the same number"
    stopped = stage.ask(number, "stop", "latest", state="CANCELLED")
    assert stage_here.state(number) == PENDING, "the local job of the same number was canceled"
    return [*seen, stopped]


@plays("renamed while it runs")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()

    def rename(number: str) -> None:
        stage.control("scontrol", "update", f"jobid={number}", "name=a JobState=FAILED b")

    return [stage.follow(act=rename)]


submits("job_name: lr=3e-4 bs=8", job_name="'lr=3e-4 bs=8'")
submits("job_name: a JobState=FAILED b", job_name="a JobState=FAILED b")
submits("directives: --job-name=other", directives="['--job-name=other']")


def stopped_with(ground: Ground, **environ: str) -> list[Seen]:
    """`dslaunch stop latest` in another shell."""
    stage = ground.stage()
    number = stage.leave()
    stage.environ = environ
    return [stage.ask(number, "stop", "latest", state="CANCELLED")]


@plays("`stop` with another TZ")
def _(ground: Ground) -> list[Seen]:
    return stopped_with(ground, TZ="Asia/Tokyo")


@plays("`stop` with SLURM_TIME_FORMAT=relative")
def _(ground: Ground) -> list[Seen]:
    return stopped_with(ground, SLURM_TIME_FORMAT="relative")


@plays("`stop` with a beginning of the job's number")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    number = stage.leave()
    return [stage.ask(number, "stop", number[:-1])]


@plays("`status latest` after an older run's record was touched")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    first = stage.leave("--set", "job_name=older")
    (older,) = (stage.here / "state/runs").iterdir()
    second = stage.leave()
    os.utime(older)
    seen = stage.ask(second, "status", "latest", "--json")
    assert first not in re.findall(r'"job": "(\d+)"', seen.text), seen.text
    return [seen]


@plays("federation: followed to its end", "federation: `stop`")
def _(ground: Ground) -> list[Seen]:
    ground.as_root("sacctmgr -i add federation fed clusters=vcluster,other")
    try:
        followed = ground.stage().to_the_end()
        stage = ground.stage()
        number = stage.leave()
        return [followed, stage.ask(number, "stop", "latest", state="CANCELLED")]
    finally:
        ground.as_root("scancel --user=root; sacctmgr -i delete federation fed")


@plays(
    "number used again after a controller lost its state: followed",
    "number used again after a controller lost its state: `stop`",
)
def _(ground: Ground) -> list[Seen]:
    ground.service("slurmctld", "stop")
    ground.as_root("cd /var/spool && cp -a slurmctld before")
    ground.service("slurmctld", "start")
    left, stage = ground.stage(), ground.stage()
    runs_on = left.leave()
    with stage.open("slurm", "c.yaml", "go.py") as running:
        number = stage.job(running)
        stage.up(number)
        ground.cluster.service(CONTROL, "slurmctld", "kill")
        stage.go()
        until(stage.has_verdict, PATIENCE)
        ground.as_root("cd /var/spool && rm -r slurmctld && mv before slurmctld")
        ground.service("slurmctld", "start")
        sbatch = ["sbatch", "--parsable", "--hold", "--wrap=true"]
        given = [ground.cluster.run(CONTROL, sbatch, cwd="/shared", check=True) for _ in range(2)]
        assert [done.stdout.strip() for done in given] == [runs_on, number]
        stopped = left.ask(runs_on, "stop", runs_on)
        followed = Seen(running.wait(PATIENCE), stage.state(number), stage.said)
    return [followed, stopped]


# ---------------------------------------------------------------- its state


@plays("held by an administrator, then released")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(user=ground.cluster.user)
    stage.set(directives="['--begin=now+4']")

    def hold(number: str) -> None:
        stage.control("scontrol", "hold", number)
        until(lambda: "JobHeldAdmin" in stage.said, PATIENCE, lambda: stage.said)
        stage.control("scontrol", "release", number)

    return [stage.follow(act=hold, awaited="")]


@plays("requeued while it runs")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(requeue="1")
    return [stage.follow(act=lambda number: stage.control("scontrol", "requeue", number))]


@plays("requeued and held, then released")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(requeue="1")

    def hold(number: str) -> None:
        stage.control("scontrol", "requeuehold", number)
        until(lambda: stage.state(number) == PENDING, PATIENCE, pause=ASKING)
        stage.control("scontrol", "release", number)

    return [stage.follow(act=hold)]


@plays("suspended, then resumed")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()

    def suspend(number: str) -> None:
        stage.control("scontrol", "suspend", number)
        until(lambda: "SUSPENDED" in stage.said, PATIENCE, lambda: stage.said)
        stage.control("scontrol", "resume", number)

    return [stage.follow(act=suspend)]


@plays("`stop` of a job that has ended")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    number = stage.leave(program="ok.py")
    until(lambda: stage.state(number) == COMPLETED, PATIENCE, pause=ASKING)
    return [stage.ask(number, "stop", "latest")]


@plays("`ps` of a running job shows its own nodes")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    stage.describe("{host: node2, slots: 1}", nodelist="node2")
    number = stage.leave()
    return [stage.ask(number, "ps", "--json")]


@plays("waits for a job: the reason is shown")
def _(ground: Ground) -> list[Seen]:
    first = ground.stage()
    number = first.leave()
    stage = ground.stage(dependency=f"afterany:{number}")

    def let_go(_: str) -> None:
        until(lambda: "Dependency" in stage.said, PATIENCE, lambda: stage.said)
        first.go()

    return [stage.follow(act=let_go, awaited="")]


def await_forgotten(ground: Ground, number: str) -> None:
    """Wait until the controller forgets a job."""
    show = ["scontrol", "show", "job", number]

    def is_forgotten() -> bool:
        return ground.cluster.run(CONTROL, show).returncode != 0

    until(is_forgotten, MIN_JOB_AGE + PATIENCE, pause=ASKING)


@plays("forgotten by the controller: `attach` asks the accounting")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    number = stage.leave(program="fails.py")
    await_forgotten(ground, number)
    return [stage.ask(number, "attach", "latest")]


@plays("a later start forgotten by the controller: `attach`")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(requeue="1")
    number = stage.leave(program="go_fails.py")
    stage.control("scontrol", "requeue", number)
    stage.go()
    await_forgotten(ground, number)
    return [stage.ask(number, "attach", "latest")]


@plays("munge stopped for 6 s: followed to its end", "munge stopped: `ps`", "munge stopped: `stop`")
def _(ground: Ground) -> list[Seen]:
    followed, left = ground.stage(), ground.stage()
    number = left.leave()

    def stop_munge(_: str) -> None:
        ground.cluster.service(CONTROL, "munged", "stop")
        with ThreadPoolExecutor() as pool:
            commands = (("ps",), ("stop", "latest"))
            done.extend(pool.map(lambda words: left.call(*words), commands))
            (*_,) = lasting(6)
        ground.service("munged", "start")

    done: list[object] = []
    seen = followed.follow(act=stop_munge)
    return [seen, *(from_text(one, left.state(number)) for one in done)]


def from_text(done: object, state: str) -> Seen:
    """What a command printed, beside a job's state."""
    return Seen(done.returncode, state, done.stdout + done.stderr)  # type: ignore[attr-defined]


@plays("slurmdbd stopped for 6 s: a local job is followed")
def _(ground: Ground) -> list[Seen]:
    return [without_database(ground, ground.stage())]


@plays("slurmdbd stopped for 6 s: another cluster's job is followed")
def _(ground: Ground) -> list[Seen]:
    return [without_database(ground, ground.other())]


def without_database(ground: Ground, stage: Stage) -> Seen:
    """A job that is followed while slurmdbd is stopped."""

    def stop(_: str) -> None:
        ground.cluster.service(CONTROL, "slurmdbd", "stop")
        (*_,) = lasting(6)  # type: ignore[assignment]
        ground.service("slurmdbd", "start")

    return stage.follow(act=stop)


@plays(
    "controller stopped: followed to its end",
    "controller stopped: `ps`",
    "controller stopped: `status`",
    "controller stopped: `stop`",
    "controller stopped: `slurm --check`",
)
def _(ground: Ground) -> list[Seen]:
    followed, left = ground.stage(), ground.stage()
    number = left.leave()
    commands = (
        ("ps",),
        ("status", "latest"),
        ("stop", "latest"),
        ("slurm", "--check", "c.yaml", "ok.py"),
    )
    done: list[object] = []

    def stop(_: str) -> None:
        ground.cluster.service(CONTROL, "slurmctld", "stop")
        with ThreadPoolExecutor() as pool:
            done.extend(pool.map(lambda words: left.call(*words), commands))
        ground.service("slurmctld", "start")

    seen = followed.follow(act=stop)
    *asked, checked = done
    states = [from_text(one, left.state(number)) for one in asked]
    return [seen, *states, from_text(checked, "")]


@plays("controller hangs for 6 s: followed to its end")
def _(ground: Ground) -> list[Seen]:
    def pause(_: str) -> None:
        ground.cluster.service(CONTROL, "slurmctld", "pause")
        (*_,) = lasting(6)  # type: ignore[assignment]
        ground.service("slurmctld", "resume")

    return [ground.stage().follow(act=pause)]


@plays(
    "forgotten by the controller, no accounting: `attach`",
    "forgotten by the controller, no accounting: `status`",
)
def _(ground: Ground) -> list[Seen]:
    conf = "/etc/slurm/slurm.conf"
    ground.as_root(f"sed -i.was s/MinJobAge=.*/MinJobAge={MIN_JOB_AGE}/ {conf}")
    ground.as_root("scontrol reconfigure")
    try:
        stage = ground.stage()
        number = stage.leave(program="fails.py")
        await_forgotten(ground, number)
        attached = stage.ask(number, "attach", "latest")
        return [attached, stage.ask(number, "status", "latest", "--json")]
    finally:
        ground.as_root(f"mv {conf}.was {conf}; scontrol reconfigure")


# ---------------------------------------------------------------- how it ended


@plays("a rank exits with 3", "a rank exits with 3: `status`")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    followed = stage.to_the_end(program="fails.py")
    number = re.findall(r"job (\d+)", followed.text)[0]
    return [followed, stage.ask(number, "status", "latest", "--json")]


OTHER_RANK_FAILS = """\
import os, subprocess, sys, time
rank, start = os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
print("up", rank, flush=True)
if start == "0" and rank == "1":
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
    sys.exit(7)
if start == "1" and rank == "0":
    sys.exit(3)
time.sleep(60)
"""


@plays("rank 1 fails in the first start, rank 0 in the second")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(requeue="1")
    stage.write("fails.py", OTHER_RANK_FAILS)
    return [stage.to_the_end(program="fails.py")]


TASK = "import os, sys\nsys.exit(3 if os.environ['SLURM_ARRAY_TASK_ID'] == '1' else 0)\n"


def array(ground: Ground) -> Stage:
    """A stage whose job is an array, of which one task fails."""
    stage = ground.stage()
    stage.describe("{host: node1, slots: 1}", array="0-2")
    stage.write("fails.py", TASK)
    return stage


@plays("one task of an array fails")
def _(ground: Ground) -> list[Seen]:
    return [array(ground).to_the_end(program="fails.py")]


@plays("one task of an array fails and is forgotten: `attach`")
def _(ground: Ground) -> list[Seen]:
    stage = array(ground)
    number = stage.leave(program="fails.py", awaited="")
    await_forgotten(ground, number)
    return [stage.ask(number, "attach", "latest")]


@plays("canceled by root")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(user=ground.cluster.user)
    return [stage.follow(act=lambda number: stage.control("scancel", number))]


@plays("canceled by its user")
def _(ground: Ground) -> list[Seen]:
    user = ground.cluster.user
    stage = ground.stage(user=user)
    return [stage.follow(act=lambda number: stage.control("scancel", number, user=user))]


submits("the output file cannot be opened", directives="['--output=/no/such/directory/x.out']")


@plays("the job that it depends on fails")
def _(ground: Ground) -> list[Seen]:
    first = ground.stage()
    number = first.leave(program="go_fails.py")
    stage = ground.stage(dependency=f"afterok:{number}")
    return [stage.follow(act=lambda _: first.go(), program="ok.py", awaited="")]


@plays("`attach` to a job that then fails")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    number = stage.leave(program="go_fails.py")
    stage.go()
    return [stage.ask(number, "attach", "latest")]


@plays("`stacks` of a running job")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    return [stage.ask(stage.leave(), "stacks", "latest")]


ENDS_ON_TERM = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("up", os.environ["RANK"], flush=True)
while True:
    time.sleep(0.1)
"""


@plays("`stop --grace 5`: ranks exit with 0 on TERM")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    stage.write("go.py", ENDS_ON_TERM)
    number = stage.leave()
    seen = stage.ask(number, "stop", "latest", "--grace", "5", state=COMPLETED)
    stage.says(number, "saved")
    return [seen]


@plays("Ctrl-C")
def _(ground: Ground) -> list[Seen]:
    return [ground.stage().interrupt()]


@plays("its follower is killed: `attach`")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    with stage.open("slurm", "c.yaml", "go.py") as running:
        number = stage.job(running)
        stage.up(number)
        running.send_signal(SIGKILL)
    stage.go()
    return [stage.ask(number, "attach", "latest")]


@plays("time limit")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()

    def shorten(number: str) -> None:
        stage.control("scontrol", "update", f"jobid={number}", "EndTime=now+3seconds")
        until(lambda: not stage.is_running(number), PATIENCE, pause=ASKING)

    return [stage.follow(act=shorten)]


HUNGRY = "import time\ntaken = bytearray(b'1') * (200 << 20)\ntime.sleep(60)\n"


@plays("a rank takes more memory than the job has")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(mem="50M")
    stage.write("hungry.py", HUNGRY)
    return [stage.to_the_end(program="hungry.py")]


# ---------------------------------------------------------------- the site's words and rules

REFUSED = """['--comment="refuse me"']"""
submits("job_submit.lua has a notice")
checks("job_submit.lua has a notice: `--check`")
submits("job_submit.lua refuses", directives=REFUSED)
checks("job_submit.lua refuses: `--check`", directives=REFUSED)
submits("--set partition=nope", "--set", "partition=nope")
submits("directives: --partition=nope", directives="['--partition=nope']")
submits("partition: nope", partition="nope")
submits(
    "directives: --error=err.txt: a rank exits with 3",
    program="fails.py",
    directives="['--error=err.txt']",
)
submits(
    "directives: --cpus-per-task=2 wins over cpus_per_task: 1", directives="['--cpus-per-task=2']"
)
submits(
    "directives: --exclusive and --oversubscribe",
    directives="['--exclusive=user', '--oversubscribe']",
)
submits("the script is missing", program="missing.py")
submits("srun: [--cpu-bind=none]", srun="['--cpu-bind=none']")
submits("mem: 1GB", mem="1GB")
submits("signal: TERM@120", signal="TERM@120")
submits("an unknown key that SLURM has: burst_buffer", burst_buffer="x")
submits("setup and teardown", setup="['echo set up']", teardown="['echo torn down']")
PLAYS["shell: bash -l",] = lambda ground: [login_shell(ground)]


def login_shell(ground: Ground) -> Seen:
    """A script that a login shell runs."""
    stage = ground.stage()
    stage.add("  shell: bash -l")
    return stage.to_the_end()


@plays("directives: --export=NONE with secrets")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(directives="['--export=NONE']")
    stage.add("secrets: [TOKEN]")
    stage.environ = {"TOKEN": "s3cret"}
    return [stage.to_the_end()]


def with_line(ground: Ground, line: str, *words: str) -> list[Seen]:
    """A job whose cluster file has a line more."""
    stage = ground.stage()
    text = stage.read("c.yaml")
    name = line.partition(":")[0]
    kept = "".join(f"{old}\n" for old in text.splitlines() if not old.startswith(f"{name}:"))
    stage.write("c.yaml", f"{kept}{line}\n")
    return [stage.to_the_end(*words)]


@plays("the interpreter is missing")
def _(ground: Ground) -> list[Seen]:
    return with_line(ground, "python: /shared/no/such/python")


@plays("the file of `activate` is missing")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    text = re.sub(
        r"(?m)^python: .*", "activate: source /shared/no/such/activate", stage.read("c.yaml")
    )
    stage.write("c.yaml", text)
    return [stage.to_the_end()]


@plays("the DeepSpeed config is missing")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    done = stage.call(
        "slurm", "c.yaml", "-l", "deepspeed", "ok.py", "--deepspeed_config", "nope.json"
    )
    return [Seen(done.returncode, "", done.stdout + done.stderr)]


@plays("comment: of ours")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(comment="of ours")
    shown: list[str] = []

    def look(number: str) -> None:
        show = ["scontrol", "show", "job", number]
        shown.append(ground.cluster.run(CONTROL, show, check=True).stdout)

    seen = stage.follow(act=look)
    return [Seen(seen.code, seen.state, shown[0])]


@plays("`init --slurm` without GRES")
def _(ground: Ground) -> list[Seen]:
    return [init(ground)]


@plays("`init --slurm`: types of GPUs are labels")
def _(ground: Ground) -> list[Seen]:
    return [init(ground)]


def init(ground: Ground) -> Seen:
    """`dslaunch init --slurm`, and the file that it makes."""
    stage = ground.stage()
    done = stage.call("init", "--slurm", "main", "--slots", "2")
    return Seen(done.returncode, "", stage.read("cluster.yaml") + done.stderr)


@plays("more GPUs than a node has")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    stage.describe("{host: 'node[1-2]', slots: 9}")
    return [stage.to_the_end()]


# ---------------------------------------------------------------- inside the job


@plays("salloc --gpus-per-node=2: `run --slurm`")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage()
    stage.write("gpus.py", "import os\nprint('cuda', os.environ.get('CUDA_VISIBLE_DEVICES'))\n")
    salloc = ["salloc", "--quiet", "--nodes=2", "--gpus-per-node=2"]
    words = ["dslaunch", "run", "--slurm", "c.yaml", "gpus.py"]
    done = ground.cluster.run(
        CONTROL, [*salloc, *words], cwd=stage.path, env=stage.env(), timeout=PATIENCE
    )
    return [Seen(done.returncode, "", done.stdout + done.stderr)]


submits("--supervised: a rank exits with 3", "--supervised", program="fails.py")
submits("--supervised: ranks run to their end", "--supervised")


@plays("a rank exits with 0 on TERM, before the time limit")
def _(ground: Ground) -> list[Seen]:
    stage = ground.stage(signal="TERM@60")
    stage.write("go.py", ENDS_ON_TERM)

    def signal(number: str) -> None:
        stage.control("scancel", "--batch", "--signal=TERM", number)

    return [stage.follow(act=signal)]


# ---------------------------------------------------------------- the script


@plays("--render: what made it", "--render: no `bash -c` over two lines")
def _(ground: Ground) -> list[Seen]:
    done = ground.stage().call("slurm", "--render", "c.yaml", "ok.py")
    assert not re.search(r"bash -c \\?$", done.stdout, re.MULTILINE), done.stdout
    return [Seen(done.returncode, "", done.stdout)] * 2


@plays("the job's output names its nodes")
def _(ground: Ground) -> list[Seen]:
    return [ground.stage().to_the_end()]


# ---------------------------------------------------------------- the tests


def test_the_page_shows_scenarios_as_they_are_tested() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"(?m)^\| (.+) \| ([^|]+) \| (\d+) \| ([^|]+) \|$", text)
    expected = [
        (scenario.name, scenario.site, str(scenario.code), scenario.state or "not submitted")
        for topic in TOPICS
        for scenario in SCENARIOS
        if scenario.topic == topic
    ]
    assert rows == expected


def test_every_scenario_has_a_unique_name() -> None:
    names = {scenario.name for scenario in SCENARIOS}
    assert len(names) == len(SCENARIOS)
    assert names >= LONG


def test_every_scenario_is_played() -> None:
    played = [name for names in PLAYS for name in names]
    assert sorted(played) == sorted(scenario.name for scenario in SCENARIOS)


def play_all(cluster: VirtualCluster, site: str, *, long: bool) -> dict[str, Seen]:
    """What is seen of a site's scenarios: many at once, then one after the other what breaks it."""
    ground = Ground(cluster)
    by_name = {scenario.name: scenario for scenario in SCENARIOS}

    def is_chosen(names: tuple[str, ...]) -> bool:
        first = by_name[names[0]]
        return (first.site, first.long) == (site, long) and WANTED in names[0]

    chosen = list(filter(is_chosen, PLAYS))
    together = [names for names in chosen if not by_name[names[0]].alone]
    alone = [names for names in chosen if by_name[names[0]].alone]
    seen: dict[str, Seen] = {}

    def play(names: tuple[str, ...]) -> None:
        began = time.monotonic()
        try:
            found = PLAYS[names](ground)
        except Exception as error:  # noqa: BLE001  one scenario's failure is not the others'
            found = [Seen(-1, "", f"{type(error).__name__}: {error}")] * len(names)
        for name, one in zip(names, found, strict=True):
            seen[name] = one
            record(name, one, time.monotonic() - began)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(play, together))
    for names in alone:
        play(names)
    return seen


def record(name: str, seen: Seen, seconds: float) -> None:
    """Add what was seen, and how long its play took, to the record, if there is one."""
    if RECORD not in os.environ:
        return
    date = datetime.now(UTC).date().isoformat()
    row = {"date": date, "name": name, "code": seen.code, "state": seen.state, "text": seen.text}
    row["seconds"] = round(seconds, 1)
    with Path(os.environ[RECORD]).open("a") as file:
        file.write(json.dumps(row) + "\n")


def judge(scenario: Scenario, seen: Seen) -> None:
    """Compare what was seen with what must be."""
    assert (seen.code, seen.state) == (scenario.code, scenario.state), seen.text
    assert re.search(scenario.says, seen.text), seen.text


def judge_all(found: dict[str, Seen], subtests: pytest.Subtests) -> None:
    """Judge each scenario for itself."""
    assert found or WANTED
    for scenario in SCENARIOS:
        if scenario.name in found:
            with subtests.test(scenario.name):
                judge(scenario, found[scenario.name])


@pytest.mark.long  # one cluster shows most of them, and recorded answers the others
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_scenarios_of_two_clusters_under_one_slurmdbd(
    slurm_pair: VirtualCluster, subtests: pytest.Subtests, long: bool
) -> None:
    slurm_pair.run(CONTROL, ["sh", "-c", HOLD_SAME_NUMBERS], cwd="/shared", check=True)
    judge_all(play_all(slurm_pair, PAIR, long=long), subtests)


@pytest.mark.longest
@LENGTHS
def test_scenarios_of_a_site_with_gpus_and_without_accounting(
    slurm_cluster: VirtualCluster, subtests: pytest.Subtests, long: bool
) -> None:
    judge_all(play_all(slurm_cluster, GPUS, long=long), subtests)
