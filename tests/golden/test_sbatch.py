"""Every example cluster as a SLURM job with every launcher; and shellcheck reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.golden.test_golden import CLUSTERS, launch

from dslaunch.cluster.load import load_cluster
from dslaunch.cluster.model import Container, Slurm
from dslaunch.errors import DslaunchError
from dslaunch.registry import LAUNCHERS
from dslaunch.render.batch import Batch, Origin
from dslaunch.render.sbatch import sbatch
from dslaunch.slurm.lint import lint_script

EVERYTHING = Slurm(  # noqa: S604 - `shell` is the interpreter of the script
    options=(
        *(("partition", "a,b"), ("qos", "high"), ("constraint", "a100&ib"), ("mem", "0")),
        *(("mail_type", "END"), ("mail_user", "me@site"), ("dependency", "afterany:12")),
        *(("array", "0-9%1"), ("cpus_per_task", "16"), ("exclude", "bad[1-2]")),
        *(("comment", "llama, 3rd try"), ("wckey", "llm"), ("licenses", "x:2"), ("tmp", "100G")),
        *(("error", "logs/%x-%A_%a.err"), ("segment", "2")),
    ),
    gpus="gpus_per_node",
    output="logs/%x-%A_%a.out",
    requeue=3,
    signal="USR1@600",
    setup=("module load cuda",),
    teardown=("rsync -a /tmp/out /nfs/",),
    shell="/bin/bash -l",
    srun=("--cpu-bind=none", "SLURM_DEBUG=1"),
    master_suffix="i",
    container=Container("pyxis", "/images/train.sqsh", ("/data", "/home:/home:ro")),
    directives=("--hint=nomultithread",),
)

CONTAINERS = {
    "apptainer": Container(
        "apptainer", "/images/train.sif", ("/data",), ("--cleanenv",), env=("NCCL_DEBUG",)
    ),
    "enroot": Container("enroot", "/images/train.sqsh", ("/my data:/data:ro",), gpu="nvidia"),
    "podman-hpc": Container(
        "podman-hpc", "site/train:1", ("/data",), workdir="/data/run", gpu="rocm"
    ),
}

each_cluster = pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
each_launcher = pytest.mark.parametrize("launcher", LAUNCHERS.names())


def script(path: Path, launcher: str, slurm: Slurm | None = None) -> str:
    it = launch(path)
    job = replace(it.job, launcher=launcher)
    cluster = load_cluster(path)
    batch = Batch(replace(it, job=job), slurm or cluster.slurm, cluster.network.master_port)
    origin = Origin(f"clusters/{path.name}", f"dslaunch slurm --render clusters/{path.name}")
    return sbatch(replace(batch, origin=origin))


def without_bodies(text: str) -> str:
    """The script without the bodies of its functions, which two golden files hold in full."""
    return re.sub(r"^(\w+\(\)) \{\n.*?^\}\n", r"\1 { ... }\n", text, flags=re.MULTILINE | re.DOTALL)


def checked(text: str, shell: str = "bash") -> str:
    done = subprocess.run(
        # SC2089, SC2090: a quote in a value is meant to be part of it.
        ["shellcheck", f"--shell={shell}", "--exclude=SC2089,SC2090", "-"],
        input=text,
        capture_output=True,
        text=True,
    )
    return done.stdout


needs_shellcheck = pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")


@each_cluster
@each_launcher
def test_every_cluster_is_a_job_for_slurm(
    path: Path, launcher: str, golden: Callable[[str, str], None]
) -> None:
    try:
        text = script(path, launcher)
    except DslaunchError as error:
        text = f"error: {error.message}\nhint: {error.hint}\n"
    golden(f"{path.stem}/sbatch-{launcher}.sh", without_bodies(text))


def test_no_golden_script_is_left_over() -> None:
    here = {str(f.relative_to(f.parents[1])) for f in Path(__file__).parent.glob("*/sbatch-*.sh")}
    wanted = {f"{path.stem}/sbatch-{name}.sh" for path in CLUSTERS for name in LAUNCHERS.names()}
    wanted |= {f"slurm-site/sbatch-in-{name}.sh" for name in CONTAINERS}
    assert here == wanted | {"slurm-site/sbatch-everything.sh", "two-nodes/sbatch-whole.sh"}


def test_every_setting_has_its_place(golden: Callable[[str, str], None]) -> None:
    path = next(path for path in CLUSTERS if path.stem == "slurm-site")
    golden("slurm-site/sbatch-everything.sh", script(path, "torchrun", EVERYTHING))


def test_a_plain_script_is_short(golden: Callable[[str, str], None]) -> None:
    path = next(path for path in CLUSTERS if path.stem == "two-nodes")
    golden("two-nodes/sbatch-whole.sh", script(path, "torchrun"))


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_step_enters_its_container(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"slurm-site/sbatch-in-{name}.sh", without_bodies(in_container(CONTAINERS[name])))


def in_container(container: Container) -> str:
    path = next(path for path in CLUSTERS if path.stem == "slurm-site")
    slurm = replace(load_cluster(path).slurm, container=container)
    return script(path, "deepspeed", slurm)


@needs_shellcheck
@pytest.mark.parametrize("name", CONTAINERS)
def test_shellcheck_has_no_complaint_of_a_container(name: str) -> None:
    assert checked(in_container(CONTAINERS[name])) == ""


@pytest.mark.parametrize("name", CONTAINERS)
def test_our_own_lint_has_no_remark_on_a_container(name: str) -> None:
    assert lint_script(in_container(CONTAINERS[name])).remarks == ()


@needs_shellcheck
@each_cluster
@each_launcher
def test_shellcheck_has_no_complaint(path: Path, launcher: str) -> None:
    try:
        text = script(path, launcher)
    except DslaunchError as error:
        pytest.skip(error.message)
    assert checked(text) == ""


@needs_shellcheck
def test_shellcheck_has_no_complaint_of_every_setting() -> None:
    path = next(path for path in CLUSTERS if path.stem == "slurm-site")
    assert checked(script(path, "torchrun", EVERYTHING)) == ""


@each_cluster
@each_launcher
def test_our_own_lint_has_no_remark(path: Path, launcher: str) -> None:
    try:
        text = script(path, launcher)
    except DslaunchError as error:
        pytest.skip(error.message)
    assert lint_script(text).remarks == ()


def test_our_own_lint_has_no_remark_on_every_setting() -> None:
    path = next(path for path in CLUSTERS if path.stem == "slurm-site")
    assert lint_script(script(path, "torchrun", EVERYTHING)).remarks == ()
