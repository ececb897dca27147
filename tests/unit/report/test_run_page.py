"""The page of a run: what is on it, how large it is, and that nothing of others gets through."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from tests.unit.report.recorded_runs import details_of, hosts_of, record

from dslaunch.report.run_charts import number_text, resource_charts
from dslaunch.report.run_page import run_page
from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome
from dslaunch.run.progress_history import ProgressHistory, ProgressPoint, RankPace
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.recorded_run import PlannedDecision, RecordedPlan, RecordedRun
from dslaunch.run.run_details import RunDetails
from dslaunch.run.run_inputs import RecordedConfig, RecordedFinding, RecordedVersions, RunInputs
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.slower_rank import Evidence, SlowerRank
from dslaunch.run.status import RunStatus
from dslaunch.run.usage_history import Measure, RankLateness, UsageCurve, UsagePoint

LARGEST = 500_000
"""Bytes of the page of any run."""
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[2J\x07\u202e&amp;"
LONG = "x" * 100_000


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def with_attribute(self, name: str) -> list[str]:
        return [values[name] or "" for _, values in self.found if name in values]


def headings(page: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def test_page_of_a_failed_run_has_all_sections() -> None:
    assert headings(run_page(details_of(4))) == [
        "Root cause",
        "Timeline",
        "Training",
        "Uneven step times",
        "Resources",
        "Decisions",
        "Preflight",
        "DeepSpeed config",
        "Job and environment",
    ]


def test_page_lists_late_ranks_and_those_that_were_named() -> None:
    details = details_of(2, fails=False)
    slow = SlowerRank(3, "node002", Evidence.COLLECTIVES, cost=0.09)
    page = run_page(
        replace(
            details,
            progress=ProgressHistory(),
            status=replace(details.status, slower=(slow,)),
            late=(RankLateness(3, "node002", 0.12),),
        )
    )
    assert "Uneven step times" in headings(page)
    assert "the others wait for 9 % of each step" in page
    assert '<th scope="row">3</th><td>node002</td><td>12 %</td>' in page


def test_page_of_a_run_without_any_record_has_the_rest() -> None:
    run = record(hosts_of(2))
    status = RunStatus("r", State.UNKNOWN, run)
    page = run_page(RunDetails(status, RecordedRun("r", run), time=run.started))
    assert headings(page) == ["Job and environment"]


def test_page_of_a_running_run_says_so_far() -> None:
    details = details_of(2, fails=False)
    status = replace(details.status, state=State.RUNNING, result=None)
    page = run_page(replace(details, status=status))
    assert "running" in page
    assert "so far" in page
    assert "Root cause" not in page


@pytest.mark.parametrize("nodes", [1, 4, 500])
def test_page_is_below_half_a_megabyte(nodes: int) -> None:
    assert len(run_page(details_of(nodes)).encode()) < LARGEST


def test_equal_nodes_and_ranks_are_one_row_of_the_timeline() -> None:
    page = run_page(details_of(500))
    rows = re.findall(r"<title>(node[^<]*|ranks? [^<]*)</title>", page)
    assert rows == [
        "node002",
        "node500",
        "node[001,003-499] 498 nodes",
        "rank 11 node002",
        "ranks 0-10,12-3999 500 nodes",
    ]


def test_page_loads_nothing_and_runs_nothing() -> None:
    page = run_page(details_of(4))
    elements = Elements(page)
    assert "script" not in {tag for tag, _ in elements.found}
    assert elements.with_attribute("src") == []
    assert all(link.startswith("#") for link in elements.with_attribute("href"))
    policies = [v["content"] for tag, v in elements.found if tag == "meta" and "http-equiv" in v]
    assert policies == [
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    ]


def test_links_of_the_page_lead_to_its_sections() -> None:
    elements = Elements(run_page(details_of(4)))
    assert {link[1:] for link in elements.with_attribute("href")} <= set(
        elements.with_attribute("id")
    )


def test_secrets_are_masked() -> None:
    page = run_page(details_of(2))
    assert "0123456789abcdef" not in page
    assert "hf_secret" not in page
    assert "WANDB_API_KEY" in page
    assert "DB_PASSWORD" in page


def hostile(text: str) -> RunDetails:
    """Return a run in which everything that others choose is this text."""
    record = RunRecord(
        program=text[:4000],
        cluster=text[:4000],
        launcher=text[:4000],
        hosts=(text[:4000],),
        world_size=1,
        detached=False,
        agents="a",
        started=1000.0,
        machine=text[:4000],
    )
    reason = EndReason(EndCode.RANK_FAILED, text[:4000], 0, exit_code=1)
    cause = Event(1010.0, "exit", text[:4000], rank=0, code=1, asked=False, error=text)
    outcome = Outcome(
        "failed",
        1,
        reason,
        cause=cause,
        what=text,
        hint=text,
        last_lines=(text,) * 50,
        unconfirmed=(text[:4000],),
        left=(text,) * 100,
    )
    decision = PlannedDecision(code=text, what=text, value=text, why=text)
    warning = PlannedDecision(code=text, what="warning", value=text, why=text)
    inputs = RunInputs(
        kind=text,
        program=text,
        args=(text,) * 300,
        directory=text,
        env=((text, text),) * 300,
        configs=(RecordedConfig(path=text, given=f'{{"a": "{LONG}"}}', used=text),),
        findings=(RecordedFinding(level=text, check=text, hosts=(text[:4000],), found=text),) * 20,
        versions=(RecordedVersions(hosts=(text[:4000],), versions={text: text}),),
        checked=True,
    )
    events = [
        Event(1000.0 + n, "lost", f"{n}{text[:300]}", error=f"{n} {text}") for n in range(100)
    ]
    return RunDetails(
        status=RunStatus(text[:200], State.FAILED, record, result=outcome),
        recorded=RecordedRun(
            run=text[:4000],
            record=record,
            outcome=outcome,
            inputs=inputs,
            plan=RecordedPlan(nodes=(), decisions=(decision, warning) * 20),
        ),
        time=2000.0,
        events=(cause, *events),
        progress=ProgressHistory(
            tuple(ProgressPoint(1000.0 + n, n, 1e30 * (-1) ** n) for n in range(1000)),
            0,
            (
                RankPace(0, text[:4000], 5.0, 1),
                RankPace(1, text, 1.0, 1),
                RankPace(2, text, 1.0, 1),
            ),
        ),
        last_lines={(text[:4000], 0): (text,) * 20},
        notices=(text,),
    )


@pytest.mark.parametrize("text", [EVIL, LONG, EVIL + LONG, "a\nb\tc", ""])
def test_hostile_texts_are_escaped_and_bounded(text: str) -> None:
    page = run_page(hostile(text))
    elements = Elements(page)
    assert {"script", "img"} & {tag for tag, _ in elements.found} == set()
    assert [name for _, values in elements.found for name in values if name.startswith("on")] == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    assert len(page.encode()) < LARGEST


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (2.1134, "2.113"), (0.000125, "0.000125"), (1240.0, "1,240"), (1e-9, "1e-09")],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize("highest", [0.0, 1.0, 3.0, 1024.0, 5e9])
def test_no_two_lines_of_a_chart_have_the_same_value(highest: float) -> None:
    points = (UsagePoint(1.0, 0.0, 0.0, 0.0), UsagePoint(2.0, highest, highest, highest))
    usage = UsageCurve(Measure.DISK_READ, points, nodes=1, lowest="n1", highest="n1")
    (chart,) = resource_charts(replace(details_of(1), usage=(usage,)))
    values = re.findall(r'text-anchor="end">([^<]*/s)<', chart.svg)
    assert len(values) > 1
    assert len(set(values)) == len(values)
