from __future__ import annotations

import json
from typing import Any

import hjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.deepspeed.config_text import DEPTH, parse, path_text
from dslaunch.errors import ConfigError
from dslaunch.lint import fixed_text

TOKENS = [
    *"{}[]:,\n ", '"a"', "a", "b", "'c'", "1", "1.5", "5e8", "1e12", "-0", "true", "null", "# x\n",
    "//y\n", "/* z */", '"\\u00e9"', "01", ".5", "tru", "-", "1 2", "\r\n", "\t",
    '"\\ud83d\\ude00"',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)


def read(text: str) -> Any:
    try:
        return parse(text, "c").data
    except ConfigError:
        return ConfigError


def read_by_hjson(text: str) -> Any:
    try:
        return hjson.loads(text, object_pairs_hook=dict)
    except (hjson.HjsonDecodeError, IndexError, OverflowError):
        return ConfigError


@given(TEXTS)
@settings(max_examples=500, deadline=None)
def test_an_object_is_read_as_hjson_reads_it(inside: str) -> None:
    text = "{" + inside + "}"
    assert repr(read(text)) == repr(read_by_hjson(text))


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_loose_text_becomes_json_with_the_same_data(inside: str) -> None:
    text = "{" + inside + "}"
    if read(text) is ConfigError:
        return
    document = parse(text, "c")
    if any(loose.kind == "comment" for loose in document.loose) or document.twice:
        return
    from dslaunch.lint import Remark

    remarks = [Remark("r", "info", "c", 1, 1, "", "m", edits=each.edits) for each in document.loose]
    assert json.loads(fixed_text(text, remarks)) == document.data


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.text(max_size=3), inner, max_size=3), max_leaves=8))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_json_has_nothing_loose_and_every_value_its_place(data: Any) -> None:
    text = json.dumps({"top": data}, indent=1, ensure_ascii=False)
    if any(character in text for character in "\x00\x7f"):
        return
    document = parse(text, "c")
    assert document.data == {"top": data}
    assert not document.loose
    for span in document.spans.values():
        json.loads(text[span.start : span.end])


def test_places_are_those_of_keys() -> None:
    document = parse('{\n  "a": [1, {"b": 2}],\n  c: x\n}', "c")
    place = document.place
    assert place(document.span(("a", 1, "b")).key) == (2, 13)
    assert place(document.span(("a", 1, "b")).start) == (2, 18)
    assert place(document.span(("c",)).key) == (3, 3)
    assert document.span(("a", 7, "x")) == document.span(("a",))
    assert path_text(("a", 1, "b")) == "a[1].b"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{# x\n}", "comment"),
        ("{a: 1}", "unquoted key"),
        ('{"a": 1,}', "trailing comma"),
        ('{"a": 1\n"b": 2}', "missing comma"),
        ('{"a": b\n}', "unquoted text"),
        ("{'a': 1}", "single quotes"),
        ('"a": 1', "missing braces"),
        ("{\n  \"a\":\n    '''\n    x\n    y\n    '''\n}", "multi-line text"),
    ],
)
def test_what_only_hjson_has_is_named(text: str, kind: str) -> None:
    document = parse(text, "c")
    assert [loose.kind for loose in document.loose] == [kind]
    assert document.data == hjson.loads(text)


def test_a_key_that_is_there_twice_is_said_and_the_last_one_counts() -> None:
    document = parse('{"a": {"b": 1,\n "b": 2}}', "c")
    assert document.data == {"a": {"b": 2}}
    assert [(path, document.place(at)) for path, at in document.twice] == [(("a", "b"), (2, 2))]


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ('{"a": 1', (1, 8), "unclosed-bracket"),
        ('{"a" 1}', (1, 6), "missing-colon"),
        ('{"a": "x', (1, 7), "unclosed-string"),
        ('{"a": "\\q"}', (1, 8), "invalid-escape"),
        ('{"a": }', (1, 7), "missing-value"),
        ('{"a": 1} x', (1, 10), "trailing-text"),
        ('{"a": 1e999}', (1, 12), "too-large"),
        (f'{{"a": -{"9" * 400}}}', (1, 408), "too-large"),
        ('{"a": "b\nc"}', (1, 9), "invalid-character"),
        ("[" * (DEPTH + 1), (1, DEPTH + 1), "too-deep"),
        ("{/* x", (1, 2), "unclosed-comment"),
    ],
)
def test_broken_text_is_refused_with_its_place(
    text: str, place: tuple[int, int], rule: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, "c")
    problem = raised.value.problems[0]
    assert (problem.line, problem.column, problem.rule) == (*place, rule)
