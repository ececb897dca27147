"""What DeepSpeed checkpoints lie on which nodes, and whether each is complete. Pure.

Where nodes share no storage, each has the files that its own ranks wrote; the checkpoint is their
union. Every claim of what must be there is DeepSpeed's own, 0.19.8, runtime/engine.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dslaunch.deepspeed.shards import (
    Shard,
    model_name,
    optimizer_name,
    parse_name,
    partition_name,
)
from dslaunch.errors import UsageError
from dslaunch.protocol.checkpoints import MOST_SHARDS, File, Header, Part, Survey

OFFLOADED = "offloaded_tensors"
LOADED = ("_optim_states.pt", "_model_states.pt")


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of a checkpoint as it lies on one node."""

    host: str
    path: str
    """Relative to the directory that was looked through."""
    size: int
    mtime: int
    """Nanoseconds by the node's clock: with the size it tells versions apart."""
    saved: float
    """Seconds by our clock."""
    mode: int = 0o600
    """Who may read and write it."""
    file: str = ""
    """Device and inode."""
    broken: str | None = None
    """Why it cannot be loaded."""


@dataclass(frozen=True)
class Checkpoint:
    """One saved state of a training, wherever its files are."""

    root: str
    """The directory that `latest` is in, relative to the one looked through; `.` is that itself."""
    tag: str
    header: Header
    files: Mapping[str, tuple[Copy, ...]]
    """By path, the best copy first."""
    latest: Mapping[str, str] = field(default_factory=dict)
    """Node -> the tag that its `latest` names."""

    @property
    def name(self) -> str:
        """What people call it: `step30`, `checkpoint-200/global_step200`."""
        return posixpath.normpath(posixpath.join(self.root, self.tag))

    @cached_property
    def shards(self) -> dict[str, Shard]:
        """The paths of DeepSpeed's files, and what their names say."""
        named = {path: parse_name(posixpath.basename(path)) for path in self.files}
        return {path: shard for path, shard in named.items() if shard is not None}

    @property
    def is_latest(self) -> bool:
        """Whether a node's `latest` names it."""
        return self.tag in self.latest.values()

    @property
    def saved(self) -> float:
        """When its newest shard was written, in seconds since the epoch."""
        return max((self.files[path][0].saved for path in self.shards), default=0.0)

    @property
    def size(self) -> int:
        """Bytes of the whole, each file counted once."""
        return sum(copies[0].size for copies in self.files.values())

    @property
    def world(self) -> int:
        """The data-parallel ranks that saved it: as a shard says, else as the names do."""
        ranks = [s.rank for s in self.shards.values() if s.kind in ("optimizer", "partition")]
        return min(self.header.world or max(ranks, default=0) + 1, MOST_SHARDS)

    @property
    def parallel(self) -> int:
        """The tensor-parallel ranks."""
        ranks = [s.parallel for s in self.shards.values()]
        found = self.header.parallel or max(ranks, default=0) + 1
        return max(1, min(found, MOST_SHARDS // self.world))  # one node's names, another's header

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None: 1 or 2, which names do not tell apart."""
        if self.header.stage is not None:
            return self.header.stage
        if self._has("partition"):
            return 3
        return None if self._has("optimizer") else 0

    @property
    def divided(self) -> bool:
        """Whether the model too is divided among the ranks."""
        return self.stage == 3 or self._has("partition")

    @property
    def offloaded(self) -> bool:
        """Whether optimizer states are beside the shards, as they were on NVMe."""
        return self.header.nvme or any(f"/{OFFLOADED}/" in f"/{path}" for path in self.files)

    def _has(self, *kinds: str) -> bool:
        return any(shard.kind in kinds for shard in self.shards.values())

    @property
    def prefix(self) -> str:
        """Of the optimizer's files, such as `bf16_`."""
        found = (s.prefix for s in self.shards.values() if s.kind == "optimizer")
        return next(found, "")

    # ------------------------------------------------------------ completeness

    def wanted(self) -> tuple[str, ...]:
        """The paths of the shards that a whole checkpoint has, as far as names and one shard tell.

        Layers of pipelines and experts of mixtures are taken as they are found.
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
        """The paths of shards that are on no node, or broken on all that have them."""
        return self._missing

    @cached_property
    def _missing(self) -> tuple[str, ...]:
        return tuple(path for path in self.wanted() if self._usable(path) is None)

    def _usable(self, path: str) -> Copy | None:
        copies = self.files.get(path) or self.files.get(path.replace("_optim_", "optim_")) or ()
        return next((copy for copy in copies if copy.broken is None), None)

    @property
    def complete(self) -> bool:
        """Whether all shards are somewhere, and none of them is cut short."""
        return bool(self.shards) and not self.missing()

    def strangers(self) -> tuple[str, ...]:
        """Shards that are not of this checkpoint: an earlier run with more ranks left them."""
        wanted = set(self.wanted())
        return tuple(path for path in self.shards if path not in wanted)

    def left_out(self) -> dict[str, Copy]:
        """Files besides the shards that no node can give, such as symbolic links."""
        others = [path for path in self.files if path not in self.shards]
        return {path: self.files[path][0] for path in others if self._usable(path) is None}

    def loaded(self) -> dict[str, tuple[Copy, ...]]:
        """The files that DeepSpeed's converter loads (utils/zero_to_fp32.py): all of its directory
        whose names end as those of shards do."""
        directory = posixpath.normpath(posixpath.join(self.root, self.tag))
        return {
            path: copies
            for path, copies in self.files.items()
            if posixpath.dirname(path) == directory and path.endswith(LOADED)
        }

    def contents(self) -> dict[str, Copy]:
        """Everything that belongs to it, each file from where it is best taken."""
        strangers = set(self.strangers())
        chosen = {path: self._usable(path) for path in self.files if path not in strangers}
        return {path: copy for path, copy in chosen.items() if copy is not None}


def find(surveys: Mapping[str, Survey], offsets: Mapping[str, float]) -> list[Checkpoint]:
    """The checkpoints that nodes told of, in the order of their saving.

    `surveys` are nodes' answers, in the order of the nodes; `offsets` the seconds by which their
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
    """A file's copies: whole ones first, then the newest; of equals the first node's."""
    found: dict[str, list[Copy]] = {}
    for copy in copies:
        found.setdefault(copy.path, []).append(copy)
    return {path: _best_first(path, some) for path, some in sorted(found.items())}


def _best_first(path: str, copies: Sequence[Copy]) -> tuple[Copy, ...]:
    shard = parse_name(posixpath.basename(path))
    if shard is None or shard.kind == "model":
        # every node writes its own within moments of the others': the first node's is as good
        newest = max(copy.saved for copy in copies)
        late = [copy for copy in copies if newest - copy.saved > SAVING]
        first = [copy for copy in copies if copy not in late]
        return (*sorted(first, key=lambda c: c.broken is not None), *late)
    return tuple(sorted(copies, key=lambda c: (c.broken is not None, -c.saved)))


SAVING = 600.0
"""Seconds: files of one name that nodes wrote so far apart are of two different savings."""


def _header(parts: Sequence[Part]) -> Header:
    """From the node whose shards are the newest: others may hold those of an earlier run."""
    said: dict[str, object] = {}
    for part in sorted(parts, key=lambda part: max(file.mtime for file in part.files)):
        said |= part.header.model_dump(exclude_unset=True)
    return Header.model_validate(said)


# ---------------------------------------------------------------- choosing


def choose(checkpoints: Sequence[Checkpoint], tag: str | None, where: str) -> Checkpoint:
    """The checkpoint of that tag or name, or without one the newest that is complete.

    Raises UsageError saying what there is.
    """
    there = ", ".join(checkpoint.name for checkpoint in checkpoints[-10:])
    if not checkpoints:
        raise UsageError(
            f"no DeepSpeed checkpoint below {where} on any node that was asked",
            hint="name the directory that the training saves to; relative ones start at the "
            "cluster file's `storage.workdir`",
        )
    if tag is not None:
        alike = [c for c in checkpoints if tag in (c.name, c.tag, c.root)]
        if len(alike) == 1:
            return alike[0]
        names = ", ".join(c.name for c in alike)
        what = f"several checkpoints are called {tag}: {names}" if alike else f"no {tag!r} is there"
        raise UsageError(what, hint=f"there are {there}")
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if not whole:
        raise UsageError(f"no checkpoint below {where} is complete", hint=f"there are {there}")
    return whole[-1]


def shared(checkpoints: Sequence[Checkpoint], hosts: Sequence[str]) -> bool:
    """Whether all nodes see the very same files: one directory that they share."""
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
    """The checkpoints to remove so that the newest `keep` complete ones are left.

    One that is incomplete and newer than those stays, since it may be being saved; so does one
    that a `latest` names. `checkpoints` are in the order of their saving.
    """
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.complete][-keep:]
    if len(whole) < keep:
        return []
    oldest = whole[0].saved
    return [c for c in checkpoints if c not in whole and c.saved < oldest and not c.is_latest]
