"""A cluster file that nobody has named is used only if nobody else controls it."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from dslaunch.cli.file_trust import check_trusted
from dslaunch.cli.options import find_cluster
from dslaunch.errors import ConfigError

TEXT = "nodes: [{host: a, slots: 1}]\n"
OTHER = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A default cluster file of ours in a directory of ours, which is the current one."""
    home = tmp_path / "project"
    home.mkdir(mode=0o755)
    path = home / "cluster.yaml"
    path.write_text(TEXT)
    path.chmod(0o644)
    monkeypatch.chdir(home)
    return path


def validate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dslaunch", "validate", *words]
    environ = {k: v for k, v in os.environ.items() if k != "DSLAUNCH_CLUSTER"}
    return subprocess.run(command, env=environ, text=True, capture_output=True, check=False)


def test_a_default_file_of_ours_is_used(file: Path) -> None:
    assert find_cluster(None, {}) == Path("cluster.yaml")


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_a_default_file_that_everybody_can_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError):
        find_cluster(None, {})


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_default_file_in_a_directory_that_everybody_can_write_is_refused(
    file: Path, mode: int
) -> None:
    file.parent.chmod(mode)
    with pytest.raises(ConfigError):
        find_cluster(None, {})


@AS_ROOT
def test_a_default_file_of_another_user_is_refused_and_a_named_one_is_used(file: Path) -> None:
    os.chown(file, OTHER, -1)
    refused = validate()
    assert refused.returncode == 3
    assert "./cluster.yaml" in refused.stderr
    assert validate("./cluster.yaml").returncode == 0


@AS_ROOT
def test_a_default_file_in_a_directory_of_another_user_is_refused(file: Path) -> None:
    os.chown(file.parent, OTHER, -1)
    assert validate().returncode == 3


@AS_ROOT
@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_default_file_that_another_group_can_write_is_refused(file: Path, place: str) -> None:
    changed = file if place == "file" else file.parent
    os.chown(changed, -1, OTHER)
    changed.chmod(0o775)
    with pytest.raises(ConfigError):
        find_cluster(None, {})


@AS_ROOT
@pytest.mark.parametrize("owner", [0, OTHER])
def test_a_link_counts_as_its_target(file: Path, tmp_path: Path, owner: int) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    target = elsewhere / "c.yaml"
    target.write_text(TEXT)
    os.chown(target, owner, -1)
    file.unlink()
    file.symlink_to(target)
    if owner == OTHER:
        with pytest.raises(ConfigError):
            check_trusted(Path("cluster.yaml"))
    else:
        check_trusted(Path("cluster.yaml"))


def private_group() -> bool:
    """Whether the user has a group of the same name without other members."""
    user = pwd.getpwuid(os.getuid())
    group = grp.getgrgid(user.pw_gid)
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


@pytest.mark.skipif(not private_group(), reason="the user has no private group")
def test_a_file_that_the_users_private_group_can_write_is_used(file: Path) -> None:
    """As umask 002 makes it."""
    group = pwd.getpwuid(os.getuid()).pw_gid
    for path in (file, file.parent):
        os.chown(path, -1, group)
    file.chmod(0o664)
    file.parent.chmod(0o775)
    assert find_cluster(None, {}) == Path("cluster.yaml")


def test_a_file_of_the_environment_variable_is_named(file: Path) -> None:
    file.chmod(0o666)
    assert find_cluster(None, {"DSLAUNCH_CLUSTER": "cluster.yaml"}) == Path("cluster.yaml")
