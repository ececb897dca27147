"""`dslaunch checkpoint`: what DeepSpeed saved on which nodes, and how to bring it elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dslaunch.cli import ui
from dslaunch.cli.checkpoint_places import all_nodes, node_named, on_nodes, one_place, only, split
from dslaunch.cli.options import (
    Exclude,
    Include,
    Label,
    Nodes,
    Slots,
    open_cluster,
    selection,
)
from dslaunch.errors import PreflightError, UsageError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.deepspeed.checkpoint import Checkpoint
    from dslaunch.run.checkpoint_stores import CheckpointStore
    from dslaunch.run.checkpoints import Holdings
    from dslaunch.run.shards import CopyProgress

APP = typer.Typer(
    help="Find, check, gather, spread and convert what DeepSpeed saved on many nodes.\n\n"
    "Example: dslaunch checkpoint ls cluster.yaml",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLUSTER.yaml DIRECTORY",
        help="The cluster file; then the directory on the nodes that the training saves to: "
        "relative ones start at `storage.workdir`. Default: `storage.checkpoints`.",
        show_default=False,
    ),
]
Tag = Annotated[
    str | None,
    typer.Option("--tag", "-t", help="Which checkpoint; default: the newest complete one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
To = Annotated[str, typer.Option("--to", help="A directory here, or HOST:DIRECTORY on a node.")]
From = Annotated[
    str | None,
    typer.Option("--from", help="A gathered one: a directory here, or HOST:DIRECTORY."),
]


@APP.command()
def ls(words: Words = None, tag: Tag = None, json: Json = False) -> None:
    """List the checkpoints on all nodes: complete or not, how large, where.

    With --tag, which ranks' shards each node has.

    Example: dslaunch checkpoint ls cluster.yaml checkpoints
    """
    from dslaunch.deepspeed.checkpoint import choose
    from dslaunch.report.checkpoint import detail, rows

    with all_nodes(words) as (_, directory, holdings, _reached):
        found = holdings.checkpoints
        chosen = [choose(found, tag, directory)] if tag else found
    if json:
        _print([_data(checkpoint) for checkpoint in chosen])
    elif tag:
        ui.result(ui.table(detail(chosen[0], list(holdings.places)), ui.width()))
    else:
        ui.result(ui.table(rows(found), ui.width()) if found else f"no checkpoint in {directory}")
    _complain(holdings)


@APP.command()
def verify(
    words: Words = None,
    tag: Tag = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    json: Json = False,
) -> None:
    """Read every byte of a checkpoint, and tell whether these nodes can resume from it.

    Example: dslaunch checkpoint verify cluster.yaml checkpoints --tag step30
    """
    from dslaunch.cluster.select import select
    from dslaunch.deepspeed.checkpoint import choose, shared
    from dslaunch.deepspeed.placement import check_world, lacking
    from dslaunch.report.checkpoint import faults
    from dslaunch.run.checkpoints import read_through

    with all_nodes(words) as (cluster, directory, holdings, _):
        chosen = choose(holdings.checkpoints, tag, directory)
        broken = read_through(chosen, holdings)
    allocation = select(cluster, selection(include, exclude, nodes, slots, label))
    check_world(chosen, allocation.world_size)
    one = shared([chosen], list(holdings.places))
    wrong = faults(chosen, broken, () if one else lacking(chosen, allocation))
    if json:
        _print({**_data(chosen), "faults": wrong})
    elif not wrong:
        ui.result(f"{chosen.name}: {len(chosen.wanted())} shards read, all whole and in place")
    bare = [host for host in allocation.hosts if chosen.latest.get(host) != chosen.tag]
    if bare and not one:
        ui.say(
            f"`latest` does not name it on {', '.join(bare)}: there DeepSpeed alone would begin "
            "afresh, or take another; `dslaunch run` and `spread` write it"
        )
    _complain(holdings)
    if wrong:
        hint = "`dslaunch checkpoint spread` brings shards to the nodes whose ranks need them"
        raise PreflightError("\n".join([f"{chosen.name} cannot be resumed", *wrong]), hint=hint)


@APP.command()
def gather(to: To, words: Words = None, tag: Tag = None, json: Json = False) -> None:
    """Bring all shards of a checkpoint to one place.

    What was interrupted goes on where it stopped when it is called again.

    Example: dslaunch checkpoint gather cluster.yaml checkpoints --to gathered
    """
    from dslaunch.deepspeed.checkpoint import choose
    from dslaunch.report.checkpoint import copied
    from dslaunch.run.checkpoints import gather as gather_all

    with all_nodes(words) as (_, directory, holdings, _reached):
        chosen = choose(holdings.checkpoints, tag, directory)
        _say_which(chosen, tag)
        with one_place(to, holdings.places) as (place, path):
            progress = gather_all(chosen, holdings, place, path, _teller())
    if json:
        _print({**_data(chosen), "to": to, "there": progress.there, "resumed": progress.resumed})
    else:
        ui.result(f"{chosen.name} is in {to}: {copied(progress)}")


@APP.command()
def spread(
    words: Words = None,
    from_: From = None,
    tag: Tag = None,
    include: Include = "",
    exclude: Exclude = "",
    nodes: Nodes = None,
    slots: Slots = None,
    label: Label = None,
    json: Json = False,
) -> None:
    """Bring each shard to the node whose ranks will read it, and `latest` to all.

    From a gathered checkpoint, or without --from between the nodes themselves. The nodes are
    chosen as for `run`: name a spare with --include.

    Example: dslaunch checkpoint spread cluster.yaml checkpoints --from gathered -i 'node[1-3]'
    """
    from dslaunch.cluster.select import select
    from dslaunch.deepspeed.checkpoint import choose
    from dslaunch.report.checkpoint import copied
    from dslaunch.run.checkpoints import check_apart, look_here
    from dslaunch.run.checkpoints import spread as spread_all

    wish = selection(include, exclude, nodes, slots, label)

    def needed(cluster: Cluster) -> Container[str]:
        own = select(cluster, wish).hosts if from_ else [node.host for node in cluster.nodes]
        return {*own, (from_ or "").partition(":")[0]}

    with all_nodes(words, needed) as (cluster, directory, holdings, reached):
        allocation = select(cluster, wish)
        with contextlib.ExitStack() as stack:
            source = holdings
            if from_ is not None:
                place, path = stack.enter_context(one_place(from_, holdings.places))
                source = look_here(place, path)
            chosen = choose(source.checkpoints, tag, from_ or directory)
            _say_which(chosen, tag)
            check_apart(reached, directory)
            progress = spread_all(chosen, source, allocation, holdings, _teller())
    if json:
        _print({**_data(chosen), "hosts": list(allocation.hosts), "there": progress.there})
    else:
        ui.result(f"{chosen.name} is on {', '.join(allocation.hosts)}: {copied(progress)}")


@APP.command()
def consolidate(
    to: Annotated[str, typer.Option("--to", help="Directory for the weights, where it runs.")],
    words: Words = None,
    tag: Tag = None,
    on: Annotated[str | None, typer.Option("--on", help="Convert on this node.")] = None,
    python: Annotated[
        str | None, typer.Option("--python", help="An interpreter that has DeepSpeed.")
    ] = None,
    safetensors: Annotated[
        bool, typer.Option("--safetensors", help="Write safetensors, not torch's format.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where memory or disk seem too small.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load the shards even if they name other code to run.")
    ] = False,
) -> None:
    """Make fp32 weights of a gathered checkpoint with DeepSpeed's own converter.

    DIRECTORY is here, or with --on on that node.

    Example: dslaunch checkpoint consolidate gathered --to weights
    """
    file, directory = split(words)
    if directory is None:
        raise UsageError("no directory given", hint="name the one that a checkpoint is gathered in")
    form = _Form(tag=tag, python=python, safetensors=safetensors, force=force, trust=trust)
    if on is None:
        name = _convert_here(directory, to, form)
    else:
        cluster = open_cluster(file)
        to = on_nodes(cluster, to)
        name = _convert_on(cluster, on, on_nodes(cluster, directory), to, form)
    ui.result(f"fp32 weights of {name} are in {f'{on}:' if on else ''}{to}")


@dataclass(frozen=True, slots=True)
class _Form:
    """How to convert what."""

    tag: str | None
    python: str | None
    safetensors: bool
    force: bool
    trust: bool

    def check(self, place: CheckpointStore, directory: str, to: str) -> tuple[Checkpoint, str]:
        """The checkpoint, and the directory that the converter is given, once all is well."""
        from dslaunch.deepspeed.checkpoint import choose
        from dslaunch.run.checkpoints import look_here, require
        from dslaunch.run.consolidate import check_names, check_room, directory_of

        holdings = look_here(place, directory)
        chosen = choose(holdings.checkpoints, self.tag, directory)
        require(chosen, holdings)
        if not self.trust:
            check_names(chosen, place, holdings.paths[place.name])
        if not self.force:
            check_room(chosen, place, to)
        return chosen, directory_of(chosen, holdings.paths[place.name])


def _convert_here(directory: str, to: str, form: _Form) -> str:
    from dslaunch.run.consolidate import command, convert_here

    if not Path(directory).is_dir():
        why = "not a directory" if Path(directory).exists() else "there is no such directory here"
        raise UsageError(
            f"{directory}: {why}",
            hint="gather a checkpoint first: "
            "`dslaunch checkpoint gather CLUSTER.yaml DIRECTORY --to HERE`; or convert --on NODE",
        )
    with one_place(directory, {}) as (place, path):
        chosen, top = form.check(place, path, to)
    python = form.python or sys.executable
    to = str(Path(to).absolute())
    made = command(python, top, to, chosen.tag, safetensors=form.safetensors, trust=form.trust)
    convert_here(made, ui.say)
    return chosen.name


def _convert_on(cluster: Cluster, on: str, directory: str, to: str, form: _Form) -> str:
    from dataclasses import replace

    from dslaunch.run.consolidate import convert_on, node_command

    node = node_named(cluster, on)
    node = replace(node, python=form.python or node.python)
    with contextlib.ExitStack() as stack:
        chosen, top = form.check(only(stack, cluster, on), directory, to)
    made = node_command(node, top, to, chosen.tag, safetensors=form.safetensors, trust=form.trust)
    convert_on(cluster, node, made, ui.say)
    return chosen.name


@APP.command()
def prune(
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many complete ones stay.")],
    words: Words = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove; else only show what.")] = False,
    json: Json = False,
) -> None:
    """Remove all but the newest complete checkpoints, on all nodes.

    What `latest` names stays, and so does what is newer, since it may be being saved.

    Example: dslaunch checkpoint prune cluster.yaml checkpoints --keep 2
    """
    from dslaunch.deepspeed.checkpoint import to_prune
    from dslaunch.run.checkpoints import prune as remove_all
    from dslaunch.run.shards import in_words

    with all_nodes(words) as (_, directory, holdings, _reached):
        _complain(holdings)
        old = to_prune(holdings.checkpoints, keep)
        removed = remove_all(old, holdings) if yes else 0
    names = [checkpoint.name for checkpoint in old]
    if json:
        _print({"directory": directory, "checkpoints": names, "files_removed": removed})
    elif not old:
        ui.result("nothing to remove")
    else:
        size = in_words(sum(c.size for checkpoint in old for c in _copies(checkpoint)))
        done = f"removed: {removed} files" if yes else "would be removed; --yes does it"
        ui.result("\n".join([*names, f"{len(names)} checkpoints, {size}, {done}"]))


def _copies(checkpoint: Checkpoint) -> list[Any]:
    return [copied for copies in checkpoint.files.values() for copied in copies]


def _say_which(chosen: Checkpoint, tag: str | None) -> None:
    named = sorted(set(chosen.latest.values()) - {chosen.tag})
    if tag is None and named:
        ui.say(f"{chosen.name} is the newest complete one; `latest` names {', '.join(named)}")


def _teller() -> Callable[[CopyProgress], None]:
    """Shows how far a copy has come: often on a terminal, every ten seconds elsewhere."""
    import time

    from dslaunch.report.checkpoint import progress_line
    from dslaunch.report.outlet import ERASE

    terminal = sys.stderr.isatty()
    pause = 0.5 if terminal else 10.0
    last = time.monotonic()

    def tell(progress: CopyProgress) -> None:
        nonlocal last
        over = progress.files_done == progress.files
        if time.monotonic() - last < pause and not (over and terminal):
            return
        last = time.monotonic()
        end = "\n" if over or not terminal else ""
        with contextlib.suppress(OSError):
            sys.stderr.write((ERASE if terminal else "") + progress_line(progress) + end)
            sys.stderr.flush()

    return tell


def _data(checkpoint: Checkpoint) -> dict[str, Any]:
    from dslaunch.report.checkpoint import as_data

    return as_data(checkpoint)


def _print(value: object) -> None:
    import json as jsonlib

    ui.result(jsonlib.dumps(value, indent=2))


def _complain(holdings: Holdings) -> None:
    for failure in holdings.failures.values():
        ui.say(f"{failure.host}: {failure.message}")
