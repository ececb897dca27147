"""What `import dslaunch` offers, and what it costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dslaunch
from dslaunch import api

PAGE = (Path(__file__).parents[3] / "docs/reference/api.md").read_text("utf-8")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Cluster.load": dslaunch.Cluster.load,
    "Cluster.parse": dslaunch.Cluster.parse,
    "allocated": dslaunch.allocated,
    "with_transport": dslaunch.with_transport,
    "select": dslaunch.select,
    "Job.on": dslaunch.Job.on,
    "plan": dslaunch.plan,
    "render": dslaunch.render,
    "preflight": dslaunch.preflight,
    "replay_preflight": dslaunch.replay_preflight,
    "Recording.load": dslaunch.Recording.load,
    "run": dslaunch.run,
    "run_detached": dslaunch.run_detached,
    "runs": dslaunch.runs,
    "find_run": dslaunch.find_run,
    "slurm_job": dslaunch.slurm_job,
    "lint_script": dslaunch.lint_script,
    "lint_config": dslaunch.lint_config,
    "estimate": dslaunch.estimate,
    "Hardware.of": dslaunch.Hardware.of,
}
CLI = {"typer", "click", "rich"}
METHODS = {
    "Run": ("wait", "logs", "stop", "status", "stacks"),
    "RunHandle": ("wait", "logs", "stop", "status", "stacks"),
    "SlurmJob": ("submit", "test", "check", "lint"),
}
INTERNAL = {
    "RunHandle": {
        "attach",
        "check",
        "cluster_to_ask",
        "progress",
        "show_logs",
        "sources",
        "summary",
        "usage_source",
    },
    "SlurmJob": {"batch", "client", "cluster", "force", "inputs", "sources", "start"},
}
"""Members for the command line, which may change."""


def signature(name: str, function: Callable[..., Any]) -> str:
    """The names of a function's parameters, as the page writes them."""
    words: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(parameter.name)
    return f"{name}({', '.join(words)})"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_documented_with_its_parameters(name: str) -> None:
    assert f"### `{signature(name, FUNCTIONS[name])}`\n" in PAGE


@pytest.mark.parametrize("name", METHODS)
def test_every_member_of_a_handle_is_documented(name: str) -> None:
    handle = getattr(dslaunch, name)
    rows = re.split(r"\n##+ ", PAGE.partition(f"### `{name}`\n")[2])[0]
    for method in METHODS[name]:
        assert f"| `{signature(method, getattr(handle, method))}` |" in rows
    members = {member for member in vars(handle) if not member.startswith("_")}
    assert members - INTERNAL.get(name, set()) <= set(re.findall(r"`(\w+)", rows))


def test_every_public_name_is_there_and_documented() -> None:
    for name in dslaunch.__all__:
        assert re.search(rf"`{name}\b", PAGE), name
        found = getattr(dslaunch, name)
        assert found is not None, name
        assert name in dir(dslaunch)
        assert name == "__version__" or inspect.getdoc(found), name


def test_no_other_name_is_offered() -> None:
    with pytest.raises(AttributeError, match="gone"):
        dslaunch.gone  # type: ignore[attr-defined]  # noqa: B018 - it is what is tested
    offered = {name for name in vars(api) if getattr(api, name) in FUNCTIONS.values()}
    assert offered == {name for name in FUNCTIONS if "." not in name}


def test_functions_are_offered_although_packages_have_their_names() -> None:
    from dslaunch.preflight import judge
    from dslaunch.render import formats
    from dslaunch.run import launch

    assert all(map(inspect.ismodule, (judge, formats, launch)))
    assert dslaunch.run is api.run
    assert dslaunch.render is api.render
    assert dslaunch.preflight is api.preflight


def imported_by(code: str) -> set[str]:
    """The modules that an interpreter has imported after this code."""
    shown = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", shown], text=True, capture_output=True, timeout=300, check=True
    )
    return set(done.stdout.split())


def test_importing_it_imports_one_module() -> None:
    assert imported_by("import dslaunch") - imported_by("") == {"dslaunch"}


def test_using_it_imports_nothing_of_the_command_line() -> None:
    used = "import dslaunch\nfor name in dslaunch.__all__: getattr(dslaunch, name)"
    modules = imported_by(used)
    assert {module.partition(".")[0] for module in modules} & CLI == set()
    assert not [name for name in modules if name.startswith(("dslaunch.cli", "dslaunch.report"))]
