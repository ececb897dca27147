"""Time in proportion to what is read: lines of ranks, answers of nodes, files of users."""

from __future__ import annotations

import json
import operator
import random
import re
import time
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch import terminal
from dslaunch.cli import ui
from dslaunch.cluster.nodeset import expand, fold
from dslaunch.cluster.progress_format import LONGEST_LINE, fault
from dslaunch.deepspeed import config_text as reading
from dslaunch.deepspeed import schema
from dslaunch.deepspeed.lint import lint
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.checks._machine import neighbors
from dslaunch.preflight.checks.net_mesh import blamed
from dslaunch.preflight.judge import judge
from dslaunch.preflight.unanswered import CallFailure
from dslaunch.protocol.name_patterns import MOST_PATTERNS
from dslaunch.protocol.survey import recorded
from dslaunch.run.endings import diagnose
from dslaunch.run.events import Line
from dslaunch.run.lines import Lines, printable
from dslaunch.run.progress import RunProgress
from dslaunch.run.status import recorded_nodes
from dslaunch.slurm.lint import lint_script
from dslaunch.slurm.output import Layout, OutputReader
from dslaunch.slurm.scontrol import fields_of
from tests import many_nodes
from tests.hostile import patterns
from tests.unit.report.recorded_runs import events_of, record

SECONDS = 2.0
"""More than a slow machine needs for work in proportion; quadratic work takes far more."""
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n"


def seconds(work: Callable[[], object], enough: float = SECONDS / 2) -> float:
    """Return the least processor time of up to three tries; a try below `enough` is the last."""
    least = float("inf")
    for _ in range(3):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
        if least < enough:
            break
    return least


def test_every_pattern_takes_time_in_proportion() -> None:
    slow = [f"{each.where}: {each.pattern.pattern!r}" for each in patterns.quadratic()]
    assert slow == []


LINES = (
    "NCCL", "gloo", "gloo loss NaN ", "Error: ", "a.b.", "ImportError: a.so", "loss NaN ", "a",
    "DistNetworkError", "PermissionError", "\x1b]", "\x1b[", "\x1b[0;", "\x1b]0;a\x07", "\x1b[31m",
    "FileNotFoundError: ", "unrecognized arguments: ", "Collective ", " ", "DataLoader worker",
)  # fmt: skip


@pytest.mark.parametrize("piece", LINES)
def test_the_last_lines_of_a_rank_are_judged_in_time(piece: str) -> None:
    line = (piece * 65536)[:65536]
    raw = line.encode()
    assert seconds(lambda: diagnose([line] * 40)) < SECONDS
    assert seconds(lambda: [printable(raw) for _ in range(4)]) < SECONDS
    assert seconds(lambda: list(Lines().feed(raw * 64, 0.0))) < SECONDS


def test_text_is_shown_at_half_a_megabyte_a_second() -> None:
    for piece in ("\x1b", "\x1b[31m", "a, ", "a", "\u202e", "\x1b[", "\n"):
        text = piece * (250_000 // len(piece))
        colored = partial(terminal.colored, text)
        assert seconds(colored, enough=SECONDS / 8) < SECONDS / 4
        one_line = partial(terminal.one_line, text)
        assert seconds(one_line, enough=SECONDS / 4) < SECONDS / 2
    cell = "word, " * 20_000
    assert seconds(lambda: ui.table([("a", "b"), (cell, cell)], 80)) < SECONDS


@pytest.mark.parametrize("piece", ["[a1", "1", " ", "A=a ", "srun: error: n: tasks 1,", "[a"])
def test_output_of_slurm_is_read_in_time(piece: str) -> None:
    text = (piece * 65536)[:65536]
    reader = OutputReader(Layout(((1, 1),), direct=False))
    assert seconds(lambda: list(reader.feed(f"0: {text}\n".encode()))) < SECONDS
    assert seconds(lambda: list(fields_of(text))) < SECONDS


def _growing(form: str, count: int, first: str) -> str:
    """Variables of which each stands for `count` times the one before."""
    steps = [form.format(i, (f"$a{i - 1} " * count).strip()) for i in range(1, 7)]
    return "\n".join([first, *steps, "srun torchrun --nnodes=$a6 x.py", "export MASTER_ADDR=$a6"])


SCRIPTS = {
    "variables": _growing('a{}="{}"', 12, 'a0="x x"'),
    "constants": _growing("a{}={}", 12, "a0=x").replace(" $", "$"),
    "one long variable": f'a="{"x " * 5000}"\n' + "srun $a\n" * 1500,
    "substitutions": "$(a " * 10_000,
    "closed substitutions": "$(" * 5_000 + ")" * 5_000,
    "arrays": "a=(" * 12_000,
    "parentheses": "(" * 40_000,
    "ifs": "if a; then " * 4_000,
    "here-documents": "".join(f"cat <<a{i}\n" for i in range(4_000)),
    "here-documents within": "$(" + "".join(f"<<a{i} " for i in range(6_000)),
    "backquotes": "a=`b`\n" * 6_000,
    "cases": "case a in b) " * 4_000,
    "sums": "((" * 20_000,
    "tests": "[[ a || " * 8_000,
    "braces": "${a:-" * 10_000,
    "closed braces": "${a:-" * 6_000 + "}" * 6_000,
    "functions": "".join(f"f{i}() {{\n" for i in range(4_000)),
    "functions that call each other": "".join(
        f"f{i}() {{\n" + f'f{i + 1} "$@"\n' * 300 + "}\n" for i in range(12)
    )
    + "f0 srun torchrun x.py\n" * 300,
    "evaluations": "eval \"eval 'srun torchrun x'\"\n" * 1_500,
    "tests of the job": '[ -z "$SLURM_JOB_ID" ] && { ' * 4_000,
    "placeholders": "#SBATCH --a={{ x }} <a <a {% \n" * 1_000,
    "node lists": 'a=(b c)\nsrun -w "${a[@]}" x\n' * 600,
    "servers": "tail -f x &\nsrun python y\nwait\n" * 600,
    "options": "srun " + "--a=b " * 7_000 + "x\n",
    "directives": "#SBATCH --nodez=2\n" * 2_300,
    "a long directive": f"#SBATCH --{'n' * 40_000}\n",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_batch_script_is_read_in_time_however_it_nests(script: str) -> None:
    assert seconds(lambda: lint_script(HEAD + script)) < SECONDS


def _lint_config(text: str) -> object:
    table = schema.load(schema.versions()[-1])
    return lint(LintedConfig(reading.parse(text, "ds.json"), table))


CONFIGS = {
    "unknown keys": json.dumps({f"unknown_key_{i}": i for i in range(2_000)}, indent=1),
    "unknown keys of a section": json.dumps(
        {"zero_optimization": {f"k{i}": 1 for i in range(2_000)}}
    ),
    "long keys": json.dumps({f"{'stage' * 2_000}{i}": i for i in range(10)}),
    "loose keys": "{" + "\n".join(f"k{i}: 1" for i in range(2_000)) + "}",
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_read_in_time_however_many_keys_it_has(text: str) -> None:
    assert seconds(lambda: _lint_config(text), enough=SECONDS) < 2 * SECONDS


def test_remarks_on_every_line_of_a_config_find_their_places_in_time() -> None:
    text = "{\n" + "k: 1 # c\n" * 40_000 + "}"
    document = reading.parse(text, "ds.json")
    assert seconds(lambda: [document.place(found.offset) for found in document.loose]) < SECONDS
    offsets = [0, 1, 2, 9, 10, 11, len(text)]
    counted = [(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)) for at in offsets]
    assert [document.place(at) for at in offsets] == counted


PROGRESS = (
    "loss ", "step 1 ", "epoch 1 ", "1%|", "1%|a| 1/2 [00:00<00:00, ", "tokens/s ", "{'loss': ",
    "iteration 1/", "Epoch: [", "SamplesPerSec=", "loss" + " " * 50, "train_", "e", "[", "1,",
)  # fmt: skip


@pytest.mark.parametrize("piece", PROGRESS)
def test_the_progress_in_lines_of_a_rank_is_read_in_time(piece: str) -> None:
    line = Line(0.0, "node1", 0, "stdout", (piece * 65536)[:65536])
    run = RunProgress(SLOWEST)

    def read() -> None:
        for _ in range(100):
            run.note(line)
        assert run.latest is None or run.latest.loss is None

    assert seconds(read) < SECONDS


SLOWEST = (r"step\s+(?P<step>\d+).*?loss[=: ]+(?P<loss>[\d.]+)x",)
"""With as many steps as patterns in use have."""


@pytest.mark.parametrize("piece", ["step 1loss 1", "step 1", "step 1111111111", "step 1 loss "])
def test_a_pattern_of_the_cluster_file_is_compared_in_time(piece: str) -> None:
    assert all(fault(pattern) is None for pattern in SLOWEST)
    line = Line(0.0, "node1", 0, "stdout", piece * 10_000)
    run = RunProgress(SLOWEST)
    assert seconds(lambda: [run.note(line) for _ in range(20)]) < SECONDS


CHARACTER = st.sampled_from(["a", "b", ".", "[ab]", r"\w", r"\d", "[^a]", "[^b]", "B", r"\b"])
ONCE = st.builds(operator.add, CHARACTER, st.sampled_from(["", "?", "*", "+", "*?", "{0,90}"]))
PART = st.recursive(
    ONCE,
    lambda inner: st.one_of(
        st.builds("(?:{}){}".format, inner, st.sampled_from(["", "?", "*", "{2,90}"])),
        st.builds("(?:{}|{}){}".format, inner, inner, st.sampled_from(["", "?", "+"])),
        st.builds(operator.add, inner, inner),
    ),
    max_leaves=10,
)


@given(st.lists(PART, min_size=1, max_size=12), st.sampled_from("ab1"), st.sampled_from("?c"))
def test_a_pattern_that_is_accepted_takes_bounded_time(
    parts: list[str], end: str, last: str
) -> None:
    pattern = "".join(parts) + f"(?P<step>{end}){last}"
    if fault(pattern) is not None:
        return
    compiled = re.compile(pattern)
    for piece in ("a", "ab", "1", "aab1"):
        line = (piece * LONGEST_LINE)[:LONGEST_LINE]
        assert seconds(lambda line=line: compiled.search(line)) < SECONDS


@pytest.mark.parametrize("pattern", ["*a" * 2000 + "b", "*" * 4000 + "b", "a*" * 2000 + "/"])
def test_a_question_in_a_recording_is_compared_in_time(pattern: str) -> None:
    key = f"read {json.dumps([pattern] * MOST_PATTERNS)}"
    names = {f"{'a' * 4000}{number}": "text" for number in range(9)}
    assert seconds(lambda: recorded(key, {"value": names})) < SECONDS


NODES = 100
FACTOR = 4
GROWTH = 2.0 * FACTOR
"""How much more time FACTOR times as many nodes may take; quadratic work takes FACTOR squared."""


def test_recorded_answers_are_judged_in_proportion_to_the_nodes() -> None:
    few, many = many_nodes.recording(NODES), many_nodes.recording(FACTOR * NODES)
    checks = built_in()
    judge(few, checks)  # the checks are imported, and programs read
    assert seconds(lambda: judge(many, checks)) < GROWTH * seconds(lambda: judge(few, checks))


def test_failed_calls_of_all_nodes_are_explained_in_time() -> None:
    refused = CallFailure.parse("connection refused")
    hosts = [f"n{number:05}" for number in range(10_000)]
    errors = {
        (host, other): refused for at, host in enumerate(hosts) for other in neighbors(hosts, at)
    }
    assert seconds(lambda: list(blamed(errors)), enough=SECONDS) < 2 * SECONDS


def test_recorded_events_are_told_by_node_in_time() -> None:
    hosts = expand("n[0001-2000]")
    events = list(events_of(hosts))
    assert seconds(lambda: recorded_nodes(record(hosts), events)) < SECONDS


@pytest.mark.parametrize("numbers", [2, 4, 8])
def test_names_with_several_numbers_are_folded_in_time(numbers: int) -> None:
    chance = random.Random(numbers)
    names = [
        "ip-" + "-".join(str(chance.randrange(99)) for _ in range(numbers)) for _ in range(1_000)
    ]
    assert seconds(lambda: fold(names)) < SECONDS
    assert sorted(expand(fold(names))) == sorted(set(names))
