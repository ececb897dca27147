"""Which modules a program on a node consists of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from dslaunch.transport.program import needed_modules

PACKAGE = "dslaunch.node"


def imported(node: ast.AST) -> Iterator[str]:
    """The modules of the package that are imported at run time anywhere below a node."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        assert not any(name.name.startswith("dslaunch") for name in node.names)
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level:  # relative, in hooks
            module = f"{PACKAGE}.{module}".rstrip(".")
        if module == PACKAGE:
            yield from (name.name for name in node.names)
        elif module.startswith(f"{PACKAGE}."):
            yield module.removeprefix(f"{PACKAGE}.")
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def imported_at_once(module: ast.Module) -> Iterator[str]:
    """The modules of the package that are imported when a module is."""
    for statement in module.body:
        if isinstance(statement, ast.ImportFrom):
            yield from imported(statement)


def reached(
    main: str, sources: dict[str, bytes], imports: Callable[[ast.Module], Iterator[str]]
) -> set[str]:
    """The main module and all that is imported by it, and by what it imports."""
    found = {main}
    waiting = [main]
    while waiting:
        new = set(imports(ast.parse(sources[waiting.pop()]))) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("main", ["survey", "guardian"])
def test_a_program_consists_of_its_main_module_and_all_that_it_imports(main: str) -> None:
    sources = needed_modules(main)
    assert set(sources) == reached(main, sources, imported)


@pytest.mark.parametrize("main", ["survey", "guardian"])
def test_what_a_program_starts_with_is_known_apart(main: str) -> None:
    """That is sent compiled. The rest, which few runs need, is compiled on the node."""
    first = needed_modules(main, at_once=True)
    assert set(first) == reached(main, first, imported_at_once)
    assert set(first) < set(needed_modules(main))


def test_a_preflight_is_sent_a_part_of_what_an_agent_consists_of() -> None:
    assert set(needed_modules("survey")) < set(needed_modules("guardian"))
