"""Recorded answers of nodes as what they have, and what is then said of a config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from tests.checks.recorded import HELLO, first_questions
from tests.testbed.gpus import H100, topo
from typer.testing import CliRunner

from dslaunch.cli import config
from dslaunch.cli.estimate import estimate
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.select import Selection, select
from dslaunch.deepspeed.hardware import DirectoryFacts, NodeHardware
from dslaunch.preflight.check import Question, Scope
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks._machine import MEMORY, path_question
from dslaunch.preflight.checks.table_fs_nvme import CHECKS, MOUNTS
from dslaunch.preflight.hardware import hardware, network, node_local
from dslaunch.preflight.recording import NodeRecording, Recording, read

CLUSTER = """\
nodes: [{host: 'n[1-2]', slots: 2, labels: {gpu: A100, memory: 64G}}]
storage: {node_local: /nvme}
"""
GIB = 1 << 30
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "stage3_gather_16bit_weights_on_model_save": True,
        "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
    },
}


def query(name: str) -> str:
    """What nvidia-smi says of two such GPUs."""
    rows = [{"index": str(at), **H100, "name": name} for at in range(2)]
    return "".join(", ".join(words) + "\n" for words in (rows[0], *(r.values() for r in rows)))


def mount(kind: str) -> dict[str, Any]:
    return {"point": "/nvme", "type": kind, "source": "/dev/nvme0n1", "options": "rw"}


def path(name: str, free: int, of: dict[str, Any] | None) -> dict[str, Any]:
    """What a node says of a directory."""
    numbers = {"size": 1000 * GIB, "free": free, "inodes": 0, "inodes_free": 0}
    return {"path": name, **numbers, "writable": True, "mount": of}


def answers(
    kind: str = "ext4", gpu: str = "NVIDIA H100 80GB HBM3", link: str = "NV18", **more: Any
) -> dict[str, Mapping[str, Any]]:
    """What one node answers: what is in /nvme, which GPUs, how they are linked."""
    told: list[tuple[Question, Any]] = [
        (nvidia.QUERY, {"code": 0, "out": query(gpu), "err": ""}),
        (nvidia.TOPO, {"code": 0, "out": topo(2, {(0, 1): link}), "err": ""}),
        (MEMORY, {"/proc/meminfo": f"MemTotal:       {1007 * GIB // 1024} kB\n"}),
        (MOUNTS, {MOUNTS.argument[0]: "30 1 0:25 / /dev/shm rw shared:3 - tmpfs shm rw\n"}),
        (path_question("/nvme"), path("/nvme", 900 * GIB, mount(kind))),
    ]
    return {question.key: {"value": value} for question, value in told} | {
        WRITE: {"value": None},
        **more,
    }


def saved(nodes: Mapping[str, Mapping[str, Mapping[str, Any]]], cluster: str = CLUSTER) -> Path:
    """A file as `dslaunch preflight --save` writes it."""
    told = {host: NodeRecording(HELLO, said, None, 0.1) for host, said in nodes.items()}
    path = Path("facts.json")
    scope = Scope(parse_cluster(cluster, "c.yaml"), ())
    facts = Recording(scope, 0.0, told, {})
    path.write_text(facts.as_json(), "utf-8")
    return path


def known(path: Path) -> tuple[NodeHardware, ...]:
    facts = read(path)
    return hardware(select(facts.scope.cluster, Selection()), facts)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_answers_go_before_the_labels_of_the_cluster_file() -> None:
    one, other = known(saved({"n1": answers()}))
    assert (one.gpu, one.gpus, one.gpu_memory) == ("NVIDIA H100 80GB HBM3", 2, 81559 * 2**20)
    assert (one.memory, one.nvlink) == (1007 * GIB, True)
    assert one.directory("/nvme/") == DirectoryFacts("/nvme", True, "ext4", False, True)
    assert other == NodeHardware("n2", 2, gpu="A100", memory=64 * GIB)


def test_a_directory_that_was_not_asked_of_is_judged_by_the_mount_that_it_is_below() -> None:
    (node,) = known(saved({"n1": answers()}, "nodes: [{host: n1, slots: 2}]"))
    below = node.directory("/dev/shm/swap")
    assert below is not None
    assert (below.path, below.filesystem) == ("/dev/shm", "tmpfs")
    assert node.directory("/elsewhere") is None


def test_the_node_with_least_says_how_much_is_free_and_none_where_one_has_no_disk() -> None:
    facts = read(saved({"n1": answers(), "n2": answers()}))
    assert (node_local(facts), network(facts)) == (900 * GIB, None)
    assert node_local(read(saved({"n1": answers(), "n2": answers("tmpfs")}))) is None


def lint(*words: str, **settings: Any) -> Result:
    Path("ds.json").write_text(json.dumps(CONFIG | settings), "utf-8")
    return CliRunner().invoke(config.APP, ["lint", "ds.json", *words])


def test_a_config_that_fits_the_nodes_is_right() -> None:
    saved({"n1": answers(), "n2": answers()})
    done = lint("--facts", "facts.json", train_batch_size=4)
    assert "error" not in done.stdout
    assert "nvme" not in done.stdout


NODES = parse_cluster(CLUSTER, "c.yaml")
SCOPE = Scope(NODES, NODES.nodes, purposes=frozenset({"zero-infinity"}))
WRITE = first_questions(CHECKS["nvme.path"], SCOPE)["n1"]["write"].key
PATH = path_question("/nvme").key


@pytest.mark.parametrize(
    ("of_n2", "said"),
    [
        (answers("nfs4"), "error: zero_optimization.offload_param.nvme_path: n2: /nvme is shared"),
        (answers("tmpfs"), "n2: /nvme is in CPU memory (tmpfs)"),
        (answers(**{WRITE: {"error": "Invalid argument"}}), "n2: /nvme cannot be opened with O_D"),
        (answers(**{PATH: {"error": "No such file or directory"}}), "n2: /nvme does not exist"),
        (answers(**{WRITE: {"error": "not asked"}}), "n2: /nvme is untested"),
        (answers(gpu="Tesla V100-SXM2-32GB"), "error: bf16.enabled: n2: Tesla V100-SXM2-32GB has"),
        (answers(link="SYS"), "n2: NVIDIA H100 80GB HBM3 without NVLink: stage 3"),
    ],
)  # fmt: skip
def test_what_a_node_answered_is_held_against_the_config(
    of_n2: dict[str, Mapping[str, Any]], said: str
) -> None:
    saved({"n1": answers(), "n2": of_n2})
    assert said in lint("--facts", "facts.json").stdout


def test_ranks_and_memory_follow_from_the_answers_alone() -> None:
    saved({"n1": answers(), "n2": answers()})
    cpu = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    words = ("--facts", "facts.json", "--params", "400e9", "--nodes", "1")
    done = lint(*words, train_batch_size=3, zero_optimization=cpu)
    assert done.exit_code == 3
    assert (
        "n1: the optimizer states of a node need 5960 GiB, but it has 1007 GiB of CPU memory"
        in done.stdout
    )
    assert "3" in next(line for line in done.stdout.splitlines() if "train_batch_size" in line)


def test_nodes_that_did_not_answer_are_named() -> None:
    saved({"n1": answers()})
    assert (
        ": no answers of n2; using the labels of the cluster file"
        in lint("--facts", "facts.json").stderr
    )


def estimated(*words: str) -> Any:
    app = typer.Typer()
    app.command()(estimate)
    model = ("--params", "7e9", "--largest-layer", "65e6", "--json")
    return json.loads(CliRunner().invoke(app, [*model, *words]).stdout)


def test_an_estimate_takes_memory_and_disks_from_the_answers() -> None:
    saved({"n1": answers(), "n2": answers()})
    data = estimated("--facts", "facts.json")
    assert data["machines"] == {"nodes": 2, "gpus_per_node": 2}
    assert data["limits"]["gpu"] == 81559 * 2**20
    assert (data["limits"]["cpu"], data["limits"]["nvme"]) == (1007 * GIB, 900 * GIB)
    said = estimated("--facts", "facts.json", "--gpu-memory", "40GiB", "--nodes", "1")
    assert (said["limits"]["gpu"], said["machines"]["nodes"]) == (40 * GIB, 1)
