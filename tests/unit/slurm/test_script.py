"""The script run by a real shell, with a stand-in for srun that plays every task of the step."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Allocation, Slurm
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import ConfigError, PlanError, UsageError
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job
from dslaunch.launch.plan import RUN_DIRECTORY, File
from dslaunch.notes import NoteCode, note
from dslaunch.registry import LAUNCHERS
from dslaunch.render.batch import Batch, Origin, grouped
from dslaunch.render.directives import directives
from dslaunch.render.launch import Launch
from dslaunch.render.notes import RenderNote
from dslaunch.render.sbatch import notes, sbatch

SRUN = """#!/bin/bash
until [ "$1" = bash ]; do shift; done
for ((task = 0; task < SLURM_NNODES * TASKS; task++)); do
  SLURM_NODEID=$((task / TASKS)) SLURM_PROCID=$task SLURM_LOCALID=$((task % TASKS)) \\
    SLURM_NTASKS=$((SLURM_NNODES * TASKS)) "$@" &
done
trap 'kill -USR1 $(jobs -p)' USR1
code=0
while :; do
  wait -n; one=$?
  [ "$one" = 127 ] && exit "$code"
  [ "$one" -gt 128 ] || [ "$one" = 0 ] || code=$one
done
"""
WITNESS = """#!{python}
import json, os, sys
with open(os.environ["WITNESS"], "a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
"""


def batch(
    launcher: str = "direct",
    nodes: str = "{host: 'n[1-2]', slots: 2}",
    slurm: Slurm | None = None,
    **job: object,
) -> Batch:
    cluster = parse_cluster(f"nodes: [{nodes}]\n", "c.yaml")
    allocation = select(cluster, Selection())
    made = Job(**({"program": "train.py", "launcher": launcher} | job))  # type: ignore[arg-type]
    decided = assume(cluster, allocation, "/tmp")
    return Batch(Launch("c", allocation, made, decided), slurm or Slurm())


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A directory of programs that stands in front of PATH."""
    programs = {"srun": SRUN, "witness": WITNESS.format(python=sys.executable), "scontrol": (
        '#!/bin/sh\necho "$@" >"$WITNESS.scontrol"\n'
    )}  # fmt: skip
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    return tmp_path


def environment(stage: Path, tasks: int, **more: str) -> dict[str, str]:
    return {
        **os.environ, "PATH": f"{stage}:{os.environ['PATH']}", "WITNESS": str(stage / "seen"),
        "SLURM_JOB_ID": "12", "SLURM_NNODES": "2", "SLURMD_NODENAME": "n1",
        "SLURM_JOB_NODELIST": "n[1-2]", "TASKS": str(tasks),
    } | more  # fmt: skip


def played(stage: Path, script: str, tasks: int) -> list[tuple[list[str], dict[str, str]]]:
    """What the program was called with, once per task."""
    seen = stage / "seen"
    seen.unlink(missing_ok=True)
    done = subprocess.run(
        ["bash"], input=script, env=environment(stage, tasks), text=True, capture_output=True,
        timeout=300, check=False, errors="surrogateescape",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(json.loads(line)) for line in seen.read_text().splitlines()]


words = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
nasty = st.sampled_from(
    ["a,b", "it's", "$HOME", '"', "a\nEND\nb", "`id`", "\\", "#", "*", "", "--"]
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    args=st.lists(nasty | words, max_size=4),
    value=nasty | words,
    secret_like=words,
)
def test_arguments_and_environment_arrive_unchanged(
    stage: Path, args: list[str], value: str, secret_like: str
) -> None:
    script = sbatch(
        batch(
            program="witness",
            kind="command",
            args=tuple(args),
            env=(("VALUE", value), ("OTHER", secret_like)),
        )
    )
    seen = played(stage, script, 2)
    assert len(seen) == 4
    for argv, environ in seen:
        assert argv == args
        assert (environ["VALUE"], environ["OTHER"]) == (value, secret_like)


def test_every_rank_finds_its_place(stage: Path) -> None:
    seen = played(stage, sbatch(batch(program="witness", kind="command")), 2)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
    assert sorted([e[name] for name in names] for _, e in seen) == [
        ["0", "0", "4", "2", "0", "n1"],
        ["1", "1", "4", "2", "0", "n1"],
        ["2", "0", "4", "2", "1", "n1"],
        ["3", "1", "4", "2", "1", "n1"],
    ]
    assert {e["MASTER_PORT"] for _, e in seen} == {"15012"}


def test_deepspeeds_map_counts_every_node_and_names_its_own_gpus(stage: Path) -> None:
    import base64

    (stage / "python3").write_text((stage / "witness").read_text())
    (stage / "python3").chmod(stat.S_IRWXU)
    seen = played(stage, sbatch(batch("deepspeed")), 1)
    maps = [a for argv, _ in seen for a in argv if a.startswith("--world_info=")]
    assert len(maps) == 2
    world = json.loads(base64.urlsafe_b64decode(maps[0].partition("=")[2]))
    assert world == {"0": [0, 1], "1": [0, 1]}


def test_a_file_for_every_node_is_made_there_and_removed(stage: Path) -> None:
    made = batch(program="witness", kind="command", args=((RUN_DIRECTORY, "/c.json"),))
    file = File("c.json", '{"it\'s": "$5"}\n')
    decided = replace(made.launch.decided, files=(file,))
    # in one piece: the two tasks write into one pipe
    reader = "import os, sys\nos.write(1, f'{sys.argv[1]} {open(sys.argv[1]).read()}'.encode())\n"
    (stage / "witness").write_text(f"#!{sys.executable}\n{reader}")
    script = sbatch(replace(made, launch=replace(made.launch, decided=decided)))
    done = subprocess.run(
        ["bash"], input=script, env=environment(stage, 1), text=True, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("dslaunch")]
    assert [line.partition(" ")[2] for line in lines] == [file.text.strip()] * 2
    assert not any(Path(line.partition(" ")[0]).exists() for line in lines)


def test_the_script_is_as_long_for_many_nodes_as_for_two() -> None:
    two, many = (sbatch(batch(n, f"{{host: 'n[1-{c}]', slots: 8}}")) for n, c in [
        ("torchrun", 2), ("torchrun", 2000),
    ])  # fmt: skip
    assert len(many.splitlines()) == len(two.splitlines())
    assert abs(len(many) - len(two)) < 20


@pytest.mark.parametrize("launcher", LAUNCHERS.names())
def test_a_secret_is_not_in_the_script(launcher: str) -> None:
    from dslaunch.cluster.model import SecretSource

    script = sbatch(batch(launcher, secrets=(SecretSource("TOKEN"),)))
    assert "${TOKEN:?" in script


def test_a_job_without_its_secret_stops_at_once(stage: Path) -> None:
    from dslaunch.cluster.model import SecretSource

    script = sbatch(batch(secrets=(SecretSource("NOT_SET_TOKEN"),)))
    done = subprocess.run(
        ["bash"], input=script, env=environment(stage, 1), text=True, capture_output=True
    )
    assert done.returncode != 0
    assert "NOT_SET_TOKEN: secret" in done.stderr


def test_a_job_that_was_requeued_too_often_stops(stage: Path) -> None:
    script = sbatch(batch(slurm=Slurm(requeue=2)))
    done = subprocess.run(
        ["bash"], input=script, env=environment(stage, 1, SLURM_RESTART_COUNT="3"), text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "limit of 2 requeues" in done.stderr


RANK = """#!{python}
import os, signal, sys, time
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
open(os.environ["WITNESS"] + os.environ["SLURM_PROCID"], "w").close()
while not got:
    time.sleep(0.05)
os.write(1, ("saved " + os.environ["SLURM_PROCID"] + "\\n").encode())  # two ranks, one pipe
sys.exit(3)
"""
LAUNCHER = """#!{python}
import subprocess, sys
if "-c" not in sys.argv:  # which prints versions
    sys.exit(subprocess.call(["rank"]))
"""


@pytest.mark.parametrize(("launcher", "program"), [("direct", "rank"), ("torchrun", "python3")])
def test_the_signal_reaches_the_ranks_and_the_job_goes_back_into_the_queue(
    stage: Path, launcher: str, program: str
) -> None:
    for name, text in (("rank", RANK), ("python3", LAUNCHER)):
        (stage / name).write_text(text.format(python=sys.executable))
        (stage / name).chmod(stat.S_IRWXU)
    slurm = Slurm(requeue=2, signal="USR1@60")
    (stage / "script").write_text(
        sbatch(batch(launcher, slurm=slurm, program="rank", kind="command"))
    )
    with subprocess.Popen(
        ["bash", str(stage / "script")], env=environment(stage, 1), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as job:  # fmt: skip
        deadline = time.monotonic() + 300
        while not all((stage / f"seen{task}").exists() for task in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        job.send_signal(signal.SIGUSR1)
        said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert sorted(line for line in said.splitlines() if "saved" in line) == ["saved 0", "saved 1"]
    assert (stage / "seen.scontrol").read_text() == "requeue 12\n"


def lines(made: Batch) -> list[str]:
    return list(directives(made, grouped(made)))


def test_selected_nodes_are_requested_by_name() -> None:
    assert "--nodelist=n[1-2]" in lines(replace(batch(), pinned=True))
    assert "--exclude=n[8-9]" in lines(replace(batch(), excluded=("n8", "n9")))


def test_types_of_gpus_are_components_of_a_heterogeneous_job() -> None:
    nodes = (
        "{host: a1, slots: 4, labels: {gpu: a100}}, {host: h1, slots: 4, labels: {gpu: h100}}, "
        "{host: a2, slots: 4, labels: {gpu: a100}}"
    )
    made = lines(batch(nodes=nodes, slurm=Slurm(gpu_label="gpu")))
    assert [d for d in made if d.startswith(("--gres", "--nodes", "het"))] == [
        "--nodes=2", "--gres=gpu:a100:4", "hetjob", "--nodes=1", "--gres=gpu:h100:4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (batch("accelerate", "{host: a, slots: 2}, {host: b, slots: 1}"), "1 x 2 and 1 x 1"),
        (
            batch(nodes="{host: a, slots: 1}, {host: b, slots: 1, python: /p}"),
            "a and b .* `python`",
        ),
        (batch(slurm=Slurm(job_name="a\nb")), "--job-name"),
        (
            batch(
                nodes="{host: a, slots: 2}, {host: b, slots: 1}",
                slurm=Slurm(options=(("array", "0-3"),)),
            ),
            "array",
        ),
    ],
)
def test_what_cannot_be_is_refused(made: Batch, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        sbatch(made)


def test_an_unknown_launcher_is_an_error() -> None:
    with pytest.raises(UsageError, match="mine"):
        sbatch(batch("mine"))


def test_a_template_of_the_users_is_filled_with_the_same_values(tmp_path: Path) -> None:
    (tmp_path / "site.j2").write_text("{{ job_name }} {{ directives | length }} {{ step }}\n")
    assert sbatch(batch(), tmp_path / "site.j2").startswith("train 8 srun --kill-on-bad-exit=1")


def test_a_template_that_asks_for_what_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site.j2").write_text("{{ nodes }}\n")
    with pytest.raises(PlanError, match=r"site\.j2:1: 'nodes' is undefined"):
        sbatch(batch(), tmp_path / "site.j2")


def test_what_the_script_cannot_say_is_noted() -> None:
    slurm = Slurm((("cpus_per_task", "4"),), exclusive="false")
    assert list(notes(batch(slurm=slurm))) == [
        note(RenderNote.CPUS_PER_RANK, launcher="direct", cpus="4"),
        note(RenderNote.DEFAULT_TIME_LIMIT),
    ]


SLURM_FILE = "nodes: [{{host: 'n[1-2]', slots: 8}}]\nslurm: {slurm}\n"


def rendered(slurm: str, launcher: str = "torchrun") -> str:
    """The script of a cluster file with these settings."""
    cluster = parse_cluster(SLURM_FILE.format(slurm=slurm), "c.yaml")
    return sbatch(batch(launcher, slurm=cluster.slurm))


@pytest.mark.parametrize(
    ("setting", "directive"),
    [
        ("comment: third try", '--comment="third try"'),
        ("licenses: 'matlab:2'", "--licenses=matlab:2"),
        ("wckey: llm", "--wckey=llm"),
        ("tmp: 100G", "--tmp=100G"),
        ("mem: 500GB", "--mem=500GB"),
        ("mem_per_gpu: 64G", "--mem-per-gpu=64G"),
        ("mem_per_cpu: 4000", "--mem-per-cpu=4000"),
        ("cpus_per_gpu: 8", "--cpus-per-gpu=8"),
        ("segment: 2", "--segment=2"),
        ("exclusive: topo", "--exclusive=topo"),
        ("nodes: 2-4", "--nodes=2-4"),
        ("error: e.txt", "--error=e.txt"),
        ("signal: TERM@120", "--signal=B:TERM@120"),
        ("signal: 'B:SIGUSR1@60'", "--signal=B:USR1@60"),
        ("signal: 'R:USR1'", "--signal=RB:USR1"),
        ("requeue: 0", "--no-requeue"),
        ("requeue: 2", "--requeue"),
    ],
)
def test_a_setting_becomes_a_directive(setting: str, directive: str) -> None:
    assert f"#SBATCH {directive}\n" in rendered("{" + setting + "}")


def test_requeue_can_be_left_to_the_site() -> None:
    script = rendered("{requeue: site}")
    assert "requeue\n" not in "".join(x for x in script.splitlines(True) if x.startswith("#SBATCH"))
    assert "#SBATCH --open-mode=append\n" in script


def test_more_words_for_srun_come_after_ours() -> None:
    script = rendered("{srun: [--mpi=pmix, --cpu-bind=none, SLURM_CPU_BIND=verbose]}")
    step = script.partition("\nstart srun")[2]
    assert "export SLURM_CPU_BIND=verbose\nstart srun" in script
    assert step.index("--mpi=none") < step.index("--mpi=pmix") < step.index("bash -c")


def test_only_one_launcher_for_each_node_is_started_without_mpi() -> None:
    assert "--mpi=none" in rendered("{}", "torchrun")
    assert "--mpi" not in rendered("{}", "direct")


def test_the_shell_of_the_script_can_be_a_login_shell() -> None:
    assert rendered("{shell: bash -l}").startswith("#!/bin/bash -l\n")
    assert rendered("{}").startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("signal_name", "way"),
    [("USR2", 'kill -USR2 "$child"'), ("TERM", 'scancel --signal=TERM "$SLURM_JOB_ID"')],
)
def test_signals_that_srun_takes_for_itself_are_sent_by_slurm(signal_name: str, way: str) -> None:
    assert way in rendered(f"{{signal: {signal_name}@60}}")


def test_the_teardown_runs_after_the_ranks_and_leaves_the_exit_code(stage: Path) -> None:
    (stage / "witness").write_text("#!/bin/bash\necho rank\nexit 3\n")
    made = batch(program="witness", kind="command", slurm=Slurm(teardown=("echo torn; exit 9",)))
    done = subprocess.run(
        ["bash"], input=sbatch(made), env=environment(stage, 1), text=True, capture_output=True
    )
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "torn"


def test_the_script_says_what_made_it_in_one_line_each() -> None:
    origin = Origin("c.yaml", "dslaunch slurm --render c.yaml")
    head = sbatch(replace(batch(), origin=origin)).splitlines()[2:4]
    assert "from c.yaml" in head[0]
    assert head[1] == "#   dslaunch slurm --render c.yaml"


def test_no_argument_leaves_the_comment_that_repeats_it() -> None:
    origin = Origin("c\nid", "dslaunch slurm --render c.yaml 'two\nlines `id`'")
    script = sbatch(replace(batch(), origin=origin))
    before, _, _ = script.partition("set -euo pipefail")
    assert all(line.startswith("#") for line in before.splitlines())


def test_the_output_begins_with_nodes_and_master(stage: Path) -> None:
    script = sbatch(batch(program="witness", kind="command"))
    done = subprocess.run(
        ["bash"], input=script, env=environment(stage, 1), text=True, capture_output=True
    )
    job, master = done.stdout.splitlines()[:2]
    assert job == "dslaunch: job 12, start 1 on n[1-2]"
    assert "master n1:15012" in master


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("hint: nomultithread", "`directives: [--hint=...]`"),
        ("contiguous: 1", "`directives: [--contiguous]`"),
        ("cpus-per-task: 3", "did you mean `cpus_per_task`"),
    ],
)
def test_an_unknown_key_that_sbatch_knows_is_pointed_to_directives(key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered("{" + key + "}")
    assert hint in caught.value.problems[0].message


def note_codes(it: Batch) -> set[NoteCode]:
    return {each.code for each in notes(it)}


def test_surprising_defaults_are_noted() -> None:
    assert RenderNote.DEFAULT_MEMORY in note_codes(batch())
    few = batch(nodes="{host: n1, slots: 8}")
    one = few.launch.placements[0]
    allocation = Allocation((replace(one, slots=(0,)),))
    few = replace(few, launch=replace(few.launch, allocation=allocation))
    assert RenderNote.UNREQUESTED_GPUS in note_codes(few)
    assert RenderNote.DEFAULT_MEMORY not in note_codes(batch(slurm=Slurm((("mem", "0"),))))
