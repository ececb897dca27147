"""Files by which nodes find out whether they share a directory."""

from __future__ import annotations

import threading
from pathlib import Path

from dslaunch.node import paths


def test_nodes_that_share_a_directory_find_the_text_of_the_first(tmp_path: Path) -> None:
    shared, own = str(tmp_path), tmp_path / "own"
    own.mkdir()
    assert paths.claim(shared, "mark-first", "mark-3") == "mark-3"
    assert paths.claim(shared, "mark-first", "mark-0") == "mark-3"
    assert paths.claim(str(own), "mark-first", "mark-0") == "mark-0"


def test_a_file_that_is_found_before_its_text_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mark-first"
    file.touch()
    writer = threading.Timer(0.1, file.write_text, ["mark-7"])
    writer.start()
    assert paths.claim(str(tmp_path), file.name, "mark-1") == "mark-7"
    writer.join()


def test_a_directory_that_cannot_be_written_has_no_first_node(tmp_path: Path) -> None:
    assert paths.claim(str(tmp_path / "missing"), "mark-first", "mark-1") is None
