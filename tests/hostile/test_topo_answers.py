"""What nvidia-smi prints on a hostile node: `topo` reads it, compares nodes, and gives advice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from dslaunch.preflight.checks._wiring import topologies
from dslaunch.report import topology as report
from dslaunch.topology.advice import Advice, advise
from dslaunch.topology.comparison import compare
from dslaunch.topology.model import Topology
from tests.checks.test_checks import CASES
from tests.growth import result_within
from tests.hostile.mutations import text_sample
from tests.hostile.test_preflight_answers import MOST_SECONDS, Recorded, recorded

WIRED = [case for case in CASES if case.check == "topo.uniform"]
NAME = re.compile(r"=?[A-Za-z0-9_.:,=^-]{0,2000}")
"""What is written into a cluster file for the variables and settings of NCCL."""


def assert_topo_is_shown(case: Recorded, host: str, answers: object, where: str) -> None:
    def shown() -> tuple[Mapping[str, Topology], tuple[Advice, ...]]:
        survey, _ = case.judged({**case.sent, host: {**case.sent[host], "answers": answers}})
        found = topologies(survey.answers())
        compared, advice = compare(found), advise(found)
        json.dumps(report.as_data(found, compared, advice, ()))
        report.text(found, compared, advice, (), width=100)
        return found, advice

    found, advice = result_within(MOST_SECONDS, shown)
    assert set(case.sent) - {host} <= set(found), where
    for each in advice:
        assert not each.where or NAME.fullmatch(each.value or ""), (where, each)


@pytest.mark.parametrize("case", WIRED, ids=lambda case: str(case.path.stem))
def test_topo_reads_whatever_a_hostile_node_prints(case: object, mutation_count: int) -> None:
    honest = recorded(case)  # type: ignore[arg-type]
    host = list(honest.sent)[-1]
    every = honest.sent[host]["answers"]
    for mutation in text_sample(every, mutation_count // (10 * len(WIRED)), len(host)):
        assert_topo_is_shown(honest, host, mutation.value, mutation.where)
