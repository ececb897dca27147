"""Estimate the memory of the model states: as DeepSpeed's estimators do, and corrected. Pure.

All figures are bytes. DeepSpeed's tables print them in units of 2^30 bytes and call these GB; here
these are GiB, and GB is 10^9 bytes. A `gpu` figure is per GPU, `cpu` and `nvme` figures are per
node.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

GB, GIB = 10**9, 2**30
BUFFER_FACTOR = 1.5
"""Factor of DeepSpeed's estimators for CPU memory (0.19.8, `additional_buffer_factor`)."""
Device = Literal["gpu", "cpu", "nvme"]
When = Literal["always", "loading", "backward", "step"]


class Model(Struct, frozen=True):
    """The size of a model in parameters."""

    params: int
    """Total number of parameters; shared ones are counted once."""
    largest_layer: int
    """Largest number of parameters of one module, without its children's."""


class Machines(Struct, frozen=True):
    """The nodes and GPUs of the training. All GPUs count as data-parallel."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Return the total number of GPUs."""
        return self.nodes * self.gpus_per_node


class Strategy(Struct, frozen=True):
    """The ZeRO stage, and the devices of the model states."""

    stage: int
    optimizer: Device = "gpu"
    """Device of the master weights, of Adam's moments and of the step (offload_optimizer)."""
    params: Device = "gpu"
    """Device of the partitioned parameters (offload_param; stage 3 only)."""
    zero_init: bool = True
    """Whether the model is created with `zero.Init`, partitioned from the start; stage 3 only."""

    def __str__(self) -> str:
        names = {"cpu": "CPU", "nvme": "NVMe"}
        places = [("optimizer", self.optimizer), ("parameters", self.params)]
        if self.optimizer == self.params:
            places = [("optimizer and parameters", self.params)]
        moved = [f"{what} on {names[where]}" for what, where in places if where in names]
        return ", ".join([f"ZeRO-{self.stage}", *moved])


FASTEST_FIRST = (
    Strategy(0),
    Strategy(1),
    Strategy(2),
    Strategy(2, "cpu"),
    Strategy(1, "cpu"),
    Strategy(3),
    Strategy(3, zero_init=False),
    Strategy(3, "cpu"),
    Strategy(3, "cpu", zero_init=False),
    Strategy(3, "cpu", "cpu"),
    Strategy(3, "cpu", "cpu", zero_init=False),
    Strategy(3, "nvme", "cpu"),
    Strategy(3, "nvme", "nvme"),
)
"""In the order of Hugging Face's DeepSpeed guide (transformers, docs/source/en/deepspeed.md).
ZeRO-1 with offload is behind ZeRO-2 with offload, which needs less memory and is not slower."""


class MemoryNeed(Struct, frozen=True):
    """Bytes per GPU and per node."""

    gpu: int
    cpu: int


class MemoryPart(Struct, frozen=True):
    """A part of the memory."""

    name: str
    place: Device
    size: float
    """Bytes per GPU if `place` is `gpu`, otherwise per node."""
    when: When = "always"


def deepspeed_estimate(
    model: Model, machines: Machines, strategy: Strategy, factor: float = BUFFER_FACTOR
) -> MemoryNeed | None:
    """Return the estimate of DeepSpeed's estimator; None for stages 0 and 1 and NVMe, which it
    lacks.

    Equal to the byte to `estimate_zero2_model_states_mem_needs` and
    `estimate_zero3_model_states_mem_needs` (0.19.8, zero/stage_1_and_2.py and zero/stage3.py).
    """
    if "nvme" in (strategy.optimizer, strategy.params):
        return None
    if strategy.stage == 2:
        return _zero2_estimate(model, machines, strategy.optimizer == "cpu", factor)
    return _zero3_estimate(model, machines, strategy, factor) if strategy.stage == 3 else None


def _zero2_estimate(model: Model, machines: Machines, offload: bool, factor: float) -> MemoryNeed:
    total, gpus = model.params, machines.gpus
    if offload:
        return MemoryNeed(2 * total, int(total * max(4 * gpus, 16) * factor))
    return MemoryNeed(
        2 * total + int(18 * total / gpus), int(total * 4 * machines.gpus_per_node * factor)
    )


def _zero3_estimate(
    model: Model, machines: Machines, strategy: Strategy, factor: float
) -> MemoryNeed:
    total, share, loading = model.params, 1 / machines.nodes, 4 * machines.gpus_per_node
    largest = 4 * model.largest_layer
    if strategy.optimizer == "gpu":
        loaded = model.largest_layer if strategy.zero_init else total
        gpu = largest + int(18 * total / machines.gpus)
        return MemoryNeed(gpu, int(loaded * 4 * machines.gpus_per_node * factor))
    per_param = (18 if strategy.params == "cpu" else 16) * share
    bound = per_param if strategy.zero_init else max(loading, per_param)
    here = 0 if strategy.params == "cpu" else int(2 * total / machines.gpus)
    return MemoryNeed(largest + here, int(total * bound * factor))


class MemorySettings(Struct, frozen=True):
    """The settings of the config that affect memory; the defaults are DeepSpeed's (0.19.8)."""

    width: Literal[2, 4] = 2
    """Bytes per parameter: 2 with fp16 and bf16, 4 in full precision."""
    reduce_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    """Parameters that the optimizer of stage 3 updates at a time."""
    overlap_comm: bool | None = None
    """None: enabled for stage 3 only."""
    factor: float = BUFFER_FACTOR
    moments: float = 8.0
    """Bytes per parameter that the optimizer keeps besides the master weights: Adam's moments."""


DEFAULTS = MemorySettings()
NVME_BUFFERS = 4
"""offload_optimizer.buffer_count (DeepSpeed 0.19.8, zero/offload_config.py)."""
NVME_PARAM_BUFFERS, NVME_PARAM_BUFFER = 5, 100_000_000
"""offload_param.buffer_count and .buffer_size, in parameters (same file)."""


def state_parts(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings = DEFAULTS
) -> tuple[MemoryPart, ...]:
    """Return the parts of the model states, without the errors of DeepSpeed's estimators.

    The sizes follow the source of 0.19.8 and were measured with it; `FAULTS` lists the errors.
    """
    gpu = _partitioned(model, machines, strategy, settings) if strategy.stage == 3 else ()
    gpu = gpu or _replicated(model, machines, strategy, settings)
    return (*gpu, *_host_parts(model, machines, strategy, settings))


def _step_parts(shard: float, per_group: float, width: int) -> tuple[MemoryPart, ...]:
    """Return the additional memory during the step: flattened gradients, and gradients in fp32."""
    upcast = 4 if width == 2 else 0
    return (
        MemoryPart(
            "gradients, flattened for the step", "gpu", width * min(shard, per_group), "step"
        ),
        MemoryPart("gradients in fp32", "gpu", upcast * min(shard, per_group), "step"),
    )


def _replicated(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings
) -> tuple[MemoryPart, ...]:
    """Return the parts of stages 0 to 2, in which each GPU has all parameters."""
    total, width = model.params, settings.width
    shard = total / machines.gpus
    params = MemoryPart("parameters", "gpu", width * total)
    if strategy.stage == 0:
        return (params, *_unpartitioned(total, settings))
    kept = total if strategy.stage == 1 else shard
    if strategy.optimizer != "gpu":
        late = (
            (MemoryPart("gradients", "gpu", width * total, "backward"),)
            if strategy.stage == 1
            else ()
        )
        return (params, *late)
    return (
        params,
        MemoryPart("master weights and Adam's moments", "gpu", (4 + settings.moments) * shard),
        MemoryPart("gradients", "gpu", width * kept, "backward"),
        MemoryPart("gradients, this GPU's part", "gpu", width * shard, "step"),
        *_step_parts(shard, shard, width),
    )


def _unpartitioned(total: int, settings: MemorySettings) -> tuple[MemoryPart, ...]:
    states = (
        MemoryPart("gradients", "gpu", settings.width * total),
        MemoryPart("Adam's moments", "gpu", settings.moments * total),
    )
    if settings.width == 4:
        return states
    return (
        *states,
        MemoryPart("master weights", "gpu", 4 * total),
        MemoryPart("gradients in fp32", "gpu", 4 * total, "step"),
    )


def _partitioned(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings
) -> tuple[MemoryPart, ...]:
    """Stage 3."""
    width, shard = settings.width, model.params / machines.gpus
    largest = MemoryPart("largest layer and its gradients", "gpu", 2 * width * model.largest_layer)
    params = MemoryPart("parameters, this GPU's part", "gpu", width * shard)
    if strategy.optimizer != "gpu":
        return (largest, params) if strategy.params == "gpu" else (largest,)
    return (
        largest,
        params,
        MemoryPart("gradients, this GPU's part", "gpu", width * shard),
        MemoryPart("master weights and Adam's moments", "gpu", (4 + settings.moments) * shard),
        *_step_parts(shard, settings.sub_group, width),
    )


def _host_parts(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings
) -> tuple[MemoryPart, ...]:
    """Return the parts in CPU memory: offloaded states, and the model while each process loads
    it."""
    node = model.params / machines.nodes
    each = model.largest_layer if strategy.stage == 3 and strategy.zero_init else model.params
    loading = 4 * each * machines.gpus_per_node * settings.factor
    if strategy.stage == 3 and strategy.zero_init and strategy.optimizer != "gpu":
        loading = 0
    parts = [MemoryPart("model during loading", "cpu", loading, "loading")]
    if strategy.optimizer == "cpu":
        size = (16 + (2 if strategy.params == "cpu" else 0)) * node * settings.factor
        parts.append(MemoryPart("offloaded states, with DeepSpeed's factor", "cpu", size, "step"))
    if strategy.optimizer == "nvme":
        parts += _swapped(model, machines, strategy, settings)
    return tuple(parts)


def _swapped(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings
) -> tuple[MemoryPart, ...]:
    """Return master weights, moments and fp32 gradients on NVMe, with their buffers in CPU
    memory."""
    node, each = model.params / machines.nodes, machines.gpus_per_node
    group = min(model.params / machines.gpus, settings.sub_group)
    parts = [
        MemoryPart("offloaded optimizer", "nvme", 16 * node),
        MemoryPart("gradients, 16 bit", "cpu", settings.width * node),
        MemoryPart("swap buffers of the optimizer", "cpu", NVME_BUFFERS * 4 * group * each),
    ]
    if strategy.params == "nvme":
        buffers = NVME_PARAM_BUFFERS * NVME_PARAM_BUFFER * settings.width * each
        parts += [
            MemoryPart("offloaded parameters", "nvme", settings.width * node),
            MemoryPart("swap buffers of the parameters", "cpu", buffers),
        ]
    elif strategy.params == "cpu":
        parts.append(MemoryPart("offloaded parameters", "cpu", settings.width * node))
    return tuple(parts)


def bucket_parts(
    model: Model, strategy: Strategy, settings: MemorySettings = DEFAULTS
) -> tuple[MemoryPart, ...]:
    """Return the communication buffers, and the parameters that stage 3 keeps gathered.

    Stages 1 and 2 have one reduce bucket, or two with overlap_comm, during the backward pass;
    stage 3 always has one. Stage 3 keeps a parameter gathered if its next use is nearer than
    stage3_max_reuse_distance parameters: a smaller model is complete on every GPU.
    (0.19.8: stage_1_and_2.py `ipg_buckets`, stage3.py, partitioned_param_coordinator.py; measured.)
    """
    width = settings.width
    if strategy.stage == 0:
        return ()
    if strategy.stage < 3:
        buckets = 2 if settings.overlap_comm else 1
        return (
            MemoryPart(
                "reduce buckets", "gpu", buckets * width * settings.reduce_bucket, "backward"
            ),
        )
    prefetched = min(model.params, settings.prefetch_bucket)
    gathered = min(model.params, settings.max_reuse_distance + settings.prefetch_bucket)
    return (
        MemoryPart("reduce bucket", "gpu", width * settings.reduce_bucket),
        MemoryPart("gathered parameters", "gpu", width * gathered, "backward"),
        # one all-gather has a separate buffer, from which the parameters are copied
        MemoryPart("prefetch bucket", "gpu", width * prefetched, "backward"),
    )


def peak(parts: tuple[MemoryPart, ...], place: Device) -> int:
    """Return the peak in bytes on this device."""
    here = [part for part in parts if part.place == place]
    moments = ("loading", "backward", "step")
    always = sum(part.size for part in here if part.when == "always")
    return int(always + max(sum(p.size for p in here if p.when == when) for when in moments))


def corrected(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings = DEFAULTS
) -> MemoryNeed:
    """Return the model states per GPU and per node, without the errors of the estimators."""
    parts = state_parts(model, machines, strategy, settings)
    return MemoryNeed(peak(parts, "gpu"), peak(parts, "cpu"))


FAULTS = {
    "a": "counts the 16-bit gradients once; the step makes a second, flat copy of them",
    "b": "omits the 16-bit parameters that ZeRO-3 keeps on the GPUs, 2 bytes each / GPUs",
    "c": "counts fp32 gradients of all parameters; ZeRO-3 has those of one sub-group at a time",
    "d": "multiplies the CPU memory of one node by the GPUs of all nodes; a node holds only its "
    "share of the optimizer states",
    "e": "covers 16-bit training only",
}
"""Errors of DeepSpeed's estimators (0.19.8), by letter."""


def faults(
    model: Model, machines: Machines, strategy: Strategy, settings: MemorySettings = DEFAULTS
) -> tuple[str, ...]:
    """Return which of FAULTS are in DeepSpeed's figures; empty if they agree with ours."""
    theirs = deepspeed_estimate(model, machines, strategy, settings.factor)
    if theirs is None:
        return ()
    if settings.width == 4:
        return ("e",)
    if strategy.optimizer != "gpu":
        return ("d",) if strategy.stage == 2 and machines.nodes > 1 else ()
    if strategy.stage == 2:
        return ("a",)
    grouped = model.params / machines.gpus > settings.sub_group
    return ("a", "b", "c") if grouped else ("a", "b")
