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


def init(
    hostfile: Annotated[Path | None, typer.Option(help="From a DeepSpeed hostfile.")] = None,
    hosts: Annotated[str | None, typer.Option(help="From names: node[01-04],old01.")] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(help="From the Host entries of an ssh_config.")
    ] = None,
    slurm_env: Annotated[
        bool, typer.Option("--slurm-env", help="From the SLURM allocation we are in.")
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="From this machine's GPUs.")] = False,
    slots: Annotated[int | None, typer.Option(min=1, help="GPUs of each node.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write; - is standard output.")
    ] = Path("cluster.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented cluster file.

    Example: dslaunch init --hosts 'node[01-04]' --slots 8
    """
    from dslaunch.cluster.discover import cluster_yaml

    chosen = [name for name, given in (
        ("--hostfile", hostfile), ("--hosts", hosts), ("--ssh-config", ssh_config),
        ("--slurm-env", slurm_env), ("--local", local),
    ) if given]  # fmt: skip
    if len(chosen) != 1:
        given = " and ".join(chosen) or "none"
        raise UsageError(
            f"one source is needed, got {given}",
            hint="--hostfile FILE, --hosts NAMES, --ssh-config FILE, --slurm-env or --local",
        )
    text = cluster_yaml(_discover(hostfile, hosts, ssh_config, slurm_env, slots))
    if str(output) == "-":
        ui.result(text)
        return
    if output.exists() and not force:
        raise UsageError(f"{output} is there already", hint="--force replaces it, -o names another")
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from None
    ui.say(f"wrote {output}; look at it, then: dslaunch validate {output}")


def _discover(
    hostfile: Path | None,
    hosts: str | None,
    ssh_config: Path | None,
    slurm: bool,
    slots: int | None,
) -> Discovered:
    from dslaunch.cluster import discover

    if hostfile is not None:
        return discover.from_hostfile(_read(hostfile), hostfile.name)
    if hosts is not None:
        return discover.from_hosts(hosts, slots)
    if ssh_config is not None:
        return discover.from_ssh_config(_read(ssh_config), slots)
    if slurm:
        return discover.from_slurm(os.environ, slots)
    return discover.from_machine(_gpu_list(), slots)


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


def _gpu_list() -> str:
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    return subprocess.run([program, "-L"], capture_output=True, text=True, check=False).stdout
