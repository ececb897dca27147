"""Finding the DeepSpeed config among arguments, and fitting it to the storage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.deepspeed.storage import FoundConfig, find_config, localize, replace_config
from dslaunch.errors import ConfigError
from dslaunch.launch.command import Var, Word

NEW: Word = (Var("DSLAUNCH_NODE_DIR"), "/ds_config.json")
LOCAL = '{"checkpoint": {"use_node_local_storage": true}}'


@pytest.mark.parametrize(
    ("args", "index", "path"),
    [
        (("--deepspeed", "ds.json"), 1, "ds.json"),
        (("--deepspeed=ds.json",), 0, "ds.json"),
        (("--deepspeed_config", "conf/ds"), 1, "conf/ds"),
        (("--deepspeed-config=conf/ds",), 0, "conf/ds"),
        (("--deepspeed", "--deepspeed_config", "a.json"), 2, "a.json"),
        (("--ds_config", "a.json"), 1, "a.json"),
        (("--ds-config-path=a.json",), 0, "a.json"),
        (("--deepspeed_config=a", "--lr", "1", "--deepspeed_config", "b"), 4, "b"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_config_is_found(args: tuple[str, ...], index: int, path: str) -> None:
    found = find_config(args)
    assert found is not None
    assert (found.index, found.path) == (index, path)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--lr", "1"),
        ("--deepspeed",),
        ("--deepspeed", "data/"),
        ("--deepspeed", "--lr"),
        ("--deepspeed_config",),
        ("--deepspeed_config", "--lr"),
        ("--deepspeed_config=",),
        ("ds_config=a.json",),
        ("deepspeed", "a.json"),
        ("--deepspeed_config", NEW),
    ],
    ids=lambda args: " ".join(map(str, args)) or "none",
)
def test_what_is_no_config_is_not_taken_for_one(args: tuple[Word, ...]) -> None:
    assert find_config(args) is None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("a", "--deepspeed", "ds.json", "b"), ("a", "--deepspeed", NEW, "b")),
        (
            ("a", "--deepspeed=ds.json", "b"),
            ("a", ("--deepspeed=", Var("DSLAUNCH_NODE_DIR"), "/ds_config.json"), "b"),
        ),
    ],
    ids=["apart", "joined"],
)
def test_a_config_is_replaced_where_it_was(
    args: tuple[str, ...], expected: tuple[Word, ...]
) -> None:
    found = find_config(args)
    assert isinstance(found, FoundConfig)
    assert replace_config(args, found, NEW) == expected


@pytest.mark.parametrize(
    ("text", "shared", "value"),
    [
        ("{}", False, True),
        ('{"checkpoint": {"use_node_local_storage": false}}', False, True),
        ('{"checkpoint": {"use_node_local_storage": "true"}}', False, True),
        (LOCAL, True, False),
        ('{"checkpoint": {"use_node_local_storage": "false"}}', True, False),
    ],
    ids=["unset", "false", "text that is true", "true", "text that is true, too"],
)
def test_the_config_is_made_to_fit_the_storage(text: str, shared: bool, value: bool) -> None:
    localized = localize(text, shared)
    assert json.loads(localized.text)["checkpoint"]["use_node_local_storage"] is value
    assert localized.change is not None
    assert f"use_node_local_storage {json.dumps(value)}" in localized.change


@pytest.mark.parametrize(
    ("text", "shared"),
    [("{ }", True), (LOCAL, False), ('{"checkpoint": {"use_node_local_storage": false}}', True)],
    ids=["unset", "true", "false"],
)
def test_a_config_that_fits_stays_as_it_is(text: str, shared: bool) -> None:
    localized = localize(text, shared)
    assert (localized.text, localized.change) == (text, None)


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.floats(allow_nan=False) | st.text())
)
def test_other_settings_and_their_order_stay(config: dict[str, object]) -> None:
    config.pop("checkpoint", None)
    changed = json.loads(localize(json.dumps(config), shared=False).text)
    assert list(changed.items())[:-1] == list(config.items())


def test_comments_and_trailing_commas_are_read_as_deepspeed_reads_them() -> None:
    text = "{\n  # why\n  zero_optimization: {stage: 3,},\n  'train_batch_size': 8,\n}"
    assert json.loads(localize(text, shared=False).text) == {
        "zero_optimization": {"stage": 3},
        "train_batch_size": 8,
        "checkpoint": {"use_node_local_storage": True},
    }


@pytest.mark.parametrize(
    ("text", "place", "path", "rule"),
    [
        ('{\n  "a": {\n', (3, 1), "", "unclosed-bracket"),
        ("[1]", (0, 0), "", "wrong-type"),
        ('{"checkpoint": 1}', (0, 0), "checkpoint", "wrong-type"),
        ('{"a": 1, "a": 2}', (1, 10), "a", "duplicate-key"),
        ("{a: 1, a: 2}", (1, 8), "a", "duplicate-key"),
        ('{"a":' * 100_000, (1, 321), "", "too-deep"),
        (f'{{"a": {"9" * 5000}}}', (1, 5007), "", "too-large"),
        ('{"a": "\0"}', (1, 8), "", "invalid-character"),
    ],
    ids=["cut", "list", "checkpoint", "twice", "twice in hjson", "deep", "huge", "NUL"],
)
def test_a_config_that_deepspeed_could_not_read_is_refused(
    text: str, place: tuple[int, int], path: str, rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        localize(text, shared=True, name="ds.json")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.column) == ("ds.json", *place)
    assert (problem.path, problem.rule) == (path, rule)
