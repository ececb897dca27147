"""Recorded answers are read back as they were; a damaged file is refused with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.checks.recorded import HELLO
from tests.full_disk import files_of_at_most

from dslaunch.cluster.load import parse_cluster
from dslaunch.errors import ConfigError, NodeFailure
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Scope
from dslaunch.preflight.recording import MOST_BYTES, NodeRecording, Recording, read
from dslaunch.protocol.survey import Answer
from dslaunch.pysource.imports import Imports
from dslaunch.run.preflight_survey import scoped_again

TEXT = "nodes: [{host: 'n[1-2]', slots: 1}]"
CLUSTER = parse_cluster(TEXT, "c.yaml")
FACTS = Recording(
    scope=Scope(
        CLUSTER,
        CLUSTER.nodes,
        Job("train.py", launcher="direct"),
        purposes=frozenset(("mpi",)),
        directories=("/work",),
        root="work",
        files=(("train.py", "ab"),),
        named=frozenset(("gpu.count",)),
        token="t",
        imports=Imports(("torch",), read=True),
    ),
    time=1_700_000_000.5,
    nodes={
        "n1": NodeRecording(HELLO, {'read ["/x"]': {"value": {"/x": "1"}}}, (0.5, 0.25), 0.1, "hi")
    },
    failures={"n2": NodeFailure("n2", "timeout", "no answer in time")},
    here={'read ["/y"]': {"error": "why"}},
)

NODE = json.loads(FACTS.as_json())["nodes"]["n1"]


def damaged(tmp_path: Path, **changes: Any) -> str:
    """What is said of a recording in which fields are otherwise."""
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({**json.loads(FACTS.as_json()), **changes}), "utf-8")
    with pytest.raises(ConfigError) as refused:
        read(file)
    return refused.value.message.removeprefix(f"{file}: ")


def test_what_was_recorded_is_read_back_the_same(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(FACTS.as_json(), "utf-8")
    assert read(file) == FACTS


def test_equal_answers_of_nodes_are_written_once(tmp_path: Path) -> None:
    both = dict.fromkeys(("n1", "n2"), FACTS.nodes["n1"])
    facts = replace(FACTS, nodes=both, failures={})
    file = tmp_path / "facts.json"
    facts.save(file)
    assert len(json.loads(file.read_text("utf-8"))["answers"]) == 1
    assert read(file) == facts


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        pytest.param("nodes: [{host: 'n[1-3]', slots: 1}]", ["n1", "n2", "n3"], id="larger"),
        pytest.param("nodes: [{host: 'n[2-3]', slots: 1}]", ["n2", "n3"], id="another"),
        pytest.param("nodes: [{host: n1, slots: 1}]", ["n1"], id="smaller"),
    ],
)
def test_a_node_that_is_new_in_the_cluster_file_is_judged_too(text: str, judged: list[str]):
    facts = scoped_again(FACTS, cluster=parse_cluster(text, "new.yaml"))
    assert [node.host for node in facts.scope.nodes] == judged


def test_a_node_that_the_recording_left_out_is_not_judged() -> None:
    larger = parse_cluster("nodes: [{host: 'n[1-3]', slots: 1}]", "c.yaml")
    facts = replace(FACTS, scope=replace(FACTS.scope, cluster=larger))
    again = scoped_again(facts, cluster=larger)
    assert [node.host for node in again.scope.nodes] == ["n1", "n2"]


def test_nothing_of_the_jobs_environment_is_recorded() -> None:
    job = Job("train.py", env=(("TOKEN", "s3cr3t"),))
    assert "s3cr3t" not in replace(FACTS, scope=replace(FACTS.scope, job=job)).as_json()


NOT_RECORDED = "not recorded results"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"cluster": None}, "cluster"),
        ({"time": "x"}, "time"),
        ({"nodes": {"n1": {"hello": []}}}, "nodes.n1.hello"),
        ({"nodes": []}, "nodes"),
        ({"nodes": {"n1": {**NODE, "hello": {**HELLO, "cores": None}}}}, "nodes.n1.hello: cores"),
        ({"failures": {"n2": {"kind": "timeout"}}}, "failures.n2"),
        ({"purposes": [["mpi"]]}, "purposes[0]"),
        ({"here": 5}, "here"),
        ({"answers": [["read"]]}, "answers[0]"),
        ({"nodes": {"n1": {**NODE, "answers": [-1]}}}, "nodes.n1.answers[0]"),
        ({"nodes": {"n1": {**NODE, "answers": [1]}}}, "nodes.n1.answers"),
        ({"answers": []}, "nodes.n1.answers"),
    ],
)
def test_a_field_of_another_kind_is_named(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    assert damaged(tmp_path, **changes).startswith(f"{NOT_RECORDED}: {place}: ")


@pytest.mark.parametrize("time", [float("nan"), 1e300])
def test_a_time_that_no_calendar_has_is_refused(tmp_path: Path, time: float) -> None:
    assert damaged(tmp_path, time=time).startswith(NOT_RECORDED)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"format": 1}', "[" * 100_000])
def test_another_text_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "facts.json").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=NOT_RECORDED):
        read(tmp_path / "facts.json")


def test_a_device_without_an_end_is_not_read() -> None:
    with pytest.raises(ConfigError, match="regular file"):
        read(Path("/dev/zero"))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.touch()
    os.truncate(path, MOST_BYTES + 1)  # without blocks on the disk
    with pytest.raises(ConfigError, match="expected at most 1,073,741,824"):
        read(path)


def test_equal_values_of_many_nodes_are_shared_and_others_are_not(tmp_path: Path) -> None:
    key, hosts = 'read ["/x"]', [f"n{number:03}" for number in range(400)]
    cluster = parse_cluster("nodes: [{host: 'n[000-399]', slots: 1}]", "c.yaml")
    answers: dict[str, Answer] = {
        host: {"value": {"/x": str(at // 4)}, "seconds": at / 1000} for at, host in enumerate(hosts)
    }
    nodes = {host: NodeRecording(HELLO, {key: answers[host]}, None, 0.1) for host in hosts}
    file = tmp_path / "facts.json"
    file.write_text(Recording(Scope(cluster, cluster.nodes), 0.0, nodes, {}).as_json(), "utf-8")
    found = [node.answers[key]["value"] for node in read(file).nodes.values()]
    assert [value["/x"] for value in found] == [str(at // 4) for at in range(400)]
    assert len(set(map(id, found))) == 100


def test_on_a_full_disk_the_recording_of_before_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text("of before")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        FACTS.save(file)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of before"]


def test_a_recording_is_private_also_in_the_place_of_a_file_that_others_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "facts.json"
    file.touch(mode=0o644)
    FACTS.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
