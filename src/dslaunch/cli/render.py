"""`dslaunch render`: hostfiles, include strings and other launchers' commands, from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dslaunch import api
from dslaunch.cli import options, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots
from dslaunch.cli.positional import FILE_ENDINGS, JobOptions
from dslaunch.errors import UsageError

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FORMAT CLUSTER.yaml SCRIPT ARGS",
        help="A format of --list; then the cluster file and what to run, as for `run`. "
        "The script is train.py where none is named.",
        show_default=False,
        callback=options.in_order(formats=1),
    ),
]
Address = Annotated[
    str | None, typer.Option("--master-addr", help="Where rank 0 is; default: the first node.")
]
Port = Annotated[
    int | None, typer.Option("--master-port", min=1, max=65535, help="Its port; default 29500.")
]
CONTEXT = options.SCRIPT_LAST


def render(
    words: Words = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    module: options.Module = False,
    no_python: options.NoPython = False,
    launcher: Launcher = None,
    env: Setting = None,
    workdir: options.Workdir = None,
    slurm: options.Allocated = False,
    master_addr: Address = None,
    master_port: Port = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    formats: Annotated[bool, typer.Option("--list", help="List the formats.")] = False,
) -> None:
    """Print a hostfile, an include string or other launchers' lines.

    No node is asked; what is assumed is said on standard error.

    Example: dslaunch render torchrun cluster.yaml train.py
    """
    if formats:
        ui.result(_format_list())
        return
    name, *rest = words or [""]
    check_format(name)
    how = JobOptions(
        module=module,
        no_python=no_python,
        launcher=launcher,
        env=tuple(env or ()),
        fallback="train.py",
    )
    asked = options.read_job(rest, how, workdir=workdir, slurm=slurm)
    rendered = api.render(
        name,
        asked.cluster,
        asked.job,
        api.select(
            asked.cluster,
            include=include,
            exclude=exclude,
            nodes=nodes,
            slots=slots,
            labels=label or (),
        ),
        master_addr=master_addr,
        master_port=master_port,
    )
    for assumed in rendered.decisions:
        ui.say(f"assumed: {assumed.what} {assumed.value} ({assumed.why})")
    for note in rendered.notes:
        ui.say(f"note: {note}")
    ui.document(rendered.text, output)


def check_format(name: str) -> None:
    """Refuse an unknown format before anything is read. Raises UsageError."""
    from dslaunch.render import formats

    if not name:
        known = ", ".join(formats.every_name())
        raise UsageError("no format given", hint=f"dslaunch render FORMAT; there are: {known}")
    if name.endswith(FILE_ENDINGS):
        raise UsageError(
            f"{name} stands where the format is expected",
            hint=f"the format is first: dslaunch render FORMAT {name}; formats: --list",
        )
    if name.startswith("-"):
        raise UsageError(f"{name} stands where the format is expected", hint="see --list")
    formats.get(name)


def _format_list() -> str:
    from dslaunch.render import formats

    rows = [(name, formats.get(name).summary) for name in formats.every_name()]
    return ui.table(rows, ui.width())
