"""The script of a supervised job: what `dslaunch run` is called with, and the file it reads."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster, SecretSource
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import PlanError
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job
from dslaunch.render.batch import Batch, Supervised
from dslaunch.render.launch import Launch
from dslaunch.render.sbatch import sbatch
from dslaunch.render.supervised import cluster_file, run_command, supervised

TEXT = """\
nodes: [{host: "n[001-900]", slots: 8}]
env: {A: "1"}
env_from: [HOME*]
secrets: [{TOKEN: {file: ~/token}}]
storage: {workdir: /work/it's}
network: {interface: ib0}
slurm: {signal: USR1@60, requeue: 3, supervised: true}
job: {script: other.py}
"""
JOB = Job(
    "train.py", ("a b", "$x", "two\nlines"), env=(("A", "1"), ("HOME_X", "y")),
    overrides=(("V", "it's"),), secrets=(SecretSource("TOKEN", "~/token"),), restarts=2,
)  # fmt: skip


def batch_of(cluster: Cluster, how: Supervised, job: Job = JOB) -> Batch:
    allocation = select(cluster, Selection())
    launch = Launch(cluster.name, allocation, job, assume(cluster, allocation, "/work"))
    return supervised(Batch(launch, cluster.slurm), job, how)


def words_of(how: Supervised, job: Job = JOB) -> list[str]:
    command = run_command(batch_of(parse_cluster(TEXT, "c.yaml"), how, job), how)
    return shlex.split(command.replace("\\\n", ""))  # which shlex, unlike a shell, keeps


def test_all_that_was_asked_for_is_on_the_command_line() -> None:
    how = Supervised("", ("python3",), hang_timeout=600, preflight=False, force=True)
    job = replace(JOB, min_nodes=4, kind="module", program="pkg.train", launcher="elastic")
    assert words_of(how, job) == [
        *("$python", "-P", "-m", "dslaunch", "run", "--slurm", "--launcher=elastic", "--slots=8"),
        *("--restarts=2", "--min-nodes=4", "--hang-timeout=600", "--notice=USR1", "--requeue=3"),
        *("--no-preflight", "--force", "--result=$result", "--env=V=it's", "--module", "$cluster"),
        *("pkg.train", "a b", "$x", "two\nlines"),
    ]


def test_the_file_in_the_job_needs_nothing_of_the_machine_that_submitted() -> None:
    text = cluster_file(TEXT, "site", JOB, "/work/it's")
    read = parse_cluster(text, "job.yaml")
    assert (read.name, read.env, read.env_from) == ("site", (("A", "1"), ("HOME_X", "y")), ())
    assert read.secrets == (SecretSource("TOKEN", None),)
    assert (read.network.interface, read.storage.workdir) == ("ib0", "/work/it's")
    assert (len(read.nodes), read.job) == (900, None)
    assert len(text) < 1000  # as folded as the user's
    assert "USR1" not in text


def test_the_script_quotes_the_file_whatever_is_in_it() -> None:
    how = Supervised("{}\nEND\nEND_\n$(id)", ("/a/python", "~/b/python"))
    script = sbatch(batch_of(parse_cluster(TEXT, "c.yaml"), how))
    assert "<<'END__'\n{}\nEND\nEND_\n$(id)\nEND__\n" in script
    assert 'for candidate in /a/python "$HOME"/b/python; do' in script


def test_a_signal_that_would_end_the_run_is_refused() -> None:
    cluster = parse_cluster(TEXT, "c.yaml")
    ending = replace(cluster, slurm=replace(cluster.slurm, signal="TERM@120"))
    with pytest.raises(PlanError, match="TERM"):
        batch_of(ending, Supervised("", ()))


def test_a_container_is_refused() -> None:
    file = "nodes: [{host: a, slots: 1}]\nslurm: {container: {image: /x.sqsh}}"
    with pytest.raises(PlanError, match="container"):
        batch_of(parse_cluster(file, "c.yaml"), Supervised("", ()))


def test_a_plain_job_refuses_what_takes_a_run_in_the_job(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from dslaunch.cli.main import app
    from dslaunch.errors import UsageError

    file = tmp_path / "c.yaml"
    file.write_text("nodes: [{host: a, slots: 1}]\n")
    words = ["slurm", "--render", "--restarts=1", "--hang-timeout=5", str(file), "t.py"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, UsageError)
    assert "--hang-timeout, restarts" in done.exception.message
