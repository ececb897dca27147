"""Every command of the documentation works as it is written, in a fresh directory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dslaunch import registry
from dslaunch.launch.launchers import Launcher

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAKE = ("make demo", "make test")
"""Checked by being targets; the one takes minutes, the other runs this test."""

OFFLINE = ("-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
PLUGIN = ROOT / "examples/plugin"
CODE = (".py", ".toml")
DERIVED = ("packages", "has_slurm_command")
"""What a launcher has without stating it."""


def commands(page: Path) -> list[str]:
    """The `$ ...` lines of the page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


WITH_COMMANDS = [page for page in PAGES if commands(page)]
TRAINS_LIKE_ANOTHER = {
    *("detach", "gather-checkpoints", "look-at-runs", "lost-nodes-and-hangs", "no-shared-storage"),
    *("recipes", "rehearse", "watch-a-run"),
}
"""Pages with the training of `first-run`, or with that of tests/testbed/test_checkpoints.py; each
takes up to a minute of a CPU."""


def parameter(page: Path) -> object:
    """A page; further cases of what another page shows are long."""
    marks = (pytest.mark.long,) if page.stem in TRAINS_LIKE_ANOTHER else ()
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.torch
@pytest.mark.parametrize("page", [parameter(page) for page in WITH_COMMANDS])
def test_the_commands_of_a_page_work_one_after_the_other(page: Path, tmp_path: Path) -> None:
    for part in ("clusters", "examples"):
        shutil.copytree(ROOT / part, tmp_path / part)
    env = {**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state")}
    for command in commands(page):
        if command in MAKE:
            assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), re.M)
            continue
        program, *words = shlex.split(command)
        assert program in ("dslaunch", "pip")
        argv = [sys.executable, "-m", program, *words]
        if program == "pip":
            argv += [*OFFLINE, "--target", str(tmp_path / "site")]
            env["PYTHONPATH"] = str(tmp_path / "site")
        done = subprocess.run(
            argv, cwd=tmp_path, env=env, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_code_of_the_page_on_plugins_is_that_of_the_example() -> None:
    page = (ROOT / "docs/howto/write-a-plugin.md").read_text("utf-8")
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```", page, re.S | re.M)
    sources = [file.read_text("utf-8") for file in PLUGIN.rglob("*") if file.suffix in CODE]
    assert len(blocks) >= 6
    assert [block for block in blocks if not any(block in source for source in sources)] == []


def test_the_page_on_plugins_names_every_group_and_every_capability() -> None:
    page = (ROOT / "docs/howto/write-a-plugin.md").read_text("utf-8")
    registries = [part for part in vars(registry).values() if isinstance(part, registry.Registry)]
    groups = {f"| `{part.group}` |" for part in registries}
    members = {name for name in vars(Launcher) if not name.startswith("_")}
    capabilities = {f"| `{name}` |" for name in members | {"summary"} if name not in DERIVED}
    assert {row for row in groups | capabilities if row not in page} == set()


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), (page, target)


def test_cluster_files_shown_are_valid() -> None:
    from dslaunch.cluster.load import parse_cluster

    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
            if "nodes:" in block:
                assert parse_cluster(block, page.name).nodes, page
