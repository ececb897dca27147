"""Checkpoints on this node's disk: found, looked into, read through.

What DeepSpeed saves are files of torch.save: zip archives (torch 1.6 and later), whose table of
contents is at the end. One that was cut short is seen without reading it; and its entry `data.pkl`
holds all numbers but the tensors, so that neither torch nor DeepSpeed is needed to ask it for
the world size. Nothing in that pickle is called.
"""

from __future__ import annotations

import collections
import fnmatch
import json
import os
import pickle
import struct
import time
import zipfile
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional

from dslaunch.node import pieces

Answer = Dict[str, Any]

SHARDS = ("*optim_states.pt", "*model_states.pt")
"""Files of which one makes a directory a checkpoint's (DeepSpeed 0.19.8, runtime/engine.py,
`_get_ckpt_name` and those beside it)."""
BESIDE = ("latest", "latest_universal", "zero_to_fp32.py", "zero_to_torch.py")
"""What DeepSpeed writes into the directory above; it may be full of other things."""
OFFLOADED = "offloaded_tensors"
TRAINER = "checkpoint-*"
"""Directories of Hugging Face's Trainer: all files in them are the checkpoint's."""
DEEPEST, MOST_DIRECTORIES = 5, 20_000
LARGEST_PICKLE = 512 << 20

UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(NotImplementedError, MemoryError, RecursionError),
    *(zipfile.BadZipFile, pickle.UnpicklingError, struct.error, zlib.error),
)


def do(argument: Answer) -> Any:
    """Do what `argument["do"]` names with `argument["path"]`, which is absolute.

    Raises OSError, and ValueError for what is not as it was said to be.
    """
    operation: Callable[[Answer], Any] = OPERATIONS[argument["do"]]
    return operation(argument)


# ---------------------------------------------------------------- what is there


def survey(argument: Answer) -> Answer:
    """All checkpoints below `path`: their files, and what one shard of each says of the whole.

    Raises ValueError for a tree that is too large, or takes longer than `seconds`.
    """
    top = argument["path"]
    until = time.monotonic() + argument.get("seconds", 600)
    found = [_describe(top, directory) for directory in _tag_directories(top, until)]
    roots = sorted({checkpoint["root"] for checkpoint in found} | {"."})
    latest = {root: _text(os.path.join(top, root, "latest")) for root in roots}
    return {
        "path": top,
        "checkpoints": found,
        "latest": {root: text.strip() for root, text in latest.items() if text is not None},
        "ranks": _json(_text(_ranks_path(top))),
    }


def _ranks_path(top: str) -> str:
    """The rank map that a run has left beside the directory (deepspeed/placement.py)."""
    above, name = os.path.split(top)
    return os.path.join(above, f".dslaunch-ranks.{name}.json")


def _tag_directories(top: str, until: float) -> Iterator[str]:
    """Directories below `top` that hold shards. Links to directories are not followed."""
    for visited, (directory, below, names) in enumerate(os.walk(top)):
        depth = len(os.path.relpath(directory, top).split(os.sep))
        if visited > MOST_DIRECTORIES:
            raise ValueError(f"more than {MOST_DIRECTORIES} directories below {top}")
        if time.monotonic() > until:
            raise ValueError(f"looking through {top} takes too long")
        if any(is_shard(name) for name in names):
            below.clear()
            yield directory
        elif depth > DEEPEST:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))


def is_shard(name: str) -> bool:
    """Whether a file of that name is a part of a DeepSpeed checkpoint."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SHARDS)


def _describe(top: str, directory: str) -> Answer:
    root, tag = os.path.split(os.path.relpath(directory, top))
    root = root or "."
    files = [_entry(top, path) for path in _files_of(directory)]
    shards = [os.path.join(top, entry["path"]) for entry in files if is_shard(entry["path"])]
    return {"root": root, "tag": tag, "files": files, "header": header_of(shards)}


def _files_of(directory: str) -> List[str]:
    """A checkpoint's files: those in its directory, and its own in the one above."""
    inside = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    above = os.path.dirname(directory)
    all_of_it = fnmatch.fnmatchcase(os.path.basename(above), TRAINER)
    names = os.listdir(above) if all_of_it else [n for n in BESIDE if n != "latest"]
    beside = [os.path.join(above, name) for name in names if name != "latest"]
    wanted = [path for path in (*inside, *beside) if os.path.isfile(path)]
    return sorted(path for path in wanted if not path.endswith(pieces.PART))


def _entry(top: str, path: str) -> Answer:
    about = os.stat(path)
    return {
        "path": os.path.relpath(path, top),
        "size": about.st_size,
        "mtime": about.st_mtime_ns,
        "file": f"{about.st_dev}:{about.st_ino}",
        "broken": why_broken(path) if is_shard(path) else None,
    }


def why_broken(path: str, *, all_of_it: bool = False) -> Optional[str]:
    """Why a shard cannot be loaded: cut short, or with `all_of_it` changed; None: it can be."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PK\x03\x04":
                return None if os.path.getsize(path) else "empty"
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip() if all_of_it else None
    except OSError as error:
        return error.strerror or str(error)
    except UNREADABLE as error:
        return f"cut short or damaged: {error}"
    return f"damaged: the checksum of its {changed} is wrong" if changed else None


def check(argument: Answer) -> Dict[str, Optional[str]]:
    """Read every byte of the files `names` below `path`: why each is broken, None if it is not."""
    below, names = argument["path"], argument["names"]
    return {name: why_broken(os.path.join(below, name), all_of_it=True) for name in names}


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def _json(text: Optional[str]) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


# ---------------------------------------------------------------- what a shard says


class Inert:
    """Stands for every class and function that a pickle names: takes all, does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        """As a list's."""

    def extend(self, items: Any) -> None:
        """As a list's."""


class _Reader(pickle.Unpickler):
    """Gives what consists of plain values, and nothing else; runs nothing."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return Inert

    def persistent_load(self, _: Any) -> None:
        """Tensors are left where they are."""


def numbers_of(path: str) -> Dict[Any, Any]:
    """The plain values of a file of torch.save. Raises one of UNREADABLE."""
    with zipfile.ZipFile(path) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        if archive.getinfo(inside).file_size > LARGEST_PICKLE:
            raise ValueError("too large to look into")
        with archive.open(inside) as file:
            value = _Reader(file).load()
    if not isinstance(value, dict):
        raise ValueError("not a checkpoint")
    return value


def header_of(shards: List[str]) -> Answer:
    """What the first readable shards of each kind say of the whole checkpoint: `stage`, `world`
    (partitions of the optimizer), `parallel` (model-parallel ranks), `params`, `steps`, `version`,
    those that could be read."""
    said: Answer = {}
    newest = sorted(shards, key=os.path.getmtime, reverse=True)
    for kind, read in (("optim_states.pt", _of_optimizer), ("model_states.pt", _of_model)):
        for path in [shard for shard in newest if shard.endswith(kind)][:3]:
            try:
                known = read(numbers_of(path)).items()
                said.update({key: value for key, value in known if value is not None})
            except (StopIteration, *UNREADABLE):
                continue
            break
    return said


def _of_optimizer(values: Dict[Any, Any]) -> Answer:
    state = values["optimizer_state_dict"]
    count = state.get("partition_count")
    most = max(count) if isinstance(count, list) and count else count
    offload = values.get("ds_config", {}).get("zero_optimization", {})
    return {
        "stage": _integer(state.get("zero_stage")),
        "world": _integer(most),
        "version": _words(values.get("ds_version")),
        "node_local": bool(
            values.get("ds_config", {}).get("checkpoint", {}).get("use_node_local_storage")
        ),
        "nvme": isinstance(offload, dict)
        and (offload.get("offload_optimizer") or {}).get("device") == "nvme",
    }


def _of_model(values: Dict[Any, Any]) -> Answer:
    return {
        "parallel": _integer(values.get("mp_world_size")),
        "ranks": _integer(values.get("dp_world_size")),
        "steps": _integer(values.get("global_steps")),
        "version": _words(values.get("ds_version")),
        "params": _count(values.get("param_shapes")),
    }


def _integer(value: Any) -> Optional[int]:
    """A number, also from an enumeration's member, which a pickle makes by calling its class."""
    if isinstance(value, Inert) and value.arguments:
        value = value.arguments[0]
    return int(value) if isinstance(value, int) else None


def _words(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None


def _count(groups: Any) -> Optional[int]:
    """How many parameters the shapes describe: name -> torch.Size, one mapping per group."""
    if isinstance(groups, dict):
        groups = [groups]
    if not isinstance(groups, list):
        return None
    total = 0
    for shape in (shape for group in groups for shape in group.values()):
        size = 1
        for length in shape.arguments[0] if isinstance(shape, Inert) else shape:
            size *= length
        total += size
    return total


OPERATIONS: Dict[str, Callable[[Answer], Any]] = {
    "begin": pieces.begin,
    "check": check,
    "finish": pieces.finish,
    "read": pieces.read,
    "remove": pieces.remove,
    "room": pieces.room,
    "sha256": pieces.sha256,
    "survey": survey,
    "text": pieces.text,
    "write": pieces.write,
}
