"""`dslaunch checkpoint`: list, verify and copy the checkpoints on the nodes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import replace

from dslaunch.cli import ui
from dslaunch.cli.checkpoint_directories import (
    all_nodes,
    node_named,
    on_nodes,
    one_place,
    only,
    split,
)
from dslaunch.cli.json_option import Json
from dslaunch.cli.options import ClusterOption, open_cluster
from dslaunch.cli.run_options import SelectionOptions
from dslaunch.cli.signatures import with_option_groups
from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import choose, shared, to_prune
from dslaunch.deepspeed.placement import check_world, lacking
from dslaunch.errors import ConfigError, PreflightError, Problem, UsageError
from dslaunch.plural import byte_count, counted, first_few
from dslaunch.report.checkpoint import as_data, detail, faults, progress_line, rows
from dslaunch.report.node_list import listed_nodes
from dslaunch.report.output_stream import ERASE
from dslaunch.run.checkpoints import check_apart, look_here, read_through, require
from dslaunch.run.checkpoints import gather as gather_all
from dslaunch.run.checkpoints import prune as remove_all
from dslaunch.run.checkpoints import spread as spread_all
from dslaunch.run.consolidate import (
    check_names,
    check_resources,
    command,
    convert_here,
    convert_on,
    directory_of,
    node_command,
)

if TYPE_CHECKING:
    from dslaunch.cluster.model import Cluster
    from dslaunch.deepspeed.checkpoint import Checkpoint
    from dslaunch.run.checkpoint_stores import CheckpointStore
    from dslaunch.run.checkpoints import Holdings
    from dslaunch.run.shards import CopyProgress

APP = typer.Typer(
    help="List, verify, copy and convert DeepSpeed checkpoints.\n\n"
    "The shards of a checkpoint may be on different nodes.\n\n"
    "Example: dslaunch checkpoint ls cluster.yaml",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLUSTER.yaml] [DIR]",
        help="Cluster file, then the checkpoint directory on the nodes, relative to "
        "`storage.workdir` (default: `storage.checkpoints`).",
        show_default=False,
    ),
]
Tag = Annotated[
    str | None,
    typer.Option(
        "--tag", "-t", metavar="TAG", help="Tag of the checkpoint (default: newest complete one)."
    ),
]
To = Annotated[
    str,
    typer.Option("--to", metavar="[HOST:]DIR", help="Destination, local or on a node."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="[HOST:]DIR", help="Gathered checkpoint, local or on a node."),
]


SHOWN_FAULTS = 20
"""Faults of a checkpoint that a person is shown; JSON has all of them."""


@APP.command()
def ls(
    words: Words = None, tag: Tag = None, json: Json = False, file: ClusterOption = None
) -> None:
    """List the checkpoints on all nodes.

    Shows whether each is complete, its size and its nodes. With --tag, shows the ranks whose
    shards each node has.

    Example: dslaunch checkpoint ls cluster.yaml checkpoints
    """
    with all_nodes(words, file=file) as (_, directory, holdings, _reached):
        found = holdings.checkpoints
        chosen = [choose(found, tag, directory)] if tag else found
    if json:
        ui.data([as_data(checkpoint) for checkpoint in chosen])
    elif tag:
        ui.result(ui.table(detail(chosen[0], list(holdings.places)), ui.width()))
    else:
        ui.result(ui.table(rows(found), ui.width()) if found else f"no checkpoints in {directory}")
    _complain(holdings)


@APP.command()
@with_option_groups
def verify(
    *,
    words: Words = None,
    tag: Tag = None,
    which: SelectionOptions,
    json: Json = False,
    file: ClusterOption = None,
) -> None:
    """Verify that the nodes can resume from a checkpoint.

    Reads every byte of it.

    Example: dslaunch checkpoint verify cluster.yaml checkpoints --tag step30
    """
    with all_nodes(words, file=file) as (cluster, directory, holdings, _):
        chosen = choose(holdings.checkpoints, tag, directory)
        broken = read_through(chosen, holdings)
    allocation = which.of(cluster)
    check_world(chosen, allocation.world_size)
    one = shared([chosen], list(holdings.places))
    wrong = faults(chosen, broken, () if one else lacking(chosen, allocation))
    if json:
        ui.data({**as_data(chosen), "faults": wrong})
    elif not wrong:
        ui.result(f"{chosen.name}: {counted(len(chosen.wanted()), 'shard')} verified")
    bare = [host for host in allocation.hosts if chosen.latest.get(host) != chosen.tag]
    if bare and not one:
        ui.say(
            f"`latest` does not name {chosen.tag} on {listed_nodes(bare)}: without dslaunch, "
            "DeepSpeed would start from scratch or resume from another checkpoint there; "
            "`dslaunch run` and `dslaunch checkpoint spread` write `latest`"
        )
    _complain(holdings)
    if wrong:
        hint = "run `dslaunch checkpoint spread` to copy shards to the nodes that need them"
        shown = first_few(wrong, SHOWN_FAULTS)
        raise PreflightError("\n".join([f"cannot resume from {chosen.name}", *shown]), hint=hint)


@APP.command()
def gather(
    to: To,
    words: Words = None,
    tag: Tag = None,
    json: Json = False,
    file: ClusterOption = None,
) -> None:
    """Copy all shards of a checkpoint to one directory.

    An interrupted copy resumes when the command is repeated.

    Example: dslaunch checkpoint gather cluster.yaml checkpoints --to gathered
    """
    from dslaunch.report.checkpoint import copied

    with all_nodes(words, file=file) as (_, directory, holdings, _reached):
        chosen = choose(holdings.checkpoints, tag, directory)
        _say_which(chosen, tag)
        with one_place(to, holdings.places) as (place, path):
            progress = gather_all(chosen, holdings, place, path, _teller())
    if json:
        ui.data({**as_data(chosen), "to": to, "there": progress.there, "resumed": progress.resumed})
    else:
        ui.result(f"gathered {chosen.name} in {to}: {copied(progress)}")


@APP.command()
@with_option_groups
def spread(
    *,
    words: Words = None,
    from_: From = None,
    tag: Tag = None,
    which: SelectionOptions,
    json: Json = False,
    file: ClusterOption = None,
) -> None:
    """Copy each shard to the nodes whose ranks read it.

    The source is a gathered checkpoint, or without --from the other nodes. `latest` is written on
    all nodes. The nodes are selected as for `run`; name a spare with --include.

    Example: dslaunch checkpoint spread cluster.yaml checkpoints --from gathered
    """
    from dslaunch.report.checkpoint import copied

    def needed(cluster: Cluster) -> Container[str]:
        own = which.of(cluster).hosts if from_ else [node.host for node in cluster.nodes]
        return {*own, (from_ or "").partition(":")[0]}

    target = from_ is not None
    with all_nodes(words, needed, file=file, is_target=target) as (
        cluster,
        directory,
        holdings,
        reached,
    ):
        allocation = which.of(cluster)
        with contextlib.ExitStack() as stack:
            source = holdings
            if from_ is not None:
                place, path = stack.enter_context(one_place(from_, holdings.places))
                source = look_here(place, path)
                source.check_readable(from_, may_be_missing=False)
            chosen = choose(source.checkpoints, tag, from_ or directory)
            _say_which(chosen, tag)
            check_apart(reached, directory)
            progress = spread_all(chosen, source, allocation, holdings, _teller())
    if json:
        ui.data({**as_data(chosen), "hosts": list(allocation.hosts), "there": progress.there})
    else:
        ui.result(f"copied {chosen.name} to {fold(allocation.hosts)}: {copied(progress)}")


@APP.command()
def consolidate(
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Directory for the weights.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLUSTER.yaml] DIR",
            help="Directory of a gathered checkpoint; with --on, the cluster file before it.",
            show_default=False,
        ),
    ] = None,
    tag: Tag = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="HOST", help="Convert on this node.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PROGRAM", help="Python interpreter with DeepSpeed."),
    ] = None,
    safetensors: Annotated[
        bool, typer.Option("--safetensors", help="Write safetensors instead of torch's format.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Convert even if memory or disk space seems too small.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load shards even if they contain other code to run.")
    ] = False,
    cluster: ClusterOption = None,
) -> None:
    """Convert a gathered checkpoint to fp32 weights.

    Uses DeepSpeed's own converter. The directories are local, or with --on on that node.

    Example: dslaunch checkpoint consolidate gathered --to weights
    """
    file, directory = split(words, cluster)
    if directory is None:
        raise UsageError(
            "no directory given",
            hint="name the directory of a gathered checkpoint: "
            "dslaunch checkpoint consolidate DIRECTORY --to WEIGHTS",
        )
    conversion = _Conversion(
        tag=tag, python=python, safetensors=safetensors, force=force, trust=trust
    )
    if on is None:
        name = _convert_here(directory, to, conversion)
    else:
        known = open_cluster(file)
        to = on_nodes(known, to)
        name = _convert_on(known, on, on_nodes(known, directory), to, conversion)
    ui.result(f"wrote fp32 weights of {name} to {f'{on}:' if on else ''}{to}")


class _Conversion(Struct, frozen=True):
    """What `consolidate` converts, and how."""

    tag: str | None
    python: str | None
    safetensors: bool
    force: bool
    trust: bool

    def check(self, place: CheckpointStore, directory: str, to: str) -> tuple[Checkpoint, str]:
        """Return the checkpoint and the directory for the converter. Raises DslaunchError."""
        holdings = look_here(place, directory)
        chosen = choose(holdings.checkpoints, self.tag, directory)
        require(chosen, holdings)
        if not self.trust:
            check_names(chosen, place, holdings.paths[place.name])
        if not self.force:
            check_resources(chosen, place, to)
        return chosen, directory_of(chosen, holdings.paths[place.name])


def _convert_here(directory: str, to: str, conversion: _Conversion) -> str:
    if not Path(directory).is_dir():
        why = "not a directory" if Path(directory).exists() else "no such directory"
        raise ConfigError(
            (Problem(directory, 0, 0, "", why, rule="unreadable"),),
            hint="gather a checkpoint first: "
            "dslaunch checkpoint gather CLUSTER.yaml DIRECTORY --to HERE\n"
            "or convert on a node: --on NODE",
        )
    with one_place(directory, {}) as (place, path):
        chosen, top = conversion.check(place, path, to)
    python = conversion.python or sys.executable
    to = str(Path(to).absolute())
    made = command(
        python, top, to, chosen.tag, safetensors=conversion.safetensors, trust=conversion.trust
    )
    convert_here(made, ui.say)
    return chosen.name


def _convert_on(cluster: Cluster, on: str, directory: str, to: str, conversion: _Conversion) -> str:
    node = node_named(cluster, on)
    node = replace(node, python=conversion.python or node.python)
    with contextlib.ExitStack() as stack:
        chosen, top = conversion.check(only(stack, cluster, on), directory, to)
    made = node_command(
        node, top, to, chosen.tag, safetensors=conversion.safetensors, trust=conversion.trust
    )
    convert_on(cluster, node, made, ui.say)
    return chosen.name


@APP.command()
def prune(
    keep: Annotated[
        int,
        typer.Option("--keep", metavar="N", min=1, help="Keep the N newest complete checkpoints."),
    ],
    words: Words = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove them; without it, only list them.")
    ] = False,
    json: Json = False,
    file: ClusterOption = None,
) -> None:
    """Remove old checkpoints on all nodes.

    The checkpoint that `latest` names is kept, and newer ones, which may still be written.

    Example: dslaunch checkpoint prune cluster.yaml checkpoints --keep 2
    """
    with all_nodes(words, file=file) as (_, directory, holdings, _reached):
        _complain(holdings)
        old = to_prune(holdings.checkpoints, keep)
        removed = remove_all(old, holdings) if yes else 0
    names = [checkpoint.name for checkpoint in old]
    if json:
        ui.data({"directory": directory, "checkpoints": names, "files_removed": removed})
    elif not old:
        ui.result("nothing to remove")
    else:
        size = byte_count(sum(c.size for checkpoint in old for c in _copies(checkpoint)))
        found = f"{counted(len(names), 'checkpoint')}, {size}"
        done = f"removed {counted(removed, 'file')}" if yes else "not removed; use --yes to remove"
        ui.result("\n".join([*names, f"{found}: {done}"]))


def _copies(checkpoint: Checkpoint) -> list[Any]:
    return [copied for copies in checkpoint.files.values() for copied in copies]


def _say_which(chosen: Checkpoint, tag: str | None) -> None:
    named = sorted(set(chosen.latest.values()) - {chosen.tag})
    if tag is None and named:
        ui.say(f"using {chosen.name}, the newest complete one; `latest` names {', '.join(named)}")


def _teller() -> Callable[[CopyProgress], None]:
    """Return a function that prints progress: every 0.5 s on a terminal, else every 10 s."""
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


def _complain(holdings: Holdings) -> None:
    for failure in holdings.failures.values():
        ui.say(f"{failure.host}: {failure.message}")
