"""The words behind the options, as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cli.positional import (
    FILE_ENDINGS,
    MoreOptions,
    own_first,
    read_settings,
    split_words,
)
from dslaunch.cli.run_options import JobOptions
from dslaunch.errors import UsageError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param([], (None, None, ()), id="nothing"),
        pytest.param(["c.yaml"], (Path("c.yaml"), None, ()), id="file-alone"),
        pytest.param(["t.py"], (None, "t.py", ()), id="script-alone"),
        pytest.param(["c.yml", "t.py", "-x"], (Path("c.yml"), "t.py", ("-x",)), id="all-three"),
        pytest.param(["t.py", "c.yaml"], (None, "t.py", ("c.yaml",)), id="yaml-for-the-script"),
        pytest.param(["a.yaml", "b.yaml"], (Path("a.yaml"), "b.yaml", ()), id="two-yaml"),
    ],
)
def test_the_first_word_is_the_cluster_file_if_it_ends_so(words: list[str], expected: object):
    assert split_words(words) == expected


@given(st.sampled_from(FILE_ENDINGS), st.lists(st.text()))
def test_what_follows_the_script_is_never_touched(ending: str, args: list[str]):
    assert split_words([f"c{ending}", "train.py", *args])[2] == tuple(args)


@pytest.mark.parametrize(
    ("words", "formats", "own", "rest"),
    [
        (["c.yaml", "-N", "2", "t.py"], 0, ["c.yaml"], ["-N", "2", "t.py"]),
        (["hostfile", "-N", "2"], 1, ["hostfile"], ["-N", "2"]),
        (["hostfile", "c.yaml", "-N", "2"], 1, ["hostfile", "c.yaml"], ["-N", "2"]),
        (["c.yaml", "--", "t.py"], 0, ["c.yaml"], ["--", "t.py"]),
    ],
    ids=["file", "format", "format-and-file", "end-of-options"],
)
def test_options_behind_own_words_are_to_be_parsed(
    words: list[str], formats: int, own: list[str], rest: list[str]
):
    with pytest.raises(MoreOptions) as more:
        own_first([], words, formats=formats)
    assert (more.value.own, more.value.rest, more.value.unread) == (own, rest, len(words))


@pytest.mark.parametrize(
    "words", [["t.py", "-N", "2"], ["c.yaml", "t.py", "-N"], ["c.yaml"], []], ids=str
)
def test_options_behind_the_script_are_the_scripts(words: list[str]):
    assert own_first([], words) == words


@given(st.lists(st.sampled_from(["c.yaml", "-N", "2", "--", "t.py", "hostfile"])), st.booleans())
def test_no_word_is_parsed_without_end(words: list[str], has_format: bool):
    held: list[str] = []
    unread = words
    for _ in range(3):
        try:
            assert own_first(held, unread, formats=int(has_format)) == words
        except MoreOptions as more:
            held, unread = more.own, more.rest
            assert [*held, *unread] == words
        else:
            return
    pytest.fail("parsed again and again")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (JobOptions(), "script"),
        (JobOptions(module=True), "module"),
        (JobOptions(no_python=True), "command"),
    ],
    ids=["script", "module", "command"],
)
def test_an_option_says_what_the_program_is(options: JobOptions, kind: str):
    assert options.kind == kind


def test_a_program_is_of_one_kind():
    with pytest.raises(UsageError, match="exclude"):
        assert JobOptions(module=True, no_python=True).kind


@given(st.text(alphabet=st.characters(exclude_characters="\0")))
def test_a_value_arrives_as_it_was_written(value: str):
    assert read_settings([f"A={value}"], {}) == {"A": value}


def test_a_bare_name_copies_the_callers_value():
    assert read_settings(["A", "B=x"], {"A": "1", "B": "2"}) == {"A": "1", "B": "x"}


def test_all_wrong_settings_are_named_at_once():
    with pytest.raises(UsageError) as wrong:
        read_settings(["1A=x", "GONE", "=", "fine=1"], {})
    assert [line.partition(":")[0] for line in wrong.value.message.splitlines()] == [
        "--env 1A=x",
        "--env GONE",
        "--env =",
    ]
