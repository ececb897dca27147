"""A directory on the control machine of a virtual cluster, from which dslaunch is called."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from tests.testbed.vcluster import VirtualCluster
from tests.testbed.vcluster.api import Running, Text

NODES = "nodes: [{host: 'node[1-4]', slots: 2}]"
RESULT = "result.json"
SLEEPER = "import os, sys, time\nrank = int(os.environ['RANK'])\nprint('up', rank, flush=True)\n"
"""The beginning of a script whose ranks say that they run."""
_EVENTS = "cat $(ls -td ~/.local/state/dslaunch/runs/* | head -n 1)/events.jsonl"


@dataclass
class Project:
    """A directory on the control machine from which dslaunch is called."""

    cluster: VirtualCluster
    path: str

    def write(self, name: str, text: str) -> None:
        """Put a file into it."""
        self.cluster.put("control", f"{self.path}/{name}", text, mode=0o644)

    def describe(self, nodes: str = NODES, **settings: str) -> None:
        """Write its cluster file."""
        more = {"python": sys.executable, "storage": "{workdir: work}", "launcher": "direct"}
        lines = [nodes, *(f"{key}: {value}" for key, value in (more | settings).items())]
        self.write("c.yaml", "\n".join(lines) + "\n")

    def command(self, *words: str) -> list[str]:
        """The command line of a dslaunch that has these words."""
        return [sys.executable, "-m", "dslaunch", *words]

    def run(self, *words: str, timeout: float = 240, **where: object) -> Text:
        """`dslaunch run` with these words."""
        command = self.command("run", "--result", RESULT, *words)
        return self.cluster.run("control", command, cwd=self.path, timeout=timeout, **where)

    def start(self, *words: str, **where: object) -> Running:
        """`dslaunch run` with these words, not waited for."""
        command = self.command("run", "--result", RESULT, *words)
        return self.cluster.popen("control", command, cwd=self.path, **where)

    def outcome(self) -> dict[str, Any]:
        """Return the outcome of the last run, with the codes of docs/reference/codes.md."""
        return self._json(f"{self.path}/{RESULT}")

    def reason(self, *names: str) -> tuple[Any, ...]:
        """Return parameters of the reason for which the last run ended; None: not set."""
        found = self.outcome()["reason"]
        return tuple(found.get(name) for name in names)

    def decisions(self) -> dict[str, dict[str, Any]]:
        """Return the decisions of the last run: code -> parameters."""
        plan = self._json(f"{self.directory()}/plan.json")
        return {each["code"]: each["values"] for each in plan["decisions"]}

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the last run so far."""
        text = self.read(f"{self.directory()}/events.jsonl")
        return [json.loads(line) for line in text.splitlines()]

    def wait_for_event(self, kind: str) -> None:
        """Wait until the last run has recorded an event of a kind."""
        deadline = time.monotonic() + 300
        while kind not in [event["kind"] for event in self.events()]:
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.5)  # the CPUs are for the nodes

    def directory(self) -> str:
        """Return the run directory of the last run, which may go on or have been killed."""
        newest = ["sh", "-c", "ls -td /root/.local/state/dslaunch/runs/* | head -n 1"]
        return self.cluster.run("control", newest, check=True).stdout.strip()

    def all_nodes_confirmed(self) -> bool:
        """Whether every node confirmed that all processes of the last run have exited."""
        outcome = self.outcome()
        return (outcome["unconfirmed"], outcome["left"]) == ([], [])

    def read(self, path: str) -> str:
        """Return a file of the control machine."""
        return self.cluster.run("control", ["cat", path], check=True).stdout

    def _json(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read(path))
        return found

    def nothing_is_left(self) -> bool:
        """Whether no node runs anything but its sshd, and no node directory is there."""
        for node in self.cluster.names:
            if self.cluster.run(node, ["sh", "-c", "ls /tmp/dslaunch-0 2>/dev/null"]).stdout:
                print(f"left on {node}:")
                print(self.cluster.run(node, ["ls", "-lR", "/tmp/dslaunch-0"]).stdout)
                return False
        return self.cluster.leftovers() == {}


def recorded_events(cluster: VirtualCluster) -> list[dict[str, Any]]:
    """Return the events that the control machine has recorded of its last run; none without one."""
    text = cluster.run("control", ["sh", "-c", _EVENTS]).stdout
    return [json.loads(line) for line in text.splitlines()]


def wait_for(running: Running, text: str, *, times: int) -> str:
    """Read the run's output until a text came so many times; what was read."""
    seen = ""
    while seen.count(text) < times:
        line = running.stdout.readline()
        assert line, running.stderr.read()
        seen += line
    return seen
