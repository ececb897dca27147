"""Decide which files of a checkpoint each node needs for DeepSpeed to load it. Pure.

Each rank reads its own shards by name, from its own node's disk, and the tag from `latest` beside
them (DeepSpeed 0.19.8, runtime/engine.py, `load_checkpoint`). A rank without `latest` starts from
the beginning while the others resume, silently with ZeRO-1 and 2 (since 0.17.1 only rank 0 writes
it, #7215).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import OFFLOADED, Checkpoint
from dslaunch.deepspeed.shards import parse_name
from dslaunch.errors import ErrorCode, PlanError
from dslaunch.plural import listed

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Placement

_OF_RANK = re.compile(r"rng_state_(\d+)\.pth")
"""One per rank, on the node of the rank (transformers 5.23, trainer.py, `_load_rng_state`)."""
_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)(\.index\.json)?")
"""Not read when DeepSpeed resumes; kept on the node of rank 0."""


def check_world(checkpoint: Checkpoint, ranks: int) -> None:
    """Raise PlanError if this number of ranks cannot load it, each from its own node."""
    if checkpoint.parallel > 1:
        raise PlanError.coded(
            ErrorCode.MODEL_PARALLEL_CHECKPOINT,
            checkpoint=checkpoint.name,
            ranks=checkpoint.parallel,
        )
    if checkpoint.stage != 0 and checkpoint.world != ranks:
        raise PlanError.coded(
            ErrorCode.WORLD_SIZE_DIFFERS,
            checkpoint=checkpoint.name,
            saved=checkpoint.world,
            ranks=ranks,
        )


class _Everyone(Enum):
    """Who reads a file that belongs to no rank."""

    ALL = "all nodes"
    FIRST = "the node of rank 0"


class Readers(Struct, frozen=True):
    """The files of a checkpoint by who reads them. Each rank has some, and a node looks only at
    those of its own ranks."""

    positions: Mapping[str, int]
    """Paths in the order in which they are read."""
    of: Mapping[int | _Everyone, Sequence[str]]
    """Paths by rank."""

    @classmethod
    def of_files(cls, checkpoint: Checkpoint) -> Readers:
        """Return who reads the files of a checkpoint."""
        paths = list(dict.fromkeys((*checkpoint.contents(), *checkpoint.wanted())))
        found: dict[int | _Everyone, list[str]] = {}
        for path in paths:
            found.setdefault(_reader(path), []).append(path)
        return cls({path: position for position, path in enumerate(paths)}, found)

    def needed(self, placement: Placement) -> tuple[str, ...]:
        """Return the paths of the files that a node needs."""
        who: list[int | _Everyone] = [_Everyone.ALL, *placement.ranks]
        if placement.node_rank == 0:
            who.append(_Everyone.FIRST)
        paths = [path for reader in who for path in self.of.get(reader, ())]
        return tuple(sorted(paths, key=self.positions.__getitem__))


def _reader(path: str) -> int | _Everyone:
    """Return the rank that reads a file."""
    name = posixpath.basename(path)
    shard = parse_name(name)
    if shard is not None:
        return shard.rank if shard.kind in ("optimizer", "partition") else _Everyone.ALL
    if f"/{OFFLOADED}/" in f"/{path}":
        return _offloaded_rank(path)
    if match := _OF_RANK.fullmatch(name):
        return int(match[1])
    return _Everyone.FIRST if _WEIGHTS.fullmatch(name) else _Everyone.ALL


def _offloaded_rank(path: str) -> int:
    """`offloaded_tensors/rank00000003/...` (utils/misc, `dp_index_to_str`)."""
    match = re.search(rf"{OFFLOADED}/rank(\d+)/", path)
    return int(match[1]) if match else -1


class Lacking(Struct, frozen=True):
    """The shards of a checkpoint that a node needs and does not have."""

    host: str
    ranks: range
    shards: tuple[str, ...]
    """Paths."""
    nowhere: tuple[str, ...]
    """The shards that are on no reachable node."""
    elsewhere: tuple[str, ...]
    """The nodes that have the other shards."""

    def __str__(self) -> str:
        lost = self.nowhere
        names = [posixpath.basename(path) for path in lost or self.shards]
        some = listed(names, 2)
        where = "found on no node" if lost else f"found on {fold(self.elsewhere)}"
        first, last = self.ranks.start, self.ranks[-1]
        ranks = f"ranks {first}-{last}" if last > first else f"rank {first}"
        return f"{self.host} ({ranks}) lacks {some} ({where})"


def lacking(checkpoint: Checkpoint, allocation: Allocation) -> tuple[Lacking, ...]:
    """Return the nodes that lack shards, with what each lacks."""
    found = []
    known = {*checkpoint.shards, *checkpoint.wanted()}
    readers = Readers.of_files(checkpoint)
    for placement in allocation.placements:
        host = placement.node.host
        wanted = [path for path in readers.needed(placement) if path in known]
        missing = tuple(path for path in wanted if not _has(checkpoint, path, host))
        if missing:
            copies = {
                path: [c for c in checkpoint.files.get(path, ()) if not c.broken]
                for path in missing
            }
            nowhere = tuple(path for path in missing if not copies[path])
            holders = {copy.host for some in copies.values() for copy in some}
            found.append(Lacking(host, placement.ranks, missing, nowhere, tuple(sorted(holders))))
    return tuple(found)


def _has(checkpoint: Checkpoint, path: str, host: str) -> bool:
    """Return whether the node has a complete copy, the same as the one in the checkpoint."""
    mine = checkpoint.on(host).get(path)
    if mine is None or mine.broken:
        return False
    shard = parse_name(posixpath.basename(path))
    best = checkpoint.files[path][0]
    if shard is not None and shard.kind in ("optimizer", "partition"):
        return (mine.size, mine.mtime) == (best.size, best.mtime)
    return True


def ranks_place(directory: str) -> tuple[str, str]:
    """Return the directory and the file name of the rank map on every node.

    It is beside the checkpoint directory, not in it: some scripts refuse an output directory that
    is not empty (transformers, examples of 4.x, `run_clm.py`).
    """
    above, name = posixpath.split(posixpath.normpath(directory))
    return above, f".dslaunch-ranks.{name}.json"


def rank_map(run: str, allocation: Allocation) -> dict[str, object]:
    """Return the order of the nodes and their ranks, to keep beside the checkpoints."""
    return {
        "run": run,
        "hosts": list(allocation.hosts),
        "ranks": [list(placement.ranks) for placement in allocation.placements],
        "world_size": allocation.world_size,
    }
