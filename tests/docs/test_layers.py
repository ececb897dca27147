"""What the pages say of the packages is what the tree and the linter have."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/dslaunch"
ARCHITECTURE = (ROOT / "docs/explanation/architecture.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")
MADE_ON_NODES = {"rank.py"}
FILES = sorted(set(re.findall(r"`([\w/.-]+\.(?:py|j2|toml|txt))`", ARCHITECTURE)) - MADE_ON_NODES)

Layers = list[set[str]]


def linted() -> Layers:
    """The layers that the linter holds, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return [set(layer.split(" | ")) for layer in layers]


def in_architecture() -> Layers:
    section = ARCHITECTURE.partition("## The layers\n")[2]
    (text,) = (part for part in section.split("\n\n") if " > " in part)
    return [set(CODE.findall(layer)) for layer in re.split(r"\s>\s", text)]


def in_contributing() -> Layers:
    table = CONTRIBUTING.partition("## Where things are\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return [set(CODE.findall(row)) for row in rows]


def test_every_module_has_a_layer() -> None:
    found = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    found |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found == set().union(*linted()) | {"node"}


def test_the_architecture_page_has_the_layers_of_the_linter() -> None:
    assert in_architecture() == linted()


def test_the_table_for_contributors_has_the_layers_of_the_linter() -> None:
    assert in_contributing() == [*linted(), {"node"}]


def test_files_that_the_architecture_page_names_exist() -> None:
    tops = ("src", "tests", "templates", "tools")
    found = [f"/{path.as_posix()}" for top in tops for path in (ROOT / top).rglob("*.*")]
    assert [name for name in FILES if not any(path.endswith(f"/{name}") for path in found)] == []
