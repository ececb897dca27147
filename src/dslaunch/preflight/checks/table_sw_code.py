"""Checks of settings that a node has by itself: variables, files, locks, code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dslaunch.plural import listed
from dslaunch.preflight.check import (
    Asked,
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Scope,
    UnansweredError,
)
from dslaunch.preflight.checks._job import variables
from dslaunch.preflight.checks._machine import path_word
from dslaunch.preflight.comparison import deviations_by_name, read_of_answering, read_of_nodes
from dslaunch.preflight.flow import NodeFlow, compared, each, judged
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
LOADED = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""They select the files that a program loads: many nodes have them, but all the same."""
VARIABLES = Question("environment", [*OBEYED, *LAUNCHER, *LOADED])
ALLOWED = ("0", "")
"""Values that switch nothing on."""


def _sw_environment(a: NodeAnswers) -> Iterator[Finding]:
    found: dict[str, str] = a["variables"]
    for name in LAUNCHER:
        is_off = name == "CUDA_LAUNCH_BLOCKING" and found.get(name) in ALLOWED
        if name in found and not is_off:
            yield Finding("warn", f"{name}={found[name][:60]} is set at login", "not set")
    theirs = {name: value for name, value in _of_login(a).items() if name not in LOADED}
    remarks = {r.path: r for r in nccl.check(theirs, "the environment of the login")}
    for remark in remarks.values():
        level: Level = "info" if remark.level == "info" else "warn"
        yield Finding(level, remark.message[:160], fix=remark.fix or "")
    silent = [f"{name}={value[:60]}" for name, value in theirs.items() if name not in remarks]
    if silent:
        yield Finding("info", f"set at login: {', '.join(silent)}"[:200])


def _of_login(a: NodeAnswers) -> dict[str, str]:
    """Return the variables of the login that the ranks get: those that the job does not set."""
    found = {name: value for name, value in a["variables"].items() if name not in LAUNCHER}
    of_job = variables(a) if found else {}
    return {name: value for name, value in found.items() if name not in of_job}


def _compare_sw_environment(nodes: Nodes) -> Iterator[Finding]:
    """The same everywhere, or a variable holds for some ranks only."""
    said = read_of_answering(nodes, _of_login)
    for name, odd in deviations_by_name(said):
        words = f"{name}={odd.value[:60]}" if odd.value else f"{name} is not set"
        expected = odd.as_on((odd.common or "not set")[:60])
        yield Finding("warn", words, expected, hosts=odd.hosts)


VARIABLE = "TORCH_EXTENSIONS_DIR"
ENVIRONMENT = Question("environment", [VARIABLE])


def _locks(path: str) -> Question:
    return Question("list", {"path": path, "names": "lock", "depth": 2}, 8)


USUAL = _locks("~/.cache/torch_extensions")


def _flow_sw_locks(a: NodeAnswers) -> NodeFlow:
    own = a["environment"].get(VARIABLE) if a.has("environment") else None
    place = _locks(own) if own else USUAL
    if place != USUAL:
        a = yield {"own": place}
    return _sw_locks(a, place)


def _sw_locks(a: NodeAnswers, place: Question) -> Iterator[Finding]:
    old = [lock["path"] for lock in a.value(place) if lock["age"] > 60 * a.limits["warn"]]
    if old:
        words = f"stale lock file: {listed(old, 1)}"
        yield Finding("warn", words, "none", f"rm {path_word(old[0])}")


SHOWN = 3
"""Paths that a finding names."""
FILES = Question("texts", ["/etc/nccl.conf", "~/.nccl.conf", "~/.deepspeed_env"], 5)


def settings(text: str) -> dict[str, str]:
    """NAME=VALUE lines; `#` begins a comment."""
    lines = (line.split("#")[0].strip().partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, sign, value in lines if sign and name.strip()}


def _sw_nccl_conf(a: NodeAnswers) -> Iterator[Finding]:
    files: Mapping[str, str] = a["files"]
    for path, text in files.items():
        found = settings(text)
        remarks = nccl.check(found, path)
        for remark in remarks:
            level: Level = "info" if remark.level == "info" else "warn"
            words = f"{path}: {remark.message[:160]}"
            yield Finding(level, words, fix=remark.fix or "", see=f"cat {path_word(path)}")
        if found and not remarks:
            shown = ", ".join(f"{name}={value[:60]}" for name, value in sorted(found.items()))
            yield Finding("info", f"{path} sets {shown}"[:200])


def _settings_by_file(a: NodeAnswers) -> dict[str, tuple[tuple[str, str], ...]]:
    files: Mapping[str, str] = a["files"]
    return {path: tuple(sorted(settings(files.get(path, "")).items())) for path in FILES.argument}


def _compare_sw_nccl_conf(nodes: Nodes) -> Iterator[Finding]:
    said = read_of_answering(nodes, _settings_by_file)
    for path, odd in deviations_by_name(said):
        differs = f"{path} differs from {odd.count} nodes"
        words = differs if odd.value else f"{path} is missing"
        yield Finding("warn", words, odd.as_on("the same"), hosts=odd.hosts)


Digests = Mapping[str, str | None]


def _ask_code_files(scope: Scope) -> Asked:
    if not scope.files:
        return {}
    argument = {"root": scope.root, "paths": [path for path, _ in scope.files]}
    return {"digests": Question("digests", argument, 15)}


def _compare_code_files(nodes: Nodes) -> Iterator[Finding]:
    scope = next(iter(nodes.values())).scope
    if not scope.files:
        yield Finding("skip", "no script given", hosts=tuple(nodes))
        return
    said: dict[str, Digests] = {}
    for host, digests in read_of_nodes(nodes, lambda a: a["digests"]):
        if isinstance(digests, UnansweredError):
            yield Finding("unknown", str(digests), hosts=(host,))
        else:
            said[host] = digests
    if said:
        yield from _compare_digests(scope, said)


def _compare_digests(scope: Scope, said: Mapping[str, Digests]) -> Iterator[Finding]:
    """A file that is nowhere, or nowhere as it is here, is still to be copied, which
    `dslaunch run` does: what divides the nodes is a fault."""
    here = {path: digest for path, digest in scope.files if digest}
    hosts = tuple(said)
    if not any(digest for found in said.values() for digest in found.values()):
        words = f"{listed([path for path, _ in scope.files], SHOWN)} not found"
        level: Level = "info" if here else "fail"
        fix = "" if here else "copy the file to the node, or correct its path"
        yield Finding(level, words, fix=fix, hosts=hosts)
        return
    wanted = {path: here.get(path) or _most_common(path, said) for path, _ in scope.files}
    bad = {
        host: [path for path, digest in wanted.items() if digests.get(path) != digest]
        for host, digests in said.items()
    }
    first = said[hosts[0]]
    are_alike = all(digests == first for digests in said.values())
    if are_alike and bad[hosts[0]]:
        words = f"{listed(bad[hosts[0]], SHOWN)} differs from the file on this machine"
        yield Finding("info", words, hosts=hosts)
        return
    expected = "the file on this machine" if here else "as on the other nodes"
    for host, paths in bad.items():
        missing = [path for path in paths if said[host].get(path) is None]
        other = [path for path in paths if path not in missing]
        if missing:
            yield Finding("fail", f"{listed(missing, SHOWN)}: missing", expected, hosts=(host,))
        if other:
            yield Finding(
                "fail", f"{listed(other, SHOWN)}: another version", expected, hosts=(host,)
            )
    words = "same code as on this machine" if here else "same code"
    yield Finding("pass", words, hosts=tuple(host for host, paths in bad.items() if not paths))


def _most_common(path: str, said: Mapping[str, Digests]) -> str | None:
    found = [digests.get(path) for digests in said.values() if digests.get(path)]
    return Counter(found).most_common(1)[0][0] if found else None


CHECKS = {
    "sw.environment": Check(
        title="login environments set no NCCL or CUDA variables",
        why=(
            "NCCL and CUDA on that node use what an administrator or an old experiment "
            "put into /etc/environment or ~/.bashrc, and no other node does. NCCL "
            "silently ignores values that it does not know. Where PYTHONPATH, PYTHONHOME, "
            "LD_LIBRARY_PATH or LD_PRELOAD differ, the ranks load different files."
        ),
        flow=judged(
            _sw_environment,
            lambda scope: {"variables": VARIABLES},
            fine="no NCCL or CUDA variables set at login",
            compare=_compare_sw_environment,
        ),
        fix=(
            "remove the variable on the node, or set it in `env:` of the cluster file for all nodes"
        ),
        see="ssh NODE env | grep -E 'NCCL|GLOO|CUDA|MASTER|RANK|PYTHON|LD_'",
        source="NCCL 2.30 src/misc/param.cc and src/graph/paths.cc; DeepSpeed 0.19 EXPORT_ENVS",
    ),
    "sw.locks": Check(
        title="no stale locks of kernel builds",
        why=(
            "PyTorch builds DeepSpeed's kernels under a lock file. A process killed "
            "while building leaves it, and every rank waits for it forever, without a "
            "message."
        ),
        flow=each(
            _flow_sw_locks,
            lambda scope: {"locks": USUAL, "environment": ENVIRONMENT},
            fine="no stale lock files",
        ),
        fix="remove the file `lock` if no build is running",
        see="find ~/.cache/torch_extensions -name lock -mmin +10",
        source="torch 2.13 utils/file_baton.py; microsoft/DeepSpeed#2816",
        limits={"warn": 10},
        limits_mean="minutes after which a lock file is stale",
    ),
    "sw.nccl-conf": Check(
        title="NCCL and DeepSpeed settings files are identical",
        why=(
            "NCCL reads /etc/nccl.conf and ~/.nccl.conf, DeepSpeed's launcher "
            "~/.deepspeed_env; a setting on one node only makes ranks incompatible."
        ),
        flow=judged(
            _sw_nccl_conf,
            lambda scope: {"files": FILES},
            fine="no settings files",
            compare=_compare_sw_nccl_conf,
        ),
        fix=("use the same file on all nodes, or remove it and use `env:` of the cluster file"),
        see="cat /etc/nccl.conf ~/.nccl.conf ~/.deepspeed_env",
        source="NCCL documentation, environment variables: configuration files; DeepSpeed 0.19 "
        "launcher/runner.py (DEEPSPEED_ENVIRONMENT_NAME)",
    ),
    "code.files": Check(
        title="all nodes have the same code",
        tier="gate",
        why=("Ranks that run different code wait for each other forever in different collectives."),
        fix="copy the code again: `dslaunch run` does, except with --no-sync",
        see="sha256sum FILE",
        source="PyTorch, torch.distributed: mismatched collectives hang",
        flow=compared(_compare_code_files, _ask_code_files),
    ),
}
