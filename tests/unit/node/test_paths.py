"""Paths with wildcards, and files by which nodes find out whether they share a directory."""

from __future__ import annotations

import fnmatch
import threading
from pathlib import Path

import pytest

from dslaunch.node import paths


@pytest.mark.parametrize(
    "pattern", ["*/ports/*/state", "card0/p*/1/s*e", "?ard[01]/ports", "none/*"]
)
def test_paths_with_wildcards_are_those_that_glob_finds(tmp_path: Path, pattern: str) -> None:
    for port in ("card0/ports/1", "card1/ports/1", "card1/ports/2", "other"):
        (tmp_path / port).mkdir(parents=True)
        (tmp_path / port / "state").touch()
    there = [path for path in paths.matching(f"{tmp_path}/{pattern}") if Path(path).exists()]
    assert there == sorted(map(str, tmp_path.glob(pattern)))


@pytest.mark.parametrize(
    "pattern", ["NCCL_*", "*_IB", "N*B", "*", "NCCL", "N?CL", "N*C*", "[N]CCL"]
)
def test_a_name_fits_a_pattern_as_the_shell_says(pattern: str) -> None:
    for name in ("NCCL", "NCCL_", "NCCL_IB", "NB", "B", ""):
        assert paths.fits(name, pattern) is fnmatch.fnmatchcase(name, pattern), name


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
