"""`dslaunch init`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dslaunch.cluster.load import load_cluster

Dslaunch = Callable[..., CompletedProcess[str]]


@pytest.fixture(autouse=True)
def two_gpus(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program nvidia-smi that lists two GPUs."""
    program = directory / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: H100 (UUID: a)'\necho 'GPU 1: H100 (UUID: b)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        pytest.param(["--hosts", "n[1-3],m", "--slots", "4"], "4 nodes, 16 slots", id="hosts"),
        pytest.param(["--hostfile", "hostfile"], "2 nodes, 6 slots", id="hostfile"),
        pytest.param(["--ssh-config", "config", "--slots", "2"], "2 nodes, 4 slots", id="ssh"),
        pytest.param(["--slurm-env"], "3 nodes, 12 slots", id="slurm"),
        pytest.param(["--local"], "1 node, 2 slots", id="this-machine"),
        pytest.param(["--local", "--slots", "3"], "1 node, 3 slots", id="this-machine-as-told"),
    ],
)
def test_what_is_written_is_a_valid_cluster_file(
    dslaunch: Dslaunch, monkeypatch: pytest.MonkeyPatch, words: list[str], nodes: str
):
    Path("hostfile").write_text("a slots=4\nb slots=2\n")
    Path("config").write_text("Host a b\n  User ml\nHost *\n  Port 22\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert dslaunch("init", *words).returncode == 0
    assert dslaunch("validate").stdout.endswith(f": {nodes}\n")


def test_a_dash_prints_the_file_and_writes_none(dslaunch: Dslaunch, directory: Path):
    done = dslaunch("init", "--hosts", "a", "-o", "-")
    assert "host: a" in done.stdout
    assert not (directory / "cluster.yaml").exists()


def test_an_existing_file_is_not_replaced(dslaunch: Dslaunch):
    Path("cluster.yaml").write_text("mine")
    done = dslaunch("init", "--hosts", "a")
    assert (done.returncode, Path("cluster.yaml").read_text()) == (2, "mine")
    assert "--force" in done.stderr


def test_a_dangling_link_is_not_written_through(dslaunch: Dslaunch, directory: Path):
    Path("cluster.yaml").symlink_to("elsewhere")
    assert dslaunch("init", "--hosts", "a").returncode == 2
    assert not (directory / "elsewhere").exists()


def test_force_replaces_the_file(dslaunch: Dslaunch):
    Path("cluster.yaml").write_text("mine")
    assert dslaunch("init", "--hosts", "a", "--force").returncode == 0
    assert "host: a" in Path("cluster.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param([], "got none", id="no-source"),
        pytest.param(["--local", "--hosts", "a"], "got --hosts and --local", id="two-sources"),
        pytest.param(["--hosts", ""], "empty", id="empty-name"),
        pytest.param(["--hosts", "n[1-"], "brackets", id="bad-fold"),
        pytest.param(["--slurm-env"], "SLURM_JOB_NODELIST", id="outside-slurm"),
        pytest.param(
            ["--hosts", "a", "-o", "no/dir.yaml"],
            "no/dir.yaml: directory no not found",
            id="no-dir",
        ),
        pytest.param(["--hosts", "a", "--slots", "0"], "--slots", id="no-slots"),
    ],
)
def test_what_cannot_be_is_code_2_and_writes_nothing(
    dslaunch: Dslaunch, directory: Path, words: list[str], found: str
):
    done = dslaunch("init", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert found in done.stderr
    assert not (directory / "cluster.yaml").exists()


def test_an_ssh_config_without_nodes_is_an_error_of_a_file(dslaunch: Dslaunch):
    done = dslaunch("init", "--ssh-config", "/dev/null")
    assert (done.returncode, "no `Host` entry" in done.stderr) == (3, True)


def test_a_hostfile_that_is_no_text_is_an_error_of_a_file(dslaunch: Dslaunch):
    Path("bytes").write_bytes(b"\xff\xfe")
    done = dslaunch("init", "--hostfile", "bytes")
    assert (done.returncode, done.stdout) == (3, "")
    assert "bytes: not UTF-8 text" in done.stderr


def test_every_bad_line_of_a_hostfile_is_named(dslaunch: Dslaunch):
    Path("h").write_text("a slots=4\nb slots=x\na slots=2\n")
    done = dslaunch("init", "--hostfile", "h")
    places = [line.split(": ")[1] for line in done.stderr.splitlines() if "error" in line]
    assert (done.returncode, places) == (3, ["h:2:1", "h:3:1"])


def test_an_nvidia_smi_that_cannot_start_is_an_error_of_ours(dslaunch: Dslaunch, two_gpus: Path):
    two_gpus.write_text("#!/no/such/interpreter\n")
    done = dslaunch("init", "--local")
    assert done.returncode == 2
    assert "--slots N" in done.stderr


def test_an_ssh_config_of_another_place_is_named_in_the_file(dslaunch: Dslaunch, directory: Path):
    (directory / "site_config").write_text("Host n1 n2\n  HostName %h.site\n")
    assert dslaunch("init", "--ssh-config", "site_config", "--slots", "8").returncode == 0
    written = load_cluster(Path("cluster.yaml"))
    assert written.ssh.config_file == str(directory / "site_config")
    assert [node.host for node in written.nodes] == ["n1", "n2"]


def test_users_of_a_hostfile_are_kept(dslaunch: Dslaunch):
    Path("hosts").write_text("ml@n1 slots=8 max-slots=8\nml@n2:8\nn3\n")
    assert dslaunch("init", "--hostfile", "hosts", "--slots", "4").returncode == 0
    written = load_cluster(Path("cluster.yaml"))
    assert [(n.host, n.user, len(n.slots)) for n in written.nodes] == [
        ("n1", "ml", 8), ("n2", "ml", 8), ("n3", None, 4)
    ]  # fmt: skip


def test_a_hostfile_without_slots_says_how_to_give_them(dslaunch: Dslaunch):
    Path("hosts").write_text("n1\nn2\n")
    done = dslaunch("init", "--hostfile", "hosts")
    assert done.returncode == 3
    assert "--slots N" in done.stderr
