"""Every example cluster as a SLURM job with every launcher; and shellcheck reads them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.test_golden import CLUSTERS, launch

from dslaunch.cluster.load import load_cluster
from dslaunch.cluster.model import Container, Slurm
from dslaunch.errors import DslaunchError
from dslaunch.render.node_text import STEPS
from dslaunch.render.sbatch import Batch, sbatch
from dslaunch.slurm.lint import lint_script

EVERYTHING = Slurm(
    options=(
        *(("partition", "a,b"), ("qos", "high"), ("constraint", "a100&ib"), ("mem", "0")),
        *(("mail_type", "END"), ("mail_user", "me@site"), ("dependency", "afterany:12")),
        *(("array", "0-9%1"), ("cpus_per_task", "16"), ("exclude", "bad[1-2]")),
    ),
    gpus="gpus_per_node",
    output="logs/%x-%A_%a.out",
    requeue=3,
    signal="USR1@600",
    setup=("module load cuda",),
    master_suffix="i",
    container=Container("pyxis", "/images/train.sqsh", ("/data", "/home:/home:ro")),
    directives=("--hint=nomultithread",),
)

each_cluster = pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
each_launcher = pytest.mark.parametrize("launcher", STEPS)


def script(path: Path, launcher: str, slurm: Slurm | None = None) -> str:
    it = launch(path)
    job = replace(it.job, launcher=launcher)
    cluster = load_cluster(path)
    batch = Batch(replace(it, job=job), slurm or cluster.slurm, cluster.network.master_port)
    return sbatch(batch)


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
    golden(f"{path.stem}/sbatch-{launcher}.sh", text)


def test_no_golden_script_is_left_over() -> None:
    here = {str(f.relative_to(f.parents[1])) for f in Path(__file__).parent.glob("*/sbatch-*.sh")}
    wanted = {f"{path.stem}/sbatch-{name}.sh" for path in CLUSTERS for name in STEPS}
    assert here == wanted | {"slurm-site/sbatch-everything.sh"}


def test_every_setting_has_its_place(golden: Callable[[str, str], None]) -> None:
    path = next(path for path in CLUSTERS if path.stem == "slurm-site")
    golden("slurm-site/sbatch-everything.sh", script(path, "torchrun", EVERYTHING))


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
