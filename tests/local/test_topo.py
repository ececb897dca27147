"""`dslaunch topo` asks a node: a program that prints what nvidia-smi does stands on its PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMI = """\
#!/bin/sh
case "$*" in
-L)
    echo 'GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)'
    echo 'GPU 1: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000001)' ;;
'topo -m')
    printf '\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\tGPU NUMA ID\\n'
    printf 'GPU0\\t X \\tNV18\\t0-15\\t0\\t\\tN/A\\nGPU1\\tNV18\\t X \\t0-15\\t0\\t\\tN/A\\n' ;;
'topo -p2p r')
    printf ' \\tGPU0\\tGPU1\\n GPU0\\tX\\tCNS\\n GPU1\\tCNS\\tX\\n' ;;
'nvlink -s')
    for gpu in 0 1; do
        echo "GPU $gpu: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-00000000000$gpu)"
        printf '\\t Link 0: 26.562 GB/s\\n\\t Link 1: <inactive>\\n'
    done ;;
*--query-gpu=*)
    printf 'index, name\\n0, NVIDIA H200\\n1, NVIDIA H200\\n' ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path) -> dict[str, object]:
    """Ask an emulated node with two GPUs; return what was read of its wiring."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    (tmp_path / "c.yaml").write_text("transport: local\nnodes: [{host: n1, slots: 2}]\n")
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "dslaunch", "topo", "c.yaml", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "DSLAUNCH_STATE": str(tmp_path / "state")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, object] = json.loads(done.stdout)["nodes"]["n1"]
    return found


def test_a_node_that_is_asked_names_its_models(node: dict[str, list[dict[str, object]]]) -> None:
    assert [gpu["name"] for gpu in node["gpus"]] == ["NVIDIA H200", "NVIDIA H200"]


def test_a_queried_node_reports_inactive_nvlinks(
    node: dict[str, list[dict[str, object]]],
) -> None:
    assert [gpu["nvlinks"] for gpu in node["gpus"]] == [[1, 2], [1, 2]]


def test_a_queried_node_reports_missing_peer_access(node: dict[str, list[object]]) -> None:
    assert len(node["p2p_denied"]) == 1
