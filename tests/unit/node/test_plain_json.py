"""JSON that a node writes and reads without importing `json`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.node import plain_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_text_is_the_one_that_json_writes(value: object) -> None:
    assert plain_json.ascii_text(value) == json.dumps(value, separators=(",", ":"))
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert plain_json.text(value) == text


@given(VALUES)
def test_a_value_is_read_from_its_text(value: object) -> None:
    assert plain_json.value(plain_json.text(value)) == value
    assert plain_json.value(plain_json.ascii_text(value)) == value


@pytest.mark.parametrize("text", ["", "{", "nothing", '{"a" 1}'])
def test_what_is_no_json_raises_an_error_that_says_so(text: str) -> None:
    with pytest.raises(ValueError):
        plain_json.value(text)


def test_what_json_has_no_form_for_is_an_error() -> None:
    with pytest.raises(TypeError, match="bytes"):
        plain_json.text({"a": b""})
