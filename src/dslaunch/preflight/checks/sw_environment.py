"""Whether a session already has variables that a launcher, NCCL or CUDA obey."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.preflight.check import (
    Answers,
    Check,
    Level,
    Nodes,
    Question,
    Verdict,
    as_on,
    odd_ones,
    passed,
)
from dslaunch.topology import nccl

OBEYED = ("NCCL_*", "GLOO_*", "TP_SOCKET_IFNAME", "TORCH_NCCL_*", "UCX_NET_DEVICES")
LAUNCHER = (
    "CUDA_VISIBLE_DEVICES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "CUDA_LAUNCH_BLOCKING",
)
VARIABLES = Question("environment", [*OBEYED, *LAUNCHER])
ALLOWED = ("0", "")
"""Values that switch nothing on."""


def _judge(a: Answers) -> Iterator[Verdict]:
    found: dict[str, str] = a["variables"]
    bad = False
    for name in LAUNCHER:
        if name in found and not (name == "CUDA_LAUNCH_BLOCKING" and found[name] in ALLOWED):
            bad = True
            yield Verdict("warn", f"{name}={found[name][:60]} is set at login", "not set")
    theirs = {name: value for name, value in found.items() if name not in LAUNCHER}
    remarks = {r.path: r for r in nccl.check(theirs, "the login's environment")}
    for remark in remarks.values():
        bad = bad or remark.level != "info"
        level: Level = "info" if remark.level == "info" else "warn"
        yield Verdict(level, remark.message[:160], "", remark.fix or "")
    silent = [f"{name}={value[:60]}" for name, value in theirs.items() if name not in remarks]
    if silent:
        yield Verdict("info", f"set at login: {', '.join(silent)}"[:200])
    elif not bad and not remarks:
        yield passed("a login brings no settings of its own")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    """The same everywhere, or a variable holds for some ranks only."""
    said = {host: a["variables"] for host, a in nodes.items() if a.has("variables")}
    names = dict.fromkeys(name for found in said.values() for name in found if name not in LAUNCHER)
    for name in names:
        values = {host: found.get(name, "") for host, found in said.items()}
        for value, hosts, common, count in odd_ones(values):
            words = f"{name}={value[:60]}" if value else f"{name} is not set"
            expected = as_on(common[:60] or "not set", count)
            yield Verdict("warn", words, expected, hosts=hosts)


CHECK = Check(
    title="a login brings no settings of its own",
    tier="static",
    why="What an administrator or an old experiment put into /etc/environment or ~/.bashrc is "
    "obeyed by NCCL and CUDA on that node alone, and nobody sees it. NCCL ignores words that it "
    "does not know, without a word.",
    fix="remove it there, or put it into `env:` of the cluster file, for all nodes",
    see="ssh NODE env | grep -E 'NCCL|GLOO|CUDA|MASTER|RANK'",
    source="NCCL 2.30 src/misc/param.cc and src/graph/paths.cc; DeepSpeed 0.19 EXPORT_ENVS",
    ask=lambda scope: {"variables": VARIABLES},
    judge=_judge,
    compare=_compare,
)
