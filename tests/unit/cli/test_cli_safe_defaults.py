"""What is given by mistake starts nothing: unset variables, wrong places, the scheduler's nodes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.api import check_not_scheduled
from dslaunch.cli.script_options import defined_options, option_names, own_options
from dslaunch.cluster.model import Cluster, Node, Slurm
from dslaunch.errors import PlanError
from dslaunch.transport.transports import srun

Called = subprocess.CompletedProcess[str]
SITE = "nodes: [{host: 'n[1-2]', slots: 2}]\nslurm: {partition: gpu}\n"
LOCAL = "transport: local\nnodes: [{host: 'n[1-2]', slots: 2}]\n"


@pytest.fixture
def site(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's cluster file, a script, and an ssh that leaves a mark."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("DSLAUNCH_STATE", str(directory / "state"))
    (directory / "site.yaml").write_text(SITE)
    (directory / "c.yaml").write_text(LOCAL)
    (directory / "train.py").write_text("print('trained')\n")
    return directory


# ---------------------------------------------------------------- selection


@pytest.mark.parametrize("option", ["--include", "--exclude", "-i", "-e"])
@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize(
    "command", [("run", "--dry-run"), ("slurm", "--render"), ("render", "torchrun"), ("preflight",)]
)
@pytest.mark.usefixtures("site")
def test_an_empty_selection_is_an_unset_variable_and_not_every_node(
    dslaunch: Callable[..., Called], command: tuple[str, ...], option: str, value: str
) -> None:
    name, *more = command
    words = [name, option, value, *more, "c.yaml"]
    done = dslaunch(*words, *(() if name == "preflight" else ("train.py",)))
    assert (done.returncode, done.stdout) == (3, "")
    assert "empty" in done.stderr


@pytest.mark.usefixtures("site")
def test_without_the_option_every_node_is_used(dslaunch: Callable[..., Called]) -> None:
    assert dslaunch("run", "--dry-run", "c.yaml", "train.py").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "names"),
    [
        (("-e", "n[1-2]"), 3, "n[1-2]"),
        (("-e", "n1@n2:0-1"), 3, "n[1-2]"),
        (("--min-nodes", "3"), 3, "--min-nodes 3"),
        (("-i", "n1", "--min-nodes", "2"), 3, "n1"),
        (("-r", "4"), 2, "rank 4"),
        (("-r", "0-9"), 2, "rank 4"),
        (("-N", "1", "-r", "2"), 2, "0 to 1"),
        (("-i", "n1:0", "-r", "1"), 2, "0"),
    ],
)
@pytest.mark.parametrize("command", ["run", "slurm"])
@pytest.mark.usefixtures("site")
def test_nodes_and_ranks_that_are_not_there_are_refused_with_those_that_are(
    dslaunch: Callable[..., Called],
    command: str,
    words: tuple[str, ...],
    code: int,
    names: str,
) -> None:
    how = {"run": "--dry-run", "slurm": "--render"}[command]
    done = dslaunch(command, *words, how, "c.yaml", "train.py")
    assert (done.returncode, done.stdout) == (code, "")
    assert names in done.stderr


# ---------------------------------------------------------------- the scheduler's nodes


def test_nodes_of_the_scheduler_are_refused_outside_an_allocation_with_both_ways_out(
    dslaunch: Callable[..., Called], site: Path
) -> None:
    done = dslaunch("run", "site.yaml", "train.py")
    assert done.returncode == 3
    for way in ("dslaunch slurm", "salloc", "run --slurm", "--force"):
        assert way in done.stderr
    assert not (site / "state").exists()


def scheduled(**more: object) -> Cluster:
    return Cluster("c", (Node("n1", (0,)),), slurm=Slurm(nodes=2), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["auto", "fabric", "openssh"])
def test_every_transport_over_ssh_is_refused(transport: str) -> None:
    with pytest.raises(PlanError):
        check_not_scheduled(scheduled(transport=transport), {})


@pytest.mark.parametrize(
    ("cluster", "environ"),
    [
        (scheduled(), {"SLURM_JOB_ID": "7"}),
        (scheduled(transport="local"), {}),
        (scheduled(transport=srun.NAME), {}),
        (Cluster("c", (Node("n1", (0,)),)), {}),
    ],
)
def test_an_allocation_this_machine_and_files_without_slurm_are_accepted(
    cluster: Cluster, environ: dict[str, str]
) -> None:
    check_not_scheduled(cluster, environ)


# ---------------------------------------------------------------- our options behind the script


def test_options_are_known_by_both_names_and_with_a_value() -> None:
    names = option_names("run")
    assert {"--dry-run", "--nodes", "-N", "--include"} <= names
    args = ("--lr", "1", "--dry-run", "--nodes=2", "-N", "--dry-run", "--", "--json")
    assert own_options(args, names) == ("--dry-run", "--nodes", "-N")
    assert "--render" in option_names("slurm")


@pytest.mark.parametrize(
    "definition",
    [
        "p.add_argument('--dry-run', action='store_true')",
        "@click.option('--dry-run')\ndef main(): ...",
    ],
)
def test_options_that_the_script_defines_are_found_in_its_source(
    tmp_path: Path, definition: str
) -> None:
    (tmp_path / "train.py").write_text(definition)
    assert "--dry-run" in defined_options(tmp_path / "train.py")
    assert defined_options(tmp_path / "gone.py") == frozenset()


def on_a_terminal(words: list[str], *, interrupt_at: str) -> tuple[int, str]:
    """Run dslaunch on a terminal, press Ctrl-C when a text appears; its exit code and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "dslaunch", *words])
    text = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux's end of a terminal
            break
        if not data:
            break
        text += data
        if interrupt_at.encode() in text:
            os.write(terminal, b"\x03")
            interrupt_at = "\0"
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), text.decode()


def test_on_a_terminal_there_is_time_to_press_ctrl_c(site: Path) -> None:
    words = ["run", "c.yaml", "train.py", "--dry-run"]
    code, text = on_a_terminal(words, interrupt_at="Ctrl-C")
    assert code == 130
    assert "--dry-run" in text
    assert "trained" not in text
    assert not (site / "state").exists()


@pytest.mark.parametrize("source", ["print('trained')\n", "p.add_argument('--dry-run')\n"])
def test_without_a_terminal_a_note_is_printed_and_the_script_gets_its_argument(
    dslaunch: Callable[..., Called], site: Path, source: str
) -> None:
    (site / "train.py").write_text(source)
    # a wrong config ends it behind the note, before anything starts
    (site / "wrong.json").write_text('{"zero_optimisation": {}}')
    own = ("--deepspeed_config", "wrong.json")
    done = dslaunch("run", "c.yaml", "train.py", "--dry-run", *own)
    assert done.returncode == 3
    assert "--dry-run" in done.stderr


# ---------------------------------------------------------------- what is to be run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("run", "c.yaml", "sub"), "sub/only.py"),
        (("run", "c.yaml", "."), "train.py"),
        (("slurm", "c.yaml", "sub"), "directory"),
        (("run", "c.yaml", "job.sh"), "--no-python ./job.sh"),
        (("slurm", "c.yaml", "job.sh"), "--no-python ./job.sh"),
        (("run", "--no-python", "c.yaml", "job.sh"), "./job.sh"),
        (("run", "--no-python", "c.yaml", "./job.sh"), "chmod +x"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_can(
    dslaunch: Callable[..., Called], site: Path, words: tuple[str, ...], names: str
) -> None:
    (site / "sub").mkdir()
    (site / "sub/only.py").touch()
    (site / "job.sh").touch()
    done = dslaunch(*words)
    assert done.returncode == 2
    assert names in done.stderr


@pytest.mark.parametrize("launcher", ["torchrun", "elastic", "deepspeed", "accelerate", "direct"])
def test_a_program_of_the_working_directory_keeps_its_slash(
    dslaunch: Callable[..., Called], site: Path, launcher: str
) -> None:
    (site / "job.sh").write_text("#!/bin/sh\n")
    (site / "job.sh").chmod(0o755)
    for path in ("./job.sh", str(site / "job.sh")):
        done = dslaunch("run", "--dry-run", "-l", launcher, "--no-python", "c.yaml", path)
        assert done.returncode == 0
        assert " ./job.sh" in done.stdout


def test_a_transport_for_tests_is_none_of_the_users(
    dslaunch: Callable[..., Called], site: Path
) -> None:
    (site / "f.yaml").write_text("transport: fake\nnodes: [{host: n1, slots: 1}]\n")
    assert dslaunch("validate", "f.yaml").returncode == 3
    assert dslaunch("run", "--transport", "fake", "c.yaml", "train.py").returncode == 2


@pytest.mark.parametrize("words", [("--no-python", "./nope.sh"), ("-m", "nope.train"), ("no.py",)])
def test_what_is_neither_here_nor_on_the_nodes_starts_nothing(
    dslaunch: Callable[..., Called], site: Path, words: tuple[str, ...]
) -> None:
    done = dslaunch("run", "-l", "direct", "c.yaml", *words)
    assert done.returncode in (3, 4)
    assert "nope" in done.stderr or "no.py" in done.stderr
    assert not list((site / "state").glob("runs/*"))


def test_a_program_of_the_system_ships_nothing(dslaunch: Callable[..., Called], site: Path) -> None:
    done = dslaunch("run", "-l", "direct", "--no-python", "c.yaml", "/bin/echo", "hello")
    assert (done.returncode, done.stdout.count("hello")) == (0, 4)


def test_logs_of_ranks_that_the_run_never_had_are_refused(
    dslaunch: Callable[..., Called], site: Path
) -> None:
    started = dslaunch("run", "-l", "direct", "c.yaml", "train.py", "--deepspeed_config", "no.json")
    assert started.returncode == 0
    assert "no.json" in started.stderr
    for command in ("logs", "attach"):
        done = dslaunch(command, "latest", "-r", "4")
        assert (done.returncode, done.stdout) == (2, "")
        assert "0-3" in done.stderr
    assert "trained" in dslaunch("logs", "latest", "-r", "3").stdout
