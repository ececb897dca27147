"""Whether nodes log in to each other: only some launchers need it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from dslaunch.cluster.model import Node
from dslaunch.preflight.check import (
    Check,
    Finding,
    Flow,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks.net_mesh import blamed
from dslaunch.preflight.checks.ssh_client import LAST, THROTTLED
from dslaunch.preflight.unanswered import CallFailure
from dslaunch.protocol.survey import Ran
from dslaunch.transport.classify import from_words

NAME = "ssh.mesh"
FULL = 32
"""Up to so many nodes each calls each; beyond, its successor and some by chance."""
CALLS = 3
AT_ONCE = 4
"""Calls of one node at a time. All nodes begin with their successors, so that about as many
reach one sshd, which drops callers beyond ten at random (MaxStartups 10:30:100)."""
SECONDS = 10


def _wanted(scope: Scope) -> bool:
    return NAME in scope.named or "mpi" in scope.purposes


def pairs(hosts: list[str], token: str) -> dict[str, list[str]]:
    """Whom each host calls, in shifted order; beyond FULL each is called at least once."""
    count = len(hosts)
    steps = list(range(1, count))
    if count > FULL:
        steps = [1, *random.Random(token).sample(steps[1:], CALLS - 1)]
    return {h: [hosts[(at + step) % count] for step in steps] for at, h in enumerate(hosts)}


def _question(targets: list[str], scope: Scope) -> Question:
    nodes = {node.host: node for node in scope.nodes}
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=5"]
    programs = {}
    for host in targets:
        where = [f for p in (("-l", nodes[host].user), ("-p", nodes[host].port)) if p[1] for f in p]
        programs[host] = ["ssh", "-T", *options, *map(str, where), host, "exit 0"]
    argument = {"programs": programs, "at_once": AT_ONCE, "again": list(THROTTLED)}
    return Question("each", argument, 10 + SECONDS * -(-len(targets) // AT_ONCE))


def _flow(nodes: Nodes) -> Flow:
    scope = next(iter(nodes.values())).scope if nodes else None
    if scope is None or not _wanted(scope) or len(nodes) < 2:
        why = f"torchrun and srun do not need it; ask with --only {NAME} or --for mpi"
        return [Finding("skip", why, hosts=tuple(nodes))]
    called = pairs(list(nodes), scope.token)
    asked = {host: _question(targets, scope) for host, targets in called.items()}
    nodes = yield Round({host: {"calls": question} for host, question in asked.items()})
    return _judge(nodes, asked)


def _judge(nodes: Nodes, asked: Mapping[str, Question]) -> Iterator[Finding]:
    errors: dict[tuple[str, str], CallFailure] = {}
    silent = set()
    for host, a in nodes.items():
        try:
            errors |= _failed(a, asked[host])
        except UnansweredError as why:
            silent.add(host)
            yield Finding("unknown", str(why), hosts=(host,))
    yield from blamed(errors)
    odd = {host for pair in errors for host in pair} | silent
    fine = tuple(host for host in nodes if host not in odd)
    yield Finding("pass", "logs in to the other nodes", hosts=fine)


def _failed(a: NodeAnswers, question: Question) -> dict[tuple[str, str], CallFailure]:
    """Calls of a node that did not succeed, with the reason."""
    nodes = {node.host: node for node in a.scope.nodes}
    return {
        (a.host, to): CallFailure(_message(nodes[to], done))
        for to, done in a.value(question).items()
        if done["code"]
    }


def _message(node: Node, done: Ran) -> str:
    if not done["err"].strip():
        return f"ssh ended with {done['code']}"
    return from_words(node, done["err"][-LAST:]).message


CHECK = Check(
    title="the nodes log in to each other",
    tier="static",
    why="Open MPI starts its daemons as a tree: three nodes work, the fourth is started by the "
    "second one, and fails if that has no key or does not know the host. torchrun, pdsh and srun "
    "need only logins from one machine.",
    fix="one key for all nodes in authorized_keys, all host keys in /etc/ssh/ssh_known_hosts; or "
    "`-mca plm_rsh_no_tree_spawn true`",
    see="ssh -o BatchMode=yes NODE true",
    source="open-mpi/ompi#6107; sshd_config(5), MaxStartups",
    flow=_flow,
)
