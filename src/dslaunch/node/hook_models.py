"""Notes models as they are wrapped for training: a part of `hook_rehearsal.py`."""

import functools
import sys
import weakref

from .hook_content import (
    MOST_BATCHES,
    digest_of_tensors,
    fingerprint,
    sample_count,
    tensors_in,
)
from .hook_order import FORWARD, WRAPPING, note_collective
from .hook_recorder import LONGEST_NAME, MOST_RECORDS, argument, class_name, note, watch
from .hook_training import living, training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterable, List, Set

    from .hook_recorder import Recorder

MOST_WRAPPED = 16
"""Models of which is noted whether an optimizer trains them."""
_ELEMENTWISE_LOSSES = ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss")
_LAYERS_WITH_MODES = ("Dropout", "BatchNorm")
"""Parts of the names of layers that work otherwise in evaluation mode."""


def _watch_ddp(recorder: "Recorder", module: "Any") -> None:
    watch(module.DistributedDataParallel, "__init__", before=_compares, after=_replicated)
    watch(module.DistributedDataParallel, "forward", before=note_input)
    watch(module.DistributedDataParallel, "forward", before=_sends_buffers)


def _watch_fsdp(recorder: "Recorder", module: "Any") -> None:
    wrapped = functools.partial(_sharded, place=1)
    watch(module.FullyShardedDataParallel, "__init__", before=wrapped)
    watch(module.FullyShardedDataParallel, "__init__", before=_divided)


def _watch_fsdp2(recorder: "Recorder", module: "Any") -> None:
    watch(module, "fully_shard", before=functools.partial(_sharded, place=0))


def _compares(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note that all ranks are to compare their parameters, and to get those of rank 0."""
    if kwargs.get("process_group") is None and kwargs.get("device_mesh") is None:
        note_collective(recorder, WRAPPING)


def _replicated(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    module = argument(args, kwargs, 1, "module")
    training.model = module
    if len(training.wrapped) < MOST_WRAPPED:
        training.wrapped.append(weakref.ref(module))
    recorder.write("wrapped", wrapper="DistributedDataParallel", **described(module))


def _sends_buffers(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note a forward pass that begins with sending the buffers of rank 0, such as those of batch
    norm, to all ranks; it does so in evaluation mode too."""
    sends = getattr(args[0], "will_sync_module_buffers", None)
    if sends is not None and sends():
        note_collective(recorder, FORWARD)


def _sharded(recorder: "Recorder", args: "Any", kwargs: "Any", place: int) -> None:
    training.sharded = True
    module = argument(args, kwargs, place, "module")
    if recorder.records < MOST_RECORDS // 4:  # each layer may be wrapped by itself
        recorder.write("wrapped", wrapper="FullyShardedDataParallel", **described(module))


def _divided(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    strategy = argument(args, kwargs, 3, "sharding_strategy")
    if getattr(strategy, "name", None) != "NO_SHARD":
        training.divided.append(weakref.ref(args[0]))


def _watch_clipping(recorder: "Recorder", module: "Any") -> None:
    function = module.clip_grad_norm_

    @functools.wraps(function)
    def watched(parameters: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        if training.divided and not training.clips_parts:
            if not isinstance(parameters, sys.modules["torch"].Tensor):
                parameters = list(parameters)  # a generator could not be read again
            note(_clipped, parameters)
        if training.scaler is not None and not training.clips_scaled:
            note(_clipped_scaled, argument(args, kwargs, 0, "max_norm"))
        return function(parameters, *args, **kwargs)

    module.clip_grad_norm_ = watched


def _clipped(recorder: "Recorder", parameters: "Any") -> None:
    """Note once that gradients are clipped which are divided: the norm is that of a part."""
    divided = {id(each) for module in living(training.divided) for each in module.parameters()}
    given = parameters if isinstance(parameters, list) else [parameters]
    if training.world != 1 and any(id(each) in divided for each in given):
        training.clips_parts = True
        recorder.write("clips-parts")


def _watch_scaler(recorder: "Recorder", module: "Any") -> None:
    watch(module.GradScaler, "scale", after=_scaled)
    watch(module.GradScaler, "unscale_", before=_unscaled)
    watch(module.GradScaler, "update", before=_unscaled, after=_scale_changed)


def _scaled(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    training.scaler = args[0] if args[0].is_enabled() else None
    training.scales = training.scales or training.scaler is not None


def _unscaled(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    training.scaler = None


def _scale_changed(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    """Note once that the scale has fallen below 1: scaled down too, the gradients overflow."""
    training.updates += 1
    if not training.scale_fell and args[0].is_enabled() and args[0].get_scale() < 1:
        training.scale_fell = True
        recorder.write("scale-fell", updates=training.updates)


def _clipped_scaled(recorder: "Recorder", norm: "Any") -> None:
    """Note once that gradients are clipped while they are scaled. A norm that is scaled too is
    meant."""
    scale = float(training.scaler.get_scale())
    if scale > 1 and float(norm) < scale:
        training.clips_scaled = True
        recorder.write("clips-scaled", scale=scale, norm=float(norm))


def _watch_losses(recorder: "Recorder", module: "Any") -> None:
    for name in _ELEMENTWISE_LOSSES:
        watch(module, name, before=functools.partial(_compared, loss=name))


def _compared(recorder: "Recorder", args: "Any", kwargs: "Any", loss: str) -> None:
    """Note once that a loss compares each value with the targets of all samples: (N, 1) and (N)
    make (N, N). Of as many dimensions, that may be meant."""
    values, targets = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "target")
    if training.broadcasts or not values.requires_grad or values.dim() == targets.dim():
        return
    torch = sys.modules["torch"]
    shape = torch.broadcast_shapes(values.shape, targets.shape)
    if shape.numel() > max(values.numel(), targets.numel()):
        training.broadcasts = True
        shapes = {"values": str(tuple(values.shape)), "targets": str(tuple(targets.shape))}
        recorder.write("broadcast-loss", loss=loss, **shapes)


def _watch_loading(recorder: "Recorder", module: "Any") -> None:
    watch(module.Module, "load_state_dict", after=_loaded)


def _loaded(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    """Note that a state dict has no tensor of the model, which `strict=False` lets pass."""
    given = argument(args, kwargs, 1, "state_dict")
    missing, unexpected = result.missing_keys, result.unexpected_keys
    nothing = given and missing and len(unexpected) == len(given)
    if nothing and training.loads < MOST_WRAPPED:
        training.loads += 1
        recorder.write(
            "nothing-loaded",
            model=class_name(args[0]),
            tensors=len(given),
            given=str(unexpected[0])[:LONGEST_NAME],
            wanted=str(missing[0])[:LONGEST_NAME],
        )


def note_input(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note what the wrapped model gets to train on."""
    torch = sys.modules["torch"]
    trains = args[0].training and torch.is_grad_enabled()
    if training.inputs >= MOST_BATCHES or not trains:
        return
    tensors = tensors_in([list(args[1:]), kwargs], torch)
    if tensors:
        training.inputs += 1
        size, digest = sample_count(tensors), digest_of_tensors(tensors)
        recorder.write("input", index=training.inputs, size=size, digest=digest)


def described(module: "Any") -> "Dict[str, Any]":
    """Return the size of a model."""
    largest, largest_name = 0, ""
    for name, each in module.named_modules():
        own = sum(elements(p) for p in each._parameters.values() if p is not None)
        if own > largest:
            largest, largest_name = own, name
    return {
        "model": class_name(module),
        "largest": largest,
        "largest_name": largest_name[:LONGEST_NAME],
        **sizes(module.parameters()),
    }


def sizes(parameters: "Iterable[Any]") -> "Dict[str, Any]":
    """Return numbers of parameters, and by data type and by device."""
    total = trainable = 0
    types: Dict[str, int] = {}
    devices: Dict[str, int] = {}
    for each in parameters:
        count = elements(each)
        total += count
        trainable += count if each.requires_grad else 0
        kind = str(each.dtype).replace("torch.", "")
        types[kind] = types.get(kind, 0) + count
        device = each.device.type
        devices[device] = devices.get(device, 0) + count
    return {
        "parameters": total,
        "trainable": trainable,
        "types": types,
        "devices": devices,
        "gpu_total": gpu_total() if "cuda" in devices else None,
    }


def gpu_total() -> int:
    """Return the memory of this process's GPU in bytes."""
    cuda = sys.modules["torch"].cuda
    return int(cuda.get_device_properties(cuda.current_device()).total_memory)


def elements(parameter: "Any") -> int:
    """Return the elements of a parameter, also of one that ZeRO-3 has partitioned."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def remember_wrapped() -> None:
    """Remember the parameters of the wrapped models before the first step."""
    for model in living(training.wrapped):
        training.before[id(model)] = fingerprint(list(model.parameters()))


def untrained(optimized: "Set[int]") -> "List[str]":
    """Return the classes of wrapped models that got gradients and did not change. `optimized`: the
    identities of the parameters of all optimizers."""
    found = []
    for model in living(training.wrapped):
        parameters, before = list(model.parameters()), training.before.get(id(model))
        if not before or any(id(each) in optimized for each in parameters):
            continue
        has_gradients = any(each.grad is not None and each.grad.any() for each in parameters)
        if has_gradients and fingerprint(parameters) == before:
            found.append(class_name(model))
    return found


def left_out(optimized: "Set[int]") -> "Dict[str, Any]":
    """Return the first wrapped model of which some parameters have gradients and are in no
    optimizer, with their number and the first name; empty: there is none. `optimized`: the
    identities of the parameters of all optimizers."""
    for model in living(training.wrapped):
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        missed = [
            name for name, each in trained if id(each) not in optimized and _has_gradient(each)
        ]
        if missed and len(missed) < len(trained):
            name = missed[0][:LONGEST_NAME]
            return {"model": class_name(model), "tensors": len(missed), "name": name}
    return {}


def _has_gradient(parameter: "Any") -> bool:
    return parameter.grad is not None and bool(parameter.grad.any())


def evaluates(model: "Any") -> bool:
    """Return whether a model is in evaluation mode, and layers of it work otherwise then."""
    if model is None or model.training:
        return False
    layers = {type(each).__name__ for each in model.modules()}
    return any(kind in layer for layer in layers for kind in _LAYERS_WITH_MODES)


WATCHES = {
    "torch.nn.parallel.distributed": _watch_ddp,
    "torch.distributed.fsdp.fully_sharded_data_parallel": _watch_fsdp,
    "torch.distributed.fsdp._fully_shard._fully_shard": _watch_fsdp2,
    "torch.nn.utils.clip_grad": _watch_clipping,
    "torch.amp.grad_scaler": _watch_scaler,
    "torch.nn.functional": _watch_losses,
    "torch.nn.modules.module": _watch_loading,
}
