"""The package in examples/plugin, installed and used by the command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.errors import PluginError

ROOT = Path(__file__).parents[2]
KUBECTL = """#!/bin/sh
[ "$1 $2 $4" = "exec --stdin --" ] || exit 9
[ "$3" = pod-1 ] || { echo "Error: pods \\"$3\\" not found" >&2; exit 1; }
shift 4
exec "$@"
"""
SHOW = """
import os, sys
print("rank", os.environ["RANK"], "niceness", os.nice(0))
if sys.argv[1:] == ["fail"]:
    raise RuntimeError("LicenseError: all 12 seats are taken")
"""
Dslaunch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the plugin is installed."""
    directory = tmp_path_factory.mktemp("site")
    source = shutil.copytree(ROOT / "examples/plugin", directory / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    command = [*pip, *offline, "--target", str(directory / "installed"), str(source)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "installed"


def dslaunch_with(site: Path, work: Path) -> Dslaunch:
    path = f"{work / 'bin'}:{os.environ['PATH']}"
    state = str(work.parent / "state")
    env = {**os.environ, "PYTHONPATH": str(site), "DSLAUNCH_STATE": state, "PATH": path}

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dslaunch", *words]
        done = subprocess.run(
            command, cwd=work, env=env, text=True, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr.replace("│Traceback", "").replace("    Traceback", "")
        return done

    return run


@pytest.fixture
def dslaunch(site: Path, tmp_path: Path) -> Dslaunch:
    """The command line in a directory with a script, and with the plugin installed."""
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    (work / "show.py").write_text(SHOW, "utf-8")
    shutil.copy(ROOT / "clusters/local.yaml", work)
    return dslaunch_with(site, work)


def test_a_launcher_starts_the_ranks(dslaunch: Dslaunch) -> None:
    lines = dslaunch("run", "--launcher=nice", "local.yaml", "show.py").stdout.splitlines()
    texts = [line.partition("│")[2] for line in lines]
    lower = min(os.nice(0) + 10, 19)
    assert sorted(texts) == [f"rank {rank} niceness {lower}" for rank in range(4)]


def test_a_launcher_is_rendered_as_lines_and_as_a_slurm_job(
    dslaunch: Dslaunch, tmp_path: Path
) -> None:
    lines = dslaunch("render", "nice", "local.yaml", "show.py").stdout.splitlines()
    assert len([line for line in lines if " nice -n 10 " in line]) == 4
    shutil.copy(ROOT / "clusters/slurm-site.yaml", tmp_path / "work")
    script = dslaunch("slurm", "--render", "slurm-site.yaml", "-l", "nice", "show.py").stdout
    assert "\nattend nice -n 10 " in script
    assert "--ntasks-per-node=4" in script


def test_a_launcher_is_known_to_validate(dslaunch: Dslaunch, tmp_path: Path) -> None:
    file = tmp_path / "work/local.yaml"
    file.write_text(file.read_text("utf-8").replace("torchrun", "nice"), "utf-8")
    dslaunch("validate", "local.yaml")
    file.write_text(file.read_text("utf-8").replace("nice", "nicer"), "utf-8")
    assert "did you mean `nice`" in dslaunch("validate", "local.yaml", code=3).stderr


def test_a_known_ending_explains_a_failure(dslaunch: Dslaunch) -> None:
    told = dslaunch("run", "-l", "nice", "local.yaml", "show.py", "fail", code=1).stderr
    assert "all 12 seats of the license server are taken" in told
    assert "https://licenses.acme.example" in told


def test_a_format_is_listed_and_rendered(dslaunch: Dslaunch) -> None:
    assert "an inventory for Ansible" in dslaunch("render", "--list").stdout
    text = dslaunch("render", "ansible", "local.yaml").stdout
    assert text.splitlines()[:2] == ["[ranks]", "node1 ansible_host=node1 slots=2"]


def test_a_transport_reaches_nodes_and_a_check_asks_them(
    dslaunch: Dslaunch, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    kubectl = work / "bin/kubectl"
    kubectl.write_text(KUBECTL, "utf-8")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    file = work / "pods.yaml"
    node = f"{{host: pod-1, slots: 1, python: {sys.executable}}}"
    file.write_text(f"transport: kubectl\nnodes: [{node}]\n", "utf-8")
    asked = ("preflight", "pods.yaml", "--only=acme.timezone", "--json")
    findings = json.loads(dslaunch(*asked).stdout)["findings"]
    assert ("acme.timezone", "pass") in {(f["check"], f["level"]) for f in findings}
    file.write_text(file.read_text("utf-8").replace("pod-1", "pod-9"), "utf-8")
    lost = dslaunch("preflight", "pods.yaml", "--only=acme.timezone", code=4)
    assert 'pods "pod-9" not found' in lost.stdout


def test_rules_of_both_lints_are_applied_mended_and_ignored(
    dslaunch: Dslaunch, tmp_path: Path
) -> None:
    config = tmp_path / "work/ds.json"
    config.write_text('{"train_batch_size": 8, "wall_clock_breakdown": true}', "utf-8")
    assert "[acme-wall-clock]" in dslaunch("config", "lint", "ds.json").stdout
    assert "1 ignored" in dslaunch("config", "lint", "ds.json", "--ignore=acme-wall-clock").stdout
    dslaunch("config", "lint", "ds.json", "--fix")
    assert json.loads(config.read_text("utf-8"))["wall_clock_breakdown"] is False
    (tmp_path / "work/job.sbatch").write_text("#!/bin/bash\nsrun hostname\n", "utf-8")
    assert "[acme-account]" in dslaunch("slurm", "lint", "job.sbatch").stdout


BROKEN = {
    "dslaunch.launchers": ("broken", ("run", "-l", "broken", "local.yaml", "show.py")),
    "dslaunch.transports": ("broken", ("run", "broken.yaml", "show.py")),
    "dslaunch.checks": ("broken.check", ("preflight", "local.yaml")),
    "dslaunch.formats": ("broken", ("render", "broken", "local.yaml", "show.py")),
    "dslaunch.config_rules": ("broken", ("config", "lint", "ds.json")),
    "dslaunch.script_rules": ("broken", ("slurm", "lint", "job.sbatch")),
}


RAISES = """
from dslaunch.launch.launchers import Launcher
from dslaunch.preflight.check import Check
from dslaunch.transport.base import TransportType

class Raises(Launcher):
    summary = "raises"

    def processes(self, *args, **kwargs):
        raise KeyError("x")

    def connect(self, node):
        raise KeyError("x")

    def close(self):
        pass

    def render(self, launch):
        raise KeyError("x")

def raises(something):
    raise KeyError("x")

LAUNCHER = FORMAT = Raises()
CHECK = Check(title="t", tier="static", why="", fix="", see="", source="", ask=raises)
TRANSPORT = TransportType(lambda cluster: Raises(), summary="s")
RULE = raises
PART = {part}
"""
PARTS = {
    "dslaunch.launchers": "LAUNCHER",
    "dslaunch.transports": "TRANSPORT",
    "dslaunch.checks": "CHECK",
    "dslaunch.formats": "FORMAT",
    "dslaunch.config_rules": "RULE",
    "dslaunch.script_rules": "RULE",
}


@pytest.mark.parametrize("group", BROKEN)
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nowhere", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("PART = 3", ""),
        (RAISES, "failed: KeyError: 'x'"),
    ],
    ids=["import", "value", "raises"],
)
def test_a_broken_plugin_is_named_and_nothing_else_is_done(
    tmp_path: Path, group: str, code: str, why: str
) -> None:
    name, words = BROKEN[group]
    site, work = tmp_path / "site", tmp_path / "work"
    metadata = site / "broken_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: broken-plugin\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = broken_plugin:PART\n", "utf-8")
    (site / "broken_plugin.py").write_text(code.replace("{part}", PARTS[group]), "utf-8")
    work.mkdir()
    shutil.copy(ROOT / "clusters/local.yaml", work)
    (work / "show.py").touch()
    (work / "ds.json").write_text('{"train_batch_size": 8}', "utf-8")
    (work / "job.sbatch").write_text("#!/bin/bash\nsrun hostname\n", "utf-8")
    (work / "broken.yaml").write_text("transport: broken\nnodes: [{host: a, slots: 1}]\n", "utf-8")
    told = dslaunch_with(site, work)(*words, code=PluginError.exit_code).stderr
    assert "error: plugin broken-plugin: " in told
    assert f"`{name}` ({group}: broken_plugin:PART) {why}" in told
    assert "hint: update broken-plugin or uninstall it" in told


def test_json_says_by_a_code_why_nothing_was_started(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(ROOT / "clusters/local.yaml", work)
    told = dslaunch_with(tmp_path, work)("run", "--json", "local.yaml", "gone.py", code=3).stdout
    outcome = json.loads(told.splitlines()[-1])
    assert outcome["kind"] == "outcome"
    assert outcome["reason"]["code"] == "not-started"
    assert outcome["reason"]["problem"] == "script-missing"


@pytest.mark.parametrize("pattern", ["(", "x"], ids=["pattern", "code"])
def test_a_broken_known_ending_does_not_hide_why_a_run_failed(tmp_path: Path, pattern: str) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    metadata = site / "broken_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: broken-plugin\nVersion: 1.0\n", "utf-8")
    entry = "[dslaunch.endings]\nbroken = broken_plugin:PART\n"
    (metadata / "entry_points.txt").write_text(entry, "utf-8")
    code = "broken" if pattern == "(" else "other"
    (site / "broken_plugin.py").write_text(
        "from dslaunch.run.known_endings import KnownEnding\n"
        f"PART = KnownEnding(code={code!r}, pattern={pattern!r}, what='', advice='', source='')\n",
        "utf-8",
    )
    work.mkdir()
    shutil.copy(ROOT / "clusters/local.yaml", work)
    (work / "fail.py").write_text("raise MemoryError", "utf-8")
    told = dslaunch_with(site, work)("run", "-l", "direct", "local.yaml", "fail.py", code=1).stderr
    assert "the node has too little memory" in told
    assert "plugin broken-plugin: `broken` (dslaunch.endings: broken_plugin:PART)" in told
