"""A preflight's findings as text, JSON, JUnit, Markdown, and against a baseline."""

from __future__ import annotations

import io
import json
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.nodeset import fold
from dslaunch.errors import NodeFailure
from dslaunch.preflight.baseline import FindingChange, compare_reports
from dslaunch.preflight.check import Finding, Level, Scope
from dslaunch.preflight.judge import Report
from dslaunch.preflight.measurement import Measurement
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.report.junit import as_junit
from dslaunch.report.markdown import as_markdown
from dslaunch.report.node_list import MOST_LISTED, listed_nodes
from dslaunch.report.page import as_page
from dslaunch.report.preflight import (
    MOST_RESULTS,
    ProgressLine,
    as_json,
    change_rows,
    readable,
    rows,
    summary,
)

TEXT = "name: pod\nnodes: [{host: 'node[1-4]', slots: 8}]"
SCOPE = Scope(parse_cluster(TEXT, "c.yaml"), parse_cluster(TEXT, "c.yaml").nodes)
SILENT = {"node4": NodeFailure("node4", "timeout", "no answer in time")}
NODES = {f"node{i}": NodeRecording({}, {}, None, 0.1) for i in (1, 2, 3)}
FACTS = Recording(SCOPE, 1_700_000_000.0, NODES, SILENT)
FAILED = Finding(
    "fail", "7 GPUs", "8", "drain it", "nvidia-smi -L", hosts=("node2",), check="gpu.count"
)
WARNED = Finding("warn", "9000 bytes", "1500", hosts=("node1", "node3"), check="net.mtu")
UNKNOWN = Finding("unknown", "needs root", see="dmesg", hosts=("node1",), check="gpu.xid")
PASSED = Finding("pass", "within 1 s", hosts=("node1", "node2", "node3"), check="clock.skew")


def report(*findings: Finding) -> Report:
    return Report(FACTS, findings)


ALL = report(FAILED, WARNED, UNKNOWN, PASSED)


def test_the_worst_comes_first_with_what_to_do_and_what_passed_is_counted() -> None:
    assert list(rows(ALL, None, every=False, color=False)) == [
        "FAIL  gpu.count  node2: 7 GPUs; expected: 8",
        "                 fix: drain it",
        "                 see: nvidia-smi -L",
        "warn  net.mtu    node[1,3]: 9000 bytes; expected: 1500",
        "????  gpu.xid    node1: needs root",
        "                 see: dmesg",
        "4 nodes, 1 did not answer: 1 failed, 1 warning, 1 unknown, 1 check passed: "
        "NOT fit to train on",
        "unfit: node2 (1)   unknown: node4 (1)   fit: node[1,3] (2)",
    ]


def test_all_shows_what_passed_too() -> None:
    assert "ok    clock.skew  node[1-3]: within 1 s" in rows(ALL, None, every=True, color=False)


def test_of_fewer_nodes_only_missing_answers_count() -> None:
    scope = replace(SCOPE, nodes=SCOPE.nodes[:1])
    one = replace(ALL, facts=replace(FACTS, scope=scope))
    assert summary(one).startswith("1 node: 1 failed, ")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_fit_the_terminal_where_words_let_them(width: int) -> None:
    long = replace(FAILED, found="a " * 100, fix="b " * 100)
    shown = rows(report(long, WARNED), width, every=False, color=False)
    assert all(len(line) <= width for line in list(shown)[:-1])


def late(number: int, *hosts: str) -> Finding:
    """A result that is another one on each node."""
    return replace(FAILED, found=f"clock {number}.1 s ahead", hosts=hosts, check="clock.skew")


def test_of_a_check_with_another_result_on_each_node_few_are_shown() -> None:
    hosts = [f"n{number:04}" for number in range(1, 501)]
    every = [late(number, host) for number, host in enumerate(hosts)]
    common = late(900, "m1", "m2")
    shown = readable([*every, common, WARNED])
    assert len(shown) == MOST_RESULTS + 1
    assert shown[0] == common
    assert shown[-2].found.endswith("; 493 other results on the other nodes")
    assert {host for finding in shown[:-1] for host in finding.hosts} == {*hosts, "m1", "m2"}
    assert shown[-1] == WARNED


def test_few_results_of_a_check_are_all_shown() -> None:
    every = [late(number, f"n{number}") for number in range(MOST_RESULTS)]
    assert readable(every) == every


def test_pages_grow_with_the_kinds_of_results_and_json_has_all_of_them() -> None:
    few, many = (
        report(*(late(number, f"n{number:05}") for number in range(count))) for count in (20, 2_000)
    )
    for show in (as_markdown, lambda shown: as_page(shown, {}), _as_text):
        assert len(show(many)) < 2 * len(show(few))
    assert len(json.loads(as_json(many))["findings"]) == 2_000


def _as_text(shown: Report) -> str:
    return "\n".join(rows(shown, 80, every=True, color=False))


def test_color_adds_nothing_but_color() -> None:
    plain = "\n".join(rows(ALL, 80, every=True, color=False))
    painted = "\n".join(rows(ALL, 80, every=True, color=True))
    assert painted != plain
    for code in ("\x1b[1;31m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[0m"):
        painted = painted.replace(code, "")
    assert painted == plain


def test_a_cluster_is_fit_unless_something_failed() -> None:
    answering = replace(FACTS, scope=replace(SCOPE, nodes=SCOPE.nodes[:3]), failures={})
    assert summary(Report(answering, (WARNED, PASSED))).endswith(": fit to train on")
    unknown = summary(Report(answering, (WARNED, UNKNOWN, PASSED)))
    assert unknown.endswith(": fit to train on, as far as is known")


def test_a_cluster_is_not_fit_if_no_check_was_answered_on_a_node() -> None:
    answering = replace(FACTS, scope=replace(SCOPE, nodes=SCOPE.nodes[:3]), failures={})
    judged = Report(answering, (UNKNOWN, replace(PASSED, hosts=("node2", "node3"))))
    assert not judged.fit
    assert summary(judged).endswith(": NOT fit to train on")
    *_, verdicts = rows(judged, None, every=False, color=False)
    assert verdicts == "unknown: node1 (1)   fit: node[2-3] (2)"


def test_json_holds_all_findings() -> None:
    told = json.loads(as_json(ALL))
    assert (told["fit"], told["cluster"]) == (False, "pod")
    assert [f["level"] for f in told["findings"]] == ["fail", "warn", "unknown", "pass"]


# ---------------------------------------------------------------- other forms


def suite_of(found: Report) -> Element:
    """Return the test suite of a preflight."""
    return ElementTree.fromstring(as_junit(found))[0]


def test_junit_has_a_case_per_check_however_many_nodes() -> None:
    suite = suite_of(ALL)
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "0"}
    assert {case.get("classname") for case in suite} == {"pod"}


def test_a_junit_failure_names_the_nodes_and_says_what_to_do() -> None:
    failure = suite_of(report(FAILED)).find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "node2: 7 GPUs"
    assert {"nodes: node2", "fix: drain it"} <= set((failure.text or "").splitlines())


@pytest.mark.parametrize(
    ("levels", "results"),
    [
        (("fail", "unknown", "warn", "pass"), ["failure", "system-out"]),
        (("unknown", "pass"), ["error", "system-out"]),
        (("skip",), ["skipped"]),
        (("skip", "pass"), ["system-out"]),
        (("warn",), ["system-out"]),
    ],
)
def test_the_worst_finding_of_a_check_is_the_result_of_its_junit_case(
    levels: tuple[Level, ...], results: list[str]
) -> None:
    findings = (replace(FAILED, level=level) for level in levels)
    (case,) = suite_of(report(*findings))
    assert [element.tag for element in case] == results


@given(st.text())
def test_any_words_of_a_node_make_readable_xml(words: str) -> None:
    suite = suite_of(report(replace(FAILED, found=words)))
    assert suite.get("failures") == "1"


def test_markdown_escapes_what_nodes_say() -> None:
    text = as_markdown(report(replace(FAILED, found="a | b *c* <d>"), PASSED))
    assert "a \\| b \\*c\\* \\<d\\>" in text
    assert text.count("<details>") == 1


# ---------------------------------------------------------------- changes


def test_a_check_that_is_new_is_worse_only_where_something_is_wrong() -> None:
    found = compare_reports(report(), report(WARNED, PASSED))
    assert [(c.check, c.worse) for c in found] == [("net.mtu", True), ("clock.skew", False)]


def test_what_became_worse_comes_first_and_equal_changes_are_one() -> None:
    before = report(replace(PASSED, check="net.mtu", found="1500 bytes"), PASSED)
    found = compare_reports(before, report(WARNED, replace(PASSED, found="within 0.5 s")))
    worse = FindingChange(
        "net.mtu", ("node1", "node3"), ("pass", "1500 bytes"), ("warn", "9000 bytes")
    )
    assert found[0] == worse and worse.worse
    assert [(c.check, c.worse) for c in found[1:]] == [("clock.skew", False), ("net.mtu", False)]


def test_nothing_new_is_said_in_a_line() -> None:
    assert list(change_rows(compare_reports(ALL, ALL))) == ["no change since the baseline"]


def test_progress_names_the_nodes_that_are_late() -> None:
    progress = ProgressLine(SCOPE, io.StringIO(), live=False)
    progress.note("node1", "asked")
    progress.note("node2", "connected")
    assert str(progress) == "nodes asked: 1 of 4 · waiting for node[2-4]"


MEASUREMENT = Measurement("net.bandwidth", 1, 3, seconds=33.0, more_checks=2)


def test_progress_shows_the_measurement_its_round_and_the_time_left() -> None:
    now = [100.0]
    progress = ProgressLine(SCOPE, io.StringIO(), live=False, clock=lambda: now[0])
    progress.begin_measurement(MEASUREMENT)
    now[0] += 11
    assert str(progress) == "measuring net.bandwidth · round 1/3 · up to 22 s left · 2 more checks"
    progress.begin_measurement(replace(MEASUREMENT, round=3, seconds=11.0, more_checks=0))
    assert str(progress) == "measuring net.bandwidth · round 3/3 · up to 11 s left"
    progress.note("node1", "answered")
    assert str(progress).startswith("nodes asked")


def test_without_a_terminal_each_check_that_measures_is_one_line() -> None:
    err = io.StringIO()
    progress = ProgressLine(SCOPE, err, live=False)
    for number in (1, 2, 3):
        progress.begin_measurement(replace(MEASUREMENT, round=number))
    progress.end()
    assert err.getvalue() == "measuring net.bandwidth: 3 rounds, up to 33 s\n"


def test_a_long_list_of_nodes_is_cut_but_not_one_that_folds() -> None:
    every_third = [f"node{number:05}" for number in range(1, 10_000, 3)]
    listed = listed_nodes(every_third)
    assert listed == f"{fold(every_third[:8])} and 3325 more nodes"
    assert len(listed) <= MOST_LISTED
    assert listed_nodes([f"node{number:05}" for number in range(1, 10_000)]) == "node[00001-09999]"
