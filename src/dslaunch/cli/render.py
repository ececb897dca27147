"""`dslaunch render`: hostfiles, include strings and other launchers' command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from dslaunch import api
from dslaunch.cli import options, ui
from dslaunch.cli.output_files import output_option
from dslaunch.cli.positional import FILE_ENDINGS
from dslaunch.cli.run_options import JobOptions, SelectionOptions, read_job
from dslaunch.errors import UsageError
from dslaunch.registry import FORMATS, LAUNCHERS

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FORMAT [CLUSTER.yaml] [SCRIPT [ARG]...]",
        help="Format (see --list), then the cluster file, the script and its arguments as for "
        "`run` (default script: train.py).",
        show_default=False,
        callback=options.in_order(formats=1),
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--master-addr",
        metavar="ADDRESS",
        help="Rendezvous address (default: the first node).",
    ),
]
Output = Annotated[
    Path | None,
    output_option("--output", "-o", text="Write to a file; - is standard output.", or_stdout=True),
]
CONTEXT = options.SCRIPT_LAST


def render(
    *,
    words: Words = None,
    which: SelectionOptions,
    how: JobOptions,
    slurm: options.Allocated = False,
    master_addr: Address = None,
    master_port: options.Port = None,
    output: Output = None,
    formats: Annotated[bool, typer.Option("--list", help="List the formats.")] = False,
    file: options.ClusterOption = None,
) -> None:
    """Print a hostfile or another launcher's command lines.

    No node is contacted. Assumptions are printed on standard error.

    Example: dslaunch render torchrun cluster.yaml train.py
    """
    if formats:
        ui.result(_format_list())
        ui.warn_of_unused_plugins(FORMATS)
        return
    name, *rest = words or [""]
    check_format(name)
    how = replace(how, launcher=how.launcher or _launcher_of(name))
    asked = read_job(rest, how, command="render", file=file, slurm=slurm, fallback="train.py")
    rendered = api.render(
        name,
        asked.cluster,
        asked.job,
        which.of(asked.cluster),
        master_addr=master_addr,
        master_port=master_port,
    )
    for assumed in rendered.decisions:
        ui.say(f"assumed: {assumed.what} {assumed.value} ({assumed.why})")
    for note in rendered.notes:
        ui.say(f"note: {note}")
    ui.document(rendered.text, output)


def _launcher_of(name: str) -> str | None:
    """Return the launcher whose command lines a format has; None: the format is another text."""
    if name in LAUNCHERS.names():
        return name
    if name in FORMATS.names():
        return None
    return name if name in LAUNCHERS.every_name() else None


def check_format(name: str) -> None:
    """Raise UsageError for an unknown format, before any file is read."""
    from dslaunch.render import formats

    if not name:
        known = ", ".join(formats.every_name())
        raise UsageError("no format given", hint=f"dslaunch render FORMAT; formats: {known}")
    if name.endswith(FILE_ENDINGS):
        raise UsageError(
            f"{name}: expected a format",
            hint=f"name the format first: dslaunch render FORMAT {name}; list them with --list",
        )
    if name.startswith("-"):
        raise UsageError(f"{name}: expected a format", hint="list them with --list")
    formats.get(name)


def _format_list() -> str:
    from dslaunch.render import formats

    rows = [(name, formats.get(name).summary) for name in formats.every_name()]
    return ui.table(rows, ui.width())
