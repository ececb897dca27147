"""Checkpoints on this node's disk: find, inspect and verify them.

DeepSpeed saves files of torch.save, whose table of contents is at the end: a truncated one is found
without reading all of it. Its pickle holds all numbers but the tensors, so that neither torch nor
DeepSpeed is needed to read the world size (see torchfile.py).

Other users may be able to write in the directory: links below it are reported, not followed.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import stat
import struct
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from dslaunch.node import beneath, torchfile, transfer

Answer = Dict[str, Any]

SHARDS = ("*optim_states.pt", "*model_states.pt")
"""Files of which one makes a directory a checkpoint's (DeepSpeed 0.19.8, runtime/engine.py,
`_get_ckpt_name` and those beside it)."""
BESIDE = ("latest_universal", "zero_to_fp32.py", "zero_to_torch.py")
"""Files that DeepSpeed writes into the directory above, among others. `latest` is rewritten, not
copied."""
TRAINER = "checkpoint-*"
"""Directories of Hugging Face's Trainer: all files in them are the checkpoint's."""
DEEPEST, MOST_DIRECTORIES = 5, 20_000
DEEPEST_INSIDE = 20
"""Levels of directories in a checkpoint."""
MOST_FILES = 100_000
MOST_SMALL = 64 * 1024
"""Bytes of `latest` and of a rank map that are read."""
MOST_GROUPS, MOST_TENSORS, MOST_DIMENSIONS = 1000, 200_000, 16
MOST_RANKS, MOST_PARALLEL = 2**17, 2**10
LARGEST = 2**63 - 1

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error)
"""Raised for a file that is damaged or of another kind."""


def do(argument: Answer) -> Any:
    """Run the operation `argument["do"]` on `argument["path"]`, which is absolute.

    Raises OSError, and ValueError for invalid arguments or files.
    """
    operation: Callable[[Answer], Any] = OPERATIONS[argument["do"]]
    return operation(argument)


# ---------------------------------------------------------------- finding checkpoints


def survey(argument: Answer) -> Answer:
    """Return all checkpoints below `path`: their files, and what one shard of each says of the
    whole.

    Raises ValueError for a tree that is too large, or takes longer than `seconds`.
    """
    top = argument["path"]
    looking = _Looking(top, time.monotonic() + argument.get("seconds", 600))
    found = [looking.describe(directory) for directory in looking.tag_directories()]
    roots = sorted({checkpoint["root"] for checkpoint in found} | {"."})
    latest = {root: _latest(top, root) for root in roots}
    above, name = os.path.split(top)
    return {
        "path": top,
        "unreadable": _why_unreadable(top),
        "checkpoints": found,
        "latest": {root: tag for root, tag in latest.items() if tag is not None},
        # the rank map that a run wrote beside the directory (deepspeed/placement.py)
        "ranks": _json(_text(above, f".dslaunch-ranks.{name}.json")),
    }


def _why_unreadable(top: str) -> Optional[str]:
    """Return the name of the error with which a directory cannot be opened, such as `ENOENT`."""
    try:
        with beneath.opened(top):
            return None
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EIO")


class _Looking:
    """A search through the directories below one."""

    def __init__(self, top: str, until: float) -> None:
        self.top, self.until = top, until
        self.visited = self.files = 0

    def tag_directories(self) -> Iterator[str]:
        """Yield the directories that hold shards, relative to the top; empty: the top itself."""
        waiting = [""]
        while waiting:
            directory = waiting.pop()
            listed = self.listed(directory)
            if any(is_shard(entry.name) and not entry.is_dir for entry in listed):
                yield directory
                continue
            names = [e.name for e in listed if e.is_dir and is_usable(e.name)]
            if _depth(directory) <= DEEPEST:
                waiting += [_join(directory, name) for name in sorted(names, reverse=True)]

    def listed(self, directory: str) -> "List[_Entry]":
        """Return the entries of a directory; none if it cannot be opened."""
        self.visited += 1
        if self.visited > MOST_DIRECTORIES:
            raise ValueError(f"more than {MOST_DIRECTORIES} directories below {self.top}")
        if time.monotonic() > self.until:
            raise ValueError(f"searching {self.top} takes too long")
        try:
            with beneath.opened(self.top, directory) as fd:
                return _listed(fd)
        except OSError:
            return []

    def describe(self, directory: str) -> Answer:
        """Return a checkpoint: its files, and the header of its shards."""
        root, _, tag = directory.rpartition("/")
        files = sorted(self.files_of(directory), key=lambda entry: str(entry["path"]))
        self.files += len(files)
        if self.files > MOST_FILES:
            raise ValueError(f"more than {MOST_FILES} files of checkpoints below {self.top}")
        header = header_of(self.top, [entry for entry in files if is_shard(entry["path"])])
        return {"root": root or ".", "tag": tag or ".", "files": files, "header": header}

    def files_of(self, directory: str) -> Iterator[Answer]:
        """Yield a checkpoint's files: those in its directory, and its own in the one above."""
        waiting = [(directory, self.mode_of(directory))]
        while waiting:
            inside, mode = waiting.pop()
            for entry in self.listed(inside):
                path = _join(inside, entry.name)
                if not entry.is_dir:
                    yield from self.described(path, entry, mode)
                elif _depth(path) - _depth(directory) <= DEEPEST_INSIDE:
                    waiting.append((path, _narrowed(mode, entry.about.st_mode)))
                else:  # leaving it out would make an incomplete copy
                    raise ValueError(f"{path}: more than {DEEPEST_INSIDE} directories deep")
        if directory:
            yield from self.files_beside(directory.rpartition("/")[0])

    def files_beside(self, root: str) -> Iterator[Answer]:
        """Yield the files of the directory above a checkpoint's that are its own."""
        mode = self.mode_of(root)
        name = os.path.basename(root or self.top)
        every = fnmatch.fnmatchcase(name, TRAINER)
        for entry in self.listed(root):
            own = is_usable(entry.name) if every else entry.name in BESIDE
            if own and entry.name != "latest" and not entry.is_dir:
                yield from self.described(_join(root, entry.name), entry, mode)

    def mode_of(self, directory: str) -> int:
        """Return the rights to what is in a directory, as far as this and those above it give
        them."""
        mode = 0o777
        names = directory.split("/") if directory else []
        for depth in range(len(names) + 1):
            with beneath.opened(self.top, "/".join(names[:depth])) as fd:
                mode = _narrowed(os.fstat(fd).st_mode, mode)
        return mode

    def described(self, path: str, entry: "_Entry", mode: int) -> Iterator[Answer]:
        """Yield one file, unless it is still being written."""
        about = entry.about
        if not path.endswith(beneath.PART):
            yield {
                "path": path.encode(errors="backslashreplace").decode(),
                "size": about.st_size,
                "mtime": about.st_mtime_ns,
                "mode": _narrowed(about.st_mode & 0o777, mode),
                "file": f"{about.st_dev}:{about.st_ino}",
                "broken": self.why_left_out(path, about.st_mode),
            }

    def why_left_out(self, path: str, mode: int) -> Optional[str]:
        """Return why a file cannot be taken, or loaded if it is a shard; None: it can be."""
        if not _encodable(path):
            return "has a name that is not UTF-8"
        if stat.S_ISLNK(mode):
            return beneath.IS_LINK
        if not stat.S_ISREG(mode):
            return beneath.NOT_A_FILE
        return why_broken(self.top, path) if is_shard(path) else None


class _Entry:
    """A name in a directory; a link is not followed."""

    def __init__(self, name: str, about: os.stat_result) -> None:
        self.name, self.about = name, about
        self.is_dir = stat.S_ISDIR(about.st_mode)


def _listed(fd: int) -> List[_Entry]:
    found = []
    with os.scandir(fd) as listing:
        for entry in listing:
            try:
                found.append(_Entry(entry.name, entry.stat(follow_symlinks=False)))
            except OSError:  # it was removed meanwhile
                continue
    return found


def _narrowed(mode: int, directory: int) -> int:
    """Return the rights to a file that are left to group and others who may not enter its
    directory."""
    for bits, enter in ((0o070, 0o010), (0o007, 0o001)):
        if not directory & enter:
            mode &= ~bits
    return mode


def _depth(directory: str) -> int:
    return len(directory.split("/")) if directory else 0


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _encodable(name: str) -> bool:
    """Return whether a name of the file system is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_usable(name: str) -> bool:
    """Return whether a directory of that name can be a checkpoint's, or hold some."""
    return name[0] not in ".-" and name.isprintable() and _encodable(name)


def is_shard(name: str) -> bool:
    """Return whether a file of that name is a part of a DeepSpeed checkpoint."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SHARDS)


def why_broken(top: str, path: str, *, all_of_it: bool = False) -> Optional[str]:
    """Return why a shard cannot be loaded: cut short, or with `all_of_it` changed; None: it can
    be."""
    try:
        with os.fdopen(beneath.open_file(top, path), "rb") as file:
            if file.read(4) != b"PK\x03\x04":
                return None if os.fstat(file.fileno()).st_size else "empty"
            torchfile.entries(file)
            changed = torchfile.damaged(file) if all_of_it else None
    except OSError as error:
        return error.strerror or str(error)
    except UNREADABLE as error:
        return f"cut short or damaged: {error}"
    return f"damaged: the checksum of its {changed} is wrong" if changed else None


def check(argument: Answer) -> Dict[str, Optional[str]]:
    """Read every byte of the files `names` below `path`; return why each is broken, else None."""
    top, names = argument["path"], argument["names"]
    return {name: why_broken(top, name, all_of_it=True) for name in names}


def _latest(top: str, root: str) -> Optional[str]:
    """Return the tag that a directory's `latest` names, if it can be one."""
    tag = (_text(top, "latest" if root == "." else f"{root}/latest") or "").strip()
    return tag if tag and all(n and is_usable(n) for n in tag.split("/")) else None


def _text(top: str, path: str) -> Optional[str]:
    try:
        with os.fdopen(beneath.open_file(top, path), "rb") as file:
            return file.read(MOST_SMALL).decode(errors="replace")
    except (OSError, ValueError):
        return None


def _json(text: Optional[str]) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


# ---------------------------------------------------------------- the content of shards


def values_of(top: str, path: str) -> Tuple[Any, List[List[str]]]:
    """Return the values of a shard's pickle, and the classes and functions that it names."""
    with os.fdopen(beneath.open_file(top, path), "rb") as file:
        reader = torchfile.Reader(torchfile.pickle_of(file))
    value = reader.value()
    return value, sorted(map(list, reader.names))


MOST_NAMES = 200


def names(argument: Answer) -> Dict[str, Answer]:
    """Return the classes and functions that loading the files `names` below `path` would use.

    Each is answered by `names`, pairs of a module and a name in it, or by `error`: why it cannot be
    known.
    """
    return {name: _names_of(argument["path"], name) for name in argument["names"]}


def _names_of(top: str, path: str) -> Answer:
    try:
        found = values_of(top, path)[1]
    except OSError as error:
        return {"names": [], "error": error.strerror or str(error)}
    except UNREADABLE as error:
        return {"names": [], "error": str(error)}
    more = f"it names {len(found)} classes and functions" if len(found) > MOST_NAMES else None
    return {"names": found[:MOST_NAMES], "error": more}


def header_of(top: str, shards: List[Answer]) -> Answer:
    """Return what the first readable shards of each kind say of the whole checkpoint: `stage`,
    `world` (partitions of the optimizer), `parallel` (model-parallel ranks), `params`, `steps`,
    `version`; unreadable ones are left out."""
    said: Answer = {}
    whole = [entry for entry in shards if entry["broken"] is None]
    newest = [entry["path"] for entry in sorted(whole, key=lambda e: e["mtime"], reverse=True)]
    for kind, read in (("optim_states.pt", _of_optimizer), ("model_states.pt", _of_model)):
        for path in [shard for shard in newest if shard.endswith(kind)][:3]:
            try:
                known = read(values_of(top, path)[0]).items()
            except UNREADABLE:
                continue
            said.update({key: value for key, value in known if value is not None})
            break
    return said


def _of_optimizer(values: Any) -> Answer:
    state = values["optimizer_state_dict"]
    config = _mapping(values.get("ds_config"))
    zero, checkpoint = _mapping(config.get("zero_optimization")), _mapping(config.get("checkpoint"))
    return {
        "stage": _integer(state.get("zero_stage"), 3),
        "world": _largest(state.get("partition_count"), MOST_RANKS),
        "version": _words(values.get("ds_version")),
        "node_local": checkpoint.get("use_node_local_storage") is True,
        "nvme": _mapping(zero.get("offload_optimizer")).get("device") == "nvme",
    }


def _of_model(values: Any) -> Answer:
    return {
        "parallel": _integer(values.get("mp_world_size"), MOST_PARALLEL),
        "ranks": _integer(values.get("dp_world_size")),
        "steps": _integer(values.get("global_steps")),
        "version": _words(values.get("ds_version")),
        "params": _count(values.get("param_shapes")),
    }


def _mapping(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any, most: int = LARGEST) -> Optional[int]:
    """Return a number, also from an enumeration's member, which a pickle makes by calling its
    class."""
    if isinstance(value, torchfile.Made) and value.arguments:
        value = value.arguments[0]
    return int(value) if isinstance(value, int) and 0 <= value <= most else None


def _largest(value: Any, most: int) -> Optional[int]:
    """Return a number, or the largest of several: one for each group of parameters."""
    values = value if isinstance(value, list) else [value]
    numbers = [_integer(item, most) for item in values]
    return max((number for number in numbers if number is not None), default=None)


def _words(value: Any) -> Optional[str]:
    return value[:100] if isinstance(value, str) else None


def _count(groups: Any) -> Optional[int]:
    """Return how many parameters the shapes describe: name -> torch.Size, one mapping per group."""
    if isinstance(groups, dict):
        groups = [groups]
    if not isinstance(groups, list) or len(groups) > MOST_GROUPS:
        return None
    total, counted = 0, 0
    for group in groups:
        counted += len(group)
        sizes = [_product(shape) for shape in group.values()] if counted <= MOST_TENSORS else []
        if len(sizes) < len(group) or None in sizes:
            return None
        total += sum(size for size in sizes if size is not None)
    return total if total <= LARGEST else None


def _product(shape: Any) -> Optional[int]:
    """Return how many numbers a tensor of this shape has; None if it is no shape."""
    lengths = shape.arguments[0] if isinstance(shape, torchfile.Made) else shape
    if not isinstance(lengths, (tuple, list)) or len(lengths) > MOST_DIMENSIONS:
        return None
    product = 1
    for length in lengths:
        if _integer(length) is None:
            return None
        product = min(product * length, LARGEST + 1)
    return product


OPERATIONS: Dict[str, Callable[[Answer], Any]] = {
    "begin": transfer.begin,
    "check": check,
    "finish": transfer.finish,
    "names": names,
    "read": transfer.read,
    "remove": transfer.remove,
    "room": transfer.room,
    "sha256": transfer.sha256,
    "survey": survey,
    "text": transfer.text,
    "write": transfer.write,
}
