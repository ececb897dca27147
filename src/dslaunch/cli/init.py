"""`dslaunch init`: create a cluster file from an existing source."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import ui
from dslaunch.cli.output_files import STDOUT, output_option
from dslaunch.cluster import discover
from dslaunch.errors import UsageError
from dslaunch.lint.user_text import read_file
from dslaunch.render.cluster_file import cluster_yaml
from dslaunch.slurm import node_discovery
from dslaunch.slurm.client import here
from dslaunch.slurm.partition import partition_file

if TYPE_CHECKING:
    from dslaunch.cluster.discover import Discovered

GPU_TIMEOUT = 30.0
"""Seconds for `nvidia-smi -L`; loading the driver takes several."""
SOURCES = (
    "--hostfile FILE, --hosts NAMES, --ssh-config FILE, --slurm-env, --slurm PARTITION or --local"
)


def init(
    hostfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use a hostfile of DeepSpeed or MPI.")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="HOSTS", help="Use host names, for example node[01-04],old01."),
    ] = None,
    ssh_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use the Host entries of an SSH configuration."),
    ] = None,
    slurm_env: Annotated[
        bool, typer.Option("--slurm-env", help="Use the current SLURM allocation.")
    ] = False,
    partition: Annotated[
        str | None, typer.Option("--slurm", metavar="PARTITION", help="Use a SLURM partition.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Use the GPUs of this machine.")] = False,
    slots: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="GPUs of each node; for a hostfile, where a line has no slots.",
        ),
    ] = None,
    output: Annotated[
        Path,
        output_option(
            "--output", "-o", text="Write to a file; - is standard output.", or_stdout=True
        ),
    ] = Path("cluster.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Create a cluster file from hosts, a hostfile or SLURM.

    The file has comments for the most common settings.

    Example: dslaunch init --hosts 'node[01-04]' --slots 8
    """
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
    if str(output) == STDOUT:
        ui.document(text)
    else:
        ui.write_new(output, text, "--output", force=force)
        ui.say(f"next: review it, then run `dslaunch validate {output}`")


def check_one(given: list[str]) -> None:
    """Raise UsageError unless exactly one source is given."""
    if len(given) != 1:
        what = " and ".join(given) or "none"
        raise UsageError(f"expected 1 source, got {what}", hint=f"use one of {SOURCES}")


def _discover(
    hostfile: Path | None,
    hosts: str | None,
    ssh_config: Path | None,
    slurm: bool,
    slots: int | None,
) -> Discovered:
    if hostfile is not None:
        return discover.from_hostfile(read_file(hostfile.expanduser()), str(hostfile), slots)
    if hosts is not None:
        return discover.from_hosts(hosts, slots)
    if ssh_config is not None:
        own = os.path.realpath(ssh_config.expanduser()) == os.path.realpath(
            Path("~/.ssh/config").expanduser()
        )
        named = None if own else str(ssh_config.expanduser().absolute())
        return discover.from_ssh_config(read_file(ssh_config.expanduser()), slots, named)
    if slurm:
        return discover.from_slurm(os.environ, slots)
    return discover.from_machine(_gpu_list() if slots is None else "", slots)


def _partition(name: str, slots: int | None) -> str:
    return partition_file(node_discovery.partition(here(), name), slots)


def _gpu_list() -> str:
    """Return the output of `nvidia-smi -L`; empty if it is not installed. Raises UsageError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        return subprocess.run(
            [program, "-L"], capture_output=True, text=True, check=False, timeout=GPU_TIMEOUT
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--local: {error}", hint="give the number of GPUs: --slots N") from None
