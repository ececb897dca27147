"""Answers of agents about recorded runs."""

from __future__ import annotations

from typing import Any

from dslaunch.protocol.queries import RUNS, parse_answers

STARTED = {"event": "started", "rank": 0, "pid": 7, "time": 1.7e9}
RUN: dict[str, Any] = {
    "run": "1122-1-train-ab",
    "cluster": "test",
    "launcher": "torchrun",
    "hosts": ["n1"],
    "ranks": [0],
    "started": 1.7e9,
    "detached": True,
    "living": False,
    "left": [],
    "events": [STARTED],
}


def test_an_invalid_record_of_a_run_hides_no_other_run() -> None:
    records = [{**RUN, "run": "../../etc"}, RUN]
    answers = parse_answers("n1", {RUNS: None}, {"runs": {"value": records}})
    recorded = answers[RUNS]
    assert [run.run for run in recorded.runs] == [RUN["run"]]
    assert len(recorded.invalid) == 1


def test_the_nodes_of_a_run_are_folded_or_as_of_earlier_versions_a_list() -> None:
    records = [{**RUN, "hosts": "n[1-10000]"}, RUN, {**RUN, "hosts": [["n1"]]}]
    recorded = parse_answers("n1", {RUNS: None}, {"runs": {"value": records}})[RUNS]
    assert [run.hosts for run in recorded.runs] == ["n[1-10000]", ("n1",)]
    assert len(recorded.invalid) == 1


def test_an_incomplete_event_of_a_run_hides_no_other_event() -> None:
    records = [{**RUN, "events": [STARTED, {"event": "exi"}]}]
    (run,) = parse_answers("n1", {RUNS: None}, {"runs": {"value": records}})[RUNS].runs
    assert [(event.event, event.rank) for event in run.events] == [("started", 0)]
