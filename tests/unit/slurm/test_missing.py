"""What a job needs and is certainly missing is found before it waits in the queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Container, Slurm
from dslaunch.cluster.select import Selection, select
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job, Kind
from dslaunch.render.batch import Batch
from dslaunch.render.launch import Launch
from dslaunch.run.job_files import similar_name
from dslaunch.slurm.missing import FilePurpose, missing, missing_here


def batch(
    workdir: str | Path,
    *args: str,
    node: str = "",
    program: str = "train.py",
    kind: Kind = "script",
) -> Batch:
    """A job that runs in a directory, on one node with further keys."""
    cluster = parse_cluster(f"nodes: [{{host: a, slots: 1{node}}}]\n", "c.yaml")
    allocation = select(cluster, Selection())
    decided = assume(cluster, allocation, str(workdir))
    job = Job(program=program, args=args, kind=kind)
    return Batch(Launch("c", allocation, job, decided), Slurm())


def found(made: Batch) -> list[tuple[FilePurpose, str]]:
    """What is found to be missing by a look at this machine."""
    workdir = made.launch.decided.workdir
    return [(one.need, one.name) for one in missing(made, missing_here(workdir))]


def test_everything_that_is_missing_is_found_at_once(tmp_path: Path) -> None:
    node = ", activate: '. env/bin/activate'"
    made = batch(tmp_path, "--deepspeed_config", "ds.json", node=node)
    made = replace(made, slurm=Slurm(setup=("module load cuda", "source site.sh")))
    assert found(made) == [
        (FilePurpose.SCRIPT, "train.py"),
        (FilePurpose.ACTIVATE, "env/bin/activate"),
        (FilePurpose.SETUP, "site.sh"),
        (FilePurpose.DEEPSPEED_CONFIG, "ds.json"),
    ]


def test_a_missing_interpreter_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for python in (f"{tmp_path}/env/bin/python", "env/bin/python"):
        assert found(batch(tmp_path, node=f", python: {python}")) == [
            (FilePurpose.INTERPRETER, python)
        ]


def test_nothing_is_missing_where_all_is_there(tmp_path: Path) -> None:
    for name in ("train.py", "ds.json", "python"):
        (tmp_path / name).touch()
    node = f", python: {tmp_path}/python"
    assert found(batch(tmp_path, "--deepspeed", "ds.json", node=node)) == []


def test_an_unreadable_script_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch(mode=0)
    assert found(batch(tmp_path)) == []


def test_a_link_to_what_only_nodes_have_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "python").symlink_to("/only/on/nodes/python3.12")
    assert found(batch(tmp_path, node=f", python: {tmp_path}/python")) == []


@pytest.mark.parametrize(
    ("workdir", "node"),
    [
        ("/only/on/nodes", ""),
        ("~/of/the/nodes", ""),
        ("relative/to/a/home", ""),
    ],
)
def test_nothing_is_claimed_of_directories_that_are_not_seen(workdir: str, node: str) -> None:
    assert found(batch(workdir, node=node)) == []


@pytest.mark.parametrize(
    "node",
    [
        ", python: python3.99",
        ", python: /opt-of-the-nodes/bin/python",
        ", activate: 'module load torch'",
        ", activate: '[ -f /a ] && . ./no.sh'",
        ", activate: 'cd sub && . ./no.sh'",
        ", activate: '. $HOME/no.sh'",
    ],
)
def test_nothing_is_claimed_of_what_only_nodes_or_a_shell_can_tell(
    tmp_path: Path, node: str
) -> None:
    (tmp_path / "train.py").touch()
    assert found(batch(tmp_path, node=node)) == []


def test_modules_and_programs_of_the_path_are_not_looked_for(tmp_path: Path) -> None:
    assert found(batch(tmp_path, program="pkg.train", kind="module")) == []
    assert found(batch(tmp_path, program="train", kind="command")) == []
    assert found(batch(tmp_path, program="./train", kind="command")) == [
        (FilePurpose.SCRIPT, "./train")
    ]


def test_a_container_is_seen_only_through_what_it_mounts(tmp_path: Path) -> None:
    made = batch(tmp_path)

    def inside(*mounts: str) -> list[tuple[FilePurpose, str]]:
        container = Container("pyxis", "/image.sqsh", mounts)
        return found(replace(made, slurm=Slurm(container=container)))

    assert inside() == inside("/data", f"{tmp_path}:/workspace") == []
    assert inside(f"{tmp_path.parent}:{tmp_path.parent}:ro") == [(FilePurpose.SCRIPT, "train.py")]


def test_relative_names_are_below_the_directory_where_the_container_starts(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.py").touch()
    container = Container("pyxis", "/i.sqsh", (str(tmp_path),), workdir=f"{tmp_path}/run")
    made = batch(tmp_path)
    assert found(made) == [(FilePurpose.SCRIPT, "train.py")]
    assert found(replace(made, slurm=Slurm(container=container))) == []


def test_a_name_that_looks_like_the_missing_one_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    made = batch(tmp_path, program="trian.py")
    (one,) = missing(made, missing_here(str(tmp_path)))
    assert similar_name(one.path) == "train.py"
