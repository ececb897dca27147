"""Modules of ours in the Python processes of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.node import hook_rehearsal, hook_stacks, rank_hooks, rehearsal, stacks
from dslaunch.transport import program

HOOK = """\
def start(directory):
    print("started in", directory)
"""
WRAPPER = """\
import _thread, colorsys, time
def start(directory):
    _thread.start_new_thread(sleeps, ())
    colorsys.rgb_to_hsv = wrapped
def sleeps():
    time.sleep(60)
def wrapped(function):
    print("wrapped", flush=True)
    return function()
"""
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a program with one hook, which is started after an import, and return its output."""

    def start(text: str, *, hook: str, after: str | tuple[str, ...] | None) -> str:
        (tmp_path / "own_hook.py").write_text(hook)
        monkeypatch.syspath_prepend(str(tmp_path))
        module = types.ModuleType("own_hook")
        variables = rank_hooks.arm(str(tmp_path), {}, hooks={module: after})
        command = [sys.executable, "-c", text]
        return subprocess.check_output(command, env={**os.environ, **variables}, text=True)

    return start


def test_a_hook_is_started_before_the_program_with_the_directory_of_the_run(
    run: Run, tmp_path: Path
) -> None:
    out = run("print('program')", hook=HOOK, after=None)
    assert out == f"started in {tmp_path}\nprogram\n"


def test_a_hook_is_started_once_when_its_module_has_been_imported(run: Run, tmp_path: Path) -> None:
    text = (
        "import json\nprint('before')\nimport colorsys\nprint('after')\n"
        "import importlib\nimportlib.reload(colorsys)\n"
        "print(colorsys.__loader__ is colorsys.__spec__.loader, type(colorsys.__loader__).__name__)"
    )
    out = run(text, hook=HOOK, after="colorsys")
    assert out == f"before\nstarted in {tmp_path}\nafter\nTrue SourceFileLoader\n"


def test_a_hook_that_watches_several_modules_is_told_of_each_import(
    run: Run, tmp_path: Path
) -> None:
    hook = HOOK + "def imported(name):\n    print('imported', name)\n"
    text = "import colorsys\nimport wave\nimport colorsys"
    out = run(text, hook=hook, after=("wave", "colorsys", "missing_module"))
    assert out == f"started in {tmp_path}\nimported colorsys\nimported wave\n"


def test_a_search_for_a_module_does_not_take_the_place_of_its_import(
    run: Run, tmp_path: Path
) -> None:
    """Libraries search for PyTorch to see whether it is installed, as `datasets` does."""
    text = (
        "import importlib.util\nprint(bool(importlib.util.find_spec('colorsys')))\nimport colorsys"
    )
    assert run(text, hook=HOOK, after="colorsys") == f"True\nstarted in {tmp_path}\n"


def test_an_import_that_fails_fails_as_without_the_hook(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    text = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "for name in ('broken', 'missing_module'):\n"
        "    try:\n        __import__(name)\n"
        "    except (ZeroDivisionError, ImportError) as error:\n        print(repr(error))\n"
    )
    assert run(text, hook=HOOK, after="broken").splitlines() == [
        "ZeroDivisionError('division by zero')",
        "ModuleNotFoundError(\"No module named 'missing_module'\")",
    ]


@pytest.mark.parametrize("after", [None, "colorsys", ("colorsys",)])
def test_an_exception_of_a_hook_does_not_reach_the_program(run: Run, after: str | None) -> None:
    hook = "def start(directory):\n    raise RuntimeError(directory)\n"
    assert run("import colorsys\nprint('program')", hook=hook, after=after) == "program\n"


def test_stacks_leave_out_threads_and_functions_of_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_hook.py").write_text(WRAPPER)
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = {hook_stacks: None, types.ModuleType("own_hook"): "colorsys"}
    variables = rank_hooks.arm(str(tmp_path), {}, hooks=hooks)
    text = "import colorsys, time\ncolorsys.rgb_to_hsv(lambda: time.sleep(60))\n"
    command = [sys.executable, "-c", text]
    with subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "wrapped\n"
            (found,) = stacks.collect({0: process.pid}, 10)["0"]
        finally:
            process.kill()
    (main,) = found["threads"]
    assert [frame["function"] for frame in main["frames"]] == ["<lambda>", "<module>"]


def test_a_node_has_the_sources_of_the_hooks() -> None:
    sent = program.needed_modules("agent")
    hooks = [*rank_hooks.HOOKS, *rehearsal.HOOKS, *hook_rehearsal.PARTS]
    own = {module.__name__.rpartition(".")[2] for module in hooks}
    assert own <= set(sent)
