"""The package in examples/plugin, installed and used by the command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dslaunch.errors import PluginError, PreflightError

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
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "installed"


def dslaunch_with(site: Path, work: Path) -> Dslaunch:
    path = f"{work / 'bin'}:{os.environ['PATH']}"
    state = str(work.parent / "state")
    env = {**os.environ, "PYTHONPATH": str(site), "DSLAUNCH_STATE": state, "PATH": path}

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dslaunch", *words]
        done = subprocess.run(
            command, cwd=work, env=env, text=True, capture_output=True, timeout=300, check=False
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
    words = ("run", "--json", "-l", "nice", "local.yaml", "show.py", "fail")
    outcome = json.loads(dslaunch(*words, code=1).stdout.splitlines()[-1])
    assert outcome["ending"] == "acme-license"
    assert "https://licenses.acme.example" in outcome["hint"]


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


def test_rules_of_both_lints_are_applied_fixed_and_ignored(
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
CHECK = Check(title="t", tier="static", why="", fix="", see="", source="", flow=raises)
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


def broken(tmp_path: Path, groups: Mapping[str, str]) -> Dslaunch:
    """The command line with a plugin whose parts are made by this code."""
    site, work = tmp_path / "site", tmp_path / "work"
    metadata = site / "broken_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: broken-plugin\nVersion: 1.0\n", "utf-8")
    entries = "".join(f"[{group}]\n{BROKEN[group][0]} = broken_plugin:PART\n" for group in groups)
    (metadata / "entry_points.txt").write_text(entries, "utf-8")
    for group, code in groups.items():
        text = code.replace("{part}", PARTS[group])
        (site / "broken_plugin.py").write_text(text, "utf-8")
    work.mkdir()
    shutil.copy(ROOT / "clusters/local.yaml", work)
    (work / "show.py").touch()
    (work / "ds.json").write_text('{"train_batch_size": 8}', "utf-8")
    (work / "job.sbatch").write_text("#!/bin/bash\nsrun hostname\n", "utf-8")
    (work / "broken.yaml").write_text("transport: broken\nnodes: [{host: a, slots: 1}]\n", "utf-8")
    return dslaunch_with(site, work)


def breakages() -> Iterator[Any]:
    """Each way to be broken in each group. All groups are loaded alike, so that of what fails when
    it is loaded one group is the representative."""
    loading = {
        "import": (
            "import nowhere",
            "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'",
        ),
        "value": ("PART = 3", ""),
    }
    for number, group in enumerate(BROKEN):
        yield pytest.param(group, RAISES, "failed: KeyError: 'x'", id=f"raises-{group}")
        for kind, (code, why) in loading.items():
            marks = (pytest.mark.long,) if number else ()
            yield pytest.param(group, code, why, id=f"{kind}-{group}", marks=marks)


@pytest.mark.parametrize(("group", "code", "why"), [*breakages()])
def test_a_broken_plugin_is_named_and_nothing_else_is_done(
    tmp_path: Path, group: str, code: str, why: str
) -> None:
    name, words = BROKEN[group]
    dslaunch = broken(tmp_path, {group: code})
    told = dslaunch(*words, code=PluginError.exit_code).stderr
    assert "error: plugin broken-plugin: " in told
    assert f"`{name}` ({group}: broken_plugin:PART) {why}" in told
    assert "broken-plugin" in told.partition("hint: ")[2]


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
    words = ("run", "--json", "-l", "direct", "local.yaml", "fail.py")
    done = dslaunch_with(site, work)(*words, code=1)
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["ending"] == "host-memory"
    assert "(dslaunch.endings: broken_plugin:PART)" in done.stderr


SLOPPY = """
from dslaunch.plugin import *

class Sloppy(Launcher):
    summary = "returns what is no result"

    def processes(self, placement, world, job, *, logs=None):
        return ["python"]

    def connect(self, node):
        raise NodeError((NodeFailure(node.host, "odd", "why"),))

    def close(self):
        pass

    def render(self, launch):
        return Rendered(3)

def rule(text):
    return None

LAUNCHER = FORMAT = Sloppy()
TRANSPORT = TransportType(lambda cluster: Sloppy(), summary="s")
RULE = rule
TEXTS = {name: "" for name in ("title", "why", "fix", "see", "source")}
CHECK = Check(**TEXTS, flow=judged(lambda answers: (), lambda scope: {"a": 3}))
PART = {part}
"""


@pytest.mark.parametrize("group", BROKEN)
def test_a_plugin_that_returns_what_is_no_result_is_named(tmp_path: Path, group: str) -> None:
    _, words = BROKEN[group]
    told = broken(tmp_path, {group: SLOPPY})(*words, code=PluginError.exit_code).stderr
    assert f"({group}: broken_plugin:PART) has returned " in told


FAULTY_CHECK = """
import json
from dslaunch.plugin import *

def faulty(answers):
    return json.loads("no JSON")

TEXTS = {name: "" for name in ("title", "why", "fix", "see", "source")}
CHECK = Check(**TEXTS, flow=judged(faulty, lambda scope: {}))
PART = {part}
"""


def test_a_check_that_raises_names_the_exception_and_its_line(tmp_path: Path) -> None:
    dslaunch = broken(tmp_path, {"dslaunch.checks": FAULTY_CHECK})
    only = ("--only", "broken.check", "--json")
    # it was the only check, so that nothing is known about the nodes
    told = dslaunch("preflight", "local.yaml", *only, code=PreflightError.exit_code).stdout
    findings = json.loads(told)["findings"]
    (found,) = {each["found"] for each in findings if each["check"] == "broken.check"}
    assert "JSONDecodeError: Expecting value" in found
    assert "(broken_plugin:6)" in found


def test_the_name_of_a_check_has_a_family(tmp_path: Path) -> None:
    dslaunch = broken(tmp_path, {"dslaunch.checks": FAULTY_CHECK})
    entries = next((tmp_path / "site").glob("*.dist-info")) / "entry_points.txt"
    entries.write_text(entries.read_text().replace("broken.check", "broken"), "utf-8")
    told = dslaunch("preflight", "local.yaml", code=PluginError.exit_code).stderr
    assert "`family.name`" in told


def test_a_launcher_with_a_built_in_name_is_named_in_a_warning(tmp_path: Path) -> None:
    dslaunch = broken(tmp_path, {"dslaunch.launchers": RAISES})
    entries = next((tmp_path / "site").glob("*.dist-info")) / "entry_points.txt"
    entries.write_text(entries.read_text().replace("broken =", "torchrun ="), "utf-8")
    assert "[plugin-name-taken]" in dslaunch("validate", "local.yaml").stderr


UNDECLARED = """
from dslaunch.lint import Remark

def PART(text):
    yield Remark("other", "warning", "ds.json", 1, 1, "", "a message")
"""


def test_a_rule_that_a_plugin_does_not_declare_is_refused(tmp_path: Path) -> None:
    _, words = BROKEN["dslaunch.config_rules"]
    dslaunch = broken(tmp_path, {"dslaunch.config_rules": UNDECLARED})
    told = dslaunch(*words, code=PluginError.exit_code).stderr
    assert "reports the rule `other`" in told


def test_a_broken_plugin_does_not_affect_other_commands(tmp_path: Path) -> None:
    dslaunch = broken(tmp_path, dict.fromkeys(BROKEN, "import nowhere"))
    dslaunch("run", "-l", "direct", "local.yaml", "show.py")
    dslaunch("render", "hostfile", "local.yaml", "show.py")
    for command in ("validate", "nodes", "ps"):
        dslaunch(command, "local.yaml")
