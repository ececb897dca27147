"""Of many nodes of which no two answer alike, each fault is found on its nodes, and no other."""

from __future__ import annotations

import pytest
from tests import dgx_nodes

from dslaunch.preflight.checks import built_in, of_tier
from dslaunch.preflight.judge import Report, judge

NODES = 40
CHECKS = {
    "adapter down": "ib.port-state",
    "busy": "cpu.load",
    "few GPUs": "gpu.count",
    "file system hung": "fs.hung",
    "governor": "cpu.governor",
    "hot": "gpu.temperature",
    "low disk": "fs.free",
    "memlock": "lim.memlock",
    "memory leaked": "mem.available",
    "nvidia-smi hung": "gpu.driver-up",
    "old driver": "gpu.driver-skew",
    "other clock": "clock.skew",
    "remapped": "gpu.row-remap",
    "slow link": "ib.rate",
    "torch differs": "sw.versions",
}
"""Fault -> the check that finds it."""


@pytest.fixture(scope="module")
def report() -> Report:
    return judge(dgx_nodes.recording(NODES), of_tier(dict(built_in()), "static"))


@pytest.mark.parametrize(("fault", "check"), CHECKS.items(), ids=CHECKS)
def test_a_fault_is_found_on_its_node(report: Report, fault: str, check: str) -> None:
    number = dgx_nodes.FAULTS.index(fault) + 1
    found = [f for f in report.findings if f.check == check and f.level in ("fail", "warn")]
    assert {host for finding in found for host in finding.hosts} == {dgx_nodes.host(number)}


def test_nodes_without_a_fault_are_fit(report: Report) -> None:
    fit = [verdict.host for verdict in report.verdicts if verdict.fitness == "fit"]
    assert set(map(dgx_nodes.host, range(len(dgx_nodes.FAULTS) + 1, NODES + 1))) <= set(fit)


def test_every_check_has_an_answer(report: Report) -> None:
    assert {finding.check for finding in report.findings if finding.level == "unknown"} == set()


def test_the_nodes_whose_network_is_slow_are_found_and_not_their_partners() -> None:
    facts = dgx_nodes.recording(NODES, "net.bandwidth")
    report = judge(facts, {"net.bandwidth": built_in()["net.bandwidth"]})
    slow = [f for f in report.findings if f.level == "fail"]
    number = dgx_nodes.FAULTS.index("slow Ethernet") + 1
    assert [finding.hosts for finding in slow] == [(dgx_nodes.host(number),)]
