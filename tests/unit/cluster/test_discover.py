from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.discover import (
    Discovered,
    DiscoveryNote,
    from_hostfile,
    from_hosts,
    from_machine,
    from_slurm,
    from_ssh_config,
)
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.slurm_variables import run_lengths
from dslaunch.errors import SelectionError, UsageError
from dslaunch.notes import note
from dslaunch.render.cluster_file import cluster_yaml


def loaded(found: Discovered) -> tuple[tuple[str, int], ...]:
    """The nodes as the written file says them."""
    cluster = parse_cluster(cluster_yaml(found), "cluster.yaml")
    assert cluster.transport == found.transport
    return tuple((node.host, len(node.slots)) for node in cluster.nodes)


@pytest.mark.parametrize(
    "found",
    [
        from_hostfile("b slots=4\na2 slots=8\na1 slots=8\n", "hosts"),
        from_hosts("node[01-04],old01", 8),
        from_hosts("n[3,1]", None),
        from_hosts("1,2,true,null,no", None),
        from_ssh_config("Host a b\nHost c", 2),
        from_slurm({"SLURM_JOB_NODELIST": "n[1-2]"}, None),
        from_machine("", None),
        Discovered(
            "a\nb: c\r\x85\u2028# \x07{{ x }}{% raw %}",
            (("a", 1),),
            notes=(note(DiscoveryNote.JUMP_HOST, host="x\ny"),),
        ),
    ],
    ids=["hostfile", "hosts", "order", "words", "ssh", "slurm", "machine", "nasty source"],
)
def test_the_written_file_loads_again_with_the_same_nodes(found: Discovered) -> None:
    assert loaded(found) == found.nodes


_HOSTS = st.lists(
    st.builds("{}{}".format, st.sampled_from(["n", "node-", "7"]), st.integers(0, 120)),
    unique=True,
    min_size=1,
)


@given(_HOSTS, st.lists(st.integers(1, 3), min_size=200, max_size=200))
def test_any_nodes_are_returned_in_their_order(hosts: list[str], slots: list[int]) -> None:
    nodes = tuple(zip(hosts, slots, strict=False))
    assert loaded(Discovered("x", nodes)) == nodes


def test_equal_neighbors_are_one_folded_entry() -> None:
    text = cluster_yaml(from_hostfile("n1 slots=8\nn2 slots=8\nn3 slots=4\n", "h"))
    assert "  - host: n[1-2]\n    slots: 8\n  - host: n3\n    slots: 4\n" in text


def test_a_guess_is_called_a_guess() -> None:
    assert "a guess" in cluster_yaml(from_hosts("a", None))
    assert "a guess" not in cluster_yaml(from_hosts("a", 8))


@pytest.mark.parametrize("hosts", ["", "n[1-", "a,a", "u@h", "a b", "-x"])
def test_names_that_no_file_may_have_are_refused(hosts: str) -> None:
    with pytest.raises(UsageError, match="--hosts"):
        from_hosts(hosts, 8)


SSH_CONFIG = """\
Include config.d/*
# Host commented
Host *
    User ml
Host github.com
    User git
Host bastion
    HostName 198.51.100.7
Host node01 node02 !node03 node?
    ProxyJump me@bastion:2222
host = node04
  ProxyJump none
Host "node05"
Match host x
    User git
Host node01
"""


def test_the_ssh_config_gives_the_hosts_that_look_like_nodes() -> None:
    found = from_ssh_config(SSH_CONFIG, 8)
    assert found.nodes == tuple((f"node0{i}", 8) for i in (1, 2, 4, 5))


def test_what_was_left_out_of_the_ssh_config_is_noted() -> None:
    assert from_ssh_config(SSH_CONFIG, 8).notes == (
        note(DiscoveryNote.JUMP_HOST, host="bastion"),
        note(DiscoveryNote.INCLUDES_NOT_READ),
    )


@pytest.mark.parametrize("text", ["", "Host *", "Host github.com\nUser git"])
def test_an_ssh_config_without_nodes_is_refused(text: str) -> None:
    with pytest.raises(SelectionError, match="no `Host` entry"):
        from_ssh_config(text, 8)


@given(st.text() | st.text(alphabet='Host User=ab*?!"\n\t ,:@'))
def test_no_ssh_config_raises_anything_but_usage_errors(text: str) -> None:
    with contextlib.suppress(SelectionError, UsageError):
        assert from_ssh_config(text, 8).nodes


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "8"}, 8),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "gpu:a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2,h100:1"}, 3),
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_JOB_GPUS": "0,1,2"}, 3),
        ({"SLURM_JOB_GPUS": "0-3"}, 4),
        ({"SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_GPUS_PER_TASK": "2"}, 8),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_slurm_says_how_many_gpus_a_node_has(variables: dict[str, str], count: int) -> None:
    found = from_slurm({"SLURM_JOB_NODELIST": "n[01-02]", **variables}, None)
    assert found.nodes == (("n01", count), ("n02", count))
    assert not found.guessed_slots


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_GPUS_ON_NODE": "many"},
        {"SLURM_TASKS_PER_NODE": "8(x2)"},
        {"SLURM_TASKS_PER_NODE": "4,2", "SLURM_GPUS_PER_TASK": "1"},
    ],
    ids=["nothing", "a word", "tasks alone", "unequal tasks"],
)
def test_what_slurm_does_not_say_is_guessed(variables: dict[str, str]) -> None:
    found = from_slurm({"SLURM_JOB_NODELIST": "n1", **variables}, None)
    assert found.guessed_slots


def test_the_parts_of_a_heterogeneous_job_are_put_together() -> None:
    environ = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "a[1-2]",
        "SLURM_GPUS_PER_NODE_HET_GROUP_0": "h100:8",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "b1",
        "SLURM_GPUS_PER_NODE_HET_GROUP_1": "v100:4",
    }
    assert from_slurm(environ, None).nodes == (("a1", 8), ("a2", 8), ("b1", 4))


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_NODELIST": "n[1-"}], ids=["none", "faulty"])
def test_no_slurm_allocation_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST"):
        from_slurm(environ, None)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2(x3),1", (2, 2, 2, 1)), ("4", (4,)), ("", ()), ("a(x2)", ()), ("2(x999999)", ())],
)
def test_run_length_codes_are_expanded(text: str, numbers: tuple[int, ...]) -> None:
    assert run_lengths(text) == numbers


def test_this_machine_has_the_gpus_that_are_listed() -> None:
    listed = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n"
        "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"
    )
    assert from_machine(listed, None) == Discovered("this machine", (("localhost", 2),), "local")


@pytest.mark.parametrize(
    "variables",
    [{"SLURM_GPUS_ON_NODE": "9" * 5000}, {"SLURM_HET_SIZE": "0"}, {"SLURM_HET_SIZE": "9" * 12}],
    ids=["many digits", "no components", "many components"],
)
def test_numbers_that_slurm_cannot_mean_are_no_numbers(variables: dict[str, str]) -> None:
    found = from_slurm({"SLURM_JOB_NODELIST": "n1", **variables}, None)
    assert found.nodes == (("n1", 8),)


def test_more_slots_than_a_cluster_file_may_have_are_refused() -> None:
    with pytest.raises(UsageError, match=r"99999.*1024"):
        from_slurm({"SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "99999"}, None)


def test_aliases_of_one_machine_are_one_node_and_jump_hosts_are_none() -> None:
    text = (
        "Host node1 n1 first\n  HostName 10.0.0.1\n"
        "Host node1-admin\n  HostName 10.0.0.1\n  Port 2222\n"
        "Host node2\n  HostName 10.0.0.2\n  ProxyJump ml@gate:2200\n"
        "Host gate\n  HostName 198.51.100.7\n"
        "Host gate-by-address\n  HostName 198.51.100.8\n"
        "Host node3\n  ProxyJump ssh://198.51.100.8:22\n"
        "Host relay\nHost node4\n  ProxyCommand ssh -W %h:%p relay\n"
    )
    found = from_ssh_config(text, 8)
    assert [host for host, _ in found.nodes] == ["node1", "node1-admin", "node2", "node3", "node4"]
    excluded = [each.values["host"] for each in found.notes]
    assert sorted(excluded) == ["first", "gate", "gate-by-address", "n1", "relay"]
