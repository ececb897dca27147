"""Which file of a checkpoint must be on which node, for DeepSpeed to load it there. Pure.

Each rank reads its own shards by name, from its own node's disk, and the tag from `latest` beside
them (DeepSpeed 0.19.8, runtime/engine.py, `load_checkpoint`). Where `latest` is missing, that rank
starts afresh while others do not: with ZeRO-1 and 2 silently (`global_rank == 0` alone writes it
since 0.17.1, #7215).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.checkpoint import OFFLOADED, Checkpoint
from dslaunch.deepspeed.shards import parse_name
from dslaunch.errors import PlanError

if TYPE_CHECKING:
    from dslaunch.cluster.model import Allocation, Placement
    from dslaunch.protocol.checkpoints import RankMap

_OF_RANK = re.compile(r"rng_state_(\d+)\.pth")
"""One per rank, read from its own node (transformers 5.23, trainer.py, `_load_rng_state`)."""
_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)(\.index\.json)?")
"""Not read by a training that DeepSpeed resumes; kept with the first rank."""


def check_world(checkpoint: Checkpoint, ranks: int) -> None:
    """Raise PlanError if so many ranks cannot load it, each from its own node."""
    if checkpoint.parallel > 1:
        raise PlanError(
            f"{checkpoint.name} is of {checkpoint.parallel} model-parallel ranks: which node needs "
            "which shard is not known",
            hint="load it from storage that all nodes share: `dslaunch checkpoint gather` into it",
        )
    if checkpoint.stage != 0 and checkpoint.world != ranks:
        raise PlanError(
            f"{checkpoint.name} was saved by {checkpoint.world} ranks, this would be {ranks}: "
            "DeepSpeed refuses to load it ('used a DP world size of')",
            hint=f"use {checkpoint.world} slots in all, or make a universal checkpoint of the "
            "gathered one with DeepSpeed's ds_to_universal.py, on storage that all nodes share",
        )


def needed(checkpoint: Checkpoint, placement: Placement) -> tuple[str, ...]:
    """The paths that one node needs."""
    return tuple(
        path
        for path in dict.fromkeys((*checkpoint.contents(), *checkpoint.wanted()))
        if _is_needed(checkpoint, path, placement)
    )


def _is_needed(checkpoint: Checkpoint, path: str, placement: Placement) -> bool:
    name = posixpath.basename(path)
    shard = parse_name(name)
    if shard is not None:
        return shard.kind not in ("optimizer", "partition") or shard.rank in placement.ranks
    if f"/{OFFLOADED}/" in f"/{path}":
        return _offloaded_rank(path) in placement.ranks
    if match := _OF_RANK.fullmatch(name):
        return int(match[1]) in placement.ranks
    return placement.node_rank == 0 or not _WEIGHTS.fullmatch(name)


def _offloaded_rank(path: str) -> int:
    """`offloaded_tensors/rank00000003/...` (utils/misc, `dp_index_to_str`)."""
    match = re.search(rf"{OFFLOADED}/rank(\d+)/", path)
    return int(match[1]) if match else -1


@dataclass(frozen=True, slots=True)
class Lacking:
    """What one node lacks of a checkpoint that its ranks are to load."""

    host: str
    ranks: range
    shards: tuple[str, ...]
    """Paths."""
    nowhere: tuple[str, ...]
    """Those of them that no node of those that were asked has."""
    elsewhere: tuple[str, ...]
    """The nodes that have the others."""

    def __str__(self) -> str:
        lost = self.nowhere
        names = [posixpath.basename(path) for path in lost or self.shards]
        some = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        where = "which none of these nodes has" if lost else f"which {fold(self.elsewhere)} has"
        ranks = f"{self.ranks.start}-{self.ranks[-1]}" if len(self.ranks) > 1 else self.ranks.start
        return f"{self.host} (ranks {ranks}) lacks {some}, {where}"


def lacking(checkpoint: Checkpoint, allocation: Allocation) -> tuple[Lacking, ...]:
    """The nodes that could not load it as it lies, and what each lacks."""
    found = []
    known = {*checkpoint.shards, *checkpoint.wanted()}
    for placement in allocation.placements:
        host = placement.node.host
        wanted = [path for path in needed(checkpoint, placement) if path in known]
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
    """Whether the node's copy is whole, and the one that the checkpoint is made of."""
    copies = checkpoint.files.get(path, ())
    mine = next((copy for copy in copies if copy.host == host), None)
    if mine is None or mine.broken:
        return False
    shard = parse_name(posixpath.basename(path))
    best = copies[0]
    if shard is not None and shard.kind in ("optimizer", "partition"):
        return (mine.size, mine.mtime) == (best.size, best.mtime)
    return True


def same_order(ranks: RankMap | None, allocation: Allocation) -> str | None:
    """Compare the rank map that a run left on a node with that of a new one: what differs."""
    now = allocation.hosts
    if ranks is None or tuple(ranks.hosts) == tuple(now):
        return None
    before = ", ".join(ranks.hosts)
    return f"it was saved by {before} in this order, now they are {', '.join(now)}"


def ranks_place(directory: str) -> tuple[str, str]:
    """Where the rank map is, as a directory and a name: beside the directory that a training saves
    to, on every node.

    Not in it: scripts refuse to begin with an output directory that is not empty (transformers,
    examples of 4.x, `run_clm.py`).
    """
    above, name = posixpath.split(posixpath.normpath(directory))
    return above, f".dslaunch-ranks.{name}.json"


def rank_map(run: str, allocation: Allocation) -> dict[str, object]:
    """The order of the nodes and their ranks, as it is kept beside the checkpoints."""
    return {
        "run": run,
        "hosts": list(allocation.hosts),
        "ranks": [list(placement.ranks) for placement in allocation.placements],
        "world_size": allocation.world_size,
    }
