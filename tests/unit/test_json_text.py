"""JSON that is valid for every parser, whatever the numbers are."""

from __future__ import annotations

import ast
import io
import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dslaunch
from dslaunch.cli import ui
from dslaunch.json_text import LONG, json_literal, json_pieces, json_text
from dslaunch.report.json_view import JsonView
from dslaunch.run.events import Event
from dslaunch.run.notification import Target, notify
from dslaunch.run.progress import ProgressReader
from dslaunch.run.run_directory import EVENTS, RESULT, RunDirectory
from dslaunch.run.usage import NodeUsage, usage_line

SOURCES = Path(dslaunch.__file__).parent
WRITERS = {"dump", "dumps", "JSONEncoder"}
NOT_FINITE = (math.nan, math.inf, -math.inf)
KEYS = st.text() | st.floats() | st.integers() | st.booleans() | st.none()
VALUES = st.recursive(
    st.floats() | st.integers() | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(KEYS, inner),
)


def strict(text: str | bytes) -> Any:
    """Parse JSON as a strict parser does."""

    def refused(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refused)


def is_writer(node: ast.AST) -> bool:
    """Whether a part of a program uses a writer of Python's `json`."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "json" and any(each.name in WRITERS for each in node.names)
    is_member = isinstance(node, ast.Attribute) and node.attr in WRITERS
    return is_member and isinstance(node.value, ast.Name) and "json" in node.value.id


def test_one_module_of_the_launcher_writes_json() -> None:
    writers = {
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if any(map(is_writer, ast.walk(ast.parse(file.read_text("utf-8")))))
    }
    on_nodes = {name for name in writers if name.startswith("node/")}
    assert writers - on_nodes == {"json_text.py"}


def joined(text: str) -> str:
    """Return indented JSON as one line."""
    lines = [line.lstrip(" ") for line in text.split("\n")]
    return "".join(f"{line} " if line.endswith(",") else line for line in lines)


@given(VALUES)
def test_a_text_in_pieces_is_the_same_text(value: Any) -> None:
    assert "".join(json_pieces(value, indent=1)) == json_text(value, indent=1)


def test_a_text_of_many_members_is_never_held_as_a_whole() -> None:
    nodes = {f"n{number}": {"env": "x" * 1000, "rank": number} for number in range(1000)}
    assert max(map(len, json_pieces({"nodes": nodes}, indent=1))) < 1100


@given(VALUES)
def test_any_value_is_valid_json(value: object) -> None:
    strict(json_text(value))


@given(VALUES)
def test_finite_values_are_written_as_python_does(value: object) -> None:
    text = json.dumps(value)
    assert json_text(value) == text or any(word in text for word in ("NaN", "Infinity"))


@given(VALUES, st.booleans())
def test_indented_values_have_the_content_that_python_writes(
    value: object, ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    found = json_text(value, indent=2, ascii_only=ascii_only)
    assert joined(found) == text or any(word in text for word in ("NaN", "Infinity"))


def test_arrays_of_single_values_and_their_objects_take_one_line() -> None:
    value = {"ranks": [0, 1], "events": [{"kind": "lost", "rank": None}, {}], "of": {"a": [[]]}}
    assert json_text(value, indent=1).splitlines() == [
        "{",
        ' "ranks": [0, 1],',
        ' "events": [',
        '  {"kind": "lost", "rank": null},',
        "  {}",
        " ],",
        ' "of": {',
        '  "a": [',
        "   []",
        "  ]",
        " }",
        "}",
    ]


def test_a_long_object_has_a_line_for_each_member() -> None:
    nodes = {f"n{number}": {"slots": [0, 1]} for number in range(LONG + 1)}
    lines = json_text({"nodes": nodes}, indent=1).splitlines()
    assert lines[2] == '  "n0": {"slots": [0, 1]},'
    assert len(lines) == LONG + 1 + 4
    assert strict("".join(lines)) == {"nodes": nodes}


def test_a_long_array_has_a_line_for_each_item() -> None:
    nodes = [{"host": f"n{number}", "slots": [0, 1]} for number in range(LONG + 1)]
    lines = json_text({"nodes": nodes}, indent=1).splitlines()
    assert lines[2] == '  {"host": "n0", "slots": [0, 1]},'
    assert len(lines) == LONG + 1 + 4
    assert strict("".join(lines)) == {"nodes": nodes}


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers()) | st.integers()))
def test_sorted_keys_are_written_as_python_does(value: dict[str, object]) -> None:
    text = json.dumps(value, indent=1, sort_keys=True)
    assert json_text(value, indent=1, sort_keys=True) == text


@pytest.mark.parametrize("number", NOT_FINITE)
def test_a_number_that_is_not_finite_is_null(number: float) -> None:
    value = {"loss": number, "steps": [1, (number, 0.5)], number: "key"}
    found = strict(json_text(value, indent=1))
    assert found == {"loss": None, "steps": [1, [None, 0.5]], str(number): "key"}


def test_values_of_other_types_are_converted_first() -> None:
    assert json_text({"at": Path("/x"), "loss": math.nan}, default=str, compact=True) == (
        '{"at":"/x","loss":null}'
    )
    with pytest.raises(TypeError):
        json_text({"at": Path("/x"), "loss": math.nan})


def test_a_literal_keeps_what_python_reads() -> None:
    assert json_literal([math.nan, math.inf, "é"], ascii_only=False) == '[NaN, Infinity, "é"]'


# ---------------------------------------------------------------- what is written


@pytest.mark.parametrize("number", NOT_FINITE)
def test_output_for_programs_is_valid_json(
    number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    ui.data({"seconds": number})
    assert strict(capsys.readouterr().out) == {"seconds": None}


def test_the_progress_of_a_run_whose_loss_is_nan_is_valid_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = ProgressReader().read("step 3 loss nan")
    assert progress is not None
    ui.data(progress.as_data())
    assert strict(capsys.readouterr().out) == {"step": 3, "loss": None}


@pytest.mark.parametrize("number", NOT_FINITE)
def test_events_and_results_are_valid_json(tmp_path: Path, number: float) -> None:
    event = Event(1.0, "away", "node1", seconds=number)
    record = RunDirectory(tmp_path / "runs" / "run-1")
    record.event(event)
    record.close({"status": "failed", "seconds": number})
    assert record.failure is None
    assert strict((record.directory / EVENTS).read_bytes())["seconds"] is None
    assert strict((record.directory / RESULT).read_bytes())["seconds"] is None
    out = io.StringIO()
    JsonView(out).event(event)
    assert strict(out.getvalue())["seconds"] is None


@pytest.mark.parametrize("number", NOT_FINITE)
def test_measurements_are_valid_json(number: float) -> None:
    usage = NodeUsage(1.0, "node1", cpu=number, load=number, memory_used=1, memory_total=2)
    assert strict(usage_line(usage))["cpu"] is None


def test_a_notification_is_valid_json(tmp_path: Path) -> None:
    sent = tmp_path / "sent.json"
    target = Target(words=("sh", "-c", f"cat > {sent}"))
    message = {"run": "run-1", "status": "failed", "exit_code": 1, "message": "", "time": math.nan}
    assert notify(target, message) is None
    assert strict(sent.read_bytes())["time"] is None
