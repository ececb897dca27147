"""`dslaunch render`: hostfiles, include strings and other launchers' commands, from one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots
from dslaunch.cli.words import FILE_ENDINGS, JobOptions
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation
    from dslaunch.launch.plan import Decided
    from dslaunch.render.launch import Rendered

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
    from dslaunch.cluster.select import select

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
        command="render",
    )
    asked = options.read_job(rest, how, workdir=workdir, slurm=slurm)
    allocation = select(asked.cluster, options.selection(include, exclude, nodes, slots, label))
    decided = assumed(asked, allocation, master_addr, master_port)
    _hand_over(_rendered(name, asked, allocation, decided), decided, output)


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


def assumed(
    asked: options.Asked, allocation: Allocation, address: str | None, port: int | None
) -> Decided:
    """What is assumed of the nodes, less what the options say about the master."""
    from dslaunch.launch.assume import assume
    from dslaunch.launch.decisions import MASTER_ASSUMED, DecisionCode, decision

    network = replace(asked.cluster.network, master_port=port or asked.cluster.network.master_port)
    cluster = replace(asked.cluster, network=network)
    decided = assume(cluster, allocation, str(Path.cwd()))
    if address is None:
        return decided
    code = DecisionCode.MASTER_GIVEN
    master = decision(code, address=address, port=decided.rendezvous.port)
    return replace(
        decided,
        rendezvous=replace(decided.rendezvous, address=address),
        decisions=tuple(master if d.code in MASTER_ASSUMED else d for d in decided.decisions),
    )


def _rendered(
    name: str, asked: options.Asked, allocation: Allocation, decided: Decided
) -> Rendered:
    from dslaunch.render import formats
    from dslaunch.render.launch import Launch

    return formats.render(name, Launch(asked.cluster.name, allocation, asked.job, decided))


def _hand_over(rendered: Rendered, decided: Decided, output: Path | None) -> None:
    """Print or write the text; the notes on it go to people."""
    for d in decided.decisions:
        if d.assumed and _says(rendered.text, d.value):
            ui.say(f"assumed: {d.what} {d.value} ({d.why})")
    for note in rendered.notes:
        ui.say(f"note: {note}")
    if output is None:
        ui.document(rendered.text)
    else:
        _write(output, rendered.text)


def _says(text: str, value: str) -> bool:
    """Whether a decision has a part in the text; address and port may stand apart in it."""
    address, _, port = value.rpartition(":")
    return value in text or (bool(address) and address in text and port in text)


def _format_list() -> str:
    from dslaunch.render import formats

    rows = [(name, formats.get(name).summary) for name in formats.every_name()]
    return ui.table(rows, ui.width())


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8", "surrogateescape")
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None
