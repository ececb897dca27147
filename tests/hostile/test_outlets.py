"""Control characters that nodes, files and other users send: no outlet passes them on."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch import terminal
from dslaunch.cli import status, ui
from dslaunch.cli.log_handlers import ToTerminal
from dslaunch.cluster.load import parse_cluster
from dslaunch.deepspeed.checkpoint import Checkpoint, Copy, Header
from dslaunch.errors import ConfigError, NodeError, NodeFailure, Problem
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.plan import Plan, Rendezvous
from dslaunch.launch.replacement import Replacement
from dslaunch.lint import Remark
from dslaunch.notes import note
from dslaunch.preflight import checks as every_check
from dslaunch.preflight.baseline import FindingChange
from dslaunch.preflight.check import Finding, Scope
from dslaunch.preflight.judge import Report
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.protocol.messages import Evidence
from dslaunch.report import checkpoint, junit, lint, live, markdown, page, preflight, stacks
from dslaunch.report import status as run_status
from dslaunch.report import topology as topology_report
from dslaunch.report.decision_rows import decision_rows
from dslaunch.report.json_view import JsonView
from dslaunch.report.output_stream import ERASE
from dslaunch.report.topology_svg import drawing
from dslaunch.run.events import Event, Line
from dslaunch.run.outcome import Outcome, SecondaryFailure
from dslaunch.run.reasons import EndCode, EndReason, Restart
from dslaunch.run.run_record import JobRecord, RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.status import NodeStatus, RunStatus, Unknown
from dslaunch.slurm.states import JobInfo
from dslaunch.topology.advice import advise
from dslaunch.topology.comparison import compare
from dslaunch.topology.model import Gpu, HostInfo, MatrixFailure, Nic, Topology
from dslaunch.topology.notes import MatrixNote
from tests.hostile.laden_text import LADEN, harmful, laden

TEXT = "name: pod\nnodes: [{host: 'node[1-2]', slots: 2, labels: {rack: r1}}]"
CLUSTER = parse_cluster(TEXT, "c.yaml")
REMARK = Remark("rule", "error", "a.json", 1, 2, "zero.stage", "wrong", "mend it", "issue 1")
FAILURE = NodeFailure("node1", "timeout", "no answer in time", "look there")
FINDINGS = (
    Finding(
        "fail", "7 GPUs", "8", "drain it", "nvidia-smi -L", hosts=("node1",), check="gpu.count"
    ),
    Finding("warn", "9000 bytes", "1500", hosts=("node1", "node2"), check="net.mtu"),
    Finding("unknown", "needs root", see="dmesg", hosts=("node2",), check="gpu.xid"),
    Finding("pass", "within 1 s", hosts=("node1", "node2"), check="clock.skew"),
)
NODES = {host: NodeRecording({}, {}, None, 0.1) for host in ("node1", "node2")}
REPORT = Report(Recording(Scope(CLUSTER, CLUSTER.nodes), 1.7e9, NODES, {}), FINDINGS)
REASON = EndReason(
    EndCode.NODE_ENDED, "node1", error="why", ranks=(("node1", 0),), job="12", not_restarted="no"
)
EXIT = Event(5.0, "exit", "node1", 0, code=1, error="bad", evidence=Evidence(error_file="oh"))
EVENTS = (
    *(Event(1.0, kind, "node1", 0, error="why") for kind in ("connected", "started", "joined")),
    *(Event(2.0, kind, "node1", error="why", seconds=3.0) for kind in ("away", "back")),
    Event(3.0, "restarting", restart=Restart(1, 2, REASON, (Replacement("node1", "node2"),))),
    *(EXIT, Event(6.0, "stopping", reason=REASON), Event(7.0, "lost", "node2", error="gone")),
)
STACK = {
    "threads": [
        {
            "name": "MainThread",
            "main": True,
            "frames": [{"file": "/x/train.py", "line": 3, "function": "step"}],
        },
        {"name": "t2", "frames": [{"file": "/x/io.py", "line": 4, "function": "read"}]},
    ],
    "state": "S",
    "syscall": "futex",
}
OUTCOME = Outcome(
    "failed", 1, REASON, EXIT, "it is full", "disk-full", ("/x",), "free space", ("last words",),
    (SecondaryFailure("node2", 1, signal=9, what="killed"),), ("node2",), ("node1: 12",),
    {"node1": {0: [STACK]}},
    alike=(("node1", 3),),
)  # fmt: skip
MASTER = decision(DecisionCode.CODE_ON_NODES, path="a", assumed=True)
PLAN = Plan("pod", "direct", 1, Rendezvous("a", 1), (), decisions=(MASTER,))
RECORD = RunRecord(
    program="train.py", cluster="pod", launcher="torchrun", hosts=("node1", "node2"), world_size=4,
    detached=True, agents="run-1", started=1.0, machine="login",
)  # fmt: skip
STATUS = RunStatus(
    "run-1", State.UNKNOWN, RECORD,
    {"node1": NodeStatus("running", (0, 1), EVENTS[:3], (12,)), "node2": NodeStatus("unreachable")},
    result=OUTCOME, unknown=Unknown("no-answer", ("node2",)), output=("/logs",),
)  # fmt: skip
CHECKPOINT = Checkpoint(
    ".", "step1", Header(stage=2, world=1, parallel=1, version="0.15"),
    {"step1/mp_rank_00_model_states.pt": (Copy("node1", "p", 1, 1, 1.0, "f", "cut short"),)},
    {"node1": "step1"},
)  # fmt: skip
WIRED = Topology(
    "ok", (Gpu(0, "0-3", "0", name="H100", bus="b", driver="1"), Gpu(1, "4-7", "1")),
    (Nic("NIC0", "mlx5_0", ("ib0",), True, "InfiniBand", 400.0),),
    (("GPU0", "GPU1", "NV18"), ("GPU0", "NIC0", "PIX"), ("GPU1", "NIC0", "SYS")),
    notes=(note(MatrixNote.ROW_UNREADABLE, row="odd"),),
    host=HostInfo(2, product="box", interface="eth0", settings=(("NCCL_X", "1"),)),
)  # fmt: skip
UNREAD = Topology("none", trouble=MatrixFailure("unreadable", "no matrix", "run it again"))
JOB = JobInfo("12", "RUNNING", "why", nodes="node[1-2]", output="/out", array="1")
JOB_STATUS = RunStatus(
    "run-2", State.RUNNING,
    RECORD.model_copy(update={"slurm": JobRecord(job="12", groups=((2, 2),), direct=True)}),
    jobs=(JOB,), output=("/out",),
)  # fmt: skip


def _by_host(each: Callable[[Any], Any] = laden) -> dict[str, Topology]:
    return {each("n1"): each(WIRED), each("n2"): each(UNREAD)}


def _run(values: Callable[[Any], Any]) -> Iterator[str]:
    yield from live.outcome_rows(values(OUTCOME), Path("/d"), brief=False)
    yield from decision_rows(values(PLAN.decisions))
    yield from decision_rows(values(PLAN.decisions), 60)
    for found in (STATUS, JOB_STATUS):
        yield status.page(values(found))
        yield ui.table([run_status.RUNS_HEAD, run_status.run_row(values(found))])
        yield json.dumps(values(found).as_data())
    yield stacks.page(stacks.fold(_stacks(values)))
    yield json.dumps(stacks.as_data(stacks.fold(_stacks(values))))


def _stacks(values: Callable[[Any], Any]) -> dict[str, Any]:
    """Stacks keep the names of their fields: those are what the parser looks for."""
    threads = [
        {**each, "name": values(each["name"]), "frames": [
            {**frame, "file": values(frame["file"]), "function": values(frame["function"])}
            for frame in each["frames"]
        ]}
        for each in STACK["threads"]
    ]  # fmt: skip
    told = {"threads": threads, "state": values("S"), "syscall": values("futex")}
    bare = {"state": values("D"), "error": values("no python"), "command": values("dd")}
    return {values("node1"): {"0": [told, bare]}}


def _cluster(values: Callable[[Any], Any]) -> Iterator[str]:
    report = values(REPORT)
    yield from preflight.rows(report, 80, every=True, color=False)
    yield from preflight.rows(report, None, every=True, color=False)
    change = FindingChange(
        values("c"), values(("n",)), ("pass", values("a")), ("fail", values("b"))
    )
    yield from preflight.change_rows([change], 80)
    yield preflight.as_json(report)
    yield markdown.as_markdown(report)
    by_host = _by_host(values)
    compared = compare(by_host)
    yield topology_report.text(by_host, compared, advise(by_host), [values(REMARK)], width=80)
    yield json.dumps(topology_report.as_data(by_host, compared, advise(by_host), [values(REMARK)]))


def _files(values: Callable[[Any], Any]) -> Iterator[str]:
    found = values(CHECKPOINT)
    yield ui.table(checkpoint.rows([found]))
    yield ui.table(checkpoint.detail(found, [values("node1")]), 60)
    yield json.dumps(checkpoint.as_data(found))
    yield "\n".join(checkpoint.faults(found, values({"node1": {"p": "cut"}}), ()))
    for form in (lint.as_text, lint.as_json, lint.as_github):
        yield form([values(REMARK)])
    named = replace(values(REMARK), file="a\x1b\udcff.json")  # no file has half of a character
    yield lint.as_sarif([named], "1")


@pytest.mark.parametrize("answers", [_run, _cluster, _files], ids=["run", "cluster", "files"])
def test_no_field_of_an_answer_reaches_standard_output_as_it_is(
    answers: Callable[[Callable[[Any], Any]], Iterator[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, text in enumerate(answers(laden)):
        ui.result(text)
        shown = capsys.readouterr().out
        assert (number, harmful(shown)) == (number, set())
        ui.say(text)
        assert (number, harmful(capsys.readouterr().err)) == (number, set())


@pytest.mark.parametrize("answers", [_run, _cluster, _files], ids=["run", "cluster", "files"])
def test_json_stays_json_with_what_it_held(
    answers: Callable[[Callable[[Any], Any]], Iterator[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for text in answers(laden):
        if text.startswith(("{", "[{")):
            ui.result(text)
            assert json.loads(capsys.readouterr().out) == json.loads(text)


@pytest.mark.parametrize(
    "problem",
    [
        NodeError((FAILURE,)),
        ConfigError((Problem("c.yaml", 1, 2, "nodes[0]", "wrong"),), hint="mend it"),
    ],
    ids=["node", "file"],
)
def test_no_text_of_an_error_reaches_standard_error_as_it_is(
    problem: NodeError | ConfigError, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = type(problem)(laden(getattr(problem, "failures", getattr(problem, "problems", None))))
    ui.error(bad)
    assert harmful(capsys.readouterr().err) == set()


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("color", [True, False])
def test_no_field_of_an_event_or_line_reaches_the_terminal_as_it_is(*, color: bool) -> None:
    out, err = Terminal(), Terminal()
    nodes = laden(("node1", "node2"))
    screen = live.TerminalView(
        out, err, nodes=nodes, options=live.ViewOptions(color=color), width=lambda: 400
    )
    screen.plan(laden(PLAN), Path("/d"))
    for stream in ("stdout", "stderr"):
        screen.line(Line(1.0, laden("node1"), 0, stream, LADEN))  # type: ignore[arg-type]
    for event in EVENTS:
        screen.event(laden(event))
    screen.outcome(laden(OUTCOME), Path("/d"))
    screen.detached(laden("run-1"))
    assert harmful(out.getvalue(), colors=color, ours=ERASE) == set()
    assert harmful(err.getvalue(), colors=color, ours=ERASE) == set()
    assert len(out.getvalue().splitlines()) == 2  # none of ours, and one line for the line


def test_no_field_of_an_event_reaches_json_lines_as_it_is() -> None:
    out = io.StringIO()
    screen = JsonView(out)
    screen.plan(laden(PLAN), Path("/d"))
    screen.line(Line(1.0, laden("node1"), 0, "stdout", LADEN))
    for event in EVENTS:
        screen.event(laden(event))
    screen.outcome(laden(OUTCOME), Path("/d"))
    lines = out.getvalue().splitlines()
    assert harmful(out.getvalue()) == set()
    assert all(json.loads(line) for line in lines)
    assert len(lines) == len(EVENTS) + 3


def test_the_progress_of_a_preflight_shows_no_name_as_it_is() -> None:
    err = Terminal()
    report = laden(REPORT)
    progress = preflight.ProgressLine(report.scope, err, live=True)
    progress.note(laden("node1"), "connected")
    progress.end()
    assert harmful(err.getvalue(), ours=ERASE) == set()


def test_colors_of_a_preflight_are_ours_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rows = preflight.rows(laden(REPORT), 80, every=True, color=True)
    ui.result("\n".join(rows), colors=True)
    shown = capsys.readouterr().out
    assert harmful(shown, colors=True) == set()
    assert shown.count("\x1b[31m") == 0  # the red that the text has, not the one of failures


@pytest.mark.parametrize("hidden", ["<script>alert(1)</script>", "'\"><img src=x onerror=a()>"])
def test_pages_and_drawings_hold_no_markup_of_nodes(hidden: str) -> None:
    def bad(value: Any) -> Any:
        return laden(value, LADEN + hidden)

    html = page.as_page(bad(REPORT), every_check.load())
    svg = drawing(bad(WIRED), bad("n1"))
    for text in (html, svg):
        assert harmful(text) == set()
        assert "<script>alert" not in text
        assert "<img" not in text
    root = ElementTree.fromstring(svg)
    names = {name for element in root.iter() for name in element.attrib}
    assert not any(name.startswith("on") for name in names)


def test_junit_is_xml_without_control_characters() -> None:
    text = junit.as_junit(laden(REPORT, f"{LADEN}\ufffe]]>\0"))
    assert harmful(text) == set()
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    assert len(cases) == 4


@pytest.mark.parametrize(
    "markup",
    [
        "<b>x</b>", "`code`", "| cell |", "[a](https://evil.example)", "![a](x)", "@everyone",
        "#12", "\n\n# head", "https://evil.example", "www.evil.example", "GH-3", "&#64;all",
        "~~x~~",        "a\\", "</details>", "$x$", "**x**", "_x_", "ssh://evil", "me@evil.example",
    ],
)  # fmt: skip
def test_markdown_shows_markup_of_nodes_as_text(markup: str) -> None:
    from markdown_it import MarkdownIt

    whole = markdown.as_markdown(laden(REPORT, markup))
    text = whole.partition("\n")[2]  # the head has it as code
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)
    lines = [line for line in text.splitlines() if line.startswith("| fail")]
    assert len(lines) == 1
    assert "<b>" not in html
    assert "href" not in html
    assert "<img" not in html
    assert "<del>" not in html
    assert text.count("<details>") == text.count("\n</details>") == text.count("</details>") == 1
    assert "@everyone" not in text.replace("@<!-- -->everyone", "")
    assert "https://" not in text


def test_annotations_for_github_stay_one_line_each() -> None:
    text = lint.as_github([laden(REMARK, "\n::error file=x::y\r\n%0A::stop-commands::z")])
    assert len(text.splitlines()) == 1
    assert text.startswith("::error file=a.json%0A%3A%3Aerror file=x%3A%3Ay%0D%0A%250A")


def test_a_document_is_exact_for_programs_and_safe_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "#!/bin/bash\necho '\x1b[2J\u202e'\n"
    ui.document(text)
    assert capsys.readouterr().out == text
    shown = Terminal()
    with contextlib.redirect_stdout(shown):
        ui.document(text)
    assert harmful(shown.getvalue()) == set()


def test_a_traceback_and_a_log_record_quote_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = ValueError(LADEN)
    ui.show_traceback(ValueError, problem, None)
    handler = ToTerminal(logging.INFO)
    handler.emit(logging.LogRecord("paramiko", 20, "", 0, "banner %s", (LADEN,), None))
    shown = capsys.readouterr().err
    assert "ValueError: \\u001b[2J" in shown
    assert "paramiko: banner \\u001b[2J" in shown
    assert harmful(shown) == set()


def test_every_harmful_character_is_spelled_out_and_no_other() -> None:
    points = [*range(0x3000), *range(0xD800, 0x10000), *range(0xE0000, 0xE0100)]
    for character in map(chr, points):
        if harmful(character):
            assert harmful(terminal.visible(character)) == set()
    plain = "é ü 漢字 عربي עברית 👩\u200d💻 می\u200cخواهم ✓ │ \u00a0"
    assert terminal.visible(plain) == terminal.one_line(plain) == plain


@given(st.text())
def test_visible_text_is_safe_and_safe_text_stays(text: str) -> None:
    once = terminal.visible(text)
    assert harmful(once) == set()
    assert terminal.visible(once) == once
    assert harmful(terminal.colored(text), colors=True) == set()
    assert not set(terminal.one_line(text)) & set("\n\t")


def test_a_color_ends_with_its_line() -> None:
    assert terminal.colored("\x1b[31mred\nplain") == "\x1b[31mred\x1b[0m\nplain"
    assert terminal.colored("\x1b[31mred\x1b[0m\n") == "\x1b[31mred\x1b[0m\n"
