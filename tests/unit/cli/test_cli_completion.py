"""Completion of values: by the protocol for all shells, and in the shells that are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.cli.commands import leaves
from dslaunch.cli.completion import VALUES
from dslaunch.preflight.check import TIERS
from dslaunch.registry import LAUNCHERS

Complete = Callable[..., list[str]]
PROGRAM = Path(sys.executable).with_name("dslaunch")


@pytest.fixture
def workers(directory: Path) -> Path:
    """A cluster file that is not the default one, and a record of a run."""
    path = directory / "c.yaml"
    path.write_text("nodes: [{host: 'worker-[0-1]', slots: 4, labels: {rack: r1}}]\n")
    return path


@pytest.fixture
def complete(directory: Path) -> Complete:
    """What bash is offered for the last word."""

    def offered(*words: str) -> list[str]:
        line = {"COMP_WORDS": "\n".join(("dslaunch", *words)), "COMP_CWORD": str(len(words))}
        environ = {**os.environ, **line, "_DSLAUNCH_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [PROGRAM], env=environ, text=True, capture_output=True, check=False, timeout=300
        )
        assert done.stderr == ""
        return done.stdout.split()

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["st"], {"status", "stacks", "stop"}),
        (["slurm", "l"], {"lint"}),
        (["signal", "latest", "USR"], {"USR1", "USR2"}),
        (["config", "ex"], {"examples", "explain"}),
        (["help", "slurm", ""], {"lint"}),
        (["nodes", "-c", "c.yaml", "-i", ""], {"worker-0", "worker-1"}),
        (["nodes", "c.yaml", "--exclude", "w"], {"worker-0", "worker-1"}),
        (["run", "c.yaml", "--include", "worker-1"], {"worker-1"}),
        (["render", "hostfile", "c.yaml", "-i", "w"], {"worker-0", "worker-1"}),
        (["nodes", "c.yaml", "--label", ""], {"rack=r1"}),
        (["run", "--launcher", ""], set(LAUNCHERS.names())),
        (["run", "--transport", "op"], {"openssh"}),
        (["render", "host"], {"hostfile"}),
        (["preflight", "--tier", ""], set(TIERS)),
        (["preflight", "--explain", "fs.fr"], {"fs.free"}),
        (["preflight", "--only", "fs"], {"fs", "fs.free"}),
        (["config", "explain", "zero_optimization.sta"], {"zero_optimization.stage"}),
        (["slurm", "--set", "parti"], {"partition="}),
        (["run", "c.yaml", "--master"], {"--master-port"}),
        (["rehearse", "c.yaml", "--ste"], {"--steps"}),
        (["run", "--notice", "USR"], {"USR1", "USR2"}),
        (["ps", "--state", "fa"], {"failed"}),
        (["logs", "--tail", ""], {"20", "all"}),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_values_are_offered(
    complete: Complete, workers: Path, words: list[str], expected: set[str]
):
    found = set(complete(*words))
    assert expected <= found
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "c.yaml", "train.py", "--"],
        ["rehearse", "c.yaml", "train.py", "--"],
        ["run", "c.yaml", "train.py", "--include", ""],
        ["nodes", "gone.yaml", "-i", ""],
        ["nodes", "-i", ""],
        ["status", ""],
    ],
    ids=" ".join,
)
def test_nothing_is_offered_where_nothing_is_known(
    complete: Complete, workers: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DSLAUNCH_STATE", str(workers.parent / "empty"))
    assert complete(*words) == []


@pytest.mark.parametrize(
    "hidden", ["$(id)", "\\$(id)", "`id`", '"', "'", "a;b", "x\ny", "\x1b[31m"]
)
def test_words_that_a_shell_would_expand_are_not_offered(
    complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
):
    labels = json.dumps({"rack": "r1", "a": hidden})
    text = f"nodes: [{{host: n1, slots: 1, labels: {labels}}}]"
    (tmp_path / "cluster.yaml").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert complete("run", "--label", "") == ["rack=r1"]


def test_every_kind_of_value_belongs_to_an_option_or_argument():
    names = {parameter.name for _, command in leaves() for parameter in command.params}
    assert set(VALUES) <= names


# ---------------------------------------------------------------- in real shells


def in_shell(program: str, *arguments: str, script: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    environ = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [path, *arguments, script],
        env=environ,
        text=True,
        capture_output=True,
        timeout=300,
        check=True,
    )
    return done.stdout


BASH = """
eval "$(_DSLAUNCH_COMPLETE=source_bash dslaunch)"
COMP_WORDS=(dslaunch nodes c.yaml -i worker)
COMP_CWORD=4
_dslaunch_completion dslaunch
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
autoload -U compinit && compinit -u -D
_arguments() { print -r -- "$@" }
source <(_DSLAUNCH_COMPLETE=source_zsh dslaunch)
words=(dslaunch preflight --tier "")
CURRENT=4
_dslaunch_completion
"""
FISH = """
_DSLAUNCH_COMPLETE=source_fish dslaunch | source
complete --do-complete "dslaunch nodes c.yaml -i worker"
"""


def test_bash_completes_hosts(workers: Path):
    assert in_shell("bash", "--norc", "-c", script=BASH).split() == ["worker-0", "worker-1"]


def test_zsh_completes_tiers(workers: Path):
    shown = in_shell("zsh", "-f", "-c", script=ZSH)
    assert all(f'"{tier}"' in shown for tier in TIERS)


def test_fish_completes_hosts(workers: Path):
    shown = in_shell("fish", "--no-config", "-c", script=FISH)
    assert shown.split() == ["worker-0", "worker-1"]
