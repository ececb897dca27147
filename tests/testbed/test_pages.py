"""Pages whose commands need nodes: their `shell-session` blocks, typed on the control machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tests.testbed.vcluster import VirtualCluster

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROJECT = "/tmp/tutorial"
USERS_PYTHON = "/opt/venv/bin/python"
"""What pages write for the Python of the reader's training."""


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page that are in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)


def session(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, each with the output that the page shows for it."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(blocks(page, "shell-session")).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def test_first_training_on_your_own_nodes(
    virtual_cluster: Callable[..., VirtualCluster],
) -> None:
    page = DOCS / "tutorial/your-own-nodes.md"
    cluster = virtual_cluster(nodes=2)
    (script,) = blocks(page, "python")
    (written,) = blocks(page, "yaml")
    cluster.put("control", f"{PROJECT}/hello.py", script)
    for command, shown in session(page):
        done = cluster.run("control", ["bash", "-c", command], cwd=PROJECT)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert [line for line in shown if line not in done.stdout] == []
        if command.startswith("dslaunch init"):
            edited = written.replace(USERS_PYTHON, sys.executable)
            cluster.put("control", f"{PROJECT}/cluster.yaml", edited, mode=0o644)
        if command.startswith("dslaunch run cluster"):
            ranks = re.findall(r"rank (\d) of 4: the sum over all ranks is 4", done.stdout)
            assert sorted(ranks) == ["0", "1", "2", "3"]
