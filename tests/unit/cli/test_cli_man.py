"""The man pages: one for each command, and rendered without a warning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dslaunch import errors
from dslaunch.cli.command_help import CommandHelp, ParameterHelp
from dslaunch.cli.commands import leaves
from dslaunch.cli.man import EXIT_CODES, page, pages, write

PAGES = pages()


def test_the_program_and_every_command_have_a_page():
    expected = {f"dslaunch-{words.replace(' ', '-')}.1" for words, _ in leaves()}
    assert set(PAGES) >= expected | {"dslaunch.1"}


@pytest.mark.parametrize("words", [words for words, _ in leaves()])
def test_a_page_has_every_option(words: str):
    text = PAGES[f"dslaunch-{words.replace(' ', '-')}.1"].replace("\\-", "-")
    (command,) = [found for name, found in leaves() if name == words]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert all(f"\\fB{name}\\fR" in text for name in parameter.opts)


@pytest.mark.parametrize(
    "linter",
    [
        pytest.param(["groff", "-man", "-Tutf8", "-ww", "-z"], id="groff"),
        pytest.param(["mandoc", "-T", "lint", "-W", "warning"], id="mandoc"),
    ],
)
def test_the_pages_are_rendered_without_a_warning(tmp_path: Path, linter: list[str]):
    if shutil.which(linter[0]) is None:
        pytest.skip(f"{linter[0]} is not installed")
    write(tmp_path)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run([*linter, *files], text=True, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")


def test_markup_in_a_text_has_no_effect():
    option = ParameterHelp(names=("--x",), metavar="A", text=".SH \\fBnot bold\\fR 'quoted'")
    command = CommandHelp(words="dslaunch x", summary="'sp -1\\n", options=(option,))
    text = page(command, ())
    assert "\n\\&.SH \\efBnot bold\\efR 'quoted'\n" in text
    assert "\n\\&'sp \\-1\\en.\n" in text


def test_every_exit_code_of_an_error_is_on_the_pages():
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    codes = {each.exit_code for each in kinds if issubclass(each, errors.DslaunchError)}
    assert codes <= set(EXIT_CODES)
    assert all(f"\\fB{code}\\fR" in PAGES["dslaunch-run.1"] for code in EXIT_CODES)
