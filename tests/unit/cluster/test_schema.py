from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dslaunch.cluster.load import load_cluster
from dslaunch.cluster.reference import reference_markdown
from dslaunch.cluster.schema import json_schema

ROOT = Path(__file__).parents[3]


def objects(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if "properties" in schema else []
    return own + [found for value in schema.values() for found in objects(value)]


def test_every_key_of_the_file_is_described() -> None:
    sections = objects(json_schema())
    assert len(sections) == 7
    for section in sections:
        for key, field in section["properties"].items():
            assert field.get("description") or "$ref" in field, f"{section['title']}.{key}"


def test_no_section_takes_unknown_keys() -> None:
    assert all(section["additionalProperties"] is False for section in objects(json_schema()))


def test_the_schema_says_what_it_is() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "dslaunch cluster file"


def test_every_reference_in_the_schema_leads_somewhere() -> None:
    schema = json_schema()
    names = set(re.findall(r"#/\$defs/(\w+)", str(schema)))
    assert names <= set(schema["$defs"])


def test_a_value_that_arrives_as_written_may_look_like_a_number() -> None:
    env = json_schema()["properties"]["env"]["patternProperties"]
    (value,) = env.values()
    assert "number" in value["type"]


def test_the_committed_reference_page_is_current() -> None:
    page = ROOT / "docs" / "reference" / "cluster-file.md"
    again = f"run: python -m dslaunch.cluster.reference {page}"
    assert page.read_text("utf-8") == reference_markdown(), again


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
