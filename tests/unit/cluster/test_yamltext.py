from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.yamltext import parse, path_text
from dslaunch.errors import ConfigError


@pytest.fixture(autouse=True, params=["libyaml", "pure Python"], scope="module")
def parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here must hold with either of PyYAML's parsers."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "pure Python":
            patch.delattr(yaml, "CSafeLoader")
        yield


def read(text: str) -> Any:
    document = parse(text, "f", verbatim=("env",))
    assert document.problems == []
    return document.data


def faults(text: str) -> list[str]:
    try:
        return [str(problem) for problem in parse(text, "f").problems]
    except ConfigError as error:
        return [str(problem) for problem in error.problems]


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
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' is there already, in line 1"),
        ("a:\n  <<: {b: 1}", "f:2:3: merge keys are not supported; repeat what is meant"),
        ("a: !!python/name:os.system x", "f:1:4: tags such as"),
        ("a: !x [1]", "f:1:4: tags such as '!x' are not supported"),
        ("[1]: 2", "f:1:1: a key must be text, not a list or a mapping"),
        ("? {a: 1}\n: 2", "f:1:3: a key must be text, not a list or a mapping"),
        ("a: 1\n---\nb: 2", "f:2:1: a second document begins"),
        ("a: *x", "f:1:4: the alias `*x` has no anchor `&x` before it"),
        ("a: &x [*x]", "f:1:8: the alias `*x` is inside what it stands for"),
        ("a:\n\t- b", "f:2:1: not valid YAML: a tab; indent with spaces"),
        ("a: [1", "not valid YAML"),
        ("a: 'x", "not valid YAML"),
        ("a: b: c", "f:1:5: not valid YAML: a second `: ` in one line"),
        ("a: x\0y", "f:1:5: the character '\\x00' cannot be in YAML"),
        ('a: "x\\0y"', "f:1:4: the text has the character '\\x00' in it"),
        ('a: "\\U99999999"', "not valid YAML"),
        ("a: \udc80", "f:1:4: the character '\\udc80' cannot be in YAML"),
        ("", "f:1:1: expected a mapping such as `nodes: [...]`, got nothing"),
        ("# only a comment", "got nothing"),
        ("null", "got nothing"),
        ("[1]", "got a list"),
        ("text", "got 'text'"),
        ("[" * 100_000, "more than 32 lists and mappings in each other"),
        ("- " * 100_000, "more than 32 lists and mappings in each other"),
        ("{a: " * 100_000, "more than 32 lists and mappings in each other"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_fault_is_told_with_its_place(text: str, fault: str) -> None:
    found = faults(text)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize("escape", ["ud800", "udfff", "U00110000"])
def test_an_escape_that_is_no_character_is_a_fault(escape: str) -> None:
    assert faults(f'a: "\\{escape}"')


def test_aliases_that_grow_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "more than 1,000,000 parts, aliases counted" in faults("\n".join(lines))[0]


def test_faults_that_do_not_end_reading_are_told_together() -> None:
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


def test_a_path_is_written_as_people_write_it() -> None:
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
