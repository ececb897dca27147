from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from dslaunch.errors import ErrorCode, PlanError
from dslaunch.launch.job import Job
from dslaunch.run.job_files import archive, digests, find_source, script_imports, walk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (
        "train.py",
        "lib/a.py",
        "data/big.txt",
        ".git/config",
        "__pycache__/a.pyc",
        "x.pt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_only_what_an_author_wrote_is_shipped(project: Path) -> None:
    assert list(walk(project)) == ["train.py", "data/big.txt", "lib/a.py"]


@pytest.mark.parametrize("state", ["state", "link", ""])
def test_the_state_directory_of_dslaunch_is_not_shipped(
    project: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    (project / "link").symlink_to("state")
    monkeypatch.setenv("DSLAUNCH_STATE", str(project / state))
    for name in ("runs/r1/plan.json", "emulated/c/n1/train.py"):
        file = Path(os.path.realpath(project / state), name)
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    (project / "lib/runs").mkdir()
    (project / "lib/runs/b.py").write_text("b")
    source = find_source(Job("train.py"), project, "/w")
    assert source is not None
    shipped = [path for path, _ in source.digests]
    assert shipped == ["train.py", "data/big.txt", "lib/a.py", "lib/runs/b.py"]


def test_the_ignore_file_leaves_out_names_and_paths(project: Path) -> None:
    (project / ".dslaunchignore").write_text("# comment\n\ndata/\nlib/a.py\n")
    assert list(walk(project)) == ["train.py"]


@pytest.mark.parametrize("pattern", ["!lib/a.py", "/data", "a/**/b", "**/b", "\\#a"])
def test_a_pattern_that_only_gitignore_files_have_is_an_error_with_its_line(
    project: Path, pattern: str
) -> None:
    (project / ".dslaunchignore").write_text(f"data/\n{pattern}\n")
    with pytest.raises(PlanError) as caught:
        list(walk(project))
    assert caught.value.message.startswith(f"{project}/.dslaunchignore:2: ")


@pytest.mark.parametrize("pattern", ["[!t]*.txt", "data/**", "data/*.t?t"])
def test_a_shell_pattern_leaves_out_what_it_matches(project: Path, pattern: str) -> None:
    (project / ".dslaunchignore").write_text(f"{pattern}\n")
    assert list(walk(project)) == ["train.py", "lib/a.py"]


def test_a_script_in_the_working_directory_brings_that_directory(project: Path) -> None:
    source = find_source(Job("train.py"), project, "/w")
    assert source is not None
    assert (source.local, source.remote, source.script) == (project, "/w", "train.py")


def test_a_script_below_keeps_its_place(project: Path) -> None:
    source = find_source(Job("lib/a.py"), project, "/w")
    assert source is not None
    assert (source.remote, [path for path, _ in source.digests]) == ("/w/lib", ["a.py"])


def test_a_script_elsewhere_keeps_its_absolute_path(project: Path) -> None:
    source = find_source(Job(f"{project}/lib/a.py"), Path("/"), "/w")
    assert source is not None
    assert source.remote == f"{project}/lib"


def test_a_script_that_is_not_here_is_looked_for_on_the_nodes(project: Path) -> None:
    source = find_source(Job("nowhere.py"), project, "/w")
    assert source is not None
    assert source.digests == ()


def test_a_program_of_the_nodes_has_no_source(project: Path) -> None:
    assert find_source(Job("nvidia-smi", kind="command"), project, "/w") is None


@pytest.mark.parametrize("program", ["/bin/echo", "../outside", ".venv/bin/accelerate", "bash"])
def test_programs_of_the_system_and_of_environments_are_the_nodes_own(
    project: Path, program: str
) -> None:
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/bin/accelerate").write_text("#!/bin/sh")
    assert find_source(Job(program, kind="command"), project, "/w") is None


def test_a_program_of_the_job_that_is_not_here_is_looked_for_on_the_nodes(project: Path) -> None:
    source = find_source(Job("./nope.sh", kind="command"), project, "/w")
    assert source is not None
    assert (source.script, source.digests, source.same) == ("nope.sh", (), False)


@pytest.mark.parametrize(
    ("module", "needed"), [("nope.train", ("nope",)), ("lib.missing", ()), ("lib.a", ())]
)
def test_a_module_that_does_not_come_with_the_job_must_be_on_the_nodes(
    project: Path, module: str, needed: tuple[str, ...]
) -> None:
    assert script_imports(Job(module, kind="module"), project).certain == needed


def test_a_module_brings_the_working_directory(project: Path) -> None:
    source = find_source(Job("lib.a", kind="module"), project, "/w")
    assert source is not None
    assert (source.local, source.script) == (project, None)


def test_too_much_to_ship_is_refused(project: Path) -> None:
    with pytest.raises(PlanError) as caught:
        list(digests(project, most_bytes=10))
    assert caught.value.error_code is ErrorCode.CODE_TOO_LARGE
    assert ".dslaunchignore" in (caught.value.hint or "")


def test_an_archive_holds_the_files_and_no_owner(project: Path) -> None:
    source = find_source(Job("train.py"), project, "/w")
    assert source is not None
    with archive(source, ["lib/a.py"]) as file, tarfile.open(fileobj=file) as tar:
        (member,) = tar.getmembers()
        assert (member.name, member.uid, member.uname) == ("lib/a.py", 0, "")
