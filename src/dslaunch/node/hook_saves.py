"""Notes what is saved: a part of `hook_rehearsal.py`."""

import os
import sys

from .hook_recorder import argument, path_of, watch

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, List

    from .hook_recorder import Recorder

_MOST_PARTS, _MOST_NESTED = 1000, 2


def watch_torch_save(torch: "Any") -> None:
    """Note what `torch.save` writes."""
    watch(torch, "save", before=_saved)


def _saved(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    file = argument(args, kwargs, 1, "f")
    file = getattr(file, "name", file)
    if isinstance(file, (str, bytes, os.PathLike)):
        tensors = _tensors_saved(argument(args, kwargs, 0, "obj"), sys.modules["torch"])
        empty = sum(not each.numel() for each in tensors)
        path = path_of(file)
        recorder.write("saved", by="torch.save", path=path, tensors=len(tensors), empty=empty)


def _tensors_saved(value: "Any", torch: "Any", depth: int = 0) -> "List[Any]":
    """Return the tensors of a state dict."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, dict) or depth > _MOST_NESTED:
        return []
    parts = list(value.values())[:_MOST_PARTS]
    return [each for part in parts for each in _tensors_saved(part, torch, depth + 1)]


def _watch_distributed_checkpoint(recorder: "Recorder", module: "Any") -> None:
    watch(module, "save", before=_saved_shards)


def _saved_shards(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    place = kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)
    if place is not None:
        recorder.write("saved", by="distributed.checkpoint", path=path_of(place))


def _watch_models(recorder: "Recorder", module: "Any") -> None:
    watch(module.PreTrainedModel, "save_pretrained", before=_pretrained)


def _pretrained(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    if kwargs.get("is_main_process", True):
        directory = argument(args, kwargs, 1, "save_directory")
        recorder.write("saved", by="save_pretrained", path=path_of(directory))


def _watch_safetensors(recorder: "Recorder", module: "Any") -> None:
    watch(module, "save_file", before=_saved_file)


def _saved_file(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    file = argument(args, kwargs, 1, "filename")
    recorder.write("saved", by="safetensors", path=path_of(file))


WATCHES = {
    "torch.distributed.checkpoint.state_dict_saver": _watch_distributed_checkpoint,
    "transformers.modeling_utils": _watch_models,
    "safetensors.torch": _watch_safetensors,
}
