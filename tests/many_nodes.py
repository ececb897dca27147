"""What preflights and runs of many nodes leave behind: recorded answers, the directory of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dslaunch import api
from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster
from dslaunch.launch.job import Job
from dslaunch.launch.plan import plan_to_json
from dslaunch.preflight.alike import AnswersByHost
from dslaunch.preflight.check import Asked, Check, Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.run import run_record
from dslaunch.run.launch import cluster_json
from dslaunch.run.run_directory import CLUSTER, RunDirectory, numbered
from dslaunch.run.usage import USAGE, usage_line
from tests.checks import recorded
from tests.checks.recorded import Case, answer
from tests.unit.report.recorded_runs import (
    START,
    events_of,
    failed_outcome,
    failing_host,
    inputs_of,
    record,
    usage_of,
)

CASES = Path(__file__).parent / "checks"
SLOTS = 8
WIRINGS = ("alike", "card_elsewhere")
DIFFERENT = 50
"""One node of so many has the answers of another case, to one check."""
TOLD_LINES = b"".join(b"step %d loss %.3f\n" % (step, 1 / (step + 1)) for step in range(5))


def cluster_text(count: int) -> str:
    """Return a cluster file with an entry per node."""
    entries = (f"  - {{host: n{i:05}, slots: {SLOTS}}}\n" for i in range(1, count + 1))
    return f"nodes:\n{''.join(entries)}network: {{interface: ib0}}\n"


def cluster(count: int) -> Cluster:
    """Return a cluster of that many nodes."""
    return parse_cluster(cluster_text(count), "many.yaml")


def hostfile_text(count: int) -> str:
    """Return a hostfile of that many nodes."""
    return "".join(f"n{i:05} slots={SLOTS}\n" for i in range(1, count + 1))


# ---------------------------------------------------------------- recorded answers


@dataclass(frozen=True)
class _Cases:
    """What the nodes answer to the questions of a check."""

    usual: Case
    others: tuple[Case, ...]


@cache
def _cases(check: str) -> _Cases | None:
    """Return the recorded cases of a check, the first that passes before the others."""
    cases = [recorded.read(path) for path in sorted((CASES / check).glob("*.toml"))]
    passing = [case for case in cases if {v["level"] for v in case.content["verdict"]} == {"pass"}]
    if not passing:
        return None
    return _Cases(passing[0], tuple(case for case in cases if case is not passing[0]))


def recording(count: int) -> Recording:
    """Return the answers of many nodes to all static checks. Most have those of a case that passes,
    and to each check a few nodes have those of another case."""
    scope = Scope(cluster=(used := cluster(count)), nodes=used.nodes, job=Job("train.py"))
    answers: dict[str, dict[str, Any]] = {node.host: {} for node in scope.nodes}
    for number, (name, check) in enumerate(built_in().items()):
        cases = _cases(name)
        if cases is not None and check.tier != "deep":
            _answer(name, check, scope, cases, answers, number)
    nodes = {
        host: NodeRecording(_hello(host, number), answers[host], (0.001 * (number % 7), 0.001), 0.4)
        for number, host in enumerate(answers)
    }
    return Recording(scope, START, nodes, {})


def _hello(host: str, number: int) -> Any:
    return {**recorded.HELLO, "hostname": host, "boot": f"b{number:07}"}


def _answer(
    name: str,
    check: Check,
    scope: Scope,
    cases: _Cases,
    answers: dict[str, dict[str, Any]],
    number: int,
) -> None:
    """Add the answers to the questions of one check, round by round."""
    running = RunningCheck(name, check, scope)
    while running.pending is not None:
        for at, (host, asked) in enumerate(running.pending.asked.items()):
            different = cases.others and (at + number) % DIFFERENT == 0
            case = cases.others[at % len(cases.others)] if different else cases.usual
            _add_of_nodes(answers[host], asked)
            _add(answers[host], case, asked, at)
        nodes = {
            host: NodeRecording(_hello(host, 0), own, None, 0.0) for host, own in answers.items()
        }
        facts = Recording(scope, START, nodes, {})
        running.answered(AnswersByHost(node_answers(facts), complete=False))


def _add(answers: dict[str, Any], case: Case, asked: Asked, at: int) -> None:
    given = _given(case.path, case.hosts[at % len(case.hosts)])
    for name, question in asked.items():
        if name in given:
            answers.setdefault(question.key, answer(given[name]))


def _add_of_nodes(answers: dict[str, Any], asked: Asked) -> None:
    """Add the answers to questions that name nodes; those of the cases are about others."""
    for question in asked.values():
        if question.kind == "resolve":
            value: Any = {host: [_address(host)] for host in question.argument}
        elif question.kind == "dial":
            value = {host: {"local": "10.0.0.1"} for host in question.argument["targets"]}
        else:
            continue
        answers.setdefault(question.key, {"value": value})


def _address(host: str) -> str:
    high, low = divmod(int(host.removeprefix("n")), 256)
    return f"10.1.{high}.{low}"


@cache
def _given(path: Path, host: str) -> Mapping[str, Any]:
    return recorded.read(path).of(host, "answers")


def topology_text(count: int) -> str:
    """Return the output of `pdsh -a nvidia-smi topo -m`; every second node has other wiring."""
    cases = [recorded.read(CASES / "topo.uniform" / f"{name}.toml") for name in WIRINGS]
    printed = [_given(case.path, case.hosts[-1])["topo"]["value"]["out"] for case in cases]
    lines = (
        f"n{number:05}: {line}\n"
        for number in range(1, count + 1)
        for line in printed[number % len(printed)].splitlines()
    )
    return "".join(lines)


# ---------------------------------------------------------------- the directory of a run


def write_run(directory: Path, count: int) -> None:
    """Write what a run of many nodes leaves; rank 3 of the second node failed."""
    used = cluster(count)
    hosts = tuple(node.host for node in used.nodes)
    job = Job("train.py")
    planned = api.plan(used, job, api.select(used))
    written = RunDirectory(directory)
    written.write(run_record.FILE, record(hosts).as_json())
    written.write(CLUSTER, cluster_json(used))
    written.write(numbered("plan", 0), plan_to_json(planned))
    written.write(numbered("inputs", 0), inputs_of(hosts).as_json())
    events = sorted(events_of(hosts, failing_host(hosts)), key=lambda event: event.time)
    for event in events:
        written.event(event)
    for host in hosts:
        written.output(host, None, TOLD_LINES, START + 60, 1)
    written.write(USAGE, b"".join(map(usage_line, usage_of(hosts, samples=3))).decode())
    written.close(failed_outcome(hosts).as_data())
