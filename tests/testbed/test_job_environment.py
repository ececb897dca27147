"""The environment of a job over real SSH: `preflight` and the gate see what the run has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed.loopback import Loopback, missing

pytestmark = pytest.mark.sshd
Done = subprocess.CompletedProcess[str]
Call = Callable[..., Done]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    if reason := missing():
        pytest.skip(reason)
    with Loopback(3, tmp_path_factory.mktemp("environment")) as found:
        yield found


@pytest.fixture
def call(servers: Loopback, tmp_path: Path) -> Call:
    """Call dslaunch in a project whose cluster file has these lines."""

    def dslaunch(lines: str, *words: str, **env: str) -> Done:
        (tmp_path / "c.yaml").write_text(
            f"{lines}\nssh: {{config_file: '{servers.config}'}}\n"
            f"storage: {{workdir: '{tmp_path}'}}\n"
        )
        command = [sys.executable, "-m", "dslaunch", *words]
        where = {**os.environ, "DSLAUNCH_STATE": str(tmp_path / ".state"), **env}
        return subprocess.run(
            command, cwd=tmp_path, env=where, text=True, capture_output=True, timeout=300,
            check=False,
        )  # fmt: skip

    return dslaunch


def findings(done: Done) -> list[tuple[str, list[str]]]:
    """What failed, and where."""
    found = json.loads(done.stdout)["findings"]
    return sorted((f["check"], f["hosts"]) for f in found if f["level"] == "fail")


def test_each_node_s_own_environment_is_judged(call: Call, tmp_path: Path) -> None:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / ".bare")
    (tmp_path / "train.py").write_text("print('trains')\n")
    own = Path(sys.executable).parent / "activate"
    lines = f"""
activate: source {own}
nodes:
- {{host: node1, slots: 1}}
- {{host: node2, slots: 1, activate: conda activate x}}
- {{host: node3, slots: 1, python: '{tmp_path}/.bare/bin/python'}}
"""
    gate = ("--tier", "gate", "--skip", "host,shm,clock,fs")
    wanted = [("py.activate", ["node2"]), ("sw.packages", ["node3"])]
    asked = call(lines, "preflight", "c.yaml", "--json", *gate)
    assert (asked.returncode, findings(asked)) == (4, wanted), asked.stderr
    done = call(lines, "run", "--result", "result.json", "c.yaml", "train.py")
    assert done.returncode == 4
    reason = json.loads((tmp_path / "result.json").read_text())["reason"]
    assert sorted(reason["checks"]) == [["node2", "py.activate"], ["node3", "sw.packages"]]
    direct = call(lines, "run", "c.yaml", "-i", "node1,node3", "-l", "direct", "train.py")
    assert direct.returncode == 0, direct.stderr
    assert direct.stdout.count("trains") == 2


def test_the_activate_line_has_the_variables_of_the_run(call: Call, tmp_path: Path) -> None:
    """It fails wherever one of them is missing, in checks as in the run."""
    (tmp_path / "train.py").write_text("import os; print(os.environ['SEEN'])\n")
    line = 'export SEEN=$FILE-$CALLER-$JOB-$NODE && test "$SEEN" = f-c-j-n'
    lines = f"""
launcher: direct
activate: '{line}'
env: {{FILE: f, NODE: file}}
env_from: [CALLER]
job: {{script: train.py, env: {{JOB: j}}}}
nodes: [{{host: node1, slots: 1, env: {{NODE: n}}}}]
"""
    asked = call(lines, "preflight", "c.yaml", "--only", "py", "--json", CALLER="c")
    assert (asked.returncode, findings(asked)) == (0, []), asked.stderr
    done = call(lines, "run", "c.yaml", CALLER="c")
    assert done.returncode == 0, done.stderr
    assert "f-c-j-n" in done.stdout
    without = call(lines, "preflight", "c.yaml", "--only", "py", "--json", CALLER="")
    assert findings(without) == [("py.activate", ["node1"])]


def test_saved_answers_are_judged_again_without_the_caller_s_variables(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import no_such_module_at_all\n")
    lines = """
env_from: [CALLER]
job: {script: train.py}
nodes: [{host: 'node[1-2]', slots: 1}]
python: /usr/bin/python3
"""
    words = ("--only", "py,sw.packages", "--json")
    live = call(lines, "preflight", "c.yaml", *words, "--save", "s.json", CALLER="private-value")
    assert "private-value" not in (tmp_path / "s.json").read_text()
    again = call(lines, "preflight", "--from", "s.json", *words)
    assert findings(again) == findings(live)
    assert json.loads(again.stdout)["findings"] == json.loads(live.stdout)["findings"]
