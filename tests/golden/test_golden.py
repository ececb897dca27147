"""Every example cluster in every format, compared whole; and every line read by real tools."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dslaunch.cluster.load import load_cluster
from dslaunch.cluster.model import JobDefaults
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import DslaunchError
from dslaunch.launch.assume import assume
from dslaunch.launch.job import Job
from dslaunch.launch.planner import make_plan
from dslaunch.render import formats
from dslaunch.render.dry_run import dry_run
from dslaunch.render.launch import Launch, Rendered

ROOT = Path(__file__).parents[2]
CLUSTERS = sorted((ROOT / "clusters").glob("*.yaml"))
SHELL_FORMATS = ("accelerate", "deepspeed", "env", "mpirun", "torchrun")

each_cluster = pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)


@cache
def launch(path: Path) -> Launch:
    """The cluster's own job, or a plain one, with nothing asked of any node."""
    cluster = load_cluster(path)
    allocation = select(cluster, Selection())
    given = cluster.job or JobDefaults(script="train.py", args=("--deepspeed", "ds_config.json"))
    job = Job(
        given.module or given.script or "",
        given.args,
        kind="module" if given.module else "script",
        launcher=cluster.launcher,
        env=tuple((dict(cluster.env) | dict(given.env)).items()),
        secrets=cluster.secrets,
    )
    decided = assume(cluster, allocation, "/home/me/my project")
    return Launch(cluster.name, allocation, job, decided)


def as_text(rendered: Rendered) -> str:
    return rendered.text + "".join(f"note: {note}\n" for note in rendered.notes)


def rendered(name: str, path: Path) -> str:
    """The text with its notes, or the error with its hint."""
    try:
        return as_text(formats.render(name, launch(path)))
    except DslaunchError as error:
        return f"error: {error.message}\nhint: {error.hint}\n"


@each_cluster
@pytest.mark.parametrize("name", formats.names())
def test_every_cluster_renders_in_every_format(
    name: str, path: Path, golden: Callable[[str, str], None]
) -> None:
    golden(f"{path.stem}/{name}.txt", rendered(name, path))


@each_cluster
def test_every_cluster_has_a_dry_run(path: Path, golden: Callable[[str, str], None]) -> None:
    it = launch(path)
    plan = make_plan(it.allocation, it.job, it.decided, cluster=it.cluster)
    golden(f"{path.stem}/dry-run.txt", dry_run(plan))


def test_no_golden_file_is_left_over() -> None:
    above, clusters = Path(__file__).parent, {path.stem for path in CLUSTERS}
    here = {f"{f.parent.name}/{f.stem}" for f in above.glob("*/*.txt") if f.parent.name in clusters}
    wanted = {f"{name}/{n}" for name in clusters for n in (*formats.names(), "dry-run")}
    assert here == wanted


def shell_text(name: str, path: Path) -> str:
    try:
        return formats.render(name, launch(path)).text
    except DslaunchError as error:
        pytest.skip(error.message)


@each_cluster
@pytest.mark.parametrize("name", SHELL_FORMATS)
def test_bash_can_read_every_shell_text(name: str, path: Path) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=shell_text(name, path), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@each_cluster
@pytest.mark.parametrize("name", SHELL_FORMATS)
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint(name: str, path: Path) -> None:
    done = subprocess.run(
        # SC2089, SC2090: a quote in a value is meant to be part of it.
        ["shellcheck", "--shell=sh", "--severity=warning", "--exclude=SC2089,SC2090", "-"],
        input=shell_text(name, path),
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""


@each_cluster
def test_the_notebook_cell_is_python(path: Path) -> None:
    ast.parse(formats.render("notebook", launch(path)).text)


@each_cluster
def test_the_plan_is_json(path: Path) -> None:
    assert json.loads(formats.render("plan", launch(path)).text)["cluster"] == path.stem
