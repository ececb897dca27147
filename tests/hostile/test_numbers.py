"""Texts that look like numbers, and that Python does not convert."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dslaunch
from dslaunch.deepspeed import config_text, schema
from dslaunch.deepspeed.lint import lint
from dslaunch.deepspeed.linted_config import LintedConfig, Reader

SOURCES = Path(dslaunch.__file__).parent
NO_NUMBERS = ("\u00b2", " \u00b2", "9" * 5000, "-", "")


def test_a_text_is_a_number_only_if_it_is_decimal() -> None:
    """`isdigit` is also true for superscripts, of which `int` makes an error. Nodes read the files
    of their kernels, and bytes."""
    several = [path for path in SOURCES.rglob("*.py") if "node" not in path.parts]
    calling = [path.name for path in several if ".isdigit()" in path.read_text("utf-8")]
    assert calling == ["program.py"]  # the line that a node runs


@pytest.mark.parametrize("text", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
@pytest.mark.parametrize("reader", ["native", "hf", "accelerate"])
def test_a_stage_that_is_no_number_ends_no_lint(text: str, reader: Reader) -> None:
    config = json.dumps({"zero_optimization": {"stage": text}}, ensure_ascii=False)
    document = config_text.parse(config, "ds.json")
    table = schema.load(schema.versions()[-1])
    assert lint(LintedConfig(document, table, reader=reader))
