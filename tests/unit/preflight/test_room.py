"""Room where a job will write, asked of this machine."""

from __future__ import annotations

import subprocess

from tests.checks.recorded import HELLO

from dslaunch.cluster.load import parse_cluster
from dslaunch.node import survey
from dslaunch.preflight.check import Asked, NodeAnswers, Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.checks._machine import path_word
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import judge
from dslaunch.preflight.recording import NodeRecording, Recording

CHECK = built_in()["fs.free"]
WORK = "/tmp/no-such-directory/of-a-run-to-come"
NEVER_ENOUGH = "preflight: {limits: {fs.free: {fail: 101, enough: 1.0e+9}}}"


def answers(asked: Asked) -> dict[str, dict[str, object]]:
    """What this machine says."""
    questions = {q.key: {"kind": q.kind, "argument": q.argument} for q in asked.values()}
    return survey.ask(questions, survey.Children())


def test_of_a_directory_that_is_made_later_the_disk_that_is_there_is_shown() -> None:
    cluster = parse_cluster(f"nodes: [{{host: node1, slots: 1}}]\n{NEVER_ENOUGH}", "c.yaml")
    scope = Scope(cluster, cluster.nodes, directories=(WORK,))
    running = RunningCheck("fs.free", CHECK, scope)
    assert running.pending is not None
    first = answers(running.pending.asked["node1"])
    running.answered({"node1": NodeAnswers(cluster.nodes[0], scope, {}, first, HELLO)})
    assert running.pending is not None
    further = answers(running.pending.asked["node1"])
    facts = NodeRecording(HELLO, {**first, **further}, None, 1.0)
    report = judge(Recording(scope, 0.0, {"node1": facts}, {}), {"fs.free": CHECK})
    found = next(f for f in report.findings if f.found.startswith(WORK))
    assert (found.level, found.see) == ("fail", "df -h /tmp")


def test_a_path_in_a_command_to_copy_is_that_path_to_a_shell() -> None:
    paths = {
        "~": "/home/me",
        "~/a b": "/home/me/a b",
        "/it's": "/it's",
        "/$(id)": "/$(id)",
        "/a\nb": "/a\nb",
        "~other": "~other",
    }
    words = " ".join(map(path_word, paths))
    assert "\n" not in words
    shell = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"],
        env={"HOME": "/home/me", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout.split("\0")[:-1] == list(paths.values())
