"""The texts of what can be wrong in a cluster file, compared whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.cluster.mistaken_files import MISTAKEN

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.mistakes import MistakeCode, Value, mistake, parameters
from dslaunch.errors import ConfigError

EXAMPLES: dict[str, Value] = {
    "addresses": 2,
    "bracket": "{",
    "byte": 255,
    "character": "@",
    "check": "fs.free",
    "count": 50,
    "error": "permission denied",
    "expected": "an integer",
    "found": "'eight'",
    "gpu": "rocm",
    "hosts": 3,
    "key": "slotz",
    "kind": "a hostfile",
    "known": ("direct", "torchrun"),
    "limit": 1000,
    "line": 7,
    "line_spaces": 2,
    "mark": "{%",
    "more": 2,
    "name": "torchrum",
    "option": "--bb=...",
    "part": "4-1",
    "quote": '"',
    "runtime": "shifter",
    "similar": "slots",
    "size": 20_000_000,
    "slot": 3,
    "slots": 8,
    "spaces": 4,
    "tag": "!x",
    "text": "node[4-1]",
    "value": "[0, 1]",
    "written": "node1 8",
}


def test_every_mistake_has_its_text(golden: Callable[[str, str], None]) -> None:
    lines = []
    for code in MistakeCode:
        values = {name: EXAMPLES[name] for name in parameters(code)}
        lines.append(f"{code}: {mistake(code, **values)}\n")
    golden("cluster/mistakes.txt", "".join(lines))


def test_mistaken_files_are_explained(golden: Callable[[str, str], None]) -> None:
    told = []
    for text, _, _ in MISTAKEN:
        with pytest.raises(ConfigError) as caught:
            parse_cluster(text, "c.yaml")
        told.append(f"{text[:200].rstrip()}\n  {caught.value.message}\n")
    golden("cluster/mistaken-files.txt", "\n".join(told))
