"""The reader of shell text: words, quotes, what is replaced where, and that nothing breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.slurm.launches import read_launches
from dslaunch.slurm.lint import fixed, lint_script
from dslaunch.slurm.script import Script
from dslaunch.slurm.shell import inner_commands, read
from dslaunch.slurm.words import Command, Text


def commands(text: str) -> list[Command]:
    return read(Text.of_file(text))


def values(text: str) -> list[list[str]]:
    return [[word.value for word in command.words] for command in commands(text)]


def script(text: str) -> Script:
    return Script(text, "job.sh", lambda _: True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a b#c # d", [["a", "b#c"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a | b |& c && d || e ; f & g", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"]]),
        ("while ! a; do b; done", [["a"], ["b"]]),
        ("f() { a; }; f", [["a"], ["f"]]),
        ("(a; b)", [["a"], ["b"]]),
        ("a > b 2>&1 < c >> d", [["a"]]),
        ("a <<E | b\nnot 'this\nE\nc", [["a"], ["b"], ["c"]]),
        ("a <<< b c", [["a", "c"]]),
        ("a <(b c) d", [["a", "<(b c)", "d"]]),
        ("a $'b\\tc' \"$d\"", [["a", "b\\tc", "$d"]]),
        ("a 'it'\"'\"'s'", [["a", "it's"]]),
        ('a "$(b "c)")" d', [["a", '$(b "c)")', "d"]]),
        ("a ${b:-c d} $((1 + (2)))", [["a", "${b:-c d}", "$((1 + (2)))"]]),
        ("X=1 Y= a", [["a"]]),
        ("", []),
    ],
)
def test_commands_and_words_are_those_of_a_shell(text: str, expected: list[list[str]]) -> None:
    assert values(text) == expected


def test_assignments_are_kept_apart_from_words() -> None:
    (command,) = commands("A=1 B='x y' C=$(d) run --e=f")
    found = [(one.name, one.value.value) for one in command.assignments]
    assert found == [("A", "1"), ("B", "x y"), ("C", "$(d)")]
    assert [inner.name for inner in inner_commands(command)] == ["d"]


def test_arrays_grow_and_become_words() -> None:
    read_by_it = script('A=(one "two words")\nA+=(three)\nsrun "${A[@]}" x\n')
    last = read_by_it.commands[-1]
    expanded = [word.value for word in read_by_it.expanded(last.words)]
    assert expanded == ["srun", "one", "two words", "three", "x"]


@pytest.mark.parametrize(
    ("text", "shells"),
    [
        ("srun bash -c 'torchrun --node_rank $R'", [1]),
        ('srun bash -c "torchrun --node_rank $R"', [0]),
        ('srun bash -c "torchrun --node_rank \\$R"', [1]),
        ("srun bash -c 'torchrun --node_rank '\"$R\"", [0]),
        ("srun torchrun --node_rank $R", [0]),
        ("srun torchrun --node_rank '$R'", []),
        ('L="torchrun --node_rank \\$R"\nsrun bash -c "$L x.py"', [1]),
        ('L="torchrun --node_rank $R"\nsrun bash -c "$L x.py"', [0]),
        ("L='torchrun --node_rank $R'\nsrun bash -c \"$L x.py\"", [1]),
        ("L='torchrun --node_rank $R'\nsrun $L x.py", []),
        ("export L=torchrun\nsrun bash -c '$L --node_rank $R x.py'", [1]),
        ("export L=\"torchrun --node_rank $R\"\nsrun bash -c '$L x.py'", [0]),
        ("L=$(\n  cat <<'E'\ntorchrun --node_rank $R it's\nE\n)\nsrun bash -c \"$L\"", [1]),
        ('L=$(cat <<E\ntorchrun --node_rank $R\nE\n)\nsrun bash -c "$L"', [0]),
        ("srun bash <<'E'\ntorchrun --node_rank $R\nE", [1]),
        ("srun bash <<E\ntorchrun --node_rank $R\nE", [0]),
    ],
)
def test_it_is_known_which_shell_puts_a_variable_in(text: str, shells: list[int]) -> None:
    (launch,) = read_launches(script(text)).launches
    option = launch.option("node_rank")
    assert option is not None
    assert option.value is not None
    assert [expansion.shell for expansion in option.value.expansions] == shells


def test_places_lead_back_to_the_file_through_every_shell() -> None:
    text = '#!/bin/bash\nL="torchrun \\\n  --nnodes 3"\nsrun bash -c "$L --node_rank \'0\' x.py"\n'
    (launch,) = read_launches(script(text)).launches
    assert [text[o.place :][:8] for o in launch.options.values()] == ["--nnodes", "--node_r"]


FRAGMENTS = (
    "#!/bin/bash\n",
    "#SBATCH --nodes=2\n",
    "#SBATCH -N",
    "#SBATCH --gres=gpu:8 #\n",
    "srun ",
    "bash -c ",
    "torchrun ",
    "--nnodes=2 ",
    "--node_rank ",
    "$SLURM_PROCID",
    "${X:-localhost}",
    "$(",
    "${",
    "`",
    "'",
    '"',
    "\\",
    "\n",
    " ",
    ")",
    "(",
    "|",
    "&",
    "<<E\n",
    "E\n",
    "MASTER_PORT=29500",
    "X=(",
    'X="$X" ',
    'Y=""$X',
    "$X ",
    "set -e\n",
    "trap a USR1\n",
    "\r\n",
    "\ue000",
    "é",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_no_text_breaks_it_and_every_remark_is_in_the_text(text: str) -> None:
    lines = text.count("\n") + 1
    for remark in lint_script(text).remarks:
        assert 1 <= remark.line <= lines
        assert all(0 <= edit.start <= edit.end <= len(text) for edit in remark.edits)
    fixed(text)


def test_a_long_script_takes_no_time_to_speak_of() -> None:
    import time

    text = "#!/bin/bash\n#SBATCH --nodes=2\n" + 'X="$X a"\nsrun bash -c "torchrun $X"\n' * 500
    began = time.monotonic()
    lint_script(text)
    assert time.monotonic() - began < 5
