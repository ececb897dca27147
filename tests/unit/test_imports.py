"""What starting costs, told by what is imported; and what the wheel holds."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
HEAVY = {
    *("asyncio", "ClusterShell", "fabric", "invoke", "jinja2", "paramiko", "rich"),
    *("torch", "yaml"),
}

SHOW = """
import json, sys
from dslaunch.cli.main import main
sys.argv = ["dslaunch", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""


def imported_by(*arguments: str) -> set[str]:
    """The top-level modules that a command has imported when it ends."""
    command = [sys.executable, "-c", SHOW, *arguments]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_asking_for_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported_by(*arguments) & HEAVY == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["render", "--list"],
        ["render", "hostfile", f"{CHECKOUT}/clusters/two-nodes.yaml"],
        ["nodes", f"{CHECKOUT}/clusters/two-nodes.yaml"],
        ["run", "--dry-run", f"{CHECKOUT}/clusters/two-nodes.yaml", f"{CHECKOUT}/train.py"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_that_only_loads_a_cluster_file_makes_no_validators(arguments: list[str]) -> None:
    """Nor does it import what connects to nodes, or templates."""
    assert imported_by(*arguments) & {"pydantic", *HEAVY} <= {"yaml"}


@pytest.mark.parametrize(
    ("module", "not_needed"),
    [
        ("dslaunch.cli.preflight", {"pydantic", "dslaunch.preflight.judge"}),
        ("dslaunch.preflight.logins", {"pydantic", "dslaunch.transport.wire"}),
        ("dslaunch.run.launch", {"pydantic", "dslaunch.run.session"}),
        ("dslaunch.run.inquired", {"dslaunch.run.events", "dslaunch.run.outcome"}),
        ("dslaunch.run.start", {"dslaunch.protocol.rehearsal", "dslaunch.run.supervisor"}),
    ],
)
def test_what_takes_long_is_imported_when_it_is_needed(module: str, not_needed: set[str]) -> None:
    command = [sys.executable, "-c", f"import {module}, sys; print(*sys.modules)"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=True)
    assert not_needed & set(done.stdout.split()) == set()


def test_a_preflight_imports_nothing_for_files_that_it_does_not_write() -> None:
    assert imported_by("preflight", "--help") & {"http", "ssl", "xml"} == set()


NODE = """
import sys
sys.path.append(sys.argv[1])
__import__("dslaunch.node." + sys.argv[2])
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("program", "slow"),
    [
        (
            "survey",
            "collections contextlib enum functools glob json re signal socket subprocess typing",
        ),
        ("guardian", "base64 hmac queue tarfile typing"),
    ],
)
def test_a_program_that_runs_on_nodes_imports_little(program: str, slow: str) -> None:
    command = [sys.executable, "-I", "-S", "-c", NODE, str(CHECKOUT / "src"), program]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=True)
    assert set(slow.split()) & set(done.stdout.split()) == set()


def test_the_wheel_holds_the_templates_and_the_type_marker(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path)]
    command = [*pip, *offline, str(CHECKOUT)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("dslaunch-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = {f"dslaunch/_templates/{file.name}" for file in (CHECKOUT / "templates").iterdir()}
    assert names >= templates | {"dslaunch/py.typed", "dslaunch/node/agent.py"}
    assert not any(name.startswith(("tests/", "examples/")) for name in names)
