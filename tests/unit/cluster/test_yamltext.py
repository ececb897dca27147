from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.yamltext import parse, path_text
from dslaunch.errors import ConfigError

pytestmark = pytest.mark.usefixtures("parser")


def read(text: str) -> Any:
    document = parse(text, "f", verbatim=("env",))
    assert document.problems == []
    return document.data


def faults(text: str) -> list[str]:
    """The place and the code of each problem."""
    try:
        found = tuple(parse(text, "f").problems)
    except ConfigError as error:
        found = error.problems
    return [f"{problem.line}:{problem.column} {problem.rule}" for problem in found]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("12:30:00", "12:30:00"),
        ("no", "no"),
        ("on", "on"),
        ("True", "True"),
        ("022", "022"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ("+1", "+1"),
        (".5", ".5"),
        (".inf", ".inf"),
        ("2026-01-02", "2026-01-02"),
        ("1e999", "1e999"),
        ("12345678901234567890", "12345678901234567890"),
        ("'22'", "22"),
        ('"true"', "true"),
        ("22", 22),
        ("-3", -3),
        ("0", 0),
        ("1e3", 1000.0),
        ("2.5", 2.5),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_only_what_json_has_is_more_than_text(written: str, value: object) -> None:
    found = read(f"a: {written}")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("written", ["22", "1e3", "true", "null", "~", "0x1F", "022", "no", ""])
def test_a_verbatim_value_is_the_text_that_was_written(written: str) -> None:
    assert read(f"env: {{A: {written}}}") == {"env": {"A": written}}


def test_everything_below_a_verbatim_key_is_verbatim() -> None:
    assert read("env: [1, {a: 2}]\nb: 1") == {"env": ["1", {"a": "2"}], "b": 1}


def test_an_alias_stands_for_what_its_anchor_holds() -> None:
    assert read("a: &x [1]\nb: *x\nc: &y 022\nenv: *y") == {
        "a": [1], "b": [1], "c": "022", "env": "022"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: 2\na: 3", "3:1 duplicate-key"),
        ("a:\n  <<: {b: 1}", "2:3 merge-key"),
        ("a: !!python/name:os.system x", "1:4 tag"),
        ("a: !x [1]", "1:4 tag"),
        ("[1]: 2", "1:1 key-not-text"),
        ("? {a: 1}\n: 2", "1:3 key-not-text"),
        ("a: 1\n---\nb: 2", "2:1 several-documents"),
        ("a: *x", "1:4 unknown-alias"),
        ("a: &x [*x]", "1:8 recursive-alias"),
        ("a:\n\t- b", "2:1 tab"),
        ("a: 'x", "1:4 unclosed-quote"),
        ("a: b: c", "1:5 second-key"),
        ("a: x\0y", "1:5 control-character"),
        ('a: "x\\0y"', "1:4 unprintable"),
        ("a: \udc80", "1:4 control-character"),
        ("", "1:1 no-mapping"),
        ("# only a comment", "1:1 no-mapping"),
        ("null", "1:1 no-mapping"),
        ("[1]", "1:1 no-mapping"),
        ("text", "1:1 no-mapping"),
        ("[" * 100_000, "1:33 too-deep"),
        ("- " * 100_000, "1:65 too-deep"),
        ("{a: " * 100_000, "1:129 too-deep"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_mistake_is_reported_with_its_position(text: str, fault: str) -> None:
    assert faults(text) == [fault]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("a: [1", {"unclosed-bracket", "missing-comma"}),
        ('a: "\\U99999999"', {"escape", "invalid-yaml"}),
    ],
)
def test_a_fault_at_the_end_has_a_code_with_either_parser(text: str, codes: set[str]) -> None:
    (found,) = faults(text)
    assert found.partition(" ")[2] in codes


@pytest.mark.parametrize("escape", ["ud800", "udfff", "U00110000"])
def test_an_escape_that_is_no_character_is_a_fault(escape: str) -> None:
    assert faults(f'a: "\\{escape}"')


def test_aliases_that_grow_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert faults("\n".join(lines))[0].endswith(" too-many-parts")


def test_mistakes_that_do_not_end_parsing_are_reported_together() -> None:
    assert len(faults("a: 1\na: 2\nb: !x 3\n<<: {}\n")) == 3


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert read("\ufeffa: 1") == {"a": 1}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("nodes", 1, "slots"), (3, 15)),
        (("nodes", 1), (3, 5)),
        (("nodes", 1, "missing"), (3, 5)),
        (("nodes", 7, "slots"), (1, 1)),
        (("env", "A"), (4, 7)),
        ((), (1, 1)),
    ],
    ids=str,
)
def test_each_part_knows_its_place(path: tuple[str | int, ...], place: tuple[int, int]) -> None:
    text = "nodes:\n  - {host: a}\n  - {host: b, slots: 1}\nenv: {A: 1}\n"
    assert parse(text, "f").place(path) == place


def test_a_path_is_rendered_for_messages() -> None:
    assert path_text(("nodes", 2, "env", "a b")) == "nodes[2].env['a b']"


_TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=8)
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(_TEXT, _DATA, max_size=4))
def test_json_is_read_as_json(data: dict[str, Any]) -> None:
    assert parse(json.dumps(data, ensure_ascii=False), "f").data == data


@given(st.text() | st.text(alphabet="ab:-[]{}&*!|>'\"#%@,? \n\t0<"))
def test_no_text_raises_anything_but_config_errors(text: str) -> None:
    faults(text)
