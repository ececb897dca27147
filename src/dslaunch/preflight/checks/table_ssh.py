"""Checks of OpenSSH, which other launchers use: from here to the nodes, and from node to node."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from dslaunch.cluster.model import Cluster, Node
from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Flow,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Round,
    Scope,
    UnansweredError,
    skipped,
)
from dslaunch.preflight.checks.net_mesh import blamed
from dslaunch.preflight.flow import of_nodes
from dslaunch.preflight.unanswered import CallFailure, lacks_program
from dslaunch.protocol.survey import Ran
from dslaunch.registry import TRANSPORTS
from dslaunch.transport.classify import from_words

CLIENT = "ssh.client"
LOGS_IN = "the system's ssh logs in without prompts"
WORD = "dslaunch-was-here"
FEW = 8
"""Up to this number of nodes the check runs by default: OpenSSH costs this machine 0.1 s per
node."""
LOGINS_AT_ONCE = 16
LAST = 4096
"""Characters of a client's errors in which its reason is looked for."""
THROTTLED = ("kex_exchange_identification", "Connection reset by", "Connection closed by")
"""Messages of a client whose connection sshd dropped since there were too many (MaxStartups)."""


def _why_not(scope: Scope) -> str:
    if scope.cluster.same_machine:
        return "emulated nodes have no sshd"
    if CLIENT in scope.named or "mpi" in scope.purposes:
        return ""
    if scope.cluster.by_steps:
        return "the nodes are reached by SLURM steps, not by login"
    if not scope.cluster.over_ssh:
        return "the nodes are not reached over SSH"
    if TRANSPORTS.get(scope.cluster.transport).ssh_program:
        return "the nodes were reached with the system's ssh"
    return f"more than {FEW} nodes; check with --only {CLIENT}" if len(scope.nodes) > FEW else ""


def argv(node: Node, cluster: Cluster) -> list[str]:
    """Return the client's command for a node; ~/.ssh/config has what the cluster file does not."""
    wait = f"ConnectTimeout={max(1, round(cluster.ssh.connect_timeout))}"
    words = ["ssh", "-T"]
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", wait):
        words += ["-o", option]
    for flag, file in (("-F", cluster.ssh.config_file), ("-i", node.identity_file)):
        if file:
            words += [flag, str(Path(file).expanduser())]
    for flag, value in (("-l", node.user), ("-p", node.port), ("-J", node.jump)):
        if value is not None:
            words += [flag, str(value)]
    return [*words, node.host, f"echo {WORD}"]


def _logins(scope: Scope) -> Question:
    programs = {node.host: argv(node, scope.cluster) for node in scope.nodes}
    argument = {"programs": programs, "at_once": LOGINS_AT_ONCE, "again": list(THROTTLED)}
    rounds = -(-len(scope.nodes) // LOGINS_AT_ONCE)
    return Question("each", argument, 20 + rounds * scope.cluster.ssh.connect_timeout)


def _here(scope: Scope) -> Asked:
    return {} if _why_not(scope) else {"ssh": scope.once(_logins)}


def _flow_ssh_client(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, {}, here=_here(scope))
    return of_nodes(nodes, _ssh_client, fine=LOGS_IN)


def _ssh_client(a: NodeAnswers) -> Iterator[Finding]:
    why_not = _why_not(a.scope)
    if why_not:
        yield skipped(why_not)
        return
    done: Ran = a.from_here(a.scope.once(_logins))[a.host]
    level: Level = "fail" if CLIENT in a.scope.named or "mpi" in a.scope.purposes else "warn"
    if lacks_program("ssh", done):
        yield skipped("ssh not found on this machine")
    elif done["code"] or WORD not in done["out"]:
        yield _login_trouble(a.node, done, level)


def _login_trouble(node: Node, done: Ran, level: Level) -> Finding:
    expected = "a login without prompts"
    if not done["err"].strip():
        return Finding(level, f"the system's ssh failed with exit code {done['code']}", expected)
    why = from_words(node, done["err"][-LAST:])
    found = f"the system's ssh cannot log in: {why.message}"
    return Finding(level, found, expected, fix=why.common_hint or "")


MESH = "ssh.mesh"
FULL = 32
"""Up to this number of nodes each calls each other node; beyond, its successor and a random
sample."""
CALLS = 3
CALLS_AT_ONCE = 4
"""Calls of one node at a time. All nodes begin with their successors: about this number reach one
sshd at a time, which drops callers beyond ten at random (MaxStartups 10:30:100)."""
SECONDS = 10


def _wanted(scope: Scope) -> bool:
    return MESH in scope.named or "mpi" in scope.purposes


def pairs(hosts: list[str], token: str) -> dict[str, list[str]]:
    """Whom each host calls, in shifted order; beyond FULL each is called at least once."""
    count = len(hosts)
    steps = list(range(1, count))
    if count > FULL:
        steps = [1, *random.Random(token).sample(steps[1:], CALLS - 1)]
    return {h: [hosts[(at + step) % count] for step in steps] for at, h in enumerate(hosts)}


def _by_host(scope: Scope) -> dict[str, Node]:
    return {node.host: node for node in scope.nodes}


def _calls(targets: list[str], scope: Scope) -> Question:
    nodes = scope.once(_by_host)
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=5"]
    programs = {}
    for host in targets:
        where = [f for p in (("-l", nodes[host].user), ("-p", nodes[host].port)) if p[1] for f in p]
        programs[host] = ["ssh", "-T", *options, *map(str, where), host, "exit 0"]
    argument = {"programs": programs, "at_once": CALLS_AT_ONCE, "again": list(THROTTLED)}
    return Question("each", argument, 10 + SECONDS * -(-len(targets) // CALLS_AT_ONCE))


def _flow_ssh_mesh(scope: Scope) -> Flow:
    nodes = yield Round.of_all(scope, {})
    if not _wanted(scope) or len(nodes) < 2:
        why = f"not needed by torchrun and srun; check with --only {MESH} or --for mpi"
        return [Finding("skip", why, hosts=tuple(nodes))]
    called = pairs(list(nodes), scope.token)
    asked = {host: _calls(targets, scope) for host, targets in called.items()}
    nodes = yield Round({host: {"calls": question} for host, question in asked.items()})
    return _ssh_mesh(nodes, asked)


def _ssh_mesh(nodes: Nodes, asked: Mapping[str, Question]) -> Iterator[Finding]:
    errors: dict[tuple[str, str], CallFailure] = {}
    silent = set()
    for host, a in nodes.items():
        try:
            errors |= _failed_calls(a, asked[host])
        except UnansweredError as why:
            silent.add(host)
            yield Finding("unknown", str(why), hosts=(host,))
    yield from blamed(errors)
    odd = {host for pair in errors for host in pair} | silent
    fine = tuple(host for host in nodes if host not in odd)
    yield Finding("pass", "logs in to the other nodes", hosts=fine)


def _failed_calls(a: NodeAnswers, question: Question) -> dict[tuple[str, str], CallFailure]:
    """Calls of a node that did not succeed, with the reason."""
    nodes = a.scope.once(_by_host)
    return {
        (a.host, to): CallFailure(_message(nodes[to], done))
        for to, done in a.value(question).items()
        if done["code"]
    }


def _message(node: Node, done: Ran) -> str:
    if not done["err"].strip():
        return f"ssh failed with exit code {done['code']}"
    return from_words(node, done["err"][-LAST:]).message


CHECKS = {
    "ssh.client": Check(
        title="the system's ssh logs in without prompts",
        why=(
            "dslaunch has its own SSH client. DeepSpeed's pdsh, mpirun, rsync and users "
            "use the system's, with its known_hosts, agent and configuration."
        ),
        fix="run `ssh NODE` on this machine; accept the host key, or fix the error",
        see="ssh -o BatchMode=yes NODE true; echo $?",
        source="ssh(1); DeepSpeed 0.19 launcher/runner.py",
        flow=_flow_ssh_client,
    ),
    "ssh.mesh": Check(
        title="nodes log in to each other by SSH",
        why=(
            "Open MPI starts its daemons as a tree: with four nodes the fourth is "
            "started by the second one, and fails if that has no key or does not know "
            "the host key. torchrun, pdsh and srun need logins from one machine only."
        ),
        fix=(
            "install one key in authorized_keys of all nodes, and all host keys in "
            "/etc/ssh/ssh_known_hosts; or use `-mca plm_rsh_no_tree_spawn true`"
        ),
        see="ssh -o BatchMode=yes NODE true",
        source="open-mpi/ompi#6107; sshd_config(5), MaxStartups",
        flow=_flow_ssh_mesh,
    ),
}
