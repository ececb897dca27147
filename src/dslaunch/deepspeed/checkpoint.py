"""Find the DeepSpeed checkpoints on the nodes, and whether each is complete. Pure.

Without shared storage, each node has the files that its own ranks wrote; the checkpoint is their
union. The rules for required files are those of DeepSpeed 0.19.8, runtime/engine.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from msgspec import Struct, field

from dslaunch.deepspeed.shards import (
    Shard,
    model_name,
    optimizer_name,
    parse_name,
    partition_name,
)
from dslaunch.errors import ErrorCode, SelectionError
from dslaunch.protocol.checkpoints import MOST_SHARDS, File, Header, Part, Survey

OFFLOADED = "offloaded_tensors"
LOADED = ("_optim_states.pt", "_model_states.pt")


class Copy(Struct, frozen=True):
    """A file of a checkpoint on one node."""

    host: str
    path: str
    """Relative to the directory that was searched."""
    size: int
    mtime: int
    """Modification time in nanoseconds by the node's clock; with the size it identifies a
    version."""
    saved: float
    """Modification time in seconds by our clock."""
    mode: int = 0o600
    """File mode."""
    file: str = ""
    """Device and inode."""
    broken: str | None = None
    """Why it cannot be loaded; empty: it can be loaded."""


class Checkpoint(Struct, frozen=True, dict=True):
    """One saved state of a training, with its files on all nodes."""

    root: str
    """The directory of `latest`, relative to the searched directory; `.` is the directory
    itself."""
    tag: str
    header: Header
    files: Mapping[str, tuple[Copy, ...]]
    """Path -> copies, the best copy first."""
    latest: Mapping[str, str] = field(default_factory=dict)
    """Node -> the tag in its `latest`."""

    @property
    def name(self) -> str:
        """Return its name for users: `step30`, `checkpoint-200/global_step200`."""
        return posixpath.normpath(posixpath.join(self.root, self.tag))

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """Return DeepSpeed's files by path, with their parsed names."""
        named = {path: parse_name(posixpath.basename(path)) for path in self.files}
        return {path: shard for path, shard in named.items() if shard is not None}

    def on(self, host: str) -> Mapping[str, Copy]:
        """Return a node's copies by path."""
        return self._by_host.get(host, {})

    @cached_property
    def _by_host(self) -> dict[str, dict[str, Copy]]:
        found: dict[str, dict[str, Copy]] = {}
        for path, copies in self.files.items():
            for copy in copies:
                found.setdefault(copy.host, {}).setdefault(path, copy)
        return found

    @property
    def is_latest(self) -> bool:
        """Return whether a node's `latest` names it."""
        return self.tag in self.latest.values()

    @property
    def saved(self) -> float:
        """Return the time of its newest shard, in seconds since the epoch."""
        return max((self.files[path][0].saved for path in self.shards), default=0.0)

    @property
    def size(self) -> int:
        """Return its size in bytes, with each file counted once."""
        return sum(copies[0].size for copies in self.files.values())

    @property
    def world(self) -> int:
        """Return the data-parallel size at its save, from a shard's header or else from the
        names."""
        ranks = [s.rank for s in self.shards.values() if s.kind in ("optimizer", "partition")]
        return min(self.header.world or max(ranks, default=0) + 1, MOST_SHARDS)

    @property
    def parallel(self) -> int:
        """Return the tensor-parallel size."""
        ranks = [s.parallel for s in self.shards.values()]
        found = self.header.parallel or max(ranks, default=0) + 1
        # names and header may be of different nodes, and contradict each other
        return max(1, min(found, MOST_SHARDS // self.world))

    @property
    def stage(self) -> int | None:
        """Return the ZeRO stage; None: 1 or 2, which have equal names."""
        if self.header.stage is not None:
            return self.header.stage
        if self._has("partition"):
            return 3
        return None if self._has("optimizer") else 0

    @property
    def divided(self) -> bool:
        """Return whether the model is partitioned among the ranks too (ZeRO-3)."""
        return self.stage == 3 or self._has("partition")

    @property
    def offloaded(self) -> bool:
        """Return whether it has optimizer states that were offloaded to NVMe."""
        return self.header.nvme or any(f"/{OFFLOADED}/" in f"/{path}" for path in self.files)

    def _has(self, *kinds: str) -> bool:
        return any(shard.kind in kinds for shard in self.shards.values())

    @property
    def prefix(self) -> str:
        """Return the prefix of the optimizer's files, such as `bf16_`."""
        found = (s.prefix for s in self.shards.values() if s.kind == "optimizer")
        return next(found, "")

    # ------------------------------------------------------------ completeness

    def wanted(self) -> tuple[str, ...]:
        """Return the paths of the shards of a complete checkpoint, from names and one header.

        The number of pipeline layers and experts is not checked.
        """
        return self._wanted

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        world, prefix = self.world, self.prefix
        divided, whole = self.divided, self._has("model") or not self._has("layer")
        optimizer = self._has("optimizer") or bool(self.header.stage)
        names = []
        for parallel in range(self.parallel):
            if divided:
                names += [partition_name(rank, parallel) for rank in range(world)]
            elif whole:
                names.append(model_name(parallel))
            if optimizer:
                names += [optimizer_name(rank, parallel, prefix) for rank in range(world)]
        found = [path for path, s in self.shards.items() if s.kind in ("layer", "expert")]
        directory = posixpath.normpath(posixpath.join(self.root, self.tag))
        return (*(posixpath.join(directory, name) for name in names), *found)

    def missing(self) -> tuple[str, ...]:
        """Return the paths of shards that are missing or damaged on all nodes."""
        return self._missing

    @cached_property
    def _missing(self) -> tuple[str, ...]:
        return tuple(path for path in self.wanted() if self._usable(path) is None)

    def _usable(self, path: str) -> Copy | None:
        copies = self.files.get(path) or self.files.get(path.replace("_optim_", "optim_")) or ()
        return next((copy for copy in copies if copy.broken is None), None)

    @property
    def complete(self) -> bool:
        """Return whether each shard is on a node and not truncated."""
        return bool(self.shards) and not self.missing()

    def strangers(self) -> tuple[str, ...]:
        """Return shards of an earlier run with more ranks, which do not belong to this
        checkpoint."""
        wanted = set(self.wanted())
        return tuple(path for path in self.shards if path not in wanted)

    def left_out(self) -> dict[str, Copy]:
        """Return files besides the shards that no node can send, such as symbolic links."""
        others = [path for path in self.files if path not in self.shards]
        return {path: self.files[path][0] for path in others if self._usable(path) is None}

    def loaded(self) -> dict[str, tuple[Copy, ...]]:
        """Return the files that DeepSpeed's converter loads (utils/zero_to_fp32.py): all files in
        its directory with the suffix of shards."""
        directory = posixpath.normpath(posixpath.join(self.root, self.tag))
        return {
            path: copies
            for path, copies in self.files.items()
            if posixpath.dirname(path) == directory and path.endswith(LOADED)
        }

    def contents(self) -> dict[str, Copy]:
        """Return all of its files, each with its best copy."""
        strangers = set(self.strangers())
        chosen = {path: self._usable(path) for path in self.files if path not in strangers}
        return {path: copy for path, copy in chosen.items() if copy is not None}


def find(surveys: Mapping[str, Survey], offsets: Mapping[str, float]) -> list[Checkpoint]:
    """Return the checkpoints on the nodes, in the order of their saving.

    `surveys` are the answers of the nodes in rank order; `offsets` are the seconds by which their
    clocks are ahead of ours.
    """
    made: dict[tuple[str, str], list[tuple[str, Part]]] = {}
    for host, survey in surveys.items():
        for part in survey.checkpoints:
            made.setdefault((part.root, part.tag), []).append((host, part))
    found = []
    for (root, tag), parts in made.items():
        copies = [
            _copy(host, file, offsets.get(host, 0.0)) for host, part in parts for file in part.files
        ]
        latest = {h: s.latest[root] for h, s in surveys.items() if root in s.latest}
        header = _header([part for _, part in parts])
        found.append(Checkpoint(root, tag, header, _by_path(copies), latest))
    return sorted(found, key=lambda checkpoint: (checkpoint.saved, checkpoint.name))


def _copy(host: str, file: File, offset: float) -> Copy:
    return Copy(
        host=host,
        path=file.path,
        size=file.size,
        mtime=file.mtime,
        saved=file.mtime / 1e9 - offset,
        mode=file.mode,
        file=file.file,
        broken=file.broken,
    )


def _by_path(copies: Iterable[Copy]) -> dict[str, tuple[Copy, ...]]:
    """Return the copies of a file: complete ones first, then by time, then by node."""
    found: dict[str, list[Copy]] = {}
    for copy in copies:
        found.setdefault(copy.path, []).append(copy)
    return {path: _best_first(path, some) for path, some in sorted(found.items())}


def _best_first(path: str, copies: Sequence[Copy]) -> tuple[Copy, ...]:
    shard = parse_name(posixpath.basename(path))
    if shard is None or shard.kind == "model":
        # all nodes write their copies at almost the same time, so the first node's is as good
        newest = max(copy.saved for copy in copies)
        late = [copy for copy in copies if newest - copy.saved > SAVING]
        first = [copy for copy in copies if newest - copy.saved <= SAVING]
        return (*sorted(first, key=lambda c: c.broken is not None), *late)
    return tuple(sorted(copies, key=lambda c: (c.broken is not None, -c.saved)))


SAVING = 600.0
"""Files with the same name whose times differ by more seconds are of two different saves."""


def _header(parts: Sequence[Part]) -> Header:
    """Return the header of the newest shards: other nodes may have shards of an earlier run."""
    said: dict[str, object] = {}
    for part in sorted(parts, key=lambda part: max(file.mtime for file in part.files)):
        said |= part.header.model_dump(exclude_unset=True)
    return Header.model_validate(said)


# ---------------------------------------------------------------- choosing


def choose(checkpoints: Sequence[Checkpoint], tag: str | None, where: str) -> Checkpoint:
    """Return the checkpoint of that tag or name; by default the newest complete one.

    Raises SelectionError with the available ones.
    """
    there = tuple(checkpoint.name for checkpoint in checkpoints[-10:])
    if not checkpoints:
        raise SelectionError.coded(ErrorCode.NO_CHECKPOINT, path=where)
    if tag is not None:
        alike = [c for c in checkpoints if tag in (c.name, c.tag, c.root)]
        if len(alike) == 1:
            return alike[0]
        if not alike:
            raise SelectionError.coded(ErrorCode.UNKNOWN_CHECKPOINT, name=tag, checkpoints=there)
        matches = tuple(c.name for c in alike)
        raise SelectionError.coded(ErrorCode.AMBIGUOUS_CHECKPOINT, name=tag, matches=matches)
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not whole:
        raise SelectionError.coded(ErrorCode.NO_COMPLETE_CHECKPOINT, path=where, checkpoints=there)
    return whole[-1]


def shared(checkpoints: Sequence[Checkpoint], hosts: Sequence[str]) -> bool:
    """Return whether all nodes have the same files, in one shared directory."""
    copies = [copies for c in checkpoints for copies in c.files.values()]
    return (
        bool(copies)
        and len(hosts) > 1
        and all(len(some) == len(hosts) for some in copies)
        and all(len({_same(copy) for copy in some}) == 1 for some in copies)
    )


def _same(copy: Copy) -> tuple[str, int, int]:
    return copy.file.rpartition(":")[2], copy.size, copy.mtime


def to_prune(checkpoints: Sequence[Checkpoint], keep: int) -> list[Checkpoint]:
    """Return the checkpoints to remove, to keep the newest `keep` complete ones.

    Also kept are newer incomplete ones, which may be still in progress, and those that a `latest`
    names. `checkpoints` are in the order of their saving.
    """
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.complete][-keep:]
    if len(whole) < keep:
        return []
    oldest = whole[0].saved
    return [c for c in checkpoints if c not in whole and c.saved < oldest and not c.is_latest]
