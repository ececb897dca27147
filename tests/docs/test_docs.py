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

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAKE = ("make demo", "make test")
"""Checked by being targets; the one takes minutes, the other runs this test."""


def commands(page: Path) -> list[str]:
    """The `$ ...` lines of the page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


WITH_COMMANDS = [page for page in PAGES if commands(page)]


@pytest.mark.torch
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=[page.stem for page in WITH_COMMANDS])
def test_the_commands_of_a_page_work_one_after_the_other(page: Path, tmp_path: Path) -> None:
    for part in ("clusters", "examples"):
        shutil.copytree(ROOT / part, tmp_path / part)
    env = {**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state")}
    for command in commands(page):
        if command in MAKE:
            assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), re.M)
            continue
        program, *words = shlex.split(command)
        assert program == "dslaunch"
        argv = [sys.executable, "-m", "dslaunch", *words]
        done = subprocess.run(
            argv, cwd=tmp_path, env=env, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_cluster_files_shown_are_valid(page: Path) -> None:
    from dslaunch.cluster.load import parse_cluster

    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
        if "nodes:" in block:
            assert parse_cluster(block, page.name).nodes
