from __future__ import annotations

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.mistakes import MistakeCode
from dslaunch.cluster.nodeset import (
    LIMIT,
    InvalidNodeSet,
    expand,
    fold,
    fold_in_order,
    fold_numbers,
    numbers,
)


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("node1", ("node1",)),
        ("node[1-3]", ("node1", "node2", "node3")),
        ("node[01-03]", ("node01", "node02", "node03")),
        ("node[08-11]", ("node08", "node09", "node10", "node11")),
        ("node[9-11]", ("node9", "node10", "node11")),
        ("node[3,1]", ("node3", "node1")),
        ("b2,a[1,2]", ("b2", "a1", "a2")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-2]-ib0", ("n1-ib0", "n2-ib0")),
        ("10.0.0.[1-2]", ("10.0.0.1", "10.0.0.2")),
        ("fd00::[1-2]", ("fd00::1", "fd00::2")),
        ("@all", ("@all",)),
    ],
)
def test_names_expand_in_the_written_order(folded: str, names: tuple[str, ...]) -> None:
    assert expand(folded) == names


@pytest.mark.parametrize(
    ("folded", "code"),
    [
        ("", "empty-name"),
        (",", "empty-name-in-list"),
        ("a,", "empty-name-in-list"),
        ("a,,b", "empty-name-in-list"),
        ("n[", "brackets"),
        ("n]", "brackets"),
        ("n[1", "brackets"),
        ("n[[1]]", "brackets"),
        ("n[1]]", "brackets"),
        ("n[]", "no-range"),
        ("n[1-]", "no-range"),
        ("n[-1]", "no-range"),
        ("n[a-b]", "no-range"),
        ("n[1-2/2]", "no-range"),
        ("n[1 - 2]", "no-range"),
        ("n[1,]", "no-range"),
        ("n[١-٢]", "no-range"),
        ("n[3-1]", "backward-range"),
        ("n[01-100]", "uneven-range"),
        ("n[fd00::1]", "ipv6-in-brackets"),
    ],
)
def test_a_faulty_notation_has_its_code(folded: str, code: str) -> None:
    with pytest.raises(InvalidNodeSet) as caught:
        expand(folded)
    assert caught.value.mistake.code == code


@pytest.mark.parametrize(
    "folded",
    ["n[1-999999999999]", "n[1-1000][1-1000]", ",".join(["n[1-60000]"] * 2), f"n[0-{LIMIT}]"],
    ids=["one range", "a product", "a list", "one too many"],
)
def test_a_typing_mistake_does_not_fill_the_memory(folded: str) -> None:
    with pytest.raises(InvalidNodeSet) as caught:
        expand(folded)
    assert caught.value.mistake.code is MistakeCode.TOO_MANY_NAMES


@pytest.mark.parametrize("text", ["[" * 100_000, "a" * 100_000 + "]", "[1]" * 100_000 + "["])
def test_long_nonsense_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidNodeSet) as caught:
        expand(text)
    assert caught.value.mistake.code is MistakeCode.BRACKETS


@pytest.mark.parametrize(
    "folded",
    ["n" * 254, "n" * 249 + "[1-10000]", "n" + "[1]" * 253],
    ids=["plain", "range", "many"],
)
def test_a_name_that_no_host_can_have_is_refused_before_it_is_made(folded: str) -> None:
    with pytest.raises(InvalidNodeSet) as caught:
        expand(folded)
    assert caught.value.mistake.code is MistakeCode.LONG_NAME


def test_the_longest_name_is_taken() -> None:
    assert len(expand("n" * 248 + "[1-10000]")[-1]) == 253


_NAMES = st.lists(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["n", "node-", "r1n", "10.0.0."]),
        st.sampled_from(["0", "1", "2", "3", "9", "10", "01", "02", "09", "010", "099", "100"]),
        st.sampled_from(["", "-ib"]),
    )
    | st.sampled_from(["login", "x-"]),
    min_size=1,
    max_size=12,
)


@given(_NAMES)
def test_folding_loses_and_invents_no_name(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(set(names))


@given(_NAMES)
def test_folding_in_order_is_undone_by_expanding(names: list[str]) -> None:
    assert list(expand(fold_in_order(names))) == names


@given(_NAMES)
def test_what_clustershell_folds_expands_to_the_same_names(names: list[str]) -> None:
    theirs = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
    assert set(expand(str(theirs))) == set(theirs)


def test_names_that_are_no_names_stay_as_they_are() -> None:
    assert fold(["n1", "a b", "n2", "@x"]) == "n[1-2],a b,@x"


def test_nothing_folds_to_nothing() -> None:
    assert fold([]) == ""


def test_numbers_are_given_in_the_written_order() -> None:
    assert numbers("4,0-2") == (4, 0, 1, 2)


@pytest.mark.parametrize("text", ["", "a", "-1", "0-", "2-1", "1,,2", "0-999999999"])
def test_a_faulty_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(InvalidNodeSet):
        numbers(text)


def test_numbers_are_folded_sorted_and_each_once() -> None:
    assert fold_numbers((5, 0, 1, 2, 1)) == "0-2,5"
    assert fold_numbers(()) == ""
