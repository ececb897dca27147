"""`dslaunch run` over plain sshd of this machine, where there are no namespaces either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dslaunch.node import processes
from tests.testbed.loopback import Loopback, missing

pytestmark = pytest.mark.sshd
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    if reason := missing():
        pytest.skip(reason)
    with Loopback(3, tmp_path_factory.mktemp("loopback")) as found:
        yield found


@pytest.fixture(params=["fabric", "openssh"])
def run(servers: Loopback, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Done]:
    """Call `dslaunch run` on three nodes of one rank."""
    (tmp_path / "c.yaml").write_text(
        f"nodes: [{{host: 'node[1-3]', slots: 1}}]\npython: {sys.executable}\nlauncher: direct\n"
        f"transport: {request.param}\nssh: {{config_file: '{servers.config}'}}\n"
        f"storage: {{workdir: '{tmp_path}/work'}}\nenv_from: [V]\n"
    )

    def call(script: str, *words: str, **env: str) -> Done:
        (tmp_path / "job.py").write_text(script)
        options = ["--grace", "1", "--result", "result.json"]
        command = [sys.executable, "-m", "dslaunch", "run", *options, "c.yaml", "job.py"]
        where = {**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state"), **env}
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, env=where, text=True, capture_output=True,
            timeout=300, check=False,
        )  # fmt: skip
        (directory,) = (tmp_path / "state" / "runs").iterdir()
        assert not [pid for pid in processes.pids() if carries(pid, directory.name)]
        return done

    return call


def carries(pid: int, run: str) -> bool:
    return processes.environment(pid).get(b"DSLAUNCH_RUN_ID") == run.encode()


def test_every_node_runs_its_rank_with_arguments_and_environment_unchanged(
    run: Callable[..., Done],
) -> None:
    nasty = ["", "a b", "$HOME", "`id`", "'\"\\", "ünï\n2", "*"]
    script = (
        "import json, os, sys\n"
        "print(json.dumps([os.environ['RANK'], sys.argv[1:], os.environ['V']]))\n"
    )
    done = run(script, *nasty, V="$x 'y'\n")
    assert done.returncode == 0, done.stderr
    said = dict(line.split("│", maxsplit=1) for line in done.stdout.splitlines())
    assert {place: json.loads(text) for place, text in said.items()} == {
        f"node{rank + 1}:{rank}": [str(rank), nasty, "$x 'y'\n"] for rank in range(3)
    }


def test_one_failing_rank_ends_all(run: Callable[..., Done], tmp_path: Path) -> None:
    done = run(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(7)\ntime.sleep(300)\n"
    )
    assert done.returncode == 7
    reason = json.loads((tmp_path / "result.json").read_text())["reason"]
    assert reason == {"code": "rank-failed", "host": "node2", "rank": 1, "exit_code": 7}


@pytest.mark.parametrize(("line", "name"), [("", None), ('Match exec "true"\n', "openssh")])
def test_the_chosen_transport_is_among_the_decisions(
    servers: Loopback, tmp_path: Path, line: str, name: str | None
) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(servers.config.read_text() + line)
    (tmp_path / "c.yaml").write_text(
        f"nodes: [{{host: node1, slots: 1}}]\npython: {sys.executable}\nlauncher: direct\n"
        f"ssh: {{config_file: '{config}'}}\nstorage: {{workdir: '{tmp_path}'}}\n"
    )
    (tmp_path / "job.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "dslaunch", "run", "--json", "c.yaml", "job.py"], cwd=tmp_path,
        env={**os.environ, "DSLAUNCH_STATE": str(tmp_path / "state")}, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(text) for text in done.stdout.splitlines()]
    (plan,) = [event for event in events if event["kind"] == "plan"]
    code = "transport-chosen"
    chosen = [d["values"]["transport"] for d in plan["decisions"] if d["code"] == code]
    assert chosen == ([name] if name else [])
