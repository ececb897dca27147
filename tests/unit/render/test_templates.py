from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dslaunch.errors import PlanError
from dslaunch.launch.command import Var
from dslaunch.render.templates import IN_THE_SOURCE_TREE, render


def filled(directory: Path, text: str, **values: object) -> str:
    (directory / "own.j2").write_text(text, "utf-8")
    return render("own.j2", directories=[directory], **values)


def test_a_users_template_is_found_before_ours(tmp_path: Path) -> None:
    ours = next(IN_THE_SOURCE_TREE.glob("*.j2")).name
    (tmp_path / ours).write_text("mine {{ x }}\n")
    assert render(ours, directories=[tmp_path], x=1) == "mine 1\n"


def test_the_final_newline_stays_and_lines_of_blocks_go(tmp_path: Path) -> None:
    text = "{% for x in xs %}\n  {% if x %}\n{{ x }}\n  {% endif %}\n{% endfor %}\n"
    assert filled(tmp_path, text, xs=[1, 0, 2]) == "1\n2\n"


def test_nothing_is_escaped_for_html(tmp_path: Path) -> None:
    assert filled(tmp_path, "{{ x }}", x="<&\"'>") == "<&\"'>"


@pytest.mark.parametrize("word", ["it's $x", "", "a\nb", "--x=`y`"])
def test_the_filter_sh_quotes_for_a_shell(tmp_path: Path, word: str) -> None:
    assert shlex.split(filled(tmp_path, "{{ x | sh }}", x=word)) == [word]


def test_the_filter_sh_leaves_a_variable_to_the_node(tmp_path: Path) -> None:
    assert filled(tmp_path, "{{ x | sh }}", x=("a b/", Var("RANK"))) == "'a b/'\"$RANK\""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n\n{{ missing }}", "own.j2:3: 'missing' is undefined"),
        ("\n{{ x.missing }}", "own.j2:2: 'int object' has no attribute 'missing'"),
        ("\n{% for %}", "own.j2:2: Expected"),
        ("\n\n\n{% if x %}", "own.j2:4: Unexpected end of template"),
        ("{{ x | nosuch }}", "own.j2:1: No filter named 'nosuch'"),
        ("{% include 'other.j2' %}", "`other.j2`"),
        ("\n{{ x / 0 }}", "own.j2:2: division by zero"),
        ("\n{{ x() }}", "own.j2:2: 'int' object is not callable"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_fault_is_reported_with_template_and_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(PlanError) as caught:
        filled(tmp_path, text, x=1)
    assert fault in caught.value.message


def test_a_template_that_is_not_there_is_named() -> None:
    with pytest.raises(PlanError, match=r"nosuch\.j2"):
        render("nosuch.j2")


def test_a_template_that_is_no_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "own.j2").write_bytes(b"\xff")
    with pytest.raises(PlanError, match=r"own\.j2: not UTF-8 text"):
        render("own.j2", directories=[tmp_path])
