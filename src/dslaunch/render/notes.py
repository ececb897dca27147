"""Notes about settings that a rendered text does not contain: codes, and their texts. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dslaunch.notes import Note, NoteCode, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dslaunch.cluster.model import Node
    from dslaunch.render.launch import Launch

DEEPSPEED_EXPORTS = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Prefixes of the variables that DeepSpeed's runner exports to other nodes (0.19.8,
launcher/runner.py EXPORT_ENVS, and accelerator/cuda_accelerator.py)."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of the local machine, on which DeepSpeed's runner starts ranks without pdsh."""

PLAIN = re.compile(r"[\w@+=:,./-]+").fullmatch
EXPANDED = re.compile(r'["$`\\%]')
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


class RenderNote(NoteCode):
    """A note for the user of a rendered text."""

    # formats
    SECRETS_NOT_PRINTED = (
        "secrets-not-printed",
        "secrets are not printed; set them on every node before the start: {names}",
    )
    NODES_DIFFER = (
        "nodes-differ",
        "{tool} starts all nodes like the first node, but they differ in: {differences}",
    )
    SSH_SETTINGS = (
        "ssh-settings",
        "set these in ~/.ssh/config for the nodes, because this text cannot: {settings}",
    )
    LOCAL_HOME = (
        "local-home",
        "`$HOME` is expanded on the machine where you run this; it must be equal on all nodes",
    )
    NOT_EXPORTED = (
        "not-exported",
        "deepspeed exports these variables to other nodes only if ~/.deepspeed_env has them: "
        "{names}",
    )
    ARGUMENTS_CHANGED = (
        "arguments-changed",
        "deepspeed does not pass these words to the nodes unchanged: {words}",
    )
    VALUES_CHANGED = (
        "values-changed",
        "deepspeed does not pass the values of these variables to other nodes unchanged: {names}",
    )
    SAVE_HOSTFILE = (
        "save-hostfile",
        "save the output of `dslaunch render hostfile` as `{file}` in the working directory",
    )
    SLOT_GAPS = (
        "slot-gaps",
        "a hostfile cannot select slots {slots} of {nodes}: also pass the output of `dslaunch "
        "render include` to `deepspeed`",
    )
    MACHINE_RANK = (
        "machine-rank",
        "on each node: `accelerate launch --config_file accelerate.yaml --machine_rank N`, with N "
        "from 0",
    )

    # sbatch scripts
    CPUS_PER_RANK = (
        "cpus-per-rank",
        "with `{launcher}` every rank is a SLURM task, so each rank gets --cpus-per-task={cpus}",
    )
    ONE_CPU_PER_TASK = (
        "one-cpu-per-task",
        "SLURM allocates 1 CPU per task unless `slurm.cpus_per_task` is set",
    )
    DEFAULT_MEMORY = (
        "default-memory",
        "`slurm.mem` is not set, so the site's default memory limit applies to the whole nodes; "
        "`mem: 0` requests all memory",
    )
    UNREQUESTED_GPUS = (
        "unrequested-gpus",
        "whole nodes are requested, but not all of their GPUs",
    )
    GPUS_CHOSEN_BY_SLURM = (
        "gpus-chosen-by-slurm",
        "SLURM chooses the GPUs of a node; only their number can be requested",
    )
    DEFAULT_TIME_LIMIT = (
        "default-time-limit",
        "`slurm.time` is not set, so the partition's default time limit applies",
    )
    WORKDIR_NOT_MOUNTED = (
        "workdir-not-mounted",
        "`slurm.container.mounts` does not contain the working directory {workdir}; the image or "
        "the site must provide it",
    )
    SECRETS_IN_ENVIRONMENT = (
        "secrets-in-environment",
        "secrets are not in the script; sbatch passes them in its environment: {names}",
    )


def secret_notes(launch: Launch) -> tuple[Note, ...]:
    """Return a note with the names of the secrets, which no text contains."""
    names = [secret.name for secret in launch.job.secrets]
    return _about(RenderNote.SECRETS_NOT_PRINTED, "names", names)


def differing_notes(launch: Launch, tool: str) -> tuple[Note, ...]:
    """Return a note with the differences of the nodes, for a tool with one setting for all."""
    nodes = [p.node for p in launch.placements]
    what = [name for name, of in START.items() if len({of(node) for node in nodes}) > 1]
    if len({launch.environment(p) for p in launch.placements}) > 1:
        what.append("environment")
    if not what:
        return ()
    return (note(RenderNote.NODES_DIFFER, tool=tool, differences=tuple(what)),)


def ssh_notes(launch: Launch) -> tuple[Note, ...]:
    """Return a note with settings for ~/.ssh/config, for a tool that uses host names only."""
    what = [name for name, of in CONNECTION.items() if any(of(p.node) for p in launch.placements)]
    return _about(RenderNote.SSH_SETTINGS, "settings", what)


def home_notes(text: str) -> tuple[Note, ...]:
    """Return a note about `$HOME` in a text that one shell expands for all nodes."""
    return (note(RenderNote.LOCAL_HOME),) if '"$HOME"' in text else ()


def export_notes(launch: Launch) -> tuple[Note, ...]:
    """Return notes with the variables that DeepSpeed's runner does not export to other nodes, or
    not unchanged.

    It strips values and puts double quotes around some, within which the remote shell expands
    `$`, and pdsh expands `%` (0.19.8, launcher/multinode_runner.py, `add_export`).
    """
    if not _starts_through_pdsh(launch):
        return ()
    env = [
        variable
        for variable in launch.environment(launch.placements[0])
        if variable[0] != "CUDA_VISIBLE_DEVICES"
    ]
    kept = [name for name, _ in env if not name.startswith(DEEPSPEED_EXPORTS)]
    changed = [
        name
        for name, value in env
        if name not in kept and (EXPANDED.search(value) or value != value.strip())
    ]
    return (
        *_about(RenderNote.NOT_EXPORTED, "names", kept),
        *_about(RenderNote.VALUES_CHANGED, "names", changed),
    )


def _starts_through_pdsh(launch: Launch) -> bool:
    """Return whether DeepSpeed's runner starts the nodes with pdsh, as all but this machine."""
    return len(launch.placements) > 1 or launch.allocation.hosts[0] not in LOOPBACK


def argument_notes(launch: Launch) -> tuple[Note, ...]:
    """Return a note with the words that DeepSpeed's runner changes when it uses pdsh.

    It puts double quotes around arguments with a space and nothing around the others, the
    script or the directory, so the remote shell expands their `$`, quotes and so on; pdsh expands
    their `%` (0.19.8, launcher/multinode_runner.py). Its launcher removes a first `--`.
    """
    if not _starts_through_pdsh(launch):
        return ()
    args = [word for word in launch.job.args if isinstance(word, str)]
    changed = [
        *(text for text in (launch.decided.workdir, launch.job.program) if not PLAIN(text)),
        *(text for i, text in enumerate(args) if not ARGUMENT(text) or (i, text) == (0, "--")),
    ]
    return _about(RenderNote.ARGUMENTS_CHANGED, "words", map(repr, changed))


def _about(code: RenderNote, parameter: str, names: Iterable[str]) -> tuple[Note, ...]:
    """Return a note with names, each once; none without names."""
    unique = tuple(dict.fromkeys(names))
    return (note(code, **{parameter: unique}),) if unique else ()
