"""What is done with checkpoints on many nodes: found, gathered, spread, read through, pruned."""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dslaunch.cluster.model import Allocation
from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import Checkpoint, Copy, find
from dslaunch.deepspeed.placement import check_world, needed, rank_map, ranks_path
from dslaunch.errors import NodeError, NodeFailure, PlanError, PreflightError, UsageError
from dslaunch.run.places import LONG, NodePlace, Place, PlaceError, result, survey
from dslaunch.run.reach import Reached, ask
from dslaunch.run.shards import Progress, Tell, Transfer, copy


@dataclass(frozen=True, slots=True)
class Holdings:
    """The checkpoints below one directory of some places."""

    places: Mapping[str, Place]
    paths: Mapping[str, str]
    """Place -> the directory's absolute path there."""
    checkpoints: list[Checkpoint]
    failures: Mapping[str, NodeFailure]
    """The nodes that did not answer."""
    ranks: Mapping[str, Any]
    """Place -> the rank map that a run left there."""

    def path(self, copied: Copy) -> str:
        """Where a file is, absolute."""
        return posixpath.join(self.paths[copied.host], copied.path)


def look(places: Sequence[NodePlace], reached: Reached, directory: str) -> Holdings:
    """Find the checkpoints of the nodes."""
    told, offsets = survey(places, reached, directory)
    return _holdings(places, told, offsets, reached.failures)


def look_here(place: Place, directory: str) -> Holdings:
    """Find the checkpoints of one place, such as a gathered one. Raises PlaceError."""
    told = {place.name: result(place.ask("survey", directory), LONG)}
    return _holdings([place], told, {}, {})


def _holdings(
    places: Sequence[Place],
    told: Mapping[str, Any],
    offsets: Mapping[str, float],
    failures: Mapping[str, NodeFailure],
) -> Holdings:
    if any(c["tag"] == "." for survey in told.values() for c in survey["checkpoints"]):
        where = next(iter(told.values()))["path"]
        raise UsageError(
            f"{where} is the directory of one checkpoint",
            hint="name the one above it, in which `latest` is, and the checkpoint with --tag",
        )
    return Holdings(
        {place.name: place for place in places},
        {host: survey["path"] for host, survey in told.items()},
        find(told, offsets),
        failures,
        {host: survey["ranks"] for host, survey in told.items()},
    )


def require(checkpoint: Checkpoint, holdings: Holdings) -> None:
    """Raise PreflightError, or NodeError for nodes that may have it, if a shard is nowhere."""
    missing = checkpoint.missing()
    if not missing:
        return
    names = [posixpath.basename(path) for path in missing]
    some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    broken = [
        f"{copy.host}: {posixpath.basename(path)} is {copy.broken}"
        for path in missing
        for copy in checkpoint.files.get(path, ())
    ]
    count = f"{len(missing)} of {len(checkpoint.wanted())} shards are"
    what = f"{checkpoint.name} is incomplete: {count} on no node, or broken: {some}"
    if holdings.failures:
        silent = [f"{failure.host}: {failure.message}" for failure in holdings.failures.values()]
        what = "\n".join([what, *broken, *silent])
        raise PreflightError(what, hint="bring those nodes back, or choose an older --tag")
    raise PreflightError(
        "\n".join([what, *broken]),
        hint="choose an older --tag; `dslaunch checkpoint ls` shows which are complete",
    )


def gather(
    checkpoint: Checkpoint, holdings: Holdings, target: Place, directory: str, tell: Tell
) -> Progress:
    """Bring all of a checkpoint to one place, as if its storage had been shared.

    `latest` is written last: where it names the tag, the tag is whole. Raises as `require` and
    `shards.copy` do.
    """
    require(checkpoint, holdings)
    _refuse_mixed_up(checkpoint)
    transfers = [
        _transfer(holdings, copied, target, posixpath.join(directory, path))
        for path, copied in checkpoint.contents().items()
    ]
    progress = copy(transfers, tell)
    write_latest(checkpoint, {target.name: target}, {target.name: directory})
    return progress


def _transfer(holdings: Holdings, copied: Copy, target: Place, path: str) -> Transfer:
    source = holdings.places[copied.host]
    return Transfer(source, holdings.path(copied), target, path, copied.size, copied.mtime)


def _refuse_mixed_up(checkpoint: Checkpoint) -> None:
    """Tensors from NVMe lie under the local rank: those of several nodes have the same names."""
    if checkpoint.offloaded and checkpoint.header.node_local:
        raise PlanError(
            f"{checkpoint.name} has tensors that were on NVMe, under the same names on every node",
            hint="DeepSpeed can load it only where it was saved: the same nodes in the same order",
        )


def spread(
    checkpoint: Checkpoint,
    source: Holdings,
    allocation: Allocation,
    targets: Holdings,
    tell: Tell,
) -> Progress:
    """Bring every file to the nodes whose ranks will read it; then `latest`, to all of them.

    Raises PlanError if those ranks cannot load it, else as `require` and `shards.copy` do.
    """
    check_world(checkpoint, allocation.world_size)
    _refuse_mixed_up(checkpoint)
    require(checkpoint, source)
    lost = [targets.failures[host] for host in allocation.hosts if host in targets.failures]
    if lost:
        raise NodeError(tuple(lost))
    contents = checkpoint.contents()
    transfers = [
        _transfer(source, contents[path], targets.places[host], _at(targets, host, path))
        for placement in allocation.placements
        for host in [placement.node.host]
        for path in needed(checkpoint, placement)
    ]
    progress = copy(transfers, tell)
    chosen = {host: targets.places[host] for host in allocation.hosts}
    write_latest(checkpoint, chosen, targets.paths)
    write_ranks(rank_map("spread", allocation), chosen, targets.paths)
    return progress


def _at(holdings: Holdings, host: str, path: str) -> str:
    return posixpath.join(holdings.paths[host], path)


def write_latest(
    checkpoint: Checkpoint, places: Mapping[str, Place], paths: Mapping[str, str]
) -> None:
    """Have `latest` name this checkpoint's tag at all these places."""
    asked = [
        place.ask("text", posixpath.join(paths[h], checkpoint.root, "latest"), text=checkpoint.tag)
        for h, place in places.items()
    ]
    for future in asked:
        result(future)


def write_ranks(
    ranks: Mapping[str, object], places: Mapping[str, Place], paths: Mapping[str, str]
) -> None:
    """Leave the rank map beside the checkpoints."""
    text = json.dumps(ranks) + "\n"
    asked = [place.ask("text", ranks_path(paths[h]), text=text) for h, place in places.items()]
    for future in asked:
        result(future)


def read_through(checkpoint: Checkpoint, holdings: Holdings) -> dict[str, dict[str, str]]:
    """Read every byte of every shard where it lies: node -> path -> why it is broken."""
    asked = {}
    for host, place in holdings.places.items():
        names = [p for p in checkpoint.shards for c in checkpoint.files[p] if c.host == host]
        asked[host] = place.ask("check", holdings.paths[host], names=names)
    said = {host: result(future, LONG) for host, future in asked.items()}
    found = {host: {p: why for p, why in told.items() if why} for host, told in said.items()}
    return {host: broken for host, broken in found.items() if broken}


def prune(checkpoints: Sequence[Checkpoint], holdings: Holdings) -> int:
    """Remove checkpoints wherever their files are; how many files.

    Raises NodeError if a node did not answer: what it holds is not known.
    """
    if holdings.failures:
        raise NodeError(tuple(holdings.failures.values()))
    asked = []
    for host, place in holdings.places.items():
        names = [path for c in checkpoints for path in own_files(c, host)]
        asked.append(place.ask("remove", holdings.paths[host], names=names))
    return sum(result(future, LONG) for future in asked)


def own_files(checkpoint: Checkpoint, host: str) -> list[str]:
    """The files on a node that are this checkpoint's alone, none that others use too."""
    inside = f"{checkpoint.name}/"
    own_root = posixpath.basename(checkpoint.root).startswith("checkpoint-")
    inside = f"{checkpoint.root}/" if own_root else inside
    mine = [p for p, copies in checkpoint.files.items() if any(c.host == host for c in copies)]
    latest = [posixpath.join(checkpoint.root, "latest")] if own_root else []
    return [path for path in (*mine, *latest) if path.startswith(inside)]


def check_apart(reached: Reached, directory: str) -> None:
    """Raise PlanError if some nodes share the directory: each would write its own part of it."""
    mark = f".dslaunch-{secrets.token_hex(8)}"
    names = {host: f"{mark}-{number}" for number, host in enumerate(reached.sessions)}
    for host, session in reached.sessions.items():
        asked = session.ask(nonce_write={"paths": [directory], "name": names[host]})
        written = result(asked)["nonce_write"]["value"][directory]
        if written["error"]:
            raise PlaceError(f"{host}: {written['path']}: {written['error']}")
    seen = ask(reached, nonce_read={"paths": [directory], "names": list(names.values())})
    for host, session in reached.sessions.items():
        session.ask(nonce_remove={"paths": [directory], "name": names[host]})
    for host, answer in seen.items():
        others = [h for h, n in names.items() if n in answer["nonce_read"]["value"][directory]]
        if others != [host]:
            raise PlanError(
                f"{directory} is shared by {fold(others)}",
                hint="a checkpoint on shared storage needs no spreading: `dslaunch checkpoint "
                f"gather --to {host}:{directory}` brings it there",
            )
