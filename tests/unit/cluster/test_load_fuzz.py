"""Whatever a file holds, loading it gives a cluster or says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError

EXAMPLES = [
    path.read_text("utf-8") for path in sorted((Path(__file__).parents[3] / "clusters").iterdir())
]
KEYS = ["name", "nodes", "host", "slots", "address", "env", "ssh", "port", "labels", "spare",
        "secrets", "file", "job", "script", "module", "args", "slurm", "network", "storage",
        "shared", "interface", "master_port", "python", "activate", "x"]  # fmt: skip


def check(text: str) -> None:
    try:
        cluster = parse_cluster(text, "f")
    except ConfigError as error:
        assert error.problems
        assert all(p.message and "\n" not in p.message for p in error.problems)
    else:
        assert cluster.nodes
        hash(cluster)


@given(st.text())
def test_arbitrary_text(text: str) -> None:
    check(text)


@given(st.binary())
def test_arbitrary_bytes(data: bytes) -> None:
    check(data.decode("utf-8", "surrogateescape"))


_PIECES = st.sampled_from(
    [" ", "\n", "\t", "- ", ": ", ":", ",", "[", "]", "{", "}", "'", '"', "#", "&a ", "*a", "<<: ",
     "!!str ", "!x ", "|\n", "? ", "---\n", "null", "-1", "1e3", "[1-99999999]", "\0", "\ufeff",
     "é", "\x85"]
) | st.text(max_size=3)  # fmt: skip


@given(
    st.sampled_from(EXAMPLES),
    st.lists(st.tuples(st.integers(0, 800), st.integers(0, 4), _PIECES), min_size=1, max_size=4),
)
def test_example_files_with_pieces_put_in_and_taken_out(
    text: str, changes: list[tuple[int, int, str]]
) -> None:
    for place, removed, inserted in changes:
        place = min(place, len(text))
        text = text[:place] + inserted + text[place + removed :]
    check(text)


_SCALARS = st.sampled_from([None, True, 0, -1, 1, 8, 2.5, 10**17, "", "a", "n[1-2]", "auto", "A_B"])
_DATA = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYS), _DATA, max_size=6))
def test_the_right_keys_with_the_wrong_values(data: dict[str, Any]) -> None:
    check(json.dumps(data))


@given(st.lists(st.dictionaries(st.sampled_from(KEYS[2:10]), _DATA, max_size=5), max_size=3))
def test_nodes_of_all_kinds(nodes: list[dict[str, Any]]) -> None:
    check(json.dumps({"nodes": nodes}))
