"""Files that options write: never one that the command reads, and known to be writable before."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.cli.commands import leaves

Called = subprocess.CompletedProcess[str]

SIZE = ("--params", "7B", "--largest-layer", "65e6", "--nodes", "1", "--gpus-per-node", "8")
OUTPUTS = {
    ("render", "--output"): ("hostfile",),
    ("slurm", "--output"): ("train.py",),
    ("run", "--result"): ("train.py",),
    ("report", "--output"): (),
    ("topo", "--svg"): ("c.yaml",),
    ("preflight", "--save"): (),
    ("preflight", "--junit"): (),
    ("preflight", "--html"): (),
    ("estimate", "--svg"): SIZE,
    ("estimate", "--html"): SIZE,
    ("estimate", "--write"): SIZE,
    ("init", "--output"): ("--hosts", "n1", "--force"),
    ("config init", "--output"): ("--force",),
}
"""Options that write a file, each with the other words of a command line."""
ELSEWHERE = {
    ("topo", "--apply"): "changes the cluster file in place",
    ("run", "--metrics"): "writes over files of metrics only",
}
TO_STDOUT = {"render", "report", "slurm", "init", "config init"}


@pytest.fixture(autouse=True)
def project(cluster_file: Path) -> Path:
    """A cluster file, which is the default one too, a script, and links to both."""
    directory = cluster_file.parent
    (directory / "cluster.yaml").write_bytes(cluster_file.read_bytes())
    (directory / "train.py").write_text("print('trained')\n")
    (directory / "link").symlink_to("cluster.yaml")
    os.link(directory / "train.py", directory / "hard")
    (directory / "there").mkdir()
    return directory


def called(dslaunch: Callable[..., Called], command: str, option: str, path: str) -> Called:
    """Call a command with a file for its option."""
    return dslaunch(*command.split(), option, path, *OUTPUTS[command, option])


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_every_option_that_writes_a_file_follows_the_rule() -> None:
    """--log-file is an option of every command."""
    writing = {
        (words, max(parameter.opts, key=len))
        for words, command in leaves()
        for parameter in command.params
        if "FILE" in (parameter.metavar or "") and "rite" in (getattr(parameter, "help", "") or "")
    }
    assert writing == OUTPUTS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("there", "Is a directory"),
        ("gone/file", "directory gone not found"),
        ("train.py/file", "directory train.py not found"),
        ("x" * 300, "File name too long"),
    ],
)
@pytest.mark.parametrize(("command", "option"), [*OUTPUTS, ("preflight", "--log-file")])
def test_what_cannot_be_written_is_a_usage_error_of_one_line(
    dslaunch: Callable[..., Called], command: str, option: str, path: str, why: str
) -> None:
    words = OUTPUTS.get((command, option), ())
    done = dslaunch(*command.split(), option, path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {option} {path}: {why}\n"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("render", "hostfile", "c.yaml", "-o", "c.yaml"), "--output c.yaml"),
        (("render", "hostfile", "-o", "link"), "--output link"),
        (("slurm", "-o", "hard", "c.yaml", "train.py"), "--output hard"),
        (("slurm", "--template", "link", "-o", "link", "c.yaml"), "--output link"),
        (("run", "--result", "train.py", "c.yaml", "train.py"), "--result train.py"),
        (("topo", "c.yaml", "--svg", "./c.yaml"), "--svg c.yaml"),
        (("topo", "train.py", "--svg", "train.py"), "--svg train.py"),
        (("topo", "train.py", "--apply", "c.yaml", "--svg", "c.yaml"), "--svg c.yaml"),
        (("preflight", "--save", "link"), "--save link"),
        (("preflight", "-c", "c.yaml", "--html", "c.yaml"), "--html c.yaml"),
        (("preflight", "--from", "train.py", "--junit", "hard"), "--junit hard"),
        (("preflight", "--from", "train.py", "--save", "train.py"), "--save train.py"),
        (("estimate", "train.py", "--force", "--write", "train.py"), "--write train.py"),
        (("init", "--hostfile", "hard", "--force", "-o", "train.py"), "--output train.py"),
        (("config", "lint", "train.py", "--log-file", "train.py"), "--log-file train.py"),
        (("--log-file", "link", "nodes"), "--log-file link"),
        (("preflight", "--html", "new", "--junit", "./new"), "--junit new"),
        (("estimate", *SIZE, "--svg", "a", "--write", "there/../a"), "--write"),
    ],
)
def test_a_file_that_is_read_is_not_replaced(
    dslaunch: Callable[..., Called], project: Path, words: tuple[str, ...], refused: str
) -> None:
    before = contents(project)
    done = dslaunch(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {refused}")
    assert contents(project) == before


def test_the_default_cluster_file_of_the_environment_is_not_replaced(
    dslaunch: Callable[..., Called], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSLAUNCH_CLUSTER", str(project / "c.yaml"))
    done = dslaunch("render", "hostfile", "-o", "c.yaml")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error: --output c.yaml: this is the cluster file",
    )


@pytest.mark.parametrize(("command", "option"), list(OUTPUTS))
def test_a_dash_is_standard_output_or_refused_and_never_a_file(
    dslaunch: Callable[..., Called], project: Path, command: str, option: str
) -> None:
    done = called(dslaunch, command, option, "-")
    assert (command in TO_STDOUT) == ("standard output has the result" not in done.stderr)
    assert not (project / "-").exists()


def test_a_link_to_itself_is_an_error_of_one_line(dslaunch: Callable[..., Called]) -> None:
    Path("loop").symlink_to("loop")
    done = dslaunch("render", "hostfile", "-o", "loop")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_dash_prints_what_would_be_written(dslaunch: Callable[..., Called]) -> None:
    printed = dslaunch("render", "hostfile", "-o", "-")
    assert printed.returncode == 0
    assert printed.stdout == dslaunch("render", "hostfile").stdout


def test_two_outputs_may_be_the_same_device(dslaunch: Callable[..., Called]) -> None:
    options = ("--svg", "/dev/null", "--html", "/dev/null", "--force")
    assert dslaunch("estimate", *SIZE, *options).returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_known_before(dslaunch: Callable[..., Called]) -> None:
    Path("locked").mkdir(0o500)
    done = dslaunch("preflight", "--save", "locked/f")
    assert (done.returncode, done.stderr) == (2, "error: --save locked/f: Permission denied\n")
