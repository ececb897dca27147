"""The pages that are made from the program, or must agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dslaunch import errors
from dslaunch.cli.commands import leaves
from dslaunch.cli.reference import reference

PAGES = Path(__file__).parents[3] / "docs" / "reference"


def test_every_command_and_option_is_on_the_page():
    page = reference()
    assert all(f"## dslaunch {words}\n" in page for words, _ in leaves())
    assert "`-i`, `--include`" in page


@pytest.mark.parametrize(
    "error",
    [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.DslaunchError)
    ],
    ids=lambda error: error.__name__,
)
def test_every_exit_code_is_on_its_page(error: type[errors.DslaunchError]):
    page = (PAGES / "exit-codes.md").read_text("utf-8")
    assert re.search(rf"^\| {error.exit_code} \|", page, re.MULTILINE)
