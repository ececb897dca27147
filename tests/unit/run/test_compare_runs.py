"""What differs between two runs: by topic, without noise, and without values of secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.report.recorded_runs import details_of

from dslaunch.report.run_diff import comparison_text
from dslaunch.run.compare_runs import (
    MOST_CHANGES,
    Change,
    RunComparison,
    Topic,
    compare_runs,
    flat,
    options_of,
)
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.recorded_run import PlannedDecision, RecordedRun
from dslaunch.run.run_inputs import RecordedConfig, RecordedVersions, RunInputs


def run(**inputs: Any) -> RecordedRun:
    """Return a recorded run; `inputs` are fields of its inputs that differ from the usual ones."""
    recorded = details_of(2).recorded
    assert recorded.inputs is not None
    return replace(recorded, inputs=recorded.inputs.model_copy(update=inputs))


def changes(first: RecordedRun, second: RecordedRun, topic: Topic) -> tuple[Change, ...]:
    """Return the changes of the only topic that differs."""
    (found,) = compare_runs(first, second).topics
    assert found.topic is topic
    return found.changes


def with_plan(recorded: RecordedRun, **fields: Any) -> RecordedRun:
    assert recorded.plan is not None
    return replace(recorded, plan=replace(recorded.plan, **fields))


def with_env(recorded: RecordedRun, *env: tuple[str, str]) -> RecordedRun:
    assert recorded.plan is not None
    nodes = tuple(replace(node, env=env) for node in recorded.plan.nodes)
    return with_plan(recorded, nodes=nodes)


def test_a_run_does_not_differ_from_itself() -> None:
    assert compare_runs(run(), run()) == RunComparison(run().run, run().run, ())


def test_arguments_are_compared_by_their_names() -> None:
    one = run(args=("data.txt", "--lr", "1e-4", "--steps=5", "--bf16"))
    other = run(args=("data.txt", "--steps", "6", "--lr", "1e-4"))
    assert changes(one, other, Topic.ARGUMENTS) == (
        Change("--steps", "5", "6"),
        Change("--bf16", "", None),
    )


def test_negative_numbers_are_values() -> None:
    assert options_of(["--shift", "-0.5", "-v"]) == {"--shift": "-0.5", "-v": ""}


def test_code_is_compared_file_by_file() -> None:
    one = run(files=(("a.py", "a" * 64), ("b.py", "b" * 64)))
    other = run(files=(("b.py", "c" * 64), ("d.py", "d" * 64)))
    assert changes(one, other, Topic.CODE) == (
        Change("a.py", "a" * 12, None),
        Change("b.py", "b" * 12, "c" * 12),
        Change("d.py", None, "d" * 12),
    )


def test_secret_variables_are_only_said_to_have_changed() -> None:
    one = with_env(run(), ("HF_TOKEN", "first"), ("DEBUG", "1"), ("URL", "http://u:p@host/"))
    other = with_env(run(), ("HF_TOKEN", "second"), ("URL", "http://u:p@other/"))
    assert changes(one, other, Topic.ENVIRONMENT) == (
        Change("HF_TOKEN", "***", "***", secret=True),
        Change("DEBUG", "1", None),
        Change("URL", "http://***@host/", "http://***@other/"),
    )


def test_secret_arguments_are_only_said_to_have_changed() -> None:
    found = changes(run(args=("--hf-token", "a")), run(args=("--hf-token", "b")), Topic.ARGUMENTS)
    assert found == (Change("--hf-token", "***", "***", secret=True),)


def test_variables_of_some_nodes_are_shown_with_the_nodes() -> None:
    recorded = with_env(run(), ("A", "1"))
    assert recorded.plan is not None
    first, second = recorded.plan.nodes
    other = with_plan(recorded, nodes=(first, replace(second, env=(("A", "2"),))))
    assert changes(recorded, other, Topic.ENVIRONMENT) == (
        Change("A", "1", "1 on node001; 2 on node002"),
    )


def test_configs_are_compared_as_the_nodes_got_them() -> None:
    def config(used: str) -> RecordedRun:
        return run(configs=(RecordedConfig(path="ds.json", given="{}", used=used),))

    one = config('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    other = config('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    assert changes(one, other, Topic.CONFIG) == (Change("zero_optimization.stage", "2", "3"),)


def test_versions_are_compared_by_name() -> None:
    def versions(torch: str) -> RecordedRun:
        found = RecordedVersions(hosts=("n1", "n2"), versions={"torch": torch, "python": "3.11"})
        return run(versions=(found,))

    found = changes(versions("2.6.0"), versions("2.7.1"), Topic.VERSIONS)
    assert found == (Change("torch", "2.6.0", "2.7.1"),)


def test_nodes_are_compared() -> None:
    one = run()
    swapped = one.record.model_copy(update={"hosts": ("node001", "node007")})
    found = changes(one, replace(one, record=swapped), Topic.NODES)
    assert found == (Change("nodes", "2: node[001-002]", "2: node[001,007]"),)


def test_settings_of_the_cluster_file_are_compared() -> None:
    one = run()
    assert one.cluster is not None
    other = replace(one, cluster={**one.cluster, "ssh": {"fanout": 8}})
    assert changes(one, other, Topic.CLUSTER) == (Change("ssh.fanout", "64", "8"),)


def test_free_ports_and_shipped_code_are_no_differences() -> None:
    def decided(port: str, code: str, value: str) -> RecordedRun:
        master = PlannedDecision(
            code="master-reached",
            values={"port_origin": "free"},
            what="master",
            value=f"10.0.0.1:{port}",
            why="eth0",
        )
        shipped = PlannedDecision(code=code, what="code", value=value, why="compared")
        return with_plan(run(), decisions=(master, shipped))

    one = decided("29501", "code-shipped", "2 files copied")
    assert compare_runs(one, decided("31337", "code-same", "up to date")).is_equal


def test_decisions_are_compared_with_their_reasons() -> None:
    def decided(why: str) -> RecordedRun:
        decision = PlannedDecision(code="interface-of-route", what="interface", value="x", why=why)
        return with_plan(run(), decisions=(decision,))

    found = changes(decided("a"), decided("b"), Topic.DECISIONS)
    assert found == (Change("interface", "x (a)", "x (b)"),)


def test_outcomes_are_compared() -> None:
    good = Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
    found = changes(replace(run(), outcome=good), run(), Topic.OUTCOME)
    assert [change.name for change in found] == ["result", "exit code", "why", "reason"]


def test_batch_scripts_are_compared_by_line() -> None:
    one = replace(run(), script="#!/bin/bash\n#SBATCH --nodes=2\nsrun x\n")
    other = replace(run(), script="#!/bin/bash\n#SBATCH --nodes=4\nsrun x\n")
    assert changes(one, other, Topic.BATCH_SCRIPT) == (
        Change("line 2", "#SBATCH --nodes=2", "#SBATCH --nodes=4"),
    )


def test_what_is_not_recorded_is_named() -> None:
    old = replace(run(), inputs=None, plan=None, cluster=None)
    assert compare_runs(old, run()).not_compared == (
        Topic.ARGUMENTS,
        Topic.CODE,
        Topic.ENVIRONMENT,
        Topic.CONFIG,
        Topic.VERSIONS,
        Topic.CLUSTER,
        Topic.DECISIONS,
    )


def test_many_changes_are_counted() -> None:
    files = tuple((f"{number}.py", "a" * 64) for number in range(1000))
    (found,) = compare_runs(run(files=files), run(files=(("x.py", "b" * 64),))).topics
    assert (len(found.changes), found.more) == (MOST_CHANGES, 1001 - MOST_CHANGES)


def test_deeply_nested_data_is_compared() -> None:
    data: Any = 1
    for _ in range(100_000):
        data = {"a": data}
    assert list(flat(data).values()) == ["1"]


@pytest.mark.parametrize("evil", ["\x1b[2J", "a\nb", "\u202e"])
def test_text_has_no_control_characters_of_others(evil: str) -> None:
    text = comparison_text(compare_runs(run(args=("--x", evil)), run(args=("--x", "1"))))
    assert evil not in text


def test_comparison_is_json() -> None:
    found = compare_runs(run(), run(args=("--lr", "2")))
    data = json.loads(json.dumps(found.as_data()))
    assert data["equal"] is False
    assert data["topics"][0]["topic"] == "arguments"


def test_inputs_are_read_as_they_were_written() -> None:
    inputs = run().inputs
    assert inputs is not None
    assert RunInputs.model_validate_json(inputs.as_json()) == inputs
