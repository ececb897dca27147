"""`dslaunch render`, and the words and options that `run` shares with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dslaunch.render import formats

Dslaunch = Callable[..., CompletedProcess[str]]
pytestmark = pytest.mark.usefixtures("cluster_file")


@pytest.mark.parametrize("name", formats.names())
def test_every_format_is_rendered_and_listed(dslaunch: Dslaunch, name: str):
    assert dslaunch("render", name, "c.yaml", "train.py").returncode == 0
    assert f"\n{name} " in "\n" + dslaunch("render", "--list").stdout


@pytest.mark.parametrize(
    "words",
    [
        "render hostfile c.yaml -N 1 --slots 2",
        "render hostfile -N 1 c.yaml --slots 2",
        "render -N 1 hostfile --slots 2 c.yaml",
        "render -N 1 --slots 2 hostfile c.yaml train.py",
        "render hostfile c.yaml -N 1 --slots 2 train.py --slots 7",
        "render hostfile c.yaml -N 1 --slots=2 -- train.py --slots 7",
    ],
)
def test_options_may_stand_anywhere_before_the_script(dslaunch: Dslaunch, words: str):
    assert dslaunch(*words.split()).stdout == "gpu01 slots=2\n"


def test_run_takes_options_behind_the_cluster_file_too(dslaunch: Dslaunch):
    done = dslaunch("run", "c.yaml", "--dry-run", "-N", "1", "train.py", "--dry-run")
    assert done.stdout.splitlines()[-1].endswith(" train.py --dry-run")
    assert done.stdout.startswith("pod: 8 ranks on 1 node")


def test_the_scripts_arguments_arrive_unchanged(dslaunch: Dslaunch):
    args = ["--lr", "1e-4", "two words", "$HOME", "it's", "", "--", "c.yaml", "é", "-m", "-N"]
    done = dslaunch("run", "--dry-run", "-l", "direct", "c.yaml", "train.py", *args)
    assert shlex.split(done.stdout.splitlines()[-1])[-len(args) :] == args


def test_assumptions_are_printed_on_standard_error(dslaunch: Dslaunch):
    done = dslaunch("render", "torchrun", "c.yaml", "--workdir", "/w", "train.py")
    assert done.stderr.splitlines() == [
        "assumed: master gpu01:29500 (host name of the first node; default port)",
        "assumed: workdir /w (set for all nodes)",
    ]


def test_what_is_assumed_but_not_printed_is_not_mentioned(dslaunch: Dslaunch):
    assert dslaunch("render", "hostfile", "c.yaml").stderr == ""


def test_a_given_master_is_no_assumption(dslaunch: Dslaunch):
    words = ["--master-addr", "10.0.0.9", "--master-port", "1234", "--workdir", "/w"]
    done = dslaunch("render", "torchrun", *words, "c.yaml", "train.py")
    assert done.stdout.count("--master-addr=10.0.0.9 --master-port=1234") == 2
    assert "master" not in done.stderr


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_that_is_none_is_code_2(dslaunch: Dslaunch, port: str):
    assert dslaunch("render", "torchrun", "--master-port", port, "c.yaml").returncode == 2


def test_settings_reach_the_nodes(dslaunch: Dslaunch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINE", "a b")
    done = dslaunch("render", "env", "c.yaml", "--env", "MINE", "--env", "X=1=2")
    assert done.stdout.count("export MINE='a b'\nexport X=1=2\n") == 2


def test_bytes_that_are_no_text_are_written_as_they_were(dslaunch: Dslaunch):
    # "\udcff" is how Python holds the byte 0xff of an argument
    done = dslaunch("render", "env", "c.yaml", "--env", "X=\udcff", "-o", "out")
    assert (done.returncode, Path("out").read_bytes().count(b"\xff")) == (0, 2)


def test_the_file_named_by_output_is_what_would_have_been_printed(dslaunch: Dslaunch):
    printed = dslaunch("render", "include", "c.yaml")
    written = dslaunch("render", "include", "c.yaml", "-o", "out")
    assert (Path("out").read_text(), written.stdout) == (printed.stdout, "")


def test_an_output_that_cannot_be_written_is_code_2(dslaunch: Dslaunch):
    done = dslaunch("render", "include", "c.yaml", "--output", "no/such")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --output no/such: directory no not found\n",
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["c.yaml"], "no script", id="no-script"),
        pytest.param(["c.yaml", "-m"], "--module", id="module-without-name"),
        pytest.param(["-m", "--no-python", "c.yaml", "x"], "exclude", id="two-kinds"),
        pytest.param(["-l", "torchrnu", "c.yaml", "x"], "did you mean `torchrun`", id="launcher"),
        pytest.param(["--env", "1=2", "c.yaml", "x"], "--env 1=2", id="env-name"),
        pytest.param(["--", "c.yaml", "--nodes", "x"], "--nodes is an option", id="after-the-end"),
    ],
)
def test_run_refuses_what_it_cannot_read(dslaunch: Dslaunch, words: list[str], found: str):
    done = dslaunch("run", "--dry-run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert found in done.stderr
