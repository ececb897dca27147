from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.cluster.mistaken_files import MISTAKEN, NODE, ONE

from dslaunch.cluster import model
from dslaunch.cluster.load import LARGEST, MOST_PROBLEMS, load_cluster, parse_cluster
from dslaunch.errors import ConfigError, Problem

FULL = """\
name: pod-a
nodes:
  - host: node[01-02]
    slots: 2
    address: 10.0.0.[12,11]
    labels: {rack: 01}
  - {host: old01, slots: [3, 1], user: root, port: 2222, python: /opt/py, env: {A: 1e3}}
  - {host: spare01, slots: 1, spare: true, jump: other}
transport: openssh
ssh: {user: ml, identity_file: ~/.ssh/key, jump: b, connect_timeout: 5, fanout: 4, config_file: c}
network: {interface: ib0, master_port: 29500}
storage: {shared: false, workdir: /mnt/proj, checkpoints: ckpt, node_local: /nvme}
activate: source /opt/venv/bin/activate
env: {NCCL_IB_TIMEOUT: 22, X: 0x1F, T: true, N: null, E: , Q: "a b"}
env_from: [HF_HOME, "WANDB_*"]
secrets: [WANDB_API_KEY, {HF_TOKEN: {file: ~/.hf_token}}]
launcher: my_launcher
slurm: {partition: gpu, time: 20:00:00, cpus_per_task: 10, exclusive: true}
job: {module: pkg.train, args: [--lr, 1e-4, --flag, no], env: {B: 022}}
"""


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "f")
    assert caught.value.exit_code == 3
    return caught.value.problems


def parsed(text: str, file: str) -> model.Cluster:
    """Return the cluster without the text that it was parsed from."""
    return replace(parse_cluster(text, file), source=None)


def test_a_full_file_becomes_the_cluster_that_it_describes() -> None:
    activate = "source /opt/venv/bin/activate"
    common = {"identity_file": "~/.ssh/key", "activate": activate}
    node = {"user": "ml", "jump": "b", "labels": (("rack", "01"),), "slots": (0, 1)}
    assert parsed(FULL, "f") == model.Cluster(
        name="pod-a",
        nodes=(
            model.Node(host="node01", address="10.0.0.12", **node, **common),
            model.Node(host="node02", address="10.0.0.11", **node, **common),
            model.Node(
                "old01", (1, 3), user="root", port=2222, identity_file="~/.ssh/key", jump="b",
                python="/opt/py", env=(("A", "1e3"),),
            ),
            model.Node("spare01", (0,), user="ml", jump="other", spare=True, **common),
        ),
        transport="openssh",
        ssh=model.Ssh(5.0, 4, "c"),
        network=model.Network("ib0", 29500),
        storage=model.Storage(False, "/mnt/proj", "ckpt", "/nvme"),
        env=(("NCCL_IB_TIMEOUT", "22"), ("X", "0x1F"), ("T", "true"), ("N", "null"), ("E", ""),
             ("Q", "a b")),
        env_from=("HF_HOME", "WANDB_*"),
        secrets=(model.SecretSource("WANDB_API_KEY"),
                 model.SecretSource("HF_TOKEN", "~/.hf_token")),
        launcher="my_launcher",
        slurm=model.Slurm(
            (("partition", "gpu"), ("time", "20:00:00"), ("cpus_per_task", "10")),
            exclusive="true",
        ),
        job=model.JobDefaults(None, "pkg.train", ("--lr", "1e-4", "--flag", "no"),
                              (("B", "022"),)),
    )  # fmt: skip


def test_what_is_left_out_is_decided_by_evidence_later() -> None:
    cluster = parsed(ONE, "/site/pod b.yaml")
    assert cluster == model.Cluster(name="pod-b", nodes=(model.Node("a", (0,)),))


def test_auto_is_the_same_as_leaving_it_out() -> None:
    auto = "network: {interface: auto, master_port: auto}\nstorage: {shared: auto}\n"
    assert parsed(ONE + auto, "f") == parsed(ONE, "f")


@pytest.mark.parametrize(
    ("written", "ports"), [("auto", None), ("29600", (29600, 29600)), ("1-65535", (1, 65535))]
)
def test_a_control_port_is_one_port_or_a_range(written: str, ports: tuple[int, int] | None) -> None:
    cluster = parse_cluster(f"{ONE}network: {{control_port: {written}}}\n", "f")
    assert cluster.network.control_port == ports


def test_names_and_addresses_that_look_like_numbers_are_text() -> None:
    cluster = parse_cluster("name: 022\nnodes: [{host: 0017, slots: 1}]", "f")
    assert (cluster.name, cluster.nodes[0].host) == ("022", "0017")


def test_an_entry_that_names_its_interpreter_does_not_get_the_activation_of_the_file() -> None:
    text = "activate: source x\nnodes: [{host: a, slots: 1, python: /p}, {host: b, slots: 1}]"
    a, b = parse_cluster(text, "f").nodes
    assert (a.python, a.activate, b.python, b.activate) == ("/p", None, None, "source x")


@pytest.mark.parametrize(("text", "place", "code"), MISTAKEN, ids=[row[0][:60] for row in MISTAKEN])
def test_a_mistake_has_its_code_and_its_place(text: str, place: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, "f")
    (problem,) = caught.value.problems
    assert f"{problem.line}:{problem.column} {problem.path}".rstrip() == place
    assert problem.rule == code


def test_every_problem_of_a_file_is_reported_at_once_in_the_order_of_lines() -> None:
    found = problems(
        "nodes:\n"
        "  - {host: a, slots: x}\n"
        "  - {host: b, slotz: 1}\n"
        "  - {host: c, slots: 1}\n"
        "  - {host: c, slots: 1, address: '1::x'}\n"
        "transport: fabrik\n"
        "<<: {a: 1}\n"
        "secrets: [T]\n"
        "env: {T: 1}\n"
    )
    assert [problem.line for problem in found] == [2, 3, 5, 5, 6, 7, 9]


def test_of_a_repeated_mistake_the_first_are_reported_and_the_number_of_others() -> None:
    found = problems("nodes:\n" + "".join(f"  - {{host: n{i}, slots: x}}\n" for i in range(150)))
    assert len(found) == MOST_PROBLEMS + 1
    last = found[MOST_PROBLEMS]
    assert (last.line, last.rule, last.parameters) == (
        MOST_PROBLEMS + 2,
        "more-problems",
        (("count", 50),),
    )


def test_a_mistake_that_many_aliases_repeat_is_reported_once() -> None:
    found = problems("nodes:\n  - &n {host: a, slots: 1}\n" + "  - *n\n" * 50)
    (problem,) = found
    assert (problem.path, problem.rule) == ("nodes[1].host", "duplicate-host")


def test_what_might_be_a_secret_is_not_shown() -> None:
    found = problems(ONE + "secrets: [{HF_TOKEN: hf_abc123}, hf-abc123]")
    assert len(found) == 2
    assert "abc123" not in "".join(map(str, found))


@pytest.mark.parametrize(
    "jump", ["b", "u@b", "b:22", "u@b:2222", "u@a,b:22,c", "[fd00::1]:22", "u@10.0.0.1", "none"]
)
def test_a_way_through_jump_hosts_is_taken_as_it_is_written(jump: str) -> None:
    assert parse_cluster(ONE + f"ssh: {{jump: '{jump}'}}", "f").nodes[0].jump == jump


def test_a_spare_is_no_reason_to_refuse_the_others() -> None:
    cluster = parse_cluster(f"nodes: [{NODE}, {{host: s, slots: 1, spare: true}}]", "f")
    assert [node.spare for node in cluster.nodes] == [False, True]


def test_a_secret_may_match_a_pattern_of_copied_variables() -> None:
    cluster = parse_cluster(ONE + "secrets: [WANDB_API_KEY]\nenv_from: ['WANDB_*']", "f")
    assert cluster.env_from == ("WANDB_*",)


def refused(path: Path) -> Problem:
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_named_in_its_problems(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("nodes: 3")
    assert str(refused(path)).startswith(f"{path}:1:1: nodes: ")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path / "no").rule == "missing-file"


def test_a_directory_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path).rule == "not-a-file"


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refused(tmp_path / "fifo").rule == "not-a-file"


def test_a_device_that_never_ends_is_not_read() -> None:
    assert refused(Path("/dev/zero")).rule == "not-a-file"


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    assert dict(refused(path).parameters) == {"size": LARGEST + 1, "limit": LARGEST}


def test_a_path_through_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert dict(refused(tmp_path / "f" / "g").parameters) == {"error": "not a directory"}


def test_a_path_with_a_nul_is_reported() -> None:
    assert refused(Path("a\0b")).rule == "unreadable"


@pytest.mark.parametrize(
    ("data", "place", "code"),
    [
        (b"name: a\nb: \xff", (2, 4), "not-utf-8"),
        ("name: a".encode("utf-16"), (0, 0), "utf-16"),
        (b"\x7fELF\x02\x01\x01\0\0", (1, 1), "control-character"),
        (b"", (1, 1), "no-mapping"),
    ],
    ids=["latin", "utf-16", "program", "empty"],
)
def test_a_file_of_something_else_is_reported(
    tmp_path: Path, data: bytes, place: tuple[int, int], code: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(data)
    problem = refused(path)
    assert (problem.line, problem.column) == place
    assert problem.rule == code


def test_ten_thousand_explicit_nodes_fit() -> None:
    text = "nodes:\n" + "".join(f"  - {{host: n{i:05}, slots: 8}}\n" for i in range(10_000))
    assert len(parse_cluster(text, "f").nodes) == 10_000


@pytest.mark.parametrize(
    ("given", "there", "near"),
    [
        ("c.yml", ["c.yaml", "d.yaml"], "c.yaml"),
        ("c", ["c.yaml"], "c.yaml"),
        ("cluster.yaml", ["clusters.yaml", "train.py"], "clusters.yaml"),
        ("cluster.yaml", ["cluster.py"], None),
        ("pod.yaml", [], None),
    ],
)
def test_a_missing_file_suggests_the_one_with_the_nearest_name(
    tmp_path: Path, given: str, there: list[str], near: str | None
) -> None:
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError) as caught:
        load_cluster(tmp_path / given)
    suggested = re.findall(r"did you mean (.*)\?", caught.value.hint or "")
    assert suggested == ([str(tmp_path / near)] if near else [])
