from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.mistakes import MistakeCode
from dslaunch.cluster.model import Cluster, Node
from dslaunch.cluster.select import Selection, check_min_nodes, select
from dslaunch.errors import ErrorCode, SelectionError

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


def refused(cluster: Cluster, selection: Selection) -> SelectionError:
    with pytest.raises(SelectionError) as caught:
        select(cluster, selection)
    return caught.value


def has_values(error: SelectionError, **values: object) -> bool:
    """Whether the error has these parameters, among others."""
    return values.items() <= dict(error.values).items()


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
    ("text", "hosts", "hint"),
    [
        ("jeff", "jeff", {"available": "w[0-1]"}),
        ("w00", "w00", {"meant": "w0"}),
        ("w[0-4]", "w[2-4]", {}),
        ("w1@w0:1@5", "5", {}),
    ],
)
def test_an_unknown_node_is_refused_with_the_one_that_was_meant(
    option: str, text: str, hosts: str, hint: dict[str, str]
) -> None:
    error = refused(TWO, Selection(**{option: text}))
    assert error.error_code is ErrorCode.UNKNOWN_NODE
    assert has_values(error, option=f"--{option}", hosts=hosts, **hint)


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize(("text", "missing"), [("w1:4", "4"), ("w1:0,4,9", "4,9")])
def test_an_unknown_slot_is_refused_with_the_slots_of_the_node(
    option: str, text: str, missing: str
) -> None:
    error = refused(TWO, Selection(**{option: text}))
    assert error.error_code is ErrorCode.UNKNOWN_SLOT
    assert has_values(error, host="w1", missing=missing, slots="0,1,2,3")


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("w1:-1", MistakeCode.NO_RANGE),
        ("w1:", MistakeCode.NO_RANGE),
        ("w1:a", MistakeCode.NO_RANGE),
        ("w1:0:1", MistakeCode.NO_RANGE),
        ("w1:3-0", MistakeCode.BACKWARD_RANGE),
        ("w1:0-99999999", MistakeCode.TOO_MANY_NUMBERS),
        ("w" * 254, MistakeCode.LONG_NAME),
        ("w1@", MistakeCode.EMPTY_NAME),
        ("@", MistakeCode.EMPTY_NAME),
        (":0", MistakeCode.EMPTY_NAME),
        ("w[0-", MistakeCode.BRACKETS),
    ],
)
def test_an_invalid_filter_is_refused(option: str, text: str, code: MistakeCode) -> None:
    error = refused(TWO, Selection(**{option: text}))
    assert error.error_code is ErrorCode.INVALID_FILTER
    assert has_values(error, text=text, mistake=code.value)


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize(("text", "host"), [("w0@w0:1", "w0"), ("w[0-1]:0@w1", "w1")])
def test_a_node_with_and_without_slots_is_refused(option: str, text: str, host: str) -> None:
    error = refused(TWO, Selection(**{option: text}))
    assert error.error_code is ErrorCode.NODE_AND_SLOTS
    assert has_values(error, host=host)


@pytest.mark.parametrize(
    ("cluster", "exclude"), [(ONE, "w0"), (ONE, "w0:0,1,2,3"), (TWO, "w0@w1:0-3")]
)
def test_an_empty_selection_is_refused(cluster: Cluster, exclude: str) -> None:
    assert refused(cluster, Selection(exclude=exclude)).error_code is ErrorCode.EMPTY_SELECTION


def test_include_and_exclude_cannot_be_combined() -> None:
    error = refused(TWO, Selection(include="w0", exclude="w1"))
    assert error.error_code is ErrorCode.INCLUDE_AND_EXCLUDE


def test_spares_wait_until_they_are_named() -> None:
    assert "spare01" not in pool(POD, Selection())


def test_counts_take_the_first_nodes_and_the_first_slots() -> None:
    selection = Selection(exclude="node01", nodes=3, slots=2)
    assert pool(POD, selection) == {"node02": [0, 1], "node03": [0, 1], "old01": [2, 3]}


@pytest.mark.parametrize(
    ("selection", "code", "values"),
    [
        (
            Selection(nodes=5),
            ErrorCode.TOO_FEW_SELECTED,
            {"wanted": 5, "count": 4, "hosts": "node[01-03],old01"},
        ),
        (
            Selection(include="old01", nodes=2),
            ErrorCode.TOO_FEW_SELECTED,
            {"wanted": 2, "count": 1, "hosts": "old01"},
        ),
        (Selection(nodes=0), ErrorCode.COUNT_BELOW_ONE, {"option": "--nodes", "count": 0}),
        (Selection(slots=-1), ErrorCode.COUNT_BELOW_ONE, {"option": "--slots", "count": -1}),
        (Selection(slots=3), ErrorCode.TOO_FEW_SLOTS, {"hosts": "old01", "least": 2}),
        (
            Selection(exclude="node01:0", slots=4),
            ErrorCode.TOO_FEW_SLOTS,
            {"hosts": "node01,old01", "least": 2},
        ),
    ],
    ids=["nodes", "of included", "no node", "no slot", "slots", "of excluded"],
)
def test_a_count_above_the_selection_is_refused(
    selection: Selection, code: ErrorCode, values: dict[str, object]
) -> None:
    error = refused(POD, selection)
    assert error.error_code is code
    assert has_values(error, **values)


def test_min_nodes_above_the_selection_is_refused() -> None:
    with pytest.raises(SelectionError) as caught:
        check_min_nodes(3, select(TWO))
    assert caught.value.error_code is ErrorCode.MIN_NODES_ABOVE_SELECTED
    assert has_values(caught.value, wanted=3, count=2, hosts="w[0-1]")


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
    ("label", "hint"),
    [
        ("rak=r2", {"meant": "rack=r2"}),
        ("zzz", {"available": "rack=r1, gpu=h100, rack=r2"}),
    ],
)
def test_a_label_that_no_node_has_is_refused(label: str, hint: dict[str, str]) -> None:
    error = refused(POD, Selection(labels=(label,)))
    assert error.error_code is ErrorCode.UNKNOWN_LABEL
    assert has_values(error, label=label, **hint)


def test_labels_that_no_node_has_together_select_nothing() -> None:
    error = refused(POD, Selection(labels=("rack=r2", "gpu=h100")))
    assert error.error_code is ErrorCode.EMPTY_SELECTION


def test_ranks_count_on_over_the_nodes() -> None:
    allocation = select(POD, Selection(include="old01@node01:1"))
    assert [list(p.ranks) for p in allocation.placements] == [[0], [1, 2]]
    assert [p.node_rank for p in allocation.placements] == [0, 1]


def test_a_long_list_of_names_is_cut_in_messages() -> None:
    cluster = Cluster("c", tuple(Node(f"{i * 7919 % 10007:x}host", (0,)) for i in range(2000)))
    error = refused(cluster, Selection(include="!!!"))
    assert len(f"{error.message}{error.hint}") < 500


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
