"""Which modules a program on a node consists of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from dslaunch.transport.program import needed_modules

PACKAGE = "dslaunch.node"


def imported(node: ast.AST) -> Iterator[str]:
    """The modules of the package that are imported at run time anywhere below a node."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        assert not any(name.name.startswith("dslaunch") for name in node.names)
    if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
        yield str(node.module).removeprefix(f"{PACKAGE}.")
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


@pytest.mark.parametrize("main", ["survey", "guardian"])
def test_a_program_consists_of_its_main_module_and_all_that_it_imports(main: str) -> None:
    sources = needed_modules(main)
    reached = {main}
    waiting = [main]
    while waiting:
        new = set(imported(ast.parse(sources[waiting.pop()]))) - reached
        reached |= new
        waiting += new
    assert set(sources) == reached


def test_a_preflight_is_sent_a_part_of_what_an_agent_consists_of() -> None:
    assert set(needed_modules("survey")) < set(needed_modules("guardian"))
