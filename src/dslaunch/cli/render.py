"""`dslaunch render`: hostfiles, include strings and other launchers' commands, from one file."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dslaunch.cli import options, ui
from dslaunch.cli.options import Exclude, Include, Label, Launcher, Nodes, Setting, Slots
from dslaunch.errors import UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.select import Selection


def render(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FORMAT [CLUSTER.yaml] [SCRIPT] [ARGS]...", show_default=False),
    ] = None,
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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    formats: Annotated[bool, typer.Option("--list", help="List the formats.")] = False,
) -> None:
    """Print what another launcher needs: a hostfile, an include string, its commands.

    No node is asked; what is assumed is said on standard error.
    Example: dslaunch render torchrun cluster.yaml train.py
    """
    from dslaunch.render import formats as known

    if formats:
        ui.result(ui.table([(name, known.get(name).summary) for name in known.names()]))
        return
    name, *rest = words or [""]
    if name not in known.names():
        raise _unknown(name, known.names())
    text, notes = _rendered(
        name,
        options.read_job(
            rest,
            module=module,
            no_python=no_python,
            launcher=launcher,
            env=env,
            workdir=workdir,
            fallback="train.py",
        ),
        options.selection(include, exclude, nodes, slots, label),
    )
    for note in notes:
        ui.say(note)
    if output is None:
        ui.result(text)
    else:
        _write(output, text)


def _rendered(name: str, asked: options.Asked, selection: Selection) -> tuple[str, list[str]]:
    from dslaunch.cluster.select import select
    from dslaunch.launch.assume import assume
    from dslaunch.render import formats
    from dslaunch.render.launch import Launch

    allocation = select(asked.cluster, selection)
    decided = assume(asked.cluster, allocation, str(Path.cwd()))
    rendered = formats.render(name, Launch(asked.cluster.name, allocation, asked.job, decided))
    assumed = [d for d in decided.decisions if d.assumed and d.value in rendered.text]
    notes = [f"assumed: {d.what} {d.value} ({d.why})" for d in assumed]
    return rendered.text, [*notes, *(f"note: {note}" for note in rendered.notes)]


def _unknown(name: str, names: tuple[str, ...]) -> UsageError:
    close = difflib.get_close_matches(name, names, 1)
    what = f"no format is named {name!r}" if name else "no format given"
    hint = f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(names)}"
    return UsageError(what, hint=hint)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from None
