"""Answers of nodes about checkpoints (node/shards.py): one type per operation.

A node may be compromised. The files that it lists are written to this machine and to other nodes
under their names, so each must be in the directory of its checkpoint.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, model_validator
from pydantic import ValidationError as PydanticError

from dslaunch.protocol.queries import Digest, Query
from dslaunch.protocol.values import (
    AbsolutePath,
    Count,
    Integer,
    Path,
    RelativePath,
    Seconds,
    Sent,
    Several,
    Short,
    Table,
    adapter_of,
)

MOST_PIECE = 24 << 20
"""Characters of a piece of a file in base64."""
MOST_RANKS, MOST_PARALLEL = 2**17, 2**10
MOST_SHARDS = 2**18
"""Shards of the checkpoints of one node, at most, by their headers and file names."""
_NUMBERED = re.compile(r"(?:rank_([0-9]{1,9})_)?(?:mp_rank|model)_([0-9]{1,9})")
MOST_CHECKPOINTS = 10_000
BESIDE = ("latest_universal", "zero_to_fp32.py", "zero_to_torch.py")
"""Files that DeepSpeed writes into the directory above a checkpoint's."""
TRAINER = "checkpoint-*"
"""Directories of Hugging Face's Trainer: all files in them are the checkpoint's."""


def _visible(path: str) -> str:
    """Accept printable names of directories that are not hidden and do not begin with a dash."""
    names = [] if path == "." else path.split("/")
    if any(name[0] in ".-" or not name.isprintable() for name in names):
        raise ValueError("a hidden or unprintable name, or one that begins with a dash")
    return path


def _one_name(path: str) -> str:
    if "/" in path:
        raise ValueError("not the name of a directory")
    return path


Root = Annotated[RelativePath, AfterValidator(_visible)]
Tag = Annotated[Root, AfterValidator(_one_name)]
"""The name of a checkpoint's directory; `.`: the searched directory is itself one."""
Mode = Annotated[int, Field(ge=0, le=0o777)]
Ranks = Annotated[int, Field(ge=0, le=MOST_RANKS)]
Parallel = Annotated[int, Field(ge=0, le=MOST_PARALLEL)]


class File(Sent):
    """A file of a checkpoint on the node."""

    path: RelativePath
    """Relative to the searched directory."""
    size: Count
    mtime: Integer
    """Nanoseconds since the epoch by the node's clock."""
    mode: Mode
    file: Short
    """Device and inode."""
    broken: Short | None
    """Why it cannot be copied or loaded."""


class Header(Sent):
    """The data of a shard about the whole checkpoint; None: unknown."""

    stage: Annotated[int, Field(ge=0, le=3)] | None = None
    world: Ranks | None = None
    """Partitions of the optimizer: the data-parallel ranks."""
    parallel: Parallel | None = None
    """Tensor-parallel ranks."""
    params: Count | None = None
    steps: Count | None = None
    version: Short | None = None
    node_local: bool = False
    nvme: bool = False


class Part(Sent):
    """The part of a checkpoint on one node."""

    root: Root
    """The directory that `latest` is in; `.`: the searched one."""
    tag: Tag
    files: Annotated[Several[File], Field(min_length=1)]
    header: Header

    @property
    def shards(self) -> int:
        """The number of shards of the optimizer, by its header and file names."""
        found = [match for file in self.files if (match := _NUMBERED.search(file.path))]
        world = max((int(match[1] or 0) + 1 for match in found), default=1)
        parallel = max((int(match[2]) + 1 for match in found), default=1)
        return max(world, self.header.world or 1) * max(parallel, self.header.parallel or 1)


def _rank_map(value: object) -> object:
    """Return a rank map, None for anything else: users can edit the file."""
    try:
        return RankMap.model_validate(value)
    except (PydanticError, RecursionError):
        return None


class RankMap(Sent):
    """The order of a run's nodes, as recorded beside the checkpoints."""

    run: Short
    hosts: Several[Short]
    started: Seconds | None = None


class Survey(Sent):
    """The checkpoints below a directory of one node."""

    path: AbsolutePath
    unreadable: Short | None = None
    """The name of the error with which the directory cannot be opened, such as `ENOENT`."""
    checkpoints: Annotated[Several[Part], Field(max_length=MOST_CHECKPOINTS)]
    latest: Table[Root]
    """Root -> the tag that its `latest` names."""
    ranks: Annotated[RankMap | None, BeforeValidator(_rank_map)]

    @property
    def missing(self) -> bool:
        """Return whether the directory does not exist."""
        return self.unreadable == "ENOENT"

    @model_validator(mode="after")
    def check(self) -> Survey:
        """Reject files that belong to no checkpoint, and more shards than can be counted."""
        for number, part in enumerate(self.checkpoints):
            if part.tag == "." and part.root != ".":
                raise ValueError(f"checkpoints.{number}.tag: no name")
            for file in part.files:
                if not _belongs(self.path, part, file.path):
                    raise ValueError(f"checkpoints.{number}: a path outside of the checkpoint")
        if sum(part.shards for part in self.checkpoints) > MOST_SHARDS:
            raise ValueError(f"more than {MOST_SHARDS} shards")
        names = [(part.root, part.tag) for part in self.checkpoints]
        if len(set(names)) != len(names):
            raise ValueError("a checkpoint is listed twice")
        return self


def _belongs(top: str, part: Part, path: str) -> bool:
    """Return whether a file is in the checkpoint's directory, or its own in the one above."""
    directory, name = posixpath.split(path)
    own = posixpath.normpath(posixpath.join(part.root, part.tag))
    if own == "." or path.startswith(f"{own}/"):
        return True
    if posixpath.normpath(directory or ".") != part.root:
        return False
    above = posixpath.basename(top if part.root == "." else part.root)
    if fnmatch.fnmatchcase(above, TRAINER):
        return name[0] not in ".-" and name != "latest"
    return name in BESIDE


class Begun(Sent):
    """The part of a file that an earlier try has left."""

    there: bool
    offset: Count


class Piece(Sent):
    """A piece of a file, in base64, and which version of the file it is of."""

    data: Annotated[str, Field(max_length=MOST_PIECE)]
    size: Count
    mtime: Integer


class Room(Sent):
    """Free bytes on a disk, and in memory if known."""

    free: Count
    memory: Count | None
    path: Path


class Names(Sent):
    """The classes and functions that a file names, as module and name; or why they are unknown."""

    names: Several[Annotated[Several[Short], Field(min_length=2, max_length=2)]]
    error: Short | None


_ANSWERS: Mapping[str, TypeAdapter[Any]] = {
    "begin": TypeAdapter(Begun),
    "check": adapter_of(Mapping[Path, Short | None]),
    "finish": adapter_of(None),
    "names": adapter_of(Mapping[Path, Names]),
    "read": TypeAdapter(Piece),
    "remove": adapter_of(Count),
    "room": TypeAdapter(Room),
    "sha256": adapter_of(Digest),
    "survey": TypeAdapter(Survey),
    "text": adapter_of(None),
    "write": adapter_of(Count),
}


def answer_type(operation: str) -> TypeAdapter[Any]:
    """Return the type of the answer to an operation of node/shards.py."""
    return _ANSWERS[operation]


def query(operation: str) -> Query[Any]:
    """Return the query by which an agent is asked for an operation of node/shards.py."""
    return Query("shards", answer_type(operation))
