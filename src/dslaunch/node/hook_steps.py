"""Notes the steps of optimizers, and holds the rank after some: a part of `hook_rehearsal.py`."""

import sys
import time
import weakref

from .hook_code import averages_parameters, names_reductions, own_code, passes_activations
from .hook_content import fingerprint, is_finite, local_part
from .hook_data import loaders_being_read
from .hook_groups import collectives_begun, splits_model
from .hook_models import evaluates, gpu_total, left_out, remember_wrapped, sizes, untrained
from .hook_order import BACKWARD, note_collective
from .hook_recorder import argument, class_name, current, integer, note, watch
from .hook_training import living, training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, List, Optional, Set

    from .hook_recorder import Recorder

IGNORED = "_ddp_params_and_buffers_to_ignore"
"""The attribute of a model with the names that DistributedDataParallel ignores."""
MOST_CHECKED = 8
"""Parameters of an optimizer whose gradients are checked."""
MOST_RATES = 8
"""Learning rates of an optimizer."""
MOST_OPTIMIZERS = MOST_SCHEDULERS = 64
TOTALS = ("total_iters", "T_max", "total_steps", "total_num_steps")
"""Attributes of schedulers that have the number of their steps."""
AHEAD = (10, 100, 1000)
"""Steps ahead for which a schedule is asked for its learning rates."""
HOLD = 0.2
"""Seconds between two looks at whether a held rank is still to be held."""


# ------------------------------------------------------------ before a step


def _watch_optimizers(recorder: "Recorder", module: "Any") -> None:
    watch(module.Optimizer, "__init__", after=_made)
    module.register_optimizer_step_pre_hook(_untraced(_before_step))
    module.register_optimizer_step_post_hook(_untraced(_after_step))


def _made(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    optimizer = args[0]
    # a new one may have the identity of one that is gone
    training.counts.pop(id(optimizer), None)
    training.kept.pop(id(optimizer), None)
    training.inner.discard(id(optimizer))
    if len(training.optimizers) < MOST_OPTIMIZERS:
        training.optimizers.append(weakref.ref(optimizer))


def _untraced(function: "Callable[..., None]") -> "Callable[..., None]":
    """Return a function that torch.compile calls and does not trace, as optimizers have some."""
    disable = getattr(sys.modules.get("torch._compile"), "_disable_dynamo", None)
    return disable(function) if disable is not None else function


def _before_step(optimizer: "Any", args: "Any", kwargs: "Any") -> None:
    recorder = current()
    if recorder is None or training.engine is not None:
        return
    training.inner.add(id(getattr(optimizer, "optim", None)))
    if id(optimizer) in training.inner:
        return
    if training.counts.get(id(optimizer), 0) >= recorder.steps:
        hold()
    if training.fingerprint is None:
        closure = any(callable(each) for each in (*args, *kwargs.values()))
        note(_begin, optimizer, not closure)


def hold() -> None:
    """Keep this rank here until the run is stopped."""
    note(lambda recorder: recorder.write("held"))
    while current() is not None:
        time.sleep(HOLD)


def _begin(recorder: "Recorder", optimizer: "Any", has_gradients: bool) -> None:
    """Note the optimizer, and the parameters before its first step. `has_gradients`: the step has
    no closure that computes them."""
    parameters = parameters_of(optimizer)
    owned = None
    if training.model is not None and not training.sharded:
        inside = {id(each) for each in training.model.parameters()}
        owned = sum(id(each) in inside for each in parameters)
    gradients = sum(each.grad is not None for each in parameters)
    if not training.sharded and any(local_part(each) is not each for each in parameters):
        splits_model(recorder)
    begin_steps(parameters)
    recorder.write(
        "optimizer",
        optimizer=class_name(optimizer),
        lr=rates_of(optimizer),
        tensors=len(parameters),
        owned=owned,
        gradients=gradients if has_gradients else None,
        fingerprint=training.fingerprint,
        unwrapped=fingerprint(_unwrapped(parameters)),
        own_bytes=sum(local_part(p).numel() * p.element_size() for p in parameters),
        **sizes(parameters),
    )
    remember_wrapped()


def begin_steps(parameters: "List[Any]") -> None:
    """Remember what there is before the first step, of an optimizer with these parameters."""
    training.collectives = collectives_begun()
    training.stepped_at = time.monotonic()
    training.fingerprint = fingerprint(_compared(parameters))


def parameters_of(optimizer: "Any") -> "List[Any]":
    """Return all parameters of an optimizer."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def _optimized() -> "Set[int]":
    """Return the identities of the parameters of all optimizers that were made."""
    optimizers = living(training.optimizers)
    return {id(parameter) for each in optimizers for parameter in parameters_of(each)}


def rates_of(optimizer: "Any") -> "List[float]":
    """Return the finite learning rates of an optimizer. Some compute them in each step, and have
    None in their place (Adafactor)."""
    groups = optimizer.param_groups[:MOST_RATES]
    rates = [float(group["lr"]) for group in groups if group.get("lr") is not None]
    return [rate for rate in rates if is_finite(rate)]


def _compared(parameters: "List[Any]") -> "List[Any]":
    """Return the parameters that are the same on all ranks if these train together. DeepSpeed and
    Megatron mark those of experts, which each rank has for itself; DistributedDataParallel ignores
    some by their names, such as the rows of a divided embedding."""
    if training.sharded:
        return []
    compared = parameters
    if training.model is not None:
        ignored = getattr(training.model, IGNORED, ())
        named = training.model.named_parameters()
        compared = [each for name, each in named if name not in ignored]
    return [each for each in compared if getattr(each, "allreduce", True)]


def _unwrapped(parameters: "List[Any]") -> "List[Any]":
    """Return the parameters of an optimizer that are in no wrapped model, if others are: nothing
    exchanges their gradients, unless the script does. Experts, which each rank has for itself, are
    marked."""
    wrapped = living(training.wrapped)
    inside = {id(each) for module in wrapped for each in module.parameters()}
    if training.sharded or not any(id(each) in inside for each in parameters):
        return []
    return [
        each
        for each in parameters
        if id(each) not in inside and getattr(each, "allreduce", True) and each.requires_grad
    ]


# ------------------------------------------------------------ backward passes


def _watch_backward(recorder: "Recorder", module: "Any") -> None:
    watch(module, "backward", before=_differentiated)


def _differentiated(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    training.backwards += 1
    training.all_backwards += 1
    if training.wrapped:
        note_collective(recorder, BACKWARD)
    for identity, parameters in list(training.kept.items()):
        if all(each.grad is None or not local_part(each.grad).any() for each in parameters):
            del training.kept[identity]
    tensors = argument(args, kwargs, 0, "tensors")
    first = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
    if first is not None and first.numel() == 1:
        training.loss = float(local_part(first.detach()))


# ------------------------------------------------------------ after a step


def _after_step(optimizer: "Any", args: "Any", kwargs: "Any") -> None:
    recorder = current()
    if recorder is None or id(optimizer) in training.inner:
        return
    if training.engine is not None:
        is_own = optimizer is training.engine.basic_optimizer
        if is_own and not training.in_engine and not training.counts.get(id(training.engine)):
            note(_stepped_past, optimizer)
        return
    count = training.counts.get(id(optimizer), 0) + 1
    training.counts[id(optimizer)] = count
    note(_stepped, optimizer, count)


def _stepped_past(recorder: "Recorder", optimizer: "Any") -> None:
    """Note once that the script steps the optimizer that it gave DeepSpeed, not the engine."""
    if not training.stepped_past:
        training.stepped_past = True
        recorder.write("stepped-past-engine", optimizer=class_name(optimizer))


def _stepped(recorder: "Recorder", optimizer: "Any", count: int) -> None:
    """Note a step of an optimizer, if none has made as many."""
    parameters = parameters_of(optimizer)
    # those of the step before; a pass by other means than `backward` cannot have reset them
    kept = training.backwards > 0 and training.kept.get(id(optimizer)) is not None
    training.kept[id(optimizer)] = [p for p in parameters if p.grad is not None][:MOST_CHECKED]
    if len(training.counts) < MOST_OPTIMIZERS and count == max(training.counts.values()):
        rates = rates_of(optimizer)
        note_step(recorder, count, parameters, rates, optimizer=optimizer, kept=kept)


def note_step(
    recorder: "Recorder",
    count: int,
    parameters: "List[Any]",
    rates: "List[float]",
    optimizer: "Any",
    **more: "Any",
) -> None:
    """Note the step of an optimizer, and what has happened since the one before.

    `count`: its number, from 1; `more`: further values of the record.
    """
    if count == 1:
        more["states"] = _state_bytes(optimizer)
    now = time.monotonic()
    seconds = now - training.stepped_at if training.stepped_at is not None else None
    training.stepped_at = now
    loss = training.loss
    finite = loss is None or is_finite(loss)
    recorder.write(
        "step",
        step=count,
        seconds=seconds,
        lr=rates,
        loss=loss if finite else None,  # JSON has no NaN
        finite=finite,
        backwards=training.backwards,
        collectives=_new_collectives(),
        fingerprint=fingerprint(_compared(parameters)) if count <= recorder.steps else [],
        unwrapped=fingerprint(_unwrapped(parameters)) if count <= recorder.steps else [],
        evaluates=evaluates(training.model),
        loaders=loaders_being_read(),
        **_memory(),
        **more,
    )
    training.backwards = 0
    if count == recorder.steps:
        schedulers = [_scheduler(each) for each in _schedulers()]
        recorder.write("schedulers", schedulers=schedulers)
        codes = own_code(recorder.cwd)
        reduces = any(names_reductions(code) for code in codes)
        averages = any(averages_parameters(code) for code in codes)
        passes = any(passes_activations(code) for code in codes)
        recorder.write("steps-done", step=count, reduces=reduces, averages=averages, passes=passes)
        recorder.write("untrained", models=untrained(_optimized()))
        missed = {} if training.engine is not None else left_out(_optimized())
        if missed:
            recorder.write("left-out", **missed)


def _new_collectives() -> "Optional[int]":
    """Return how many collectives have begun since the step before; None: unknown."""
    before, training.collectives = training.collectives, collectives_begun()
    if before is None or training.collectives is None:
        return None
    return training.collectives - before


def _state_bytes(optimizer: "Any") -> "Dict[str, int]":
    """Return the bytes that an optimizer keeps of its parameters in this rank, by kind of device:
    moments and the like."""
    found: Dict[str, int] = {}
    states = list(getattr(optimizer, "state", {}).values())
    values = [value for state in states if isinstance(state, dict) for value in state.values()]
    for value in values:
        # some keep a list of tensors for each parameter
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, sys.modules["torch"].Tensor):
                local = local_part(each)
                kind = local.device.type
                found[kind] = found.get(kind, 0) + local.numel() * local.element_size()
    return found


def _memory() -> "Dict[str, int]":
    import resource

    torch = sys.modules["torch"]
    found = {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    found["gpus"] = torch.cuda.device_count()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["gpu_memory"] = torch.cuda.max_memory_reserved()
        found["gpu_total"] = gpu_total()
    return found


# ------------------------------------------------------------ schedulers


def _watch_schedulers(recorder: "Recorder", module: "Any") -> None:
    kind = getattr(module, "LRScheduler", None) or module._LRScheduler
    watch(kind, "__init__", after=_scheduled)
    watch(kind, "step", before=_schedules)


def _scheduled(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    if len(training.schedulers) < MOST_SCHEDULERS:
        training.schedulers.append(args[0])


def _schedules(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note once that a scheduler makes its first step before its optimizer and any backward pass: a
    schedule may count micro-batches. A gradient scaler leaves out the first steps of an
    optimizer."""
    scheduler = args[0]
    is_first = getattr(scheduler, "_step_count", None) == 1 and not training.all_backwards
    # PyTorch marks the optimizers whose steps it counts
    is_counted = hasattr(getattr(scheduler.optimizer, "step", None), "_wrapped_by_lr_sched")
    has_stepped = not is_counted or getattr(scheduler.optimizer, "_opt_called", False)
    if is_first and not has_stepped and not training.scales and not training.scheduled_first:
        training.scheduled_first = True
        recorder.write("scheduled-first", scheduler=class_name(scheduler))


def _schedulers() -> "List[Any]":
    """Return the schedulers that were made, with the one of a DeepSpeed config."""
    own = getattr(training.engine, "lr_scheduler", None)
    known = training.schedulers
    return known if own is None or own in known else [*known, own]


def _scheduler(scheduler: "Any") -> "Dict[str, Any]":
    optimizer = getattr(scheduler, "optimizer", None)
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    engine = training.engine
    by_engine = engine is not None and engine.lr_scheduler is scheduler
    return {
        "scheduler": class_name(scheduler),
        "steps": _steps_made(scheduler),
        "optimizer_steps": training.counts.get(id(engine if by_engine else optimizer), 0),
        "by_engine": by_engine,
        "total": _total_steps(scheduler),
        "stays_zero": _stays_zero(scheduler),
    }


def _steps_made(scheduler: "Any") -> int:
    """Return the steps of a scheduler so far; PyTorch's make one when they are created."""
    last = integer(getattr(scheduler, "last_batch_iteration", None))  # of DeepSpeed's, from -1
    if last is not None:
        return last + 1
    return max(int(getattr(scheduler, "_step_count", 1)) - 1, 0)


def _total_steps(scheduler: "Any") -> "Optional[int]":
    """Return the steps of a schedule of PyTorch or Transformers; None: unknown."""
    functions = getattr(scheduler, "lr_lambdas", None) or [None]
    given = getattr(functions[0], "keywords", None) or {}
    totals = [getattr(scheduler, name, None) for name in TOTALS]
    known = [integer(total) for total in (*totals, given.get("num_training_steps"))]
    return next((total for total in known if total is not None and total > 0), None)


def _stays_zero(scheduler: "Any") -> "Optional[bool]":
    """Return whether the learning rates of later steps are 0; None: unknown. Only a schedule made
    of functions (`LambdaLR`, and all of Transformers) can be asked without making its steps."""
    functions = getattr(scheduler, "lr_lambdas", None)
    if not functions:
        return None
    steps = [scheduler.last_epoch + ahead for ahead in AHEAD]
    try:
        return not any(function(step) for function in functions for step in steps)
    except Exception:  # noqa: BLE001 - a function of the user, which may be made for fewer steps
        return None


WATCHES = {
    "torch.autograd": _watch_backward,
    "torch.optim.optimizer": _watch_optimizers,
    "torch.optim.lr_scheduler": _watch_schedulers,
}
