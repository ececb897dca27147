"""The reader of shell text: words, quotes, what is replaced where, and that nothing breaks it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import grows

from dslaunch.slurm.lint import fixed, lint_script
from dslaunch.slurm.script import Script
from dslaunch.slurm.shell_parser import inner_commands, read
from dslaunch.slurm.shell_words import ShellCommand, ShellText
from dslaunch.slurm.training_commands import read_launches


def commands(text: str) -> list[ShellCommand]:
    return read(ShellText.of_file(text))


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
        ("case $x in a|b) c ;; (d) e ;& *) f; esac; g", [["c"], ["e"], ["f"], ["g"]]),
        ("[[ a && b || c ]] && d", [["[[", "a", "b", "c", "]]"], ["d"]]),
        ("(( a > 1 || b )) && c", [["c"]]),
        ("a[1]=b; a[$x]='c d'; e", [[], [], ["e"]]),
        ("function f { a; }; function g() { b; }; c", [["a"], ["b"], ["c"]]),
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('if [ -z "$SLURM_JOB_ID" ]; then a; else b; fi; c', ["b", "c"]),
        ('if [ ! -z "$SLURM_JOB_ID" ]; then a; else b; fi', ["a"]),
        ("if ! [[ -n ${SLURM_JOBID:-} ]]; then a; else b; fi", ["b"]),
        ('if [ "$SLURM_NNODES" = "" ]; then a; elif b; then c; else d; fi', ["b", "c", "d"]),
        ('if [ -z "$SLURM_JOB_ID" ] && [ -t 0 ]; then a; else b; fi', ["a", "b"]),
        ('if [ -z "$DEBUG" ]; then a; else b; fi', ["a", "b"]),
        ('[ -z "$SLURM_JOB_ID" ] && a; b', ["b"]),
        ('[ -n "$SLURM_JOB_ID" ] || { a; b; }; c', ["c"]),
        ('if test -z "$SLURM_JOB_ID"; then if a; then b; else c; fi; d; fi; e', ["e"]),
    ],
)
def test_what_runs_only_outside_of_a_job_is_left_out(text: str, expected: list[str]) -> None:
    tests = ("[", "[[", "test")
    assert [c.name for c in script(text).commands if c.name not in tests] == expected


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ('f() { srun "$@"; }\nf torchrun --nnodes=2 x.py', "2"),
        ('f() { local x=1; shift; srun $1 "${@:2}"; }\nf a torchrun --nnodes=2 x.py', "2"),
        ("function f {\n g --nnodes=2 $*\n}\ng() { srun torchrun $@; }\nf x.py", "2"),
        ("eval srun torchrun --nnodes=2 x.py", "2"),
        ("eval \"srun bash -c 'torchrun --nnodes=2 x.py'\"", "2"),
        ("bash -c \"srun bash -c 'torchrun --nnodes=2 x.py'\"", "2"),
        ("L='srun bash -c'; C='torchrun --nnodes=2 x.py'; $L \"$C\"", "2"),
        ("srun bash -c \"echo 'at $HOME' ; torchrun --nnodes='$N' x.py\"", "$N"),
    ],
)
def test_a_launch_is_found_behind_functions_and_texts(text: str, option: str) -> None:
    (launch,) = read_launches(script(text)).launches
    assert launch.step is not None
    assert launch.options["nnodes"].text == option


@pytest.mark.parametrize(
    "text",
    [
        "echo srun torchrun x.py",
        "which torchrun python",
        "pip install deepspeed",
        "srun axolotl train x.yaml --launcher torchrun -- --nnodes=2",
        'f() { srun "$@"; }',
        "f() { srun torchrun x.py; }; export -f f; srun bash -c f",
    ],
)
def test_a_name_that_is_not_started_is_no_launch(text: str) -> None:
    assert [one for one in read_launches(script(text)).launches if one.launcher] == []


def test_functions_that_expand_without_end_are_cut_off_and_reported() -> None:
    bodies = [f"f{i}() {{\n" + f'f{i + 1} "$@"\n' * 300 + "}\n" for i in range(4)]
    text = "#!/bin/bash\n" + "".join(bodies) + "f0 srun torchrun x.py\n" * 9
    assert [r.rule for r in lint_script(text).remarks] == ["not-read-whole"]


FRAGMENTS = (
    "case $1 in ",
    "a) ",
    ";; ",
    "esac\n",
    'if [ -z "$SLURM_JOB_ID" ]; then ',
    "else ",
    "fi\n",
    "f() { ",
    "}\n",
    'f "$@" ',
    "eval ",
    "(( ",
    "[[ ",
    "]] ",
    "${A:-",
    "{{ x }} ",
    "{% y %}",
    "export -f f\n",
    "--nodelist=${X[@]} ",
    "wait\n",
    "tail -f x &\n",
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
    head, line = "#!/bin/bash\n#SBATCH --nodes=2\n", 'X="$X a"\nsrun bash -c "torchrun $X"\n'
    assert not grows(lambda lines: partial(lint_script, head + line * lines), 60)
