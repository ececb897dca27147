"""Values set in a cluster file's text, and nothing else touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dslaunch.cluster import schema, yamltext
from dslaunch.cluster.edit import ClusterFileEdit, edited
from dslaunch.errors import ConfigError

CLUSTERS = sorted((Path(__file__).resolve().parents[3] / "clusters").glob("*.yaml"))
HEAD = "nodes: [{host: a, slots: 1}]\n"
INTERFACE = ("network", "interface")


def data(text: str) -> object:
    return yamltext.parse(text, "c.yaml", verbatim=schema.VERBATIM).data


CASES = {
    "a scalar": ("name: old  # why\n", ("name",), "new", "name: new  # why\n"),
    "a quoted scalar": ('name: "old" # why\n', ("name",), "new", "name: new # why\n"),
    "a key in a block": (
        "network:\n    master_port: 1 # one\n\n# end\n",
        INTERFACE,
        "ib0",
        "network:\n    master_port: 1 # one\n    interface: ib0\n\n# end\n",
    ),
    "a key in braces": (
        "network: {master_port: 1} # one\n",
        INTERFACE,
        "ib0",
        "network: {master_port: 1, interface: ib0} # one\n",
    ),
    "a key in empty braces": ("network: {}\n", INTERFACE, "ib0", "network: {interface: ib0}\n"),
    "a section of nothing": (
        "network: # to do\n",
        INTERFACE,
        "ib0",
        "network: {interface: ib0} # to do\n",
    ),
    "a section of null": ("network: null\n", INTERFACE, "ib0", "network: {interface: ib0}\n"),
    "a section that is not there": ("", INTERFACE, "ib0", "network:\n  interface: ib0\n"),
    "behind a block scalar": (
        "env:\n  A: |\n    one\n    two\n# end\n",
        ("env", "B"),
        "1",
        'env:\n  A: |\n    one\n    two\n  B: "1"\n# end\n',
    ),
    "text that looks like a number": ("", ("env", "A"), "1", 'env:\n  A: "1"\n'),
    "text that YAML takes for a truth": ("", ("env", "A"), "yes", 'env:\n  A: "yes"\n'),
    "text with marks": ("", ("env", "A"), "=a,b", 'env:\n  A: "=a,b"\n'),
    "text with quotes": ("", ("env", "A"), 'a "b" \\', 'env:\n  A: "a \\"b\\" \\\\"\n'),
}


@pytest.mark.parametrize("name", CASES)
def test_only_what_must_change_changes(name: str):
    old, path, value, new = CASES[name]
    assert edited(HEAD + old, ClusterFileEdit(path, value), "c.yaml") == HEAD + new


def test_entries_of_a_list_are_edited_in_their_places():
    old = "nodes:\n- host: a # one\n  slots: 8\n\n- host: b\n  slots: [0, 1] # two\n"
    changes = [
        ClusterFileEdit(("nodes", 0, "slots"), 4),
        ClusterFileEdit(("nodes", 1, "slots"), [1]),
        ClusterFileEdit(("nodes", 0, "env", "A"), "x"),
    ]
    new = old
    for change in changes:
        new = edited(new, change, "c.yaml")
    assert new == (
        "nodes:\n- host: a # one\n  slots: 4\n  env:\n    A: x\n\n- host: b\n  slots: [1] # two\n"
    )


def test_line_ends_of_other_systems_stay():
    old = HEAD.replace("\n", "\r\n") + "env:\r\n  A: b\r\n"
    new = edited(old, ClusterFileEdit(("env", "C"), "d"), "c.yaml")
    assert new == old + "  C: d\r\n"


def test_a_file_without_a_last_newline_gets_a_line():
    assert edited(HEAD + "env:\n  A: b", ClusterFileEdit(("env", "C"), "d"), "c") == HEAD + (
        "env:\n  A: b\n  C: d"
    )


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "env: &x {A: b}\nslurm: *x\n",
        HEAD + "env: &x\n  A: b\nslurm: *x\n",
        HEAD + "slurm: &x {A: b}\nenv: *x\n",
        HEAD + "env: [a]\n",
        HEAD + "env: text\n",
    ],
)
def test_what_cannot_be_edited_in_place_is_an_error_with_its_place(text: str):
    with pytest.raises(ConfigError) as caught:
        edited(text, ClusterFileEdit(("env", "B"), "c"), "c.yaml")
    assert caught.value.problems[0].file == "c.yaml"
    assert "env" in caught.value.problems[0].path


def test_an_item_that_is_not_there_is_not_made():
    with pytest.raises(ConfigError):
        edited(HEAD, ClusterFileEdit(("nodes", 1, "slots"), 1), "c.yaml")


def test_a_text_that_is_no_yaml_is_an_error():
    with pytest.raises(ConfigError):
        edited("nodes: [", ClusterFileEdit(("name",), "a"), "c.yaml")


PATHS = st.sampled_from(
    [("name",), INTERFACE, ("env", "NCCL_IB_HCA"), ("nodes", 0, "env", "A"), ("nodes", 0, "slots")]
)


@pytest.mark.parametrize("path", CLUSTERS, ids=[path.stem for path in CLUSTERS])
@settings(max_examples=15)
@example(change=ClusterFileEdit(("name",), "\x7f\t"))
@given(
    change=st.builds(
        ClusterFileEdit, PATHS, st.text(st.characters(codec="ascii", min_codepoint=32))
    )
)
def test_any_value_arrives_and_no_line_is_lost(path: Path, change: ClusterFileEdit):
    old = path.read_text("utf-8")
    new = edited(old, change, str(path))
    here = data(new)
    for step in change.path:
        here = here[step]  # type: ignore[index]
    assert here == change.value
    lines = new.splitlines()
    assert len([line for line in old.splitlines() if line not in lines]) <= 1
    assert [line for line in old.splitlines() if line.lstrip().startswith("#")] == [
        line for line in lines if line.lstrip().startswith("#")
    ]
