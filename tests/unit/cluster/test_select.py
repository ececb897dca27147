from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.model import Cluster, Node
from dslaunch.cluster.select import Selection, select
from dslaunch.errors import SelectionError

Pool = dict[str, list[int]]

ONE = Cluster("one", (Node("w0", (0, 1, 2, 3)),))
TWO = Cluster("two", (Node("w0", (0, 1, 2, 3)), Node("w1", (0, 1, 2, 3))))
POD = Cluster(
    "pod",
    (
        Node("node01", (0, 1, 2, 3), labels=(("rack", "r1"), ("gpu", "h100"))),
        Node("node02", (0, 1, 2, 3), labels=(("rack", "r1"),)),
        Node("node03", (0, 1, 2, 3), labels=(("rack", "r2"),)),
        Node("old01", (2, 3)),
        Node("spare01", (0, 1), spare=True, labels=(("rack", "r2"),)),
    ),
)


def pool(cluster: Cluster, selection: Selection) -> Pool:
    placements = select(cluster, selection).placements
    return {p.node.host: list(p.slots) for p in placements}


def refused(cluster: Cluster, selection: Selection) -> str:
    with pytest.raises(SelectionError) as caught:
        select(cluster, selection)
    return f"{caught.value.message}; {caught.value.hint}"


ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("cluster", "include", "expected"),
    [
        (ONE, "", {"w0": ALL}),
        (ONE, "w0", {"w0": ALL}),
        (ONE, "w0:1", {"w0": [1]}),
        (ONE, "w0:1,1", {"w0": [1]}),
        (ONE, "w0:3,1", {"w0": [1, 3]}),
        (ONE, "w0:1@w0:0,1", {"w0": [0, 1]}),
        (TWO, "", {"w0": ALL, "w1": ALL}),
        (TWO, "w0", {"w0": ALL}),
        (TWO, "w1:0,3", {"w1": [0, 3]}),
        (TWO, "w0@w1:0,2", {"w0": ALL, "w1": [0, 2]}),
        (TWO, "w1@w0", {"w0": ALL, "w1": ALL}),
        (TWO, "w[0-1]:0-2", {"w0": [0, 1, 2], "w1": [0, 1, 2]}),
        (TWO, "w0:0 , 2", {"w0": [0, 2]}),
        (POD, "node[01-02]:0-1@old01", {"node01": [0, 1], "node02": [0, 1], "old01": [2, 3]}),
        (POD, "node[03,01]", {"node01": ALL, "node03": ALL}),
        (POD, "spare01", {"spare01": [0, 1]}),
    ],
)
def test_what_is_included_is_selected_in_the_order_of_the_file(
    cluster: Cluster, include: str, expected: Pool
) -> None:
    found = pool(cluster, Selection(include=include))
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("cluster", "exclude", "expected"),
    [
        (ONE, "w0:1", {"w0": [0, 2, 3]}),
        (ONE, "w0:1,2", {"w0": [0, 3]}),
        (TWO, "w1", {"w0": ALL}),
        (TWO, "w0:0,1@w1:3", {"w0": [2, 3], "w1": [0, 1, 2]}),
        (TWO, "w0:0-3", {"w1": ALL}),
        (POD, "node[01-03]@spare01", {"old01": [2, 3]}),
    ],
)
def test_what_is_excluded_is_left_out(cluster: Cluster, exclude: str, expected: Pool) -> None:
    assert pool(cluster, Selection(exclude=exclude)) == expected


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jeff", "no node is named jeff; there are w[0-1]"),
        ("w00", "no node is named w00; did you mean w0?"),
        ("w[0-4]", "no nodes are named w[2-4]; there are w[0-1]"),
        ("w1:4", "w1 has no slot 4; it has 0,1,2,3"),
        ("w1:99", "w1 has no slot 99"),
        ("w1:0,4,9", "w1 has no slot 4,9"),
        ("w1@w0:1@5", "no node is named 5"),
        ("w1:-1", "'-1' is no number"),
        ("w1:", "'' is no number"),
        ("w1:a", "'a' is no number"),
        ("w1:0:1", "is no number"),
        ("w1:3-0", "runs backwards"),
        ("w1:0-99999999", "'0-99999999' stands for more than 100,000 numbers"),
        ("w" * 254, "has a name of more than 253 characters"),
        ("w1@", "the name is empty"),
        ("@", "the name is empty"),
        (":0", "the name is empty"),
        ("w[0-", "the brackets in 'w[0-' do not match"),
        ("w0@w0:1", "w0 is named as a whole and by slots"),
        ("w[0-1]:0@w1", "w1 is named as a whole and by slots"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(option: str, text: str, reason: str) -> None:
    assert reason in refused(TWO, Selection(**{option: text}))


@pytest.mark.parametrize(
    ("cluster", "exclude"), [(ONE, "w0"), (ONE, "w0:0,1,2,3"), (TWO, "w0@w1:0-3")]
)
def test_nothing_left_is_refused(cluster: Cluster, exclude: str) -> None:
    assert "the selection is empty" in refused(cluster, Selection(exclude=exclude))


def test_include_and_exclude_exclude_each_other() -> None:
    assert "exclude each other" in refused(TWO, Selection(include="w0", exclude="w1"))


def test_spares_wait_until_they_are_named() -> None:
    assert "spare01" not in pool(POD, Selection())


def test_counts_take_the_first_nodes_and_the_first_slots() -> None:
    selection = Selection(exclude="node01", nodes=3, slots=2)
    assert pool(POD, selection) == {"node02": [0, 1], "node03": [0, 1], "old01": [2, 3]}


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        (Selection(nodes=5), "--nodes 5: there are only 4: node[01-03],old01"),
        (Selection(include="old01", nodes=2), "--nodes 2: there are only 1: old01"),
        (Selection(nodes=0), "--nodes 0: at least one is needed"),
        (Selection(slots=-1), "--slots -1: at least one is needed"),
        (Selection(slots=3), "--slots 3: there are fewer on old01; ask for at most 2"),
        (Selection(exclude="node01:0", slots=4), "there are fewer on node01,old01"),
    ],
    ids=["nodes", "of included", "no node", "no slot", "slots", "of excluded"],
)
def test_a_count_that_is_not_there_is_refused(selection: Selection, reason: str) -> None:
    assert reason in refused(POD, selection)


def test_a_node_beyond_the_count_may_have_few_slots() -> None:
    assert list(pool(POD, Selection(nodes=3, slots=4))) == ["node01", "node02", "node03"]


@pytest.mark.parametrize(
    ("labels", "hosts"),
    [
        (("rack=r1",), ["node01", "node02"]),
        (("rack=r1", "gpu=h100"), ["node01"]),
        (("rack=r2",), ["node03"]),
    ],
)
def test_labels_keep_the_nodes_that_have_them_all(
    labels: tuple[str, ...], hosts: list[str]
) -> None:
    assert list(pool(POD, Selection(labels=labels))) == hosts


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("rak=r2", "--label rak=r2: no node has it; did you mean rack=r2?"),
        ("zzz", "no node has it; there are rack=r1, gpu=h100, rack=r2"),
    ],
)
def test_a_label_that_no_node_has_is_refused(label: str, reason: str) -> None:
    assert reason in refused(POD, Selection(labels=(label,)))


def test_labels_that_no_node_has_together_select_nothing() -> None:
    assert "is empty" in refused(POD, Selection(labels=("rack=r2", "gpu=h100")))


def test_ranks_count_on_over_the_nodes() -> None:
    allocation = select(POD, Selection(include="old01@node01:1"))
    assert [list(p.ranks) for p in allocation.placements] == [[0], [1, 2]]
    assert [p.node_rank for p in allocation.placements] == [0, 1]


def test_a_long_list_of_names_is_cut_in_messages() -> None:
    cluster = Cluster("c", tuple(Node(f"{i * 7919 % 10007:x}host", (0,)) for i in range(2000)))
    assert len(refused(cluster, Selection(include="!!!"))) < 500


@given(
    st.text(alphabet="w01@:,-[] x", max_size=20),
    st.integers(-1, 4) | st.none(),
    st.integers(-1, 4) | st.none(),
)
def test_no_selection_raises_anything_but_selection_errors(
    text: str, nodes: int | None, slots: int | None
) -> None:
    for selection in (Selection(text, "", nodes, slots), Selection("", text, nodes, slots)):
        try:
            allocation = select(TWO, selection)
        except SelectionError:
            continue
        assert all(set(p.slots) <= set(p.node.slots) for p in allocation.placements)
        assert all(p.slots for p in allocation.placements)


@given(st.data())
def test_excluding_is_including_the_rest(data: st.DataObject) -> None:
    slots = st.lists(st.sampled_from(ALL), unique=True, min_size=1, max_size=3)
    excluded = {host: data.draw(slots) for host in ("w0", "w1")}
    rest = {host: [s for s in ALL if s not in gone] for host, gone in excluded.items()}

    def filter_text(chosen: Pool) -> str:
        return "@".join(f"{host}:{','.join(map(str, s))}" for host, s in chosen.items())

    assert (
        pool(TWO, Selection(exclude=filter_text(excluded)))
        == pool(TWO, Selection(include=filter_text(rest)))
        == rest
    )
