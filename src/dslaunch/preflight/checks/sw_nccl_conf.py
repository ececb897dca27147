"""Whether files of NCCL's and DeepSpeed's settings say what all nodes should do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

FILES = Question("texts", ["/etc/nccl.conf", "~/.nccl.conf", "~/.deepspeed_env"], 5)


def settings(text: str) -> dict[str, str]:
    """NAME=VALUE lines; `#` begins a comment."""
    lines = (line.split("#")[0].strip().partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, sign, value in lines if sign and name.strip()}


def _judge(a: Answers) -> Iterator[Verdict]:
    files: Mapping[str, str] = a["files"]
    for path, text in files.items():
        found = settings(text)
        remarks = nccl.check(found, path)
        for remark in remarks:
            level: Level = "info" if remark.level == "info" else "warn"
            words = f"{path}: {remark.message[:160]}"
            yield Verdict(level, words, "", remark.fix or "", f"cat {path}")
        if found and not remarks:
            shown = ", ".join(f"{name}={value[:60]}" for name, value in sorted(found.items()))
            yield Verdict("info", f"{path} sets {shown}"[:200])
    if not any(settings(text) for text in files.values()):
        yield passed("no file sets anything")


def _compare(nodes: Nodes) -> Iterator[Verdict]:
    said = {host: a["files"] for host, a in nodes.items() if a.has("files")}
    for path in FILES.argument:
        set_there = {
            host: tuple(sorted(settings(files.get(path, "")).items()))
            for host, files in said.items()
        }
        for own, hosts, _, count in odd_ones(set_there):
            words = f"{path} says other than on {count} nodes" if own else f"{path} is missing"
            yield Verdict("warn", words, as_on("the same", count), hosts=hosts)


CHECK = Check(
    title="files of settings say the same on all nodes",
    tier="static",
    why="NCCL reads /etc/nccl.conf and ~/.nccl.conf, DeepSpeed's launcher ~/.deepspeed_env; what "
    "stands there on one node only makes ranks that do not fit together.",
    fix="the same file on all nodes, or none and `env:` in the cluster file",
    see="cat /etc/nccl.conf ~/.nccl.conf ~/.deepspeed_env",
    source="NCCL documentation, environment variables: configuration files; DeepSpeed 0.19 "
    "launcher/runner.py (DEEPSPEED_ENVIRONMENT_NAME)",
    ask=lambda scope: {"files": FILES},
    judge=_judge,
    compare=_compare,
)
