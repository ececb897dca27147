"""The real `dslaunch preflight` and `dslaunch topo`, one node of which is compromised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import lying_python
from tests.unit.topology.printed import Wiring, topo_m

CLUSTER = """
name: two
transport: local
nodes:
  - {host: n1, slots: 1}
  - {host: n2, slots: 1, python: PYTHON}
storage: {workdir: work}
"""
ONE_AT_A_TIME = """
name: deaf
transport: local
ssh: {fanout: 1}
nodes:
  - {host: 'n[2-9]', slots: 1, python: PYTHON}
  - {host: n1, slots: 1}
storage: {workdir: work}
"""
"""As many deaf nodes as it takes that an honest one behind them all would be too late."""
LIES = {*lying_python.WHOLE, "greeting", "clock"}
KEPT = ("no frames", "endless noise", "many values", "deep JSON", "greeting")
"""One of each kind: text, without an end, size, depth, content. A preflight of two nodes takes a
second of processor time, and the parsers have tests of their own."""
CHECKS = ("shm.size", "lim.nofile", "shell.umask", "clock.skew", "shell.noise")
INVALID = {
    **dict.fromkeys([*lying_python.WHOLE, "clock"], "invalid message"),
    "no frames": "text arrived between the messages",
    "greeting": "invalid answer",
    "endless noise": "endless output",
}
"""What is said of a node that tells lies of a kind."""
MOST_MEMORY = 300 << 10
"""KiB, as wait4(2) counts them."""
SMI = """#!/bin/sh
case "$1" in
topo) cat SMI.topo ;;
-L) echo "GPU 0: NVIDIA A100 (UUID: GPU-0)"; echo "GPU 1: NVIDIA A100 (UUID: GPU-1)" ;;
*) echo "index, name"; echo "0, NVIDIA A100"; echo "1, NVIDIA A100" ;;
esac
"""


METER = """
import pathlib, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1]).write_text(str(used))
sys.exit(code)
"""
"""Runs a program and writes down its peak memory in KiB. A process begins with the peak of the one
that started it, and the tests' own process may have been large."""


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    code: int
    out: str
    err: str
    memory: int

    def findings(self, check: str) -> dict[str, str]:
        """The level that a check found for each host; the worst where there are several."""
        found: dict[str, str] = {}
        for each in reversed(json.loads(self.out)["findings"]):
            if each["check"] == check:
                found |= dict.fromkeys(each["hosts"], each["level"])
        return found

    def about(self, host: str) -> list[dict[str, Any]]:
        """All findings of a host."""
        return [f for f in json.loads(self.out)["findings"] if host in f["hosts"]]


def dslaunch(directory: Path, lie: str, *words: str, cluster: str = CLUSTER) -> Done:
    """Run dslaunch on an honest node and one that lies."""
    liar = directory / lie
    liar.write_text(f"#!{sys.executable}\n{Path(lying_python.__file__).read_text('utf-8')}")
    liar.chmod(0o700)
    (directory / "c.yaml").write_text(cluster.replace("PYTHON", json.dumps(str(liar))))
    path = f"{directory}:{os.environ['PATH']}"
    env = {**os.environ, "DSLAUNCH_STATE": str(directory / "state"), "PATH": path}
    out, err = (directory / "out").open("w+b"), (directory / "err").open("w+b")
    command = [sys.executable, "-m", "dslaunch", *words]
    peak = directory / "peak"
    measured = [sys.executable, "-c", METER, str(peak), *command]
    with out, err:
        code = subprocess.call(measured, stdout=out, stderr=err, cwd=directory, env=env)
        texts = [Path(file.name).read_text("utf-8") for file in (out, err)]
    memory = int(peak.read_text())
    assert "Traceback" not in texts[1]
    assert memory < MOST_MEMORY
    return Done(code, texts[0], texts[1], memory)


def further(*lies: str) -> list[Any]:
    """Lies as parameters of which another one is the representative."""
    return [pytest.param(lie, marks=pytest.mark.long) for lie in lies]


def preflight(directory: Path, lie: str, cluster: str = CLUSTER) -> Done:
    chosen = [word for name in CHECKS for word in ("--only", name)]
    words = ("preflight", "c.yaml", "--json", "--all", *chosen)
    return dslaunch(directory, lie, *words, cluster=cluster)


def assert_honest_node_is_judged(done: Done) -> None:
    assert done.findings("ssh.connect")["n1"] == "pass"
    for check in CHECKS:
        assert done.findings(check)["n1"] not in ("unknown",), check


@pytest.mark.parametrize("lie", [*KEPT, *further(*sorted(LIES - set(KEPT)))])
def test_a_node_that_does_not_speak_the_protocol_fails_alone(tmp_path: Path, lie: str) -> None:
    done = preflight(tmp_path, lie)
    assert done.code == 4
    assert_honest_node_is_judged(done)
    (finding,) = done.about("n2")
    assert (finding["check"], finding["level"]) == ("ssh.connect", "fail")
    assert INVALID[lie] in finding["found"]


@pytest.mark.parametrize(
    "lie", ["answers of another type", *further("no answers", "keys that were not asked")]
)
def test_invalid_answers_are_unknown_on_their_node_alone(tmp_path: Path, lie: str) -> None:
    done = preflight(tmp_path, lie)
    assert_honest_node_is_judged(done)
    assert done.findings("ssh.connect")["n2"] == "unknown"
    assert done.findings("shm.size")["n2"] == "unknown"
    assert done.findings("lim.nofile")["n2"] == "unknown"
    assert done.findings("shell.umask")["n2"] == "pass"


def test_seven_megabytes_of_login_noise_are_read_to_their_end(tmp_path: Path) -> None:
    done = preflight(tmp_path, "noise")
    assert done.findings("ssh.connect") == {"n1": "pass", "n2": "pass"}
    assert done.findings("shell.noise")["n2"] == "warn"
    assert done.findings("shm.size")["n2"] != "unknown"


def test_nodes_that_do_not_read_their_program_keep_no_other_waiting(tmp_path: Path) -> None:
    done = preflight(tmp_path, "deaf", ONE_AT_A_TIME)
    assert_honest_node_is_judged(done)
    assert {done.findings("ssh.connect")[f"n{n}"] for n in range(2, 10)} == {"fail"}


@pytest.mark.parametrize(
    "lie", ["answers of another type", *further("no JSON", "deep JSON", "no answers")]
)
def test_topo_shows_the_honest_node_beside_one_that_lies(tmp_path: Path, lie: str) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI.replace("SMI", str(tmp_path / "SMI")))
    smi.chmod(0o700)
    (tmp_path / "SMI.topo").write_text(topo_m(Wiring(2, links={(0, 1): "NV12"})))
    done = dslaunch(tmp_path, lie, "topo", "c.yaml", "--json")
    assert done.code == 0
    assert set(json.loads(done.out)["nodes"]) == {"n1"}
