"""Commands as words of a shell line, and what is run in front of them."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launch.command import (
    Command,
    Var,
    activated,
    at_home,
    exports,
    quote,
    quote_in_line,
)
from dslaunch.terminal import one_line

SAYING = Command(("printf", "%s|", "a b", "$HOME", "#", ""))


def run(line: str | None) -> subprocess.CompletedProcess[str]:
    shell = activated(SAYING, line).shell()
    return subprocess.run(["sh", "-c", shell], capture_output=True, text=True)


@pytest.mark.parametrize(
    "line",
    [
        "true",
        "true # why",
        "x=1 #",
        "true\n",
        "true;",
        "true &",
        "false\ntrue",
        "a=b # c\ntrue",
        " ",
    ],
    ids=repr,
)
def test_the_command_runs_unchanged_after_the_activate_line(line: str) -> None:
    done = run(line)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b|$HOME|#||", "")


@pytest.mark.parametrize(
    ("line", "status"), [("false", 1), ("exit 3", 3), ("false # why", 1), ("true\nfalse", 1)]
)
def test_the_command_does_not_run_where_activation_fails(line: str, status: int) -> None:
    done = run(line)
    assert (done.returncode, done.stdout) == (status, "")


def test_a_plain_activate_line_stays_readable() -> None:
    assert activated(Command(("x",)), "source v").argv == (
        *("bash", "-c", 'source v && exec "$@"', "dslaunch"),
        "x",
    )


def test_text_with_dos_line_breaks_arrives_unchanged_and_has_none_in_the_shell_text() -> None:
    texts = ("a\r\nb", "\r\n", "it's\r\n\r\n$x", "\r", "\n", "a\r")
    line = Command(("printf", "%s|", *texts)).shell()
    assert "\r\n" not in line + exports((("A", "\r\n"),))[0]
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode() == "".join(f"{text}|" for text in texts)


@pytest.mark.parametrize(
    ("path", "word"),
    [("~/a", (Var("HOME"), "/a")), ("~", (Var("HOME"), "")), ("/a", "/a"), ("~a/b", "~a/b")],
)
def test_only_a_tilde_by_itself_is_the_home_of_the_nodes_user(path: str, word: object) -> None:
    assert at_home(path) == word


def test_a_home_with_a_space_in_it_is_one_word() -> None:
    line = f"HOME='/a b'; printf '%s|' {quote(at_home('~'))} {quote(at_home('~/c d'))}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "/a b|/a b/c d|"


ODD = "a\nrm -rf x\t'\\ \x1b[31m\u2028\udcff é日"


def test_a_word_that_stays_on_its_line_is_the_same_for_bash() -> None:
    script = f"printf %s {quote_in_line(ODD)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    assert done.stdout == ODD.encode("utf-8", "surrogateescape")


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from([ODD, "it's", "plain"]))
def test_no_word_leaves_its_line_or_controls_a_terminal(text: str) -> None:
    assert one_line(quote_in_line(text)) == quote_in_line(text)
