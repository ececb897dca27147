"""Options and files of deepspeed, torchrun and accelerate: accepted, or answered with a hint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dslaunch.cli.commands import NAMES, leaves
from dslaunch.cli.foreign_commands import INSTEAD as COMMANDS
from dslaunch.cli.foreign_options import INSTEAD, SAME, SBATCH_LETTERS, instead, own_name

Dslaunch = Callable[..., CompletedProcess[str]]


@pytest.fixture
def workers(directory: Path) -> Path:
    """A cluster with the host names of DeepSpeed's documentation."""
    path = directory / "c.yaml"
    path.write_text("name: w\nnodes: [{host: 'worker-[0-1]', slots: 4}]\n")
    (directory / "train.py").write_text("")
    return path


def rendered(dslaunch: Dslaunch, *words: str) -> str:
    done = dslaunch("render", "torchrun", "c.yaml", *words, "train.py")
    assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param(["--num_nodes", "1"], ["--nodes", "1"], id="deepspeed-nodes"),
        pytest.param(["--num_gpus=2"], ["--slots", "2"], id="deepspeed-gpus"),
        pytest.param(["--nnodes", "1"], ["--nodes", "1"], id="torchrun-nodes"),
        pytest.param(["--nproc_per_node", "2"], ["--slots", "2"], id="torchrun-underscores"),
        pytest.param(["--nproc-per-node=2"], ["--slots", "2"], id="torchrun-dashes"),
        pytest.param(["--num_machines", "1"], ["--nodes", "1"], id="accelerate-nodes"),
        pytest.param(["--master_port", "1234"], ["--master-port", "1234"], id="port"),
        pytest.param(["--main_process_port=1234"], ["--master-port", "1234"], id="accelerate-port"),
        pytest.param(["--master_addr", "10.0.0.9"], ["--master-addr", "10.0.0.9"], id="address"),
        pytest.param(
            ["--include", "worker-0@worker-1:0,2"],
            ["-i", "worker-0:0-3@worker-1:0,2"],
            id="deepspeed-include",
        ),
        pytest.param(["--exclude", "worker-1:0,2"], ["-e", "worker-1:0,2"], id="deepspeed-exclude"),
    ],
)
def test_an_option_of_another_launcher_means_the_same(
    dslaunch: Dslaunch, workers: Path, theirs: list[str], ours: list[str]
):
    assert rendered(dslaunch, *theirs) == rendered(dslaunch, *ours)


def test_run_takes_the_rendezvous_port(dslaunch: Dslaunch, workers: Path):
    done = dslaunch("run", "--dry-run", "--master_port=1234", "c.yaml", "train.py")
    assert "--master-port=1234" in done.stdout


@pytest.mark.parametrize("option", sorted(INSTEAD))
def test_an_option_without_an_equivalent_has_a_hint(dslaunch: Dslaunch, workers: Path, option: str):
    command = "schema" if option == "--cluster" else "run"
    written = f"--{option[2:].replace('-', '_')}" if option.startswith("--") else option
    done = dslaunch(command, written, "1")
    error, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert written in error
    assert hint == f"hint: {INSTEAD[option]}"


@pytest.mark.parametrize(
    ("option", "key"),
    [*SBATCH_LETTERS.items(), ("--partition", "partition"), ("--job-name", "job_name")],
)
def test_an_option_of_sbatch_is_answered_with_the_key_of_the_cluster_file(option: str, key: str):
    for command in ("run", "slurm"):
        assert f"--set {key}=VALUE" in str(instead(option, command))


def test_an_option_of_sbatch_is_answered_only_where_a_job_is_started():
    assert instead("--partition", "nodes") is None


@pytest.mark.parametrize("name", ["sbatch", "kill", "ls", "doctor", "version"])
def test_a_command_of_another_tool_is_answered_with_what_to_do(dslaunch: Dslaunch, name: str):
    error, hint = dslaunch(name).stderr.splitlines()
    assert name in error
    assert hint == f"hint: {COMMANDS[name]}"


def test_no_foreign_name_of_a_command_is_one_of_ours():
    assert set(COMMANDS).isdisjoint(NAMES)


@pytest.mark.parametrize(
    ("written", "command"),
    [("c.yaml", "dslaunch run c.yaml SCRIPT"), ("train.py", "dslaunch run CLUSTER.yaml train.py")],
)
def test_a_file_in_the_place_of_the_command_is_answered_with_the_command(
    dslaunch: Dslaunch, written: str, command: str
):
    done = dslaunch(written)
    assert done.returncode == 2
    assert command in done.stderr


def test_an_option_unlike_all_of_ours_is_answered_without_a_suggestion(dslaunch: Dslaunch):
    assert dslaunch("run", "--gridd").stderr.endswith("\nhint: see `dslaunch run -h`\n")
    assert "the script follows its name: SCRIPT --lr" in dslaunch("run", "--lr", "1").stderr
    assert "SCRIPT" not in dslaunch("nodes", "--lr", "1").stderr


def own_options() -> set[str]:
    return {name for _, command in leaves() for p in command.params for name in p.opts}


def test_no_foreign_name_hides_an_option_of_ours():
    ours = {name.removeprefix("--") for name in own_options()}
    assert set(SAME) & ours == {"hostfile"}
    assert {f"--{name}" for name in SAME.values()} <= own_options()


@pytest.mark.parametrize("option", sorted(n for n in own_options() if n.count("-") > 2))
def test_every_option_may_be_written_with_underscores(option: str):
    assert own_name(option[2:].replace("-", "_")) == option[2:]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "hosts", "train.py"],
        ["run", "--hostfile", "hosts", "train.py"],
        ["run", "--hostfile=hosts", "train.py"],
        ["run", "-c", "hosts", "train.py"],
        ["slurm", "hosts", "train.py"],
        ["nodes", "hosts"],
        ["validate", "hosts"],
        ["preflight", "--hostfile", "hosts"],
    ],
    ids=" ".join,
)
def test_a_hostfile_is_recognized_and_the_command_that_converts_it_is_named(
    dslaunch: Dslaunch, directory: Path, words: list[str]
):
    Path("hosts").write_text("worker-0 slots=4\nworker-1 slots=4\n")
    done = dslaunch(*words)
    assert done.returncode in (2, 3)
    assert "dslaunch init --hostfile hosts" in done.stderr


@pytest.mark.parametrize("command", ["status", "logs", "attach", "stacks", "stop"])
def test_a_run_is_the_latest_where_none_is_named(
    dslaunch: Dslaunch, command: str, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DSLAUNCH_STATE", str(directory / "state"))
    named, unnamed = dslaunch(command, "latest"), dslaunch(command)
    assert (unnamed.returncode, unnamed.stderr) == (named.returncode, named.stderr)
    assert unnamed.returncode == 2


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["render", "hostfile", "c.yaml", "-o", "out"], ["out"]),
        (["slurm", "c.yaml", "-o", "out", "train.py"], ["out"]),
        (["init", "--hosts", "a", "--slots", "1", "-o", "out"], ["out"]),
        (["config", "init", "-o", "out"], ["out"]),
        (
            [
                "estimate",
                "--params",
                "1e9",
                "--largest-layer",
                "1e7",
                "--nodes",
                "1",
                "--gpus-per-node",
                "8",
                "--svg",
                "s",
                "--html",
                "h",
            ],
            ["s", "h"],
        ),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_every_written_file_is_named_on_standard_error(
    dslaunch: Dslaunch, workers: Path, words: list[str], files: list[str]
):
    done = dslaunch(*words)
    assert [f"wrote {file}" in done.stderr.splitlines() for file in files] == [True] * len(files)
    assert all(Path(file).is_file() for file in files)
