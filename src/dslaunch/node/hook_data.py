"""Notes data loaders and their batches: a part of `hook_rehearsal.py`."""

import os
import sys
import weakref
import zlib
from types import SimpleNamespace

from .hook_content import (
    MOST_BATCHES,
    MOST_ELEMENTS,
    digest,
    digest_of_tensors,
    sample_count,
    tensors_in,
)
from .hook_recorder import LONGEST_NAME, argument, class_name, integer, watch
from .hook_training import living, training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Tuple

    from .hook_recorder import Recorder

MOST_LOADERS = 64
MOST_CHOSEN, MOST_INDICES = 64, 200_000
"""Hashes of the samples of a part of a data set, and samples of which it is made."""
MOST_ATTRIBUTES = 32
"""Attributes of a sampler, or of a data set that is a stream."""
MOST_NAMES, _MOST_WRAPPED = 100_000, 3
"""Names in a list of a data set, and data sets around it."""
_NUMBER, _PASS = "_dslaunch_number", "_dslaunch_pass"
"""Attributes: a loader's number, and its last pass; an iterator's pass."""


def _new_pass(loader: int, epoch: "Optional[int]") -> SimpleNamespace:
    """Return one pass over a data loader: a value that can be pickled, as loaders are.

    `loader`: the number of the loader; 0: it was not noted. `epoch`: that on which the order
    depends; None: it depends on none.
    """
    return SimpleNamespace(
        loader=loader,
        epoch=epoch,
        batches=0,
        noted=0,
        backwards=training.all_backwards,
        ended=False,
    )


def _watch_data(recorder: "Recorder", module: "Any") -> None:
    watch(module.DataLoader, "__init__", after=_loader)
    watch(module._BaseDataLoaderIter, "__init__", after=_iterated)
    watch(module._BaseDataLoaderIter, "__next__", before=_asked, after=_batch)


def _loader(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    loader = args[0]
    if training.loaders >= MOST_LOADERS:
        return
    training.loaders += 1
    loader.__dict__[_NUMBER] = training.loaders
    sampler = getattr(loader, "sampler", None)
    listed, order = _digests_of_names(_names_in(loader.dataset))
    recorder.write(
        "loader",
        number=training.loaders,
        batch=loader.batch_size,
        workers=loader.num_workers,
        dataset=class_name(loader.dataset),
        samples=_length(loader.dataset),
        batches=_length(loader),
        sampler=class_name(sampler),
        batch_sampler=class_name(getattr(loader, "batch_sampler", None)),
        replicas=integer(getattr(sampler, "num_replicas", None)),
        replica=integer(getattr(sampler, "rank", None)),
        seed=integer(getattr(sampler, "seed", None)),
        drop_last=bool(getattr(loader, "drop_last", False)),
        subset=_subset(loader.dataset),
        chosen=_chosen_of(loader.dataset),
        listed=listed,
        order=order,
    )


def _subset(dataset: "Any") -> "Optional[str]":
    """Return a digest of the samples that are chosen of a data set (`random_split`); None: all, or
    unknown."""
    indices = getattr(dataset, "indices", None)
    if not isinstance(indices, (list, tuple, range)):
        return None
    return digest(",".join(str(index) for index in indices[:MOST_ELEMENTS]))


def _chosen_of(dataset: "Any") -> "List[int]":
    """Return the smallest hashes of the samples that are chosen of a data set: two parts that have
    many samples in common have equal ones among these."""
    indices = getattr(dataset, "indices", None)
    if not isinstance(indices, (list, tuple, range)) or len(indices) > MOST_INDICES:
        return []
    # Knuth's multiplicative hash is different for all numbers below 2**32
    hashes = {(each * 2654435761) & 0xFFFFFFFF for each in indices if isinstance(each, int)}
    return sorted(hashes)[:MOST_CHOSEN]


def _names_in(dataset: "Any", depth: int = 0) -> "List[str]":
    """Return the names of the samples, such as those of files, in the order in which the data set
    has them; empty: it has no list of names."""
    for each in list(getattr(dataset, "__dict__", {}).values())[:MOST_ATTRIBUTES]:
        if isinstance(each, (list, tuple)) and 1 < len(each) <= MOST_NAMES:
            names = [_name_of(item) for item in each]
            if all(names):
                return names
    inner = getattr(dataset, "dataset", None)
    return _names_in(inner, depth + 1) if inner is not None and depth < _MOST_WRAPPED else []


def _name_of(item: "Any") -> str:
    """Return the name of a sample: a text or a path, or the first one of several values."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        item = next((each for each in item if isinstance(each, (str, os.PathLike))), "")
    return os.fspath(item) if isinstance(item, (str, os.PathLike)) else ""


def _digests_of_names(names: "List[str]") -> "Tuple[Optional[str], Optional[str]]":
    """Return a digest of names in any order, and one of them in their order; None: no names."""
    if not names:
        return None, None
    sums = [zlib.crc32(name.encode("utf-8", "replace")) for name in names]
    in_order = 0
    for each in sums:
        in_order = zlib.crc32(each.to_bytes(4, "little"), in_order)
    return f"{sum(sums) % 2**64:016x}", f"{in_order:016x}"


def _iterated(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    iterator, loader = args[0], argument(args, kwargs, 1, "loader")
    before = loader.__dict__.get(_PASS)
    begun = _new_pass(loader.__dict__.get(_NUMBER, 0), _shuffled_epoch(loader))
    iterator.__dict__[_PASS] = loader.__dict__[_PASS] = begun
    alive = [each for each in training.passes if each() is not None]
    training.passes = [*alive, weakref.ref(iterator)]
    if begun.epoch is None or before is None or begun.epoch != before.epoch:
        return
    if _has_trained(before, loader) and sys.modules["torch"].is_grad_enabled():
        recorder.write("same-order", loader=begun.loader)


def _has_trained(done: SimpleNamespace, loader: "Any") -> bool:
    """Return whether a pass was an epoch of the training: one that was not finished may only have
    been a look at the first batch, and one without backward passes may compute a mean."""
    finished: bool = done.batches > 0 and done.batches == _length(loader)
    return finished and training.all_backwards > done.backwards


def _shuffled_epoch(loader: "Any") -> "Optional[int]":
    """Return the epoch on which the order of a loader depends; None: it depends on none."""
    sampler = getattr(loader, "sampler", None)
    shuffles = getattr(sampler, "shuffle", False) is True and hasattr(sampler, "set_epoch")
    return integer(getattr(sampler, "epoch", None)) if shuffles else None


def _asked(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note that an iterator is asked for a batch. If it returns none, the pass has ended."""
    within = args[0].__dict__.get(_PASS)
    if within is not None:
        within.ended = True


def _batch(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    torch = sys.modules["torch"]
    within = args[0].__dict__.get(_PASS)
    if within is None:
        return
    within.ended = False
    within.batches += 1
    if within.noted >= MOST_BATCHES or not torch.is_grad_enabled():
        return
    within.noted += 1
    tensors = tensors_in(result, torch)
    if not tensors:
        return
    recorder.write(
        "batch",
        loader=within.loader,
        index=within.noted,
        size=sample_count(tensors),
        digest=digest_of_tensors(tensors),
    )


def loaders_being_read() -> "List[int]":
    """Return the numbers of the data loaders that have returned a batch in a pass that has neither
    ended nor been left, as that of the training's loop."""
    passes = [iterator.__dict__[_PASS] for iterator in living(training.passes)]
    reading = {each.loader for each in passes if each.batches and not each.ended}
    return sorted(reading)[:MOST_LOADERS]


# ------------------------------------------------------------ loaders that Accelerate divides


def _watch_prepared(recorder: "Recorder", module: "Any") -> None:
    watch(module, "prepare_data_loader", before=_prepared)


def _prepared(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note what decides which samples of a loader a rank gets, before Accelerate divides them."""
    loader = argument(args, kwargs, 0, "dataloader")
    parts = integer(argument(args, kwargs, 2, "num_processes"))
    part = integer(argument(args, kwargs, 3, "process_index"))
    is_left_whole = kwargs.get("already_sharded") or kwargs.get("shard_iterable_dataset") is False
    if parts is None or part is None or is_left_whole:
        return
    is_stream = _length(loader.dataset) is None
    source = loader.dataset if is_stream else getattr(loader, "sampler", None)
    recorder.write(
        "prepared-loader",
        source=class_name(source),
        part=part,
        parts=parts,
        samples=_length(loader.dataset),
        drawn=None if is_stream else _length(source),
        numbers=_numbers_of(source),
        chosen=_chosen_by(source),
    )


def _numbers_of(value: "Any") -> "Dict[str, int]":
    """Return the attributes of an object that are numbers."""
    attributes = list(getattr(value, "__dict__", {}).items())[:MOST_ATTRIBUTES]
    numbers = {name[:LONGEST_NAME]: integer(each) for name, each in attributes}
    return {name: each for name, each in numbers.items() if each is not None}


def _chosen_by(sampler: "Any") -> "Optional[str]":
    """Return a digest of the list of numbers that a sampler has; None: it has none."""
    for each in list(getattr(sampler, "__dict__", {}).values())[:MOST_ATTRIBUTES]:
        if isinstance(each, (list, tuple, range)) and each and integer(each[0]) is not None:
            return digest(",".join(str(index) for index in each[:MOST_ELEMENTS]))
    return None


def _length(value: "Any") -> "Optional[int]":
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a stream has no length; a faulty one says so later
        return None


WATCHES = {
    "torch.utils.data.dataloader": _watch_data,
    "accelerate.data_loader": _watch_prepared,
}
