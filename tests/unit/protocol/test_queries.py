"""Answers of agents about recorded runs."""

from __future__ import annotations

from typing import Any

import pytest

from dslaunch.protocol.queries import (
    ANY_PORT,
    DIGESTS,
    LISTEN,
    RESOLVE,
    RUNS,
    Answers,
    KnownValues,
    parse_answers,
)
from dslaunch.protocol.values import InvalidAnswer

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


def test_equal_values_of_nodes_that_are_asked_the_same_are_one_object() -> None:
    known, questions = KnownValues(), {RESOLVE: ["n1"]}
    first, second, other = (
        parse_answers(host, questions, {"resolve": {"value": {"n1": [address]}}}, known)[RESOLVE]
        for host, address in [("n1", "10.0.0.1"), ("n2", "10.0.0.1"), ("n3", "10.0.0.2")]
    )
    assert first is second
    assert other == {"n1": ["10.0.0.2"]}


def test_a_known_value_is_no_answer_to_another_question() -> None:
    known, sent = KnownValues(), {"digests": {"value": {"train.py": None}}}
    parse_answers("n1", {DIGESTS: {"paths": ["train.py"]}}, sent, known)
    with pytest.raises(InvalidAnswer):
        parse_answers("n1", {DIGESTS: {"paths": ["other.py"]}}, sent, known)


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


def listening(asked: list[int], **answer: object) -> Answers:
    """What a node answers that was asked to listen at one of some ports."""
    return parse_answers("n1", {LISTEN: {"ports": asked}}, {"listen": {"value": answer}})


def test_a_node_listens_at_a_port_that_was_asked_for() -> None:
    taken = [{"port": 20000, "error": "Address already in use"}]
    assert listening([20000, 20037], port=20037, taken=taken)[LISTEN]["port"] == 20037
    assert listening([ANY_PORT], port=41234)[LISTEN]["port"] == 41234
    no_port_free = [{"port": ANY_PORT, "error": "Address already in use"}]
    assert listening([ANY_PORT], port=None, taken=no_port_free)[LISTEN]["port"] is None


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ([20000], {"port": 22}),
        ([20000], {"port": None}),
        ([ANY_PORT], {"port": 0}),
        ([ANY_PORT], {"port": None, "taken": [{"port": 22, "error": "taken"}]}),
    ],
)
def test_another_port_than_those_that_were_asked_for_is_invalid(
    asked: list[int], answer: dict[str, object]
) -> None:
    with pytest.raises(InvalidAnswer):
        listening(asked, **answer)
