"""`dslaunch init`: a first cluster file from what is already written down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.discover import Discovered

GPU_TIMEOUT = 30.0
"""Seconds; a driver that is being loaded takes several."""
SOURCES = (
    "--hostfile FILE, --hosts NAMES, --ssh-config FILE, --slurm-env, --slurm PARTITION or --local"
)


def init(
    hostfile: Annotated[
        Path | None, typer.Option(help="From a hostfile of DeepSpeed or MPI.")
    ] = None,
    hosts: Annotated[str | None, typer.Option(help="From names: node[01-04],old01.")] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(help="From the Host entries of an ssh_config.")
    ] = None,
    slurm_env: Annotated[
        bool, typer.Option("--slurm-env", help="From the SLURM allocation we are in.")
    ] = False,
    partition: Annotated[
        str | None, typer.Option("--slurm", metavar="PARTITION", help="From SLURM's partition.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="From this machine's GPUs.")] = False,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs of each node; of a hostfile, where a line names none."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write; - is standard output.")
    ] = Path("cluster.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented cluster file from one of six sources.

    Example: dslaunch init --hosts 'node[01-04]' --slots 8
    """
    from dslaunch.render.cluster_file import cluster_yaml

    sources = {
        "--hostfile": hostfile is not None,
        "--hosts": hosts is not None,
        "--ssh-config": ssh_config is not None,
        "--slurm-env": slurm_env,
        "--slurm": partition is not None,
        "--local": local,
    }
    check_one([name for name, given in sources.items() if given])
    if partition is not None:
        text = _partition(partition, slots)
    else:
        text = cluster_yaml(_discover(hostfile, hosts, ssh_config, slurm_env, slots))
    if str(output) == "-":
        ui.document(text)
    else:
        ui.write_new(output, text, "--output", force=force)
        ui.say(f"wrote {output}; look at it, then: dslaunch validate {output}")


def check_one(given: list[str]) -> None:
    """Refuse no source and two sources. Raises UsageError."""
    if len(given) != 1:
        what = " and ".join(given) or "none"
        raise UsageError(f"one source is needed, got {what}", hint=SOURCES)


def _discover(
    hostfile: Path | None,
    hosts: str | None,
    ssh_config: Path | None,
    slurm: bool,
    slots: int | None,
) -> Discovered:
    from dslaunch.cluster import discover

    if hostfile is not None:
        return discover.from_hostfile(_read(hostfile, "--hostfile"), str(hostfile), slots)
    if hosts is not None:
        return discover.from_hosts(hosts, slots)
    if ssh_config is not None:
        own = ssh_config.expanduser().resolve() == Path("~/.ssh/config").expanduser().resolve()
        named = None if own else str(ssh_config.expanduser().absolute())
        return discover.from_ssh_config(_read(ssh_config, "--ssh-config"), slots, named)
    if slurm:
        return discover.from_slurm(os.environ, slots)
    return discover.from_machine(_gpu_list() if slots is None else "", slots)


def _partition(name: str, slots: int | None) -> str:
    from dslaunch.slurm import node_discovery
    from dslaunch.slurm.client import here
    from dslaunch.slurm.partition import partition_file

    return partition_file(node_discovery.partition(here(), name), slots)


def _read(path: Path, option: str) -> str:
    try:
        return path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise UsageError(f"{option} {path}: {why}") from None


def _gpu_list() -> str:
    """What `nvidia-smi -L` prints; nothing where there is no such program. Raises UsageError."""
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        return subprocess.run(
            [program, "-L"], capture_output=True, text=True, check=False, timeout=GPU_TIMEOUT
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"--local: {error}", hint="say how many GPUs there are: --slots N"
        ) from None
