"""A partition by what sinfo prints, and the cluster file that is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ToolMissingError, UsageError
from dslaunch.notes import note
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.node_discovery import partition
from dslaunch.slurm.nodes import is_usable, node_states
from dslaunch.slurm.partition import (
    Partition,
    PartitionNode,
    PartitionNote,
    discovered,
    parse_partition,
    partition_file,
    written,
)
from dslaunch.slurm.scontrol import allowed_accounts

LIMITS = "up|2-00:00:00|1:00:00|NO|1-infinite"
RECORDED = """\
node1|gpu:a100:4|idle|up|10:00|n/a|NO|1-infinite
node3|gpu:h100:4|mixed|up|10:00|n/a|NO|1-infinite
node2|gpu:a100:4|idle|up|10:00|n/a|NO|1-infinite
node4|gpu:h100:4|drained|up|10:00|n/a|NO|1-infinite
"""
"""SLURM 22.05.8, of two types of GPUs."""
OF_A_SITE = "node4180|gpu:gen:2(S:0-1)|alloc|up|3-00:00:00|5:00|NO|1-infinite\n"
"""SLURM 20.11.8 of a site, its columns in our order."""


def of(*nodes: str, limits: str = LIMITS) -> Partition:
    """A partition of nodes such as `a1|gpu:8|idle`."""
    return parse_partition("".join(f"{node}|{limits}\n" for node in nodes), "gpu")


# ---------------------------------------------------------------- what sinfo prints


def test_a_partition_has_its_nodes_and_limits() -> None:
    found = parse_partition(OF_A_SITE, "gpu", ("lab",))
    assert found == Partition(
        "gpu",
        (PartitionNode("node4180", (("gen", 2),), usable=True),),
        default_time=timedelta(minutes=5),
        max_time=timedelta(days=3),
        accounts=("lab",),
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("up|infinite|n/a|NO|1-infinite", (True, None, None, False, None)),
        ("down|infinite|n/a|EXCLUSIVE|1-16", (False, None, None, True, 16)),
        ("up|4:00:00|30:00|FORCE:4|4", (True, 4.0, 0.5, False, 4)),
        ("inact|1-12:00:00|0:00|YES|2-8", (False, 36.0, None, False, 8)),
    ],
)
def test_limits_are_read(limits: str, expected: tuple[object, ...]) -> None:
    found = of("a1|gpu:8|idle", limits=limits)
    longest, default = (
        time.total_seconds() / 3600 if time else None
        for time in (found.max_time, found.default_time)
    )
    assert (found.open, longest, default, found.exclusive, found.max_nodes) == expected


@pytest.mark.parametrize(
    ("state", "good"),
    [
        ("IDLE", True), ("MIXED", True), ("ALLOCATED+CLOUD", True), ("idle*", False),
        ("IDLE+DRAIN", False), ("down", False), ("drained", False), ("IDLE~", True),
        ("mixed-", True), ("MAINT", False), ("inval", False), ("future", False),
    ],
)  # fmt: skip
def test_a_state_says_whether_a_node_gets_jobs(state: str, good: bool) -> None:
    assert is_usable(node_states(state)) is good


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:8", (("", 8),)),
        ("gpu:gen:8(S:0-1)", (("gen", 8),)),
        ("gpu:a:4,gpu:b:2,mps:200", (("a", 4), ("b", 2))),
        ("gpu:a:2(S:0),gpu:a:2(S:1)", (("a", 4),)),
        ("(null)", ()),
        ("gpu:0", ()),
    ],
)
def test_gpus_are_counted_by_type(gres: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert of(f"a1|{gres}|idle").nodes[0].gpus == gpus


def test_a_node_that_sinfo_lists_twice_is_one() -> None:
    assert len(of("a1|gpu:8|idle", "a1|gpu:8|mixed").nodes) == 1


@pytest.mark.parametrize("text", ["", "sinfo: error\n", "a b|gpu:8|idle|up|1:00|n/a|NO|1\n"])
def test_a_partition_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="partition gpu"):
        parse_partition(text, "gpu")


@pytest.mark.parametrize(
    ("text", "accounts"),
    [
        ("PartitionName=a AllowGroups=x AllowAccounts=ALL AllowQos=ALL", ()),
        ("PartitionName=a AllowAccounts=lab,b-2 AllowQos=q", ("lab", "b-2")),
        ("Partition nope not found", ()),
    ],
)
def test_accounts_that_may_use_a_partition_are_read(text: str, accounts: tuple[str, ...]) -> None:
    assert allowed_accounts(text) == accounts


def answering(**answers: Done) -> SlurmClient:
    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        if argv[0] not in answers:
            raise ToolMissingError(argv[0])
        return answers[argv[0]]

    return SlurmClient({}, run)


def test_without_scontrol_the_accounts_are_not_known() -> None:
    sinfo = Done(0, RECORDED, "")
    assert partition(answering(sinfo=sinfo), "gpu").accounts == ()
    scontrol = Done(0, "PartitionName=gpu AllowAccounts=lab\n", "")
    assert partition(answering(sinfo=sinfo, scontrol=scontrol), "gpu").accounts == ("lab",)


def test_errors_of_sinfo_are_reported() -> None:
    client = answering(sinfo=Done(1, "", "sinfo: error: no such thing\n"))
    with pytest.raises(UsageError, match="no such thing"):
        partition(client, "gpu")


# ---------------------------------------------------------------- the cluster file


def test_nodes_of_a_type_are_one_entry_with_its_label() -> None:
    found = parse_partition(RECORDED, "main")
    cluster = parse_cluster(partition_file(found), "c.yaml")
    assert [(node.host, dict(node.labels)) for node in cluster.nodes] == [
        ("node1", {"gpu": "a100"}),
        ("node2", {"gpu": "a100"}),
        ("node3", {"gpu": "h100"}),
    ]
    assert cluster.slurm.gpu_label == "gpu"
    assert dict(cluster.slurm.options) == {"partition": "main", "time": "0:10:00"}
    assert discovered(found).notes == (note(PartitionNote.UNUSABLE, nodes="node4"),)


def test_gpus_without_a_type_have_no_label() -> None:
    cluster = parse_cluster(partition_file(of("a1|gpu:8|idle")), "c.yaml")
    assert (cluster.slurm.gpu_label, cluster.nodes[0].labels) == (None, ())


def test_types_within_a_node_are_left_to_slurm() -> None:
    found = discovered(of("a1|gpu:a:4,gpu:b:2|idle"))
    assert (found.nodes, found.gpu_types) == ((("a1", 6),), ())
    assert found.notes == (note(PartitionNote.SEVERAL_TYPES, nodes="a1"),)


def test_a_partition_without_gres_asks_for_no_gpus() -> None:
    cluster = parse_cluster(partition_file(of("a1|(null)|idle"), slots=2), "c.yaml")
    assert (cluster.slurm.gpus, cluster.nodes[0].slots) == ("none", (0, 1))


def test_nodes_without_gpus_are_left_out_beside_others() -> None:
    found = discovered(of("a1|gpu:8|idle", "c[1]|x|idle", "c2|(null)|idle"))
    assert found.nodes == (("a1", 8),)
    assert found.notes == (note(PartitionNote.WITHOUT_GPUS, nodes="c2"),)


def test_a_partition_whose_nodes_are_all_down_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a\[1-2\]"):
        discovered(of("a1|gpu:8|down*", "a2|gpu:8|drained"))


@pytest.mark.parametrize(
    ("limits", "time"),
    [
        ("up|2-00:00:00|1:00:00|NO|1", 'time: "1:00:00"'),
        ("up|2-12:00:00|n/a|NO|1", 'time: "2-12:00:00"'),
        ("up|infinite|30:00|NO|1", 'time: "0:30:00"'),
        ("up|infinite|n/a|NO|1", "# time: 2:00:00"),
    ],
)
def test_the_time_is_the_default_else_the_longest(limits: str, time: str) -> None:
    assert f"\n  {time} " in partition_file(of("a1|gpu:8|idle", limits=limits))


@pytest.mark.parametrize(
    ("accounts", "line"),
    [(("lab",), "\n  account: lab "), (("a", "b"), "\n  # account: NAME "), ((), "partition: gpu")],
)
def test_accounts_are_named_where_not_all_may_use_it(accounts: tuple[str, ...], line: str) -> None:
    text = partition_file(parse_partition(RECORDED, "gpu", accounts))
    assert line in text


def test_a_job_asks_for_no_more_nodes_than_it_may_have() -> None:
    nodes = ("a1|gpu:8|idle", "a2|gpu:8|idle", "a3|gpu:8|idle")
    few = partition_file(of(*nodes, limits="up|infinite|n/a|EXCLUSIVE|1-2"))
    assert parse_cluster(few, "c.yaml").slurm.nodes == "2"
    assert "# exclusive: true " in few
    kinds = partition_file(of(*nodes, "b|gpu:4|idle", limits="up|infinite|n/a|NO|1-2"))
    assert parse_cluster(kinds, "c.yaml").slurm.nodes is None


def test_a_closed_partition_is_noted() -> None:
    found = discovered(of("a1|gpu:8|idle", limits="drain|infinite|n/a|NO|1"))
    assert found.notes == (note(PartitionNote.CLOSED, partition="gpu"),)


CELLS = st.sampled_from(
    [
        "a1",
        "n[1-2]",
        "gpu:8",
        "gpu:a b:8",
        "gpu:$(x):2",
        "idle",
        "down*",
        "up",
        "1:00",
        "n/a",
        "\x1b",
    ]
)


@given(st.lists(st.lists(CELLS, min_size=7, max_size=9).map("|".join), max_size=4))
def test_any_file_that_is_made_can_be_read(lines: list[str]) -> None:
    try:
        text = partition_file(parse_partition("\n".join(lines), "gpu"))
    except UsageError:
        return
    assert parse_cluster(text, "c.yaml").nodes


@given(st.integers(1, 10**8))
def test_a_time_is_written_as_sinfo_prints_it_and_sbatch_reads_it(seconds: int) -> None:
    time = timedelta(seconds=seconds)
    found = of("a1|gpu:8|idle", limits=f"up|{written(time)}|n/a|NO|1")
    assert found.max_time == time
