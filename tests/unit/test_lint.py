"""Remarks on a text: their order, and the edits that fix it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.lint import Edit, Level, Remark, fixed_text, in_order


def remark(line: int, level: Level = "error", *edits: Edit) -> Remark:
    return Remark("rule", level, "f.json", line, 1, "", "wrong", edits=edits)


def test_remarks_stand_in_the_order_of_the_text_the_worst_first() -> None:
    given = [remark(3), remark(1, "info"), remark(1, "error"), remark(0, "warning")]
    assert [(r.line, r.level) for r in in_order(given)] == [
        (0, "warning"),
        (1, "error"),
        (1, "info"),
        (3, "error"),
    ]


def test_a_remark_names_its_place_where_it_has_one() -> None:
    assert str(remark(3)) == "f.json:3:1: error: wrong"
    assert str(remark(0)) == "f.json: error: wrong"


def test_edits_are_made_at_their_places_in_the_text_as_it_was() -> None:
    edits = (
        remark(1, "error", Edit(0, 1, "AAA")),
        remark(2, "error", Edit(2, 3, ""), Edit(3, 3, "x")),
    )
    assert fixed_text("abcd", edits) == "AAAbxd"


def test_of_edits_that_overlap_the_first_one_is_made() -> None:
    assert fixed_text("abcd", [remark(1, "error", Edit(0, 2, "X"), Edit(1, 3, "Y"))]) == "Xcd"


@given(st.text())
def test_a_text_without_edits_stays_as_it_is(text: str) -> None:
    assert fixed_text(text, [remark(1)]) == text
