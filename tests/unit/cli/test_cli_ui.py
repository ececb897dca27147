"""Tables, and files that are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.full_disk import files_of_at_most

from dslaunch.cli.ui import table, write
from dslaunch.errors import UsageError

ROWS = [("HOST", "LABELS"), ("node[001-064]", "fabric=ib,gpu=h100,rack=r1"), ("old", "-")]


def test_columns_are_aligned_and_lines_have_no_trailing_space():
    assert table(ROWS).splitlines() == [
        "HOST           LABELS",
        "node[001-064]  fabric=ib,gpu=h100,rack=r1",
        "old            -",
    ]


def test_a_table_that_is_too_wide_continues_its_widest_cells():
    assert table(ROWS, 35).splitlines() == [
        "HOST           LABELS",
        "node[001-064]  fabric=ib,gpu=h100,",
        "               rack=r1",
        "old            -",
    ]


@pytest.mark.parametrize("fit", [None, 80, 200], ids=str)
def test_a_table_that_fits_is_as_it_would_be_in_a_file(fit: int | None):
    assert table(ROWS, fit) == table(ROWS)


CELLS = st.text(alphabet="ab,- []", max_size=60)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1), st.integers(1, 200))
@example([("", "", ",[[[[[[[[[[[[")], 1)
def test_no_character_of_a_cell_is_lost_however_narrow(rows: list[tuple[str, str, str]], fit: int):
    def letters(text: str) -> list[str]:
        return sorted(text.replace(" ", "").replace("\n", ""))

    assert letters(table(rows, fit)) == letters("".join(cell for row in rows for cell in row))


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1))
def test_cells_of_short_words_fit_into_eighty_columns(rows: list[tuple[str, str]]):
    short = [tuple(cell.replace("a", ",").replace("b", " ") for cell in row) for row in rows]
    assert all(len(line) <= 80 for line in table([(a, b) for a, b in short], 80).splitlines())


@pytest.mark.parametrize("before", [None, "as it was"], ids=["new", "existing"])
def test_a_file_is_as_before_if_it_cannot_be_written_whole(tmp_path: Path, before: str | None):
    file = tmp_path / "c.yaml"
    if before is not None:
        file.write_text(before)
    with files_of_at_most(10), pytest.raises(UsageError):
        write(file, "longer than that", "--output")
    assert [path.read_text() for path in tmp_path.iterdir()] == ([before] if before else [])


def test_a_file_that_is_written_again_keeps_its_mode_and_a_link_stays_one(tmp_path: Path):
    file, link = tmp_path / "c.yaml", tmp_path / "link"
    file.touch(mode=0o640)
    link.symlink_to(file)
    for path in (file, link):
        write(path, str(path), "--output")
        assert file.read_text() == str(path)
    assert file.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
