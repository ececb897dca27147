"""Whether the system's own ssh reaches the nodes: what other launchers use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dslaunch.cluster.model import Cluster, Node
from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Level,
    NodeAnswers,
    Question,
    Scope,
    skipped,
)
from dslaunch.preflight.unanswered import lacks_program
from dslaunch.protocol.survey import Ran
from dslaunch.transport.classify import from_words

NAME = "ssh.client"
WORD = "dslaunch-was-here"
FEW = 8
"""Up to so many nodes it is done unasked: OpenSSH costs this machine a tenth of a second each."""
AT_ONCE = 16
LAST = 4096
"""Characters of a client's errors in which its reason is looked for."""
THROTTLED = ("kex_exchange_identification", "Connection reset by", "Connection closed by")
"""What a client says whose connection sshd dropped for having too many (MaxStartups)."""


def _why_not(scope: Scope) -> str:
    if scope.cluster.transport == "local":
        return "emulated nodes have no sshd"
    if NAME in scope.named or "mpi" in scope.purposes:
        return ""
    if scope.cluster.transport == "srun":
        return "nobody logs in: the nodes are reached by steps of the allocation"
    if scope.cluster.transport not in ("auto", "fabric"):
        return "the nodes were reached with it"
    return f"more than {FEW} nodes; ask with --only {NAME}" if len(scope.nodes) > FEW else ""


def argv(node: Node, cluster: Cluster) -> list[str]:
    """The client's command for a node; what the cluster file leaves out ~/.ssh/config says."""
    wait = f"ConnectTimeout={max(1, round(cluster.ssh.connect_timeout))}"
    words = ["ssh", "-T"]
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", wait):
        words += ["-o", option]
    for flag, file in (("-F", cluster.ssh.config_file), ("-i", node.identity_file)):
        words += [flag, str(Path(file).expanduser())] if file else []
    for flag, value in (("-l", node.user), ("-p", node.port), ("-J", node.jump)):
        words += [flag, str(value)] if value is not None else []
    return [*words, node.host, f"echo {WORD}"]


def _question(scope: Scope) -> Question:
    programs = {node.host: argv(node, scope.cluster) for node in scope.nodes}
    argument = {"programs": programs, "at_once": AT_ONCE, "again": list(THROTTLED)}
    rounds = -(-len(scope.nodes) // AT_ONCE)
    return Question("each", argument, 20 + rounds * scope.cluster.ssh.connect_timeout)


def _here(scope: Scope) -> Asked:
    return {} if _why_not(scope) else {"ssh": _question(scope)}


def _judge(a: NodeAnswers) -> Iterator[Finding]:
    why_not = _why_not(a.scope)
    if why_not:
        yield skipped(why_not)
        return
    done: Ran = a.from_here(_question(a.scope))[a.host]
    level: Level = "fail" if NAME in a.scope.named or "mpi" in a.scope.purposes else "warn"
    if lacks_program("ssh", done):
        yield skipped("this machine has no ssh")
    elif done["code"] or WORD not in done["out"]:
        yield Finding(level, _trouble(a.node, done), "a login without questions")


def _trouble(node: Node, done: Ran) -> str:
    if not done["err"].strip():
        return f"the system's ssh ended with {done['code']} and did not run a command"
    return f"the system's ssh does not get in: {from_words(node, done['err'][-LAST:]).message}"


CHECK = Check(
    title="the system's ssh logs in without questions",
    tier="static",
    why="dslaunch speaks SSH itself. DeepSpeed's pdsh, mpirun, rsync and you use the system's "
    "client, with its own known_hosts, agent and configuration.",
    fix="`ssh NODE` once by hand from here, accept its key or correct what it says",
    see="ssh -o BatchMode=yes NODE true; echo $?",
    source="ssh(1); DeepSpeed 0.19 launcher/runner.py",
    here=_here,
    judge=_judge,
    fine="the system's ssh logs in without questions",
)
