"""Notes on what a rendered text cannot carry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dslaunch.cluster.model import Node
    from dslaunch.render.launch import Launch

DEEPSPEED_EXPORTS = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Beginnings of the names of variables that DeepSpeed's runner hands to other nodes (0.19.8,
launcher/runner.py EXPORT_ENVS, and accelerator/cuda_accelerator.py)."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of the machine where DeepSpeed's runner is typed: their part is started without pdsh."""

PLAIN = re.compile(r"[\w@+=:,./-]+").fullmatch
ARGUMENT = re.compile(r"[\w@+=:,./ -]+").fullmatch

CONNECTION: dict[str, Callable[[Node], str | int | None]] = {
    "user": lambda node: node.user,
    "port": lambda node: node.port,
    "key": lambda node: node.identity_file,
    "jump host": lambda node: node.jump,
}
START: dict[str, Callable[[Node], str | None]] = {
    "interpreter": lambda node: node.python,
    "activate line": lambda node: node.activate,
}


def secret_notes(launch: Launch) -> tuple[str, ...]:
    """Secrets are in no text; say which the nodes need."""
    names = [secret.name for secret in launch.job.secrets]
    if not names:
        return ()
    return (f"set on every node before the start, since secrets are not printed: {_list(names)}",)


def differing_notes(launch: Launch, tool: str) -> tuple[str, ...]:
    """Say in what the nodes differ, for a tool that treats all alike."""
    nodes = [p.node for p in launch.placements]
    what = [name for name, of in START.items() if len({of(node) for node in nodes}) > 1]
    if len({launch.environment(p) for p in launch.placements}) > 1:
        what.append("environment")
    if not what:
        return ()
    return (f"{tool} treats all nodes like the first, but they differ in: {', '.join(what)}",)


def ssh_notes(launch: Launch) -> tuple[str, ...]:
    """Say what ~/.ssh/config must hold for a tool that knows only host names."""
    what = [name for name, of in CONNECTION.items() if any(of(p.node) for p in launch.placements)]
    if not what:
        return ()
    return (f"only ~/.ssh/config can tell it the nodes' {', '.join(what)}",)


def home_notes(text: str) -> tuple[str, ...]:
    """Say whose home a text means that is read by one shell for all nodes."""
    if '"$HOME"' not in text:
        return ()
    return ("`$HOME` is taken from where this is typed, and must be the same on every node",)


def export_notes(launch: Launch) -> tuple[str, ...]:
    """Say which variables DeepSpeed's runner keeps to the first machine."""
    kept = [
        name
        for name, _ in launch.environment(launch.placements[0])
        if not name.startswith(DEEPSPEED_EXPORTS) and name != "CUDA_VISIBLE_DEVICES"
    ]
    if not kept or len(launch.placements) == 1:
        return ()
    return (f"deepspeed hands these to other nodes only by ~/.deepspeed_env: {_list(kept)}",)


def argument_notes(launch: Launch) -> tuple[str, ...]:
    """Say which words DeepSpeed's runner changes on their way through pdsh.

    It puts double quotes around arguments with a space and nothing around the others, the
    script or the directory, so the remote shell reads their `$`, quotes and so on; pdsh reads
    their `%` (0.19.8, launcher/multinode_runner.py). A first `--` is taken by its launcher.
    """
    if len(launch.placements) == 1 and launch.allocation.hosts[0] in LOOPBACK:
        return ()
    args = [word for word in launch.job.args if isinstance(word, str)]
    changed = [
        *(text for text in (launch.decided.workdir, launch.job.program) if not PLAIN(text)),
        *(text for i, text in enumerate(args) if not ARGUMENT(text) or (i, text) == (0, "--")),
    ]
    if not changed:
        return ()
    return (f"deepspeed does not hand these on unchanged: {_list(map(repr, changed))}",)


def _list(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
