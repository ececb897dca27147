"""Matrices as people paste them: read as what was printed, or refused, and never misread."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.topology.printed import BRIDGED, CUBE, H100, Wiring, labels, topo_m
from tests.unit.topology.test_matrix import links, wirings

from dslaunch.topology.answers import answers_in, read
from dslaunch.topology.matrix import parse
from dslaunch.topology.notes import MatrixNote
from dslaunch.topology.recorded_text import texts

Way = Callable[[str], str]


def each_line(change: Callable[[int, str], str]) -> Way:
    return lambda text: "\n".join(change(at, line) for at, line in enumerate(text.split("\n")))


def prefixed(prefix: str) -> Way:
    return each_line(lambda at, line: prefix + line)


def wrapped(width: int) -> Way:
    """Break lines where a terminal does: at its edge, in the middle of words."""

    def broken(line: str) -> str:
        return "\n".join(line[at : at + width] for at in range(0, max(len(line), 1), width))

    return lambda text: "\n".join(map(broken, text.expandtabs(8).split("\n")))


def filled(width: int) -> Way:
    """Break lines where an editor does: between words."""
    return lambda text: "\n".join(
        "\n".join(textwrap.wrap(line, width, break_long_words=False)) or ""
        for line in text.expandtabs(8).split("\n")
    )


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def cells(line: str) -> list[str]:
    return re.split(r"\t", line)


def markdown(text: str) -> str:
    """The matrix as a table of Markdown; what follows it stays."""
    matrix, _, rest = text.partition("\n\n")
    first, *rows = [f"| {' | '.join(cells(line))} |" for line in matrix.split("\n")]
    rule = "|" + "---|" * len(cells(matrix.split("\n")[0]))
    return "\n".join([first, rule, *rows]) + "\n\n" + rest


def html_table(text: str) -> str:
    matrix, _, rest = text.partition("\n\n")
    rows = [
        "<tr>\n" + "\n".join(f"<td>{html.escape(cell)}</td>" for cell in cells(line)) + "\n</tr>"
        for line in matrix.split("\n")
    ]
    return f'<table border="1">\n{"".join(rows)}\n</table>\n<pre>{html.escape(rest)}</pre>'


WAYS: dict[str, Way] = {
    "terminal of 80 columns": wrapped(80),
    "terminal of 60 columns": wrapped(60),
    "terminal of 132 columns": wrapped(132),
    "terminal, blanks at ends cut": lambda text: stripped(wrapped(80)(text)),
    "editor at 80 columns": filled(80),
    "srun -l": prefixed("0: "),
    "srun -l, aligned": prefixed(" 3: "),
    "pdsh": prefixed("node1: "),
    "mpirun": prefixed("[1,0]<stdout>:"),
    "kubectl": prefixed("[pod/gpu-0/main] "),
    "docker compose": prefixed("trainer-1  | "),
    "grep -H": prefixed("node1.txt:"),
    "quoted": prefixed("> "),
    "quoted twice": prefixed("> > "),
    "times": each_line(lambda at, line: f"2026-01-02T03:04:{at % 60:02}.123Z {line}"),
    "times in brackets": each_line(lambda at, line: f"[03:04:{at % 60:02}] {line}"),
    "syslog": each_line(lambda at, line: f"Jan  2 03:04:{at % 60:02} node1 job[77]: {line}"),
    "time and node": each_line(lambda at, line: f"2026-01-02 03:04:{at % 60:02} node1: {line}"),
    "line numbers": each_line(lambda at, line: f"{at + 1:6}\t{line}"),
    "code fence": lambda text: f"```\n{text}\n```",
    "tabs to blanks": lambda text: text.expandtabs(8),
    "no-break spaces": lambda text: text.replace("\t", "\u00a0\u00a0"),
    "colors": lambda text: text.replace("NODE", "\x1b[1;33mNODE\x1b[0m"),
    "HTML entities": lambda text: f"<pre>{html.escape(text).replace(chr(9), '&#9;')}</pre>",
    "HTML table": html_table,
    "Markdown table": markdown,
    "box": each_line(lambda at, line: f"│ {line.expandtabs(8)} │"),
    "quoted and wrapped": lambda text: prefixed("> ")(wrapped(80)(text)),
}
MACHINES = {"bridged": BRIDGED, "cube": CUBE, "h100": H100}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("way", WAYS)
def test_a_pasted_matrix_is_read_as_it_was_printed(way: str, machine: str) -> None:
    wiring = MACHINES[machine]
    found = parse(WAYS[way](topo_m(wiring)))
    assert (found.devices, found.links) == (labels(wiring), links(wiring))
    assert found.status == "ok", found.notes


@given(wirings(), st.integers(0, 4), st.sampled_from(sorted(WAYS)))
def test_any_pasted_matrix_is_read_or_refused(wiring: Wiring, era: int, way: str) -> None:
    found = parse(WAYS[way](topo_m(wiring, era)))
    if found.status == "none":
        assert found.notes, "refused without a reason"
    else:
        assert found.devices == labels(wiring, era)
        assert found.links == links(wiring, era)


@given(wirings(), st.integers(20, 160), st.booleans())
def test_lines_broken_at_any_width_are_joined_or_refused(
    wiring: Wiring, width: int, blanks: bool
) -> None:
    text = wrapped(width)(topo_m(wiring))
    found = parse(text if blanks else stripped(text))
    if found.status != "none":
        assert (found.devices, found.links) == (labels(wiring), links(wiring))


def test_a_broken_text_that_cannot_be_joined_says_why() -> None:
    text = wrapped(40)(topo_m(H100)).replace("NV18", "NV1", 3)
    found = read(answers_in(text))
    assert found.trouble is not None
    assert (found.status, found.trouble.kind) == ("none", "unreadable")
    assert "terminal" in found.trouble.message


def test_nodes_that_answer_in_turn_are_taken_apart() -> None:
    lines = zip(
        prefixed("node1: ")(topo_m(BRIDGED, legend=False)).split("\n"),
        prefixed("node2: ")(topo_m(CUBE, legend=False)).split("\n"),
        strict=False,
    )
    found = texts("\n".join(line for both in lines for line in both))
    assert parse(found["node1"]).devices == labels(BRIDGED)
    assert parse(found["node2"]).devices[:4] == labels(CUBE)[:4]


def test_a_second_matrix_is_a_separate_text_and_is_reported() -> None:
    both = topo_m(BRIDGED) + topo_m(CUBE)
    first, second = texts(both).values()
    assert parse(first).links == links(BRIDGED)
    assert parse(second).links == links(CUBE)
    assert any(note.code is MatrixNote.MATRICES_IGNORED for note in parse(both).notes)


def test_one_empty_affinity_takes_no_links_away() -> None:
    text = topo_m(BRIDGED).replace("32-63\t1\t\tN/A\n", "\t1\t\tN/A\n", 1)
    found = parse(text)
    assert (found.status, found.links) == ("ok", links(BRIDGED))
    assert found.affinity["GPU2"].cpus is None
    assert found.affinity["GPU3"].cpus == "32-63"


CORPUS = Path(__file__).resolve().parents[3].parent / "shared" / "corpus" / "topo"
RECORDED = [path for path in sorted(CORPUS.glob("*.txt")) if path.name < "6"]


@pytest.mark.skipif(not RECORDED, reason="recorded texts do not lie beside the checkout")
@pytest.mark.parametrize("way", WAYS)
def test_recorded_matrices_are_read_or_refused_however_pasted(way: str) -> None:
    for path in RECORDED:
        text = path.read_bytes().decode().replace("\r\n", "\n")
        printed, pasted = parse(text), parse(WAYS[way](text))
        assert set(pasted.links.items()) <= set(printed.links.items()), path.name
        assert pasted.devices in ([], printed.devices), path.name
