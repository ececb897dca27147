"""A check's case as a file: what nodes answered, and what the check must say of it.

A case is `<check>/<case>.toml`. `[answers.NAME]` holds `value`, `json` (the same as a text, for
null), `installed` (what a job's interpreter has, for the question `job`) or `error`; NAME is how
the check calls the question, in whichever round it is asked. For several nodes
`[node.HOST.answers.NAME]` and `[node.HOST.hello]` add to it. `[here.NAME]` is what this machine
answers, `[hello]`, `[scope]` and `[limits]` are taken as they are, `clock` is a pair;
`scope.cluster` is the text of a cluster file, by default one of the nodes named. Each
`[[verdict]]` has a level, a part of `found`, and, if it is told, `hosts`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import SecretSource
from dslaunch.launch.job import Job
from dslaunch.preflight.check import Asked, Check, Finding, Flow, NodeAnswers, Scope
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import judge
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.preflight.verdict import REACHED
from dslaunch.protocol.survey import Answer, Identity
from dslaunch.pysource.imports import Imports

Table = Mapping[str, Any]
HELLO = {
    "hostname": "node1",
    "kernel": "6.1.0-13-amd64",
    "machine": "x86_64",
    "boot": "b0000001",
    "network": "net:[4026531840]",
    "python": [3, 11, 2],
    "executable": "/usr/bin/python3",
    "uid": 1000,
    "home": "/home/alice",
    "cores": 8,
    "umask": 0o022,
}
LISTS = ("directories", "named", "purposes")


@dataclass(frozen=True)
class Case:
    """A file."""

    path: Path
    content: Table

    @property
    def check(self) -> str:
        """The name of the check."""
        return self.path.parent.name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes; one if none is named."""
        return tuple(self.content.get("node", {"node1": {}}))

    def of(self, host: str, part: str) -> Table:
        """What a node has of a part: the common, and its own."""
        own: Table = self.content.get("node", {}).get(host, {}).get(part, {})
        return {**self.content.get(part, {}), **own}


def read(path: Path) -> Case:
    """Read a case."""
    return Case(path, tomllib.loads(path.read_text("utf-8")))


def answer(said: Table) -> Table:
    """An answer as a node records it."""
    if "installed" in said:
        return {"value": job_with(said["installed"])}
    return {"value": json.loads(said["json"])} if "json" in said else said


WITHIN = {"deepspeed": "deepspeed.launcher.launch", "accelerate": "accelerate.commands.launch"}
"""The module that a launcher starts, by its package."""


def job_with(installed: Table) -> Table:
    """What a job's interpreter answers: a module for each package, or as the case has it."""
    packages: Table = installed.get("packages", {})
    names = [*packages, *(WITHIN[name] for name in packages if name in WITHIN)]
    names += ["torch.distributed.run"] if "torch" in packages else []
    modules = {
        name: {"at": f"/v/{name.partition('.')[0]}/__init__.py", "package": True, "whole": True}
        for name in names
    }
    whole = {
        "executable": "/venv/bin/python3",
        "version": [3, 11, 2],
        "prefix": "/venv",
        "torch": {},
        **installed,
        "packages": packages,
        "modules": {**modules, **installed.get("modules", {})},
    }
    out = installed.get("out", "")
    report = f"activated\n{whole['executable']}\n{json.dumps(whole)}\n"
    return {"code": 0, "out": out, "err": "", "report": report}


def scope_of(case: Case, name: str) -> Scope:
    """What is checked."""
    told = {**case.content.get("scope", {})}
    nodes = ", ".join(f"{{host: {host}, slots: 2}}" for host in case.hosts)
    text = told.pop("cluster", f"nodes: [{nodes}]")
    limits = case.content.get("limits")
    if limits:
        text += f"\npreflight: {{limits: {{{name}: {json.dumps(limits)}}}}}\n"
    cluster = parse_cluster(text, "c.yaml")
    nodes_used = tuple(node for node in cluster.nodes if node.host in case.hosts)
    for key in LISTS:
        told[key] = tuple(told.get(key, ()))
    told["named"], told["purposes"] = frozenset(told["named"]), frozenset(told["purposes"])
    job = Job(
        told.pop("program", ""),
        kind=told.pop("kind", "script"),
        launcher=told.pop("launcher", "torchrun"),
        env=tuple(told.pop("env", {}).items()),
        secrets=tuple(map(SecretSource, told.pop("secrets", ()))),
    )
    imports = {name: tuple(found) for name, found in told.pop("imports", {}).items()}
    told["imports"] = Imports(**imports, read=True) if imports else Imports()
    files = tuple((path, digest) for path, digest in told.pop("files", []))
    return Scope(cluster, nodes_used, job, files=files, **told)


def facts_of(case: Case, check: Check) -> Recording:
    """The recorded answers as if the nodes had been asked round by round."""
    scope = scope_of(case, case.check)
    answers: dict[str, dict[str, Table]] = {host: {} for host in case.hosts}
    used: set[str] = set()

    def take(host: str, asked: Asked) -> None:
        for name, question in asked.items():
            if name in case.of(host, "answers"):
                used.add(name)
                answers[host][question.key] = answer(case.of(host, "answers")[name])

    running = RunningCheck(case.check, check, scope)
    here = running.pending.here if running.pending is not None else {}
    said_here = case.content.get("here", {})
    own = {q.key: answer(said_here[name]) for name, q in here.items() if name in said_here}
    while running.pending is not None:
        for host, asked in running.pending.asked.items():
            take(host, asked)
        running.answered(nodes_of(case, scope, answers))
    told = {name for host in case.hosts for name in case.of(host, "answers")}
    assert used == told, f"{case.path}: not asked: {sorted(told - used)}"
    nodes = {host: node_facts(case, host, answers[host]) for host in case.hosts}
    return Recording(scope, 0.0, nodes, {}, cast("dict[str, Answer]", own))


def node_facts(case: Case, host: str, answers: Table) -> NodeRecording:
    """What one node answered."""
    hello = {**HELLO, "hostname": host, "boot": f"boot-{host}", **case.of(host, "hello")}
    clock = case.content.get("node", {}).get(host, {}).get("clock", case.content.get("clock"))
    noise = hello.pop("noise", "")
    identity = cast(Identity, hello)
    return NodeRecording(identity, answers, tuple(clock) if clock else None, 0.1, noise)


def nodes_of(case: Case, scope: Scope, answers: Table) -> dict[str, NodeAnswers]:
    """What a check sees between two rounds."""
    return {
        node.host: NodeAnswers(
            node,
            scope,
            {},
            answers[node.host],
            node_facts(case, node.host, {}).hello,
        )
        for node in scope.nodes
    }


def first_questions(check: Check, scope: Scope) -> dict[str, Asked]:
    """By host, what a check asks in its first round."""
    first = RunningCheck("", check, scope).pending
    return dict(first.asked) if first is not None else {}


def without_here(check: Check) -> Check:
    """The check, but that it asks this machine nothing."""

    def flow(scope: Scope) -> Flow:
        own = check.flow(scope)
        pending = replace(next(own), here={})
        while True:
            nodes = yield pending
            try:
                pending = own.send(nodes)
            except StopIteration as end:
                findings: Iterable[Finding] = end.value
                return findings

    return replace(check, flow=flow)


def findings(case: Case, check: Check) -> tuple[Finding, ...]:
    """What the check says of it."""
    report = judge(facts_of(case, check), {case.check: check})
    return tuple(finding for finding in report.findings if finding.check != REACHED)


def rewrite(case: Case, texts: Mapping[int, str]) -> None:
    """Write new texts of verdicts, by their number, into the file of a case."""
    lines = case.path.read_text("utf-8").splitlines(keepends=True)
    verdicts = [at for at, line in enumerate(lines) if line.strip() == "[[verdict]]"]
    for number, text in texts.items():
        start = verdicts[number]
        found = next(at for at in range(start, len(lines)) if lines[at].startswith("found ="))
        lines[found] = f"found = {json.dumps(text, ensure_ascii=False)}\n"
    case.path.write_text("".join(lines), "utf-8")


def expected(case: Case) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Level, a part of the words, and hosts, of each finding that must be."""
    for verdict in case.content["verdict"]:
        yield verdict["level"], verdict["found"], tuple(verdict.get("hosts", ()))
