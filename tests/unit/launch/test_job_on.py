"""A job with what the cluster file and the caller's environment add to it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from dslaunch.cluster.model import Cluster, JobDefaults, Node, SecretSource
from dslaunch.errors import ErrorCode, UsageError
from dslaunch.launch.command import LONGEST_ARGUMENT
from dslaunch.launch.job import Job, Kind, copied

NODE = Node("a", (0,))


def test_the_later_of_two_values_for_a_variable_wins():
    cluster = Cluster(
        "c",
        (NODE,),
        env=(("FILE", "1"), ("FROM", "1"), ("JOB", "1"), ("LINE", "1")),
        env_from=("FROM", "JOB", "LINE"),
        job=JobDefaults(script="t.py", env=(("JOB", "3"), ("LINE", "3"))),
    )
    caller = {"FROM": "2", "JOB": "2", "LINE": "2", "OTHER": "2"}
    job = Job.on(cluster, "t.py", env={"LINE": "4"}, environ=caller)
    assert dict((*job.env, *job.overrides)) == {"FILE": "1", "FROM": "2", "JOB": "3", "LINE": "4"}


def test_a_script_on_the_command_line_takes_no_arguments_from_the_file():
    cluster = Cluster("c", (NODE,), job=JobDefaults(script="a.py", args=("--x",)))
    job = Job.on(cluster, "b.py", ["--y"], environ={})
    assert (job.program, job.args) == ("b.py", ("--y",))


@pytest.mark.parametrize(
    ("defaults", "program", "kind"),
    [
        (JobDefaults(script="a.py", args=("1",)), "a.py", "script"),
        (JobDefaults(module="pkg.a", args=("1",)), "pkg.a", "module"),
    ],
    ids=["script", "module"],
)
def test_the_file_names_the_job_where_the_command_line_does_not(
    defaults: JobDefaults, program: str, kind: str
):
    job = Job.on(Cluster("c", (NODE,), job=defaults), environ={})
    assert (job.program, job.kind, job.args) == (program, kind, ("1",))


def test_launcher_and_secrets_come_from_the_file_unless_the_launcher_is_named():
    secrets = (SecretSource("TOKEN"),)
    cluster = Cluster("c", (NODE,), launcher="direct", secrets=secrets)
    assert Job.on(cluster, "x", environ={}).launcher == "direct"
    job = Job.on(cluster, "x", launcher="torchrun", environ={"TOKEN": "no"})
    assert (job.launcher, job.secrets, job.env) == ("torchrun", secrets, ())


@pytest.mark.parametrize(
    ("program", "kind", "code"),
    [
        pytest.param(None, "script", ErrorCode.NO_SCRIPT, id="nothing-to-run"),
        pytest.param(None, "module", ErrorCode.OPTION_WITHOUT_SCRIPT, id="module-without-name"),
        pytest.param(None, "command", ErrorCode.OPTION_WITHOUT_SCRIPT, id="no-program"),
        pytest.param("--nodse", "script", ErrorCode.OPTION_AS_SCRIPT, id="option-for-script"),
        pytest.param("t.py", "module", ErrorCode.FILE_AS_MODULE, id="file-for-module"),
    ],
)
def test_what_names_no_program_is_an_error_of_usage(
    program: str | None, kind: Kind, code: ErrorCode
):
    with pytest.raises(UsageError) as caught:
        Job.on(Cluster("c", (NODE,)), program, kind=kind, environ={})
    assert caught.value.error_code is code


def test_patterns_copy_only_what_they_match_and_respect_case():
    caller = {"WANDB_B": "2", "WANDB_A": "1", "wandb_c": "3", "HF_HOME": "4", "HF_HOME2": "5"}
    found = copied(("WANDB_*", "HF_HOME", "ABSENT"), caller)
    assert list(found.items()) == [("HF_HOME", "4"), ("WANDB_A", "1"), ("WANDB_B", "2")]


def test_a_secret_is_in_no_variable_whose_value_is_written_down() -> None:
    cluster = Cluster("c", (NODE,), env_from=("HF_*",), secrets=(SecretSource("HF_TOKEN"),))
    environ = {"HF_TOKEN": "sesame", "HF_HOME": "/x"}
    job = Job.on(cluster, "train.py", environ=environ)
    assert job.env == (("HF_HOME", "/x"),)
    with pytest.raises(UsageError) as caught:
        Job.on(cluster, "train.py", env={"HF_TOKEN": "open"}, environ=environ)
    assert caught.value.error_code is ErrorCode.SECRET_ON_COMMAND_LINE
    assert caught.value.values == {"names": ("HF_TOKEN",)}


def test_a_program_may_be_a_path() -> None:
    assert Job.on(Cluster("c", (NODE,)), Path("sub") / "train.py").program == "sub/train.py"


@pytest.mark.parametrize(
    "given",
    [
        {"args": "--steps 3"},
        {"args": ["--lr", 1]},
        {"env": {"A": 1}},
        {"env": {1: "A"}},
        {"kind": "scrip"},
    ],
    ids=str,
)
def test_what_is_of_another_type_is_an_error_of_usage(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Job.on(Cluster("c", (NODE,)), "train.py", **given)


def test_the_longest_argument_can_be_executed_and_a_longer_one_is_refused() -> None:
    cluster = Cluster("c", (NODE,))
    longest = "x" * LONGEST_ARGUMENT
    job = Job.on(cluster, "t.py", [longest], environ={})
    assert job.args == (longest,)
    subprocess.run(["/bin/true", longest], check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true", f"{longest}x"], check=True)
    with pytest.raises(UsageError) as caught:
        Job.on(cluster, "t.py", ["--a", f"{longest}x"], environ={})
    assert caught.value.error_code is ErrorCode.ARGUMENT_TOO_LONG
    assert (caught.value.values["number"], caught.value.values["size"]) == (2, 131072)


def test_the_longest_variable_can_be_executed_and_a_longer_one_is_refused() -> None:
    longest = "x" * (LONGEST_ARGUMENT - len("A="))
    job = Job.on(Cluster("c", (NODE,), env=(("A", longest),)), "t.py", environ={})
    assert job.env == (("A", longest),)
    subprocess.run(["/bin/true"], env={"A": longest}, check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env={"A": f"{longest}x"}, check=True)
    with pytest.raises(UsageError) as caught:
        Job.on(Cluster("c", (NODE,), env=(("A", f"{longest}x"),)), "t.py", environ={})
    assert caught.value.error_code is ErrorCode.VARIABLE_TOO_LONG
    assert caught.value.values["name"] == "A"
