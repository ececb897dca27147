from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.json_schema import Draft202012Validator

from dslaunch.cluster.load import load_cluster, parse_cluster
from dslaunch.cluster.reference import reference_markdown
from dslaunch.cluster.schema import VERBATIM, json_schema
from dslaunch.cluster.yamltext import parse
from dslaunch.errors import ConfigError

ROOT = Path(__file__).parents[3]


def objects(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" and "properties" in schema else []
    return own + [found for value in schema.values() for found in objects(value)]


def test_every_key_of_the_file_is_described() -> None:
    sections = objects(json_schema())
    assert len(sections) == 10
    for section in sections:
        for key, field in section["properties"].items():
            assert field.get("description") or "$ref" in field, f"{section['title']}.{key}"


def test_no_section_takes_unknown_keys() -> None:
    assert all(section["additionalProperties"] is False for section in objects(json_schema()))


def test_the_schema_says_what_it_is() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "dslaunch cluster file"


def test_every_reference_in_the_schema_exists() -> None:
    schema = json_schema()
    names = set(re.findall(r"#/\$defs/(\w+)", str(schema)))
    assert names <= set(schema["$defs"])


def test_a_value_that_arrives_as_written_may_look_like_a_number() -> None:
    env = json_schema()["properties"]["env"]["patternProperties"]
    (value,) = env.values()
    assert "number" in value["type"]


def test_the_example_on_the_reference_page_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", reference_markdown(), re.DOTALL)
    assert len(blocks) == 1
    path = tmp_path / "cluster.yaml"
    path.write_text(blocks[0])
    assert len(load_cluster(path).nodes) == 6


@pytest.mark.parametrize(
    "path", sorted((ROOT / "clusters").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_example_cluster_loads(path: Path) -> None:
    assert load_cluster(path).name == path.stem


def accepted_by_editors(text: str) -> bool:
    validator = Draft202012Validator(json_schema())
    return bool(validator.is_valid(parse(text, "f", verbatim=VERBATIM).data))


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    "text",
    [
        *(path.read_text("utf-8") for path in sorted((ROOT / "clusters").glob("*.yaml"))),
        "nodes: [{host: a, slots: [0, 1]}]\npython:\nactivate: source x",
        "nodes: [{host: 'a[1-2],b', slots: 1, address: 'fd00::[1-3]'}]",
        "nodes: [{host: a, slots: 1}]\njob: {module: a.b}\nsecrets: [A, {B: {file: x}}]",
        "nodes: [{host: a, slots: 1, spare: true}, {host: b, slots: 1}]",
        "nodes: [{host: a, slots: 1}]\nslurm: {nodes: 16, time: 90, mem: 0, exclusive: false}",
    ],
    ids=lambda text: text[:40],
)
def test_what_loads_is_accepted_by_an_editor(text: str) -> None:
    assert parse_cluster(text, "f").nodes
    assert accepted_by_editors(text)


ONE = "nodes: [{host: a, slots: 1}]\n"


@pytest.mark.parametrize(
    "text",
    [
        "name: a",
        "nodes: []",
        ONE + "python: a\nactivate: b",
        "nodes: [{host: a, slots: 1, python: a, activate: b}]",
        "nodes: [{host: a, slots: [1, 1]}]",
        "nodes: [{host: a, slots: 0}]",
        "nodes: [{host: a@b, slots: 1}]",
        "nodes: [{host: a b, slots: 1}]",
        "nodes: [{host: -a, slots: 1}]",
        "nodes: [{host: 'fd00::1', slots: 1}]",
        "nodes: [{host: a, slots: 1, address: a b}]",
        "nodes: [{host: a, slots: 1, spare: true}]",
        ONE + "job: {script: a, module: b}",
        ONE + "job: {args: [a]}",
        ONE + "secrets: [A, A]",
        ONE + "secrets: [[A]]",
        ONE + "env: {1A: x}",
        ONE + "slurm: {cpus-per-task: 1}",
        ONE + "transport: fabrik",
        ONE + "ssh: {port: 0}",
        ONE + "x: 1",
    ],
)
def test_what_is_refused_and_a_schema_can_say_is_refused_by_an_editor(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_cluster(text, "f")
    assert not accepted_by_editors(text)
