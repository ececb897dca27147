"""What an activate line plainly names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launch.activation import used


@pytest.mark.parametrize(
    ("line", "commands", "files"),
    [
        ("conda activate x", ("conda",), ()),
        ("source /v/bin/activate", (), ("/v/bin/activate",)),
        (". 'my venv/activate' && module load cuda", ("module",), ("my venv/activate",)),
        ("module purge\nml cuda/12 # the newest", ("module", "ml"), ()),
        ("export A=1; B=2 C=3 tool -x | cat", ("export", "tool", "cat"), ()),
        ("{ echo no >&2; exit 3; }", ("echo", "exit"), ()),
        ("if true; then source a.sh; fi", ("true", "fi"), ("a.sh",)),
        ('source "$HOME/venv/bin/activate"', (), ()),
        ('eval "$(conda shell.bash hook)"', (), ()),
        ("echo 'no end", (), ()),
    ],
)
def test_commands_and_files_of_a_line(
    line: str, commands: tuple[str, ...], files: tuple[str, ...]
) -> None:
    found = used(line)
    assert (found.commands, found.files) == (commands, files)


@given(st.text(max_size=300))
def test_no_line_makes_it_stumble(line: str) -> None:
    found = used(line)
    assert all(found.commands) and all(found.files)
