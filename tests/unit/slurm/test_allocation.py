"""Nodes from SLURM's variables and lists, recorded ones too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import DslaunchError, ErrorCode, ToolMissingError, UsageError
from dslaunch.slurm.allocation import (
    AllocatedNode,
    allocated_nodes,
    bare_cluster,
    file_of,
    in_allocation,
    seen_by_steps,
)
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.node_discovery import allocated, by_steps
from dslaunch.slurm.scontrol import gpu_indexes

NODES = {"SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("more", "slots"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, (4, 4)),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, (4, 4)),
        ({"SLURM_TASKS_PER_NODE": "2,1"}, (2, 1)),
        ({"SLURM_TASKS_PER_NODE": "2(x2)"}, (2, 2)),
        ({"SLURM_TASKS_PER_NODE": "1(x2)"}, (None, None)),
        ({"SLURM_HET_SIZE": "0"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_slots_are_the_gpus_else_the_tasks(
    more: dict[str, str], slots: tuple[int | None, ...]
) -> None:
    found = allocated_nodes(NODES | more)
    assert [g.host for g in found] == ["n1", "n2"]
    assert tuple(g.slots and len(g.slots) for g in found) == slots


def test_components_follow_each_other() -> None:
    environ = {
        "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "a1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-2]", "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
    }  # fmt: skip
    assert allocated_nodes(environ) == (
        AllocatedNode("a1", (0, 1)),
        AllocatedNode("b1", None),
        AllocatedNode("b2", None),
    )


def test_outside_of_an_allocation_there_are_no_nodes() -> None:
    with pytest.raises(UsageError) as raised:
        allocated_nodes({})
    assert raised.value.error_code is ErrorCode.NOT_IN_A_JOB


def test_the_indexes_of_gpus_are_known_from_scontrol() -> None:
    detail = "JobId=1\n     Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:2-3)\n"
    assert gpu_indexes(detail) == {"n1": (2, 3), "n2": (2, 3)}
    assert allocated_nodes(NODES, detail)[0] == AllocatedNode("n1", (2, 3), gpus=2)


def test_gpus_of_several_types_are_counted_together() -> None:
    detail = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:5),nic:1(IDX:7)\n"
    assert gpu_indexes(detail) == {"n1": (0, 3, 5)}


def test_a_node_of_the_file_keeps_its_settings_and_another_is_like_the_first() -> None:
    file = parse_cluster(
        "nodes: [{host: n1, slots: 8, user: ml, address: 10.0.0.1}, {host: s, slots: 1}]", "c"
    )
    made = in_allocation(file, (AllocatedNode("n1", (0, 1)), AllocatedNode("x9", None)))
    assert [(n.host, n.slots, n.user, n.address) for n in made.nodes] == [
        ("n1", (0, 1), "ml", "10.0.0.1"),
        ("x9", tuple(range(8)), "ml", None),
    ]


def test_an_allocation_without_slots_is_no_cluster() -> None:
    assert bare_cluster((AllocatedNode("n1", (0, 1)),)).nodes[0].slots == (0, 1)
    with pytest.raises(UsageError, match=r"n\[1-2\]"):
        bare_cluster((AllocatedNode("n1", None), AllocatedNode("n2", None)))


def answering(environ: dict[str, str], **answers: Done) -> SlurmClient:
    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        if argv[0] not in answers:
            raise ToolMissingError(argv[0])
        return answers[argv[0]]

    return SlurmClient(environ, run)


def test_without_scontrol_the_gpus_are_counted() -> None:
    client = answering(NODES | {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"})
    assert allocated(client, None).nodes[1].slots == (0, 1)


def test_a_step_says_which_gpus_it_sees() -> None:
    printed = "a1=2,3\na2=0\na3=\na4=NoDevFiles\na5=MIG-1,MIG-2\n"
    assert seen_by_steps(printed) == {
        "a1": (2, 3), "a2": (0,), "a5": (0, 1),
    }  # fmt: skip


def test_one_step_per_component_asks_all_its_nodes() -> None:
    environ = {
        "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n3",
    }  # fmt: skip
    asked = []

    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        asked.append([word for word in argv if word.startswith(("--het", "--node", "--ntasks="))])
        return Done(0, "n1=2,3\nn2=2,3\n" if len(asked) == 1 else "n3=\n", "")

    cluster = parse_cluster("nodes: [{host: 'n[1-3]', slots: 2}]", "c.yaml")
    found = by_steps(SlurmClient(environ, run), cluster)
    assert [node.slots for node in found.nodes] == [(2, 3), (2, 3), (0, 1)]
    assert found.transport == "srun"
    assert asked == [
        ["--het-group=0", "--nodelist=n1,n2", "--nodes=2", "--ntasks=2"],
        ["--het-group=1", "--nodelist=n3", "--nodes=1", "--ntasks=1"],
    ]


def test_steps_request_the_gpus_of_the_job() -> None:
    asked: list[list[str]] = []

    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        asked.append([word for word in argv if word.startswith(("--nodelist", "--gpus", "--gres"))])
        return Done(0, "n1=0,1\nn2=0,1\n", "")

    cluster = parse_cluster("nodes: [{host: 'n[1-2]', slots: 8}]", "c.yaml")
    environ = NODES | {"SLURM_JOB_ID": "7"}
    even = in_allocation(cluster, (AllocatedNode("n1", (0, 1), 2), AllocatedNode("n2", (0, 1), 2)))
    by_steps(SlurmClient(environ, run), even)
    assert asked == [["--nodelist=n1,n2", "--gres=gpu:2"]]
    asked.clear()
    uneven = in_allocation(cluster, (AllocatedNode("n1", (0, 1), 2), AllocatedNode("n2", (0,), 1)))
    with pytest.raises(DslaunchError, match="n2"):
        by_steps(SlurmClient(environ, run), uneven)
    assert asked == [["--nodelist=n1", "--gpus=2"], ["--nodelist=n2", "--gpus=1"]]


def test_a_step_with_fewer_gpus_than_the_job_is_an_error_with_both_numbers() -> None:
    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        if any(word.startswith("--gres") for word in argv):
            return Done(1, "", "srun: error: Invalid generic resource (gres) specification")
        return Done(0, "n1=0\nn2=0\n", "")

    cluster = parse_cluster("nodes: [{host: 'n[1-2]', slots: 8}]", "c.yaml")
    four = in_allocation(cluster, (AllocatedNode("n1", (0, 1), 4), AllocatedNode("n2", (0, 1), 4)))
    client = SlurmClient(NODES | {"SLURM_JOB_ID": "7"}, run)
    with pytest.raises(DslaunchError, match=r"n\[1-2\].* 1 .* 4 "):
        by_steps(client, four)


def test_the_reason_of_srun_is_reported_if_no_step_can_start() -> None:
    client = answering(NODES | {"SLURM_JOB_ID": "7"}, srun=Done(1, "", "srun: error: no\n"))
    with pytest.raises(DslaunchError, match=r"job 7.*srun: error: no"):
        by_steps(client, parse_cluster("nodes: [{host: n1, slots: 2}]", "c.yaml"))


def test_a_file_with_the_allocations_nodes_can_be_read_later() -> None:
    text = (
        "name: site\npython: /p\nenv: {A: 'on'}\nslurm: {time: 1:00:00}\n"
        "nodes: [{host: 'n[1-9]', slots: 8, labels: {rack: r1}}]\n"
    )
    nodes = (AllocatedNode("n2", (2, 3)), AllocatedNode("x7", None))
    cluster = in_allocation(parse_cluster(text, "c.yaml"), nodes)
    again = parse_cluster(file_of(cluster, text), "again.yaml")
    assert replace(again, source=None) == replace(cluster, source=None)
    bare = bare_cluster((AllocatedNode("n1", (0, 1)),))
    assert replace(parse_cluster(file_of(bare, ""), "again.yaml"), source=None) == replace(
        bare, source=None
    )
