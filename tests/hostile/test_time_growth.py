"""Time in proportion to what is read: lines of ranks, answers of nodes, files of users."""

from __future__ import annotations

import json
import operator
import random
import re
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
from dslaunch.preflight.check import Finding, Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.checks._machine import neighbors
from dslaunch.preflight.checks.net_mesh import blamed
from dslaunch.preflight.judge import Report, judge
from dslaunch.preflight.recording import Recording
from dslaunch.preflight.unanswered import CallFailure
from dslaunch.protocol.name_patterns import MOST_PATTERNS
from dslaunch.protocol.survey import recorded
from dslaunch.report.junit import as_junit
from dslaunch.report.markdown import as_markdown
from dslaunch.report.page import as_page
from dslaunch.report.preflight import as_json, rows
from dslaunch.run.endings import diagnose
from dslaunch.run.events import Line
from dslaunch.run.lines import Lines, printable
from dslaunch.run.progress import RunProgress
from dslaunch.run.status import recorded_nodes
from dslaunch.slurm.lint import lint_script
from dslaunch.slurm.output import Layout, OutputReader
from dslaunch.slurm.scontrol import fields_of
from tests import dgx_nodes, many_nodes
from tests.growth import Work, grows, result_within
from tests.hostile import patterns
from tests.unit.report.recorded_runs import events_of, record

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n"
LENGTH = 4_000
"""Characters of a short text."""
PIECE = 4096
"""Bytes of output that arrive together."""


def text_of(piece: str, size: int) -> str:
    return (piece * size)[:size]


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
    def diagnosed(size: int) -> Work:
        return partial(diagnose, [text_of(piece, size)] * 4)

    def shown(size: int) -> Work:
        return partial(printable, text_of(piece, size).encode())

    def split(size: int) -> Work:
        # in pieces, as it arrives: at once, it would take microseconds, and for the larger input
        # pages of memory from the system
        raw = text_of(piece, size).encode() * 64
        pieces = [raw[at : at + PIECE] for at in range(0, len(raw), PIECE)]

        def fed() -> None:
            lines = Lines()
            for each in pieces:
                list(lines.feed(each, 0.0))

        return fed

    assert not grows(diagnosed, LENGTH)
    assert not grows(shown, LENGTH)
    assert not grows(split, LENGTH)


@pytest.mark.parametrize("show", [terminal.colored, terminal.one_line])
@pytest.mark.parametrize("piece", ["\x1b", "\x1b[31m", "a, ", "a", "\u202e", "\x1b[", "\n"])
def test_text_is_shown_in_time(piece: str, show: Callable[[str], str]) -> None:
    assert not grows(lambda size: partial(show, text_of(piece, size)), LENGTH)


def test_a_table_with_long_cells_is_shown_in_time() -> None:
    def table(size: int) -> Work:
        cell = text_of("word, ", size)
        return lambda: ui.table([("a", "b"), (cell, cell)], 80)

    assert not grows(table, LENGTH)


@pytest.mark.parametrize("piece", ["[a1", "1", " ", "A=a ", "srun: error: n: tasks 1,", "[a"])
def test_output_of_slurm_is_read_in_time(piece: str) -> None:
    def read(size: int) -> Work:
        line = f"0: {text_of(piece, size)}\n".encode()
        return lambda: list(OutputReader(Layout(((1, 1),), direct=False)).feed(line))

    def split(size: int) -> Work:
        text = text_of(piece, size)
        return lambda: list(fields_of(text))

    assert not grows(read, LENGTH)
    assert not grows(split, LENGTH)


SCRIPTS: dict[str, Callable[[int], str]] = {
    "one long variable": lambda n: f'a="{"x " * n}"\n' + "srun $a\n" * (n // 4),
    "substitutions": lambda n: "$(a " * n,
    "closed substitutions": lambda n: "$(" * n + ")" * n,
    "arrays": lambda n: "a=(" * n,
    "parentheses": lambda n: "(" * 4 * n,
    "ifs": lambda n: "if a; then " * n,
    "here-documents": lambda n: "".join(f"cat <<a{i}\n" for i in range(n)),
    "here-documents within": lambda n: "$(" + "".join(f"<<a{i} " for i in range(n)),
    "backquotes": lambda n: "a=`b`\n" * n,
    "cases": lambda n: "case a in b) " * n,
    "sums": lambda n: "((" * 2 * n,
    "tests": lambda n: "[[ a || " * n,
    "braces": lambda n: "${a:-" * n,
    "closed braces": lambda n: "${a:-" * n + "}" * n,
    "functions": lambda n: "".join(f"f{i}() {{\n" for i in range(n)),
    "evaluations": lambda n: "eval \"eval 'srun torchrun x'\"\n" * n,
    "tests of the job": lambda n: '[ -z "$SLURM_JOB_ID" ] && { ' * n,
    "placeholders": lambda n: "#SBATCH --a={{ x }} <a <a {% \n" * n,
    "node lists": lambda n: 'a=(b c)\nsrun -w "${a[@]}" x\n' * n,
    "servers": lambda n: "tail -f x &\nsrun python y\nwait\n" * n,
    "options": lambda n: "srun " + "--a=b " * n + "x\n",
    "directives": lambda n: "#SBATCH --nodez=2\n" * n,
    "a long directive": lambda n: f"#SBATCH --{'n' * 8 * n}\n",
}
PIECES = 250
"""Of a short script. A long one has eight times as many."""


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_batch_script_is_read_in_time_however_it_nests(script: Callable[[int], str]) -> None:
    assert not grows(lambda size: partial(lint_script, HEAD + script(size)), PIECES)


def _growing(form: str, first: str, count: int = 12) -> str:
    """Variables of which each stands for `count` times the one before."""
    steps = [form.format(i, (f"$a{i - 1} " * count).strip()) for i in range(1, 7)]
    return "\n".join([first, *steps, "srun torchrun --nnodes=$a6 x.py", "export MASTER_ADDR=$a6"])


CAPPED = {
    "variables": _growing('a{}="{}"', 'a0="x x"'),
    "constants": _growing("a{}={}", "a0=x").replace(" $", "$"),
    "functions that call each other": "".join(
        f"f{i}() {{\n" + f'f{i + 1} "$@"\n' * 300 + "}\n" for i in range(12)
    )
    + "f0 srun torchrun x.py\n" * 300,
}
LIMIT = 20.0
"""Seconds: 20 times what a slow machine needs for work that a cap bounds."""


@pytest.mark.parametrize("script", CAPPED.values(), ids=CAPPED)
def test_a_batch_script_is_read_in_time_however_much_it_stands_for(script: str) -> None:
    result_within(LIMIT, lambda: lint_script(HEAD + script))


def _lint_config(text: str) -> object:
    table = schema.load(schema.versions()[-1])
    return lint(LintedConfig(reading.parse(text, "ds.json"), table))


CONFIGS: dict[str, Callable[[int], str]] = {
    "unknown keys": lambda n: json.dumps({f"unknown_key_{i}": i for i in range(n)}, indent=1),
    "unknown keys of a section": lambda n: json.dumps(
        {"zero_optimization": {f"k{i}": 1 for i in range(n)}}
    ),
    "long keys": lambda n: json.dumps({f"{'stage' * n}{i}": i for i in range(10)}),
    "loose keys": lambda n: "{" + "\n".join(f"k{i}: 1" for i in range(n)) + "}",
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_read_in_time_however_many_keys_it_has(text: Callable[[int], str]) -> None:
    assert not grows(lambda size: partial(_lint_config, text(size)), 100)


def test_remarks_on_every_line_of_a_config_find_their_places_in_time() -> None:
    def places(size: int) -> Work:
        document = reading.parse("{\n" + "k: 1 # c\n" * size + "}", "ds.json")
        return lambda: [document.place(found.offset) for found in document.loose]

    assert not grows(places, 500)


def test_a_place_in_a_config_is_its_line_and_column() -> None:
    text = "{\n" + "k: 1 # c\n" * 40 + "}"
    document = reading.parse(text, "ds.json")
    offsets = [0, 1, 2, 9, 10, 11, len(text)]
    counted = [(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)) for at in offsets]
    assert [document.place(at) for at in offsets] == counted


PROGRESS = (
    "loss ", "step 1 ", "epoch 1 ", "1%|", "1%|a| 1/2 [00:00<00:00, ", "tokens/s ", "{'loss': ",
    "iteration 1/", "Epoch: [", "SamplesPerSec=", "loss" + " " * 50, "train_", "e", "[", "1,",
)  # fmt: skip


@pytest.mark.parametrize("piece", PROGRESS)
def test_the_progress_in_lines_of_a_rank_is_read_in_time(piece: str) -> None:
    run = RunProgress(SLOWEST)

    def noted(size: int) -> Work:
        return partial(run.note, Line(0.0, "node1", 0, "stdout", text_of(piece, size)))

    assert not grows(noted, LENGTH)
    assert run.latest is None or run.latest.loss is None


SLOWEST = (r"step\s+(?P<step>\d+).*?loss[=: ]+(?P<loss>[\d.]+)x",)
"""With as many steps as patterns in use have."""


@pytest.mark.parametrize("piece", ["step 1loss 1", "step 1", "step 1111111111", "step 1 loss "])
def test_a_pattern_of_the_cluster_file_is_compared_in_time(piece: str) -> None:
    assert all(fault(pattern) is None for pattern in SLOWEST)
    line = Line(0.0, "node1", 0, "stdout", piece * 10_000)
    run = RunProgress(SLOWEST)
    result_within(LIMIT, lambda: [run.note(line) for _ in range(20)])


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
        result_within(LIMIT, partial(compiled.search, line))


@pytest.mark.parametrize("pattern", ["*a" * 2000 + "b", "*" * 4000 + "b", "a*" * 2000 + "/"])
def test_a_question_in_a_recording_is_compared_in_time(pattern: str) -> None:
    key = f"read {json.dumps([pattern] * MOST_PATTERNS)}"
    names = {f"{'a' * 4000}{number}": "text" for number in range(9)}
    result_within(LIMIT, lambda: recorded(key, {"value": names}))


@pytest.mark.parametrize("recording", [many_nodes.recording, dgx_nodes.recording])
def test_recorded_answers_are_judged_in_proportion_to_the_nodes(
    recording: Callable[[int], Recording],
) -> None:
    checks = built_in()
    assert not grows(lambda nodes: partial(judge, recording(nodes), checks), 40)


@pytest.mark.parametrize("check", ["net.bandwidth", "net.mesh", "ssh.mesh", "dns.resolve"])
def test_measurements_between_nodes_are_judged_in_proportion_to_the_nodes(check: str) -> None:
    checks = {check: built_in()[check]}
    assert not grows(lambda nodes: partial(judge, dgx_nodes.recording(nodes, check), checks), 250)


def test_failed_calls_of_all_nodes_are_explained_in_time() -> None:
    refused = CallFailure.parse("connection refused")

    def explained(nodes: int) -> Work:
        hosts = [f"n{number:05}" for number in range(nodes)]
        failed = [(host, peer) for at, host in enumerate(hosts) for peer in neighbors(hosts, at)]
        return lambda: list(blamed(dict.fromkeys(failed, refused)))

    assert not grows(explained, 250)


def test_recorded_events_are_told_by_node_in_time() -> None:
    def told(nodes: int) -> Work:
        hosts = expand(f"n[0001-{nodes:04}]")
        return partial(recorded_nodes, record(hosts), list(events_of(hosts)))

    assert not grows(told, 100)


def _names(numbers: int, count: int) -> list[str]:
    chance = random.Random(numbers)
    return [
        "ip-" + "-".join(str(chance.randrange(99)) for _ in range(numbers)) for _ in range(count)
    ]


@pytest.mark.parametrize("numbers", [2, 4, 8])
def test_names_with_several_numbers_are_folded_in_time(numbers: int) -> None:
    assert not grows(lambda count: partial(fold, _names(numbers, count)), 100)
    names = _names(numbers, 800)
    assert sorted(expand(fold(names))) == sorted(set(names))


def test_names_with_one_number_are_folded_in_time() -> None:
    assert not grows(lambda count: partial(fold, [f"n{i:06}" for i in range(0, count, 2)]), 2_000)


@pytest.mark.parametrize("show", [as_junit, as_json, as_markdown, lambda r: as_page(r, {})])
def test_another_result_on_each_node_is_shown_in_time(show: Callable[[Report], object]) -> None:
    def shown(count: int) -> Work:
        cluster = many_nodes.cluster(count)
        results = tuple(
            Finding("fail", f"{number} s late", hosts=(node.host,), check="a.clock")
            for number, node in enumerate(cluster.nodes)
        )
        return partial(show, Report(Recording(Scope(cluster, cluster.nodes), 0.0, {}, {}), results))

    assert not grows(shown, 500)


def test_findings_of_many_nodes_are_shown_in_time() -> None:
    def shown(count: int) -> Work:
        cluster = many_nodes.cluster(count)
        hosts = tuple(node.host for node in cluster.nodes)
        half = Finding("fail", "slow", hosts=hosts[::2], check="a.half")
        every = Finding("pass", "fine", hosts=hosts, check="a.every")
        report = Report(Recording(Scope(cluster, cluster.nodes), 0.0, {}, {}), (half, every))
        return lambda: (as_junit(report), list(rows(report, 80, every=True, color=False)))

    assert not grows(shown, 200)
