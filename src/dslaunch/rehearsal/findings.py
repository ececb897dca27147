"""The findings of a rehearsal: codes with parameters, their severity, text and hint. Pure.

docs/reference/codes.md lists the codes. Findings of other tables keep their codes: those of the
lint of DeepSpeed configs, of known endings and of hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, field, to_builtins

from dslaunch.lint import Level
from dslaunch.texts import Value, filled


class FindingKind(Enum):
    """What only a rehearsal sees. A member is `NAME = "code", severity, text, hint`.

    Kinds of one mistake that is seen in different ways share its code. Errors are what surely fails
    or trains wrongly; all else are warnings and notes.
    """

    def __init__(self, code: str, level: Level, text: str, hint: str) -> None:
        self.code, self.level, self.text, self.hint = code, level, text, hint

    FAILED = "rehearsal.failed", "error", "{what}", "correct the first error in the output"
    TIMEOUT = (
        "rehearsal.timeout",
        "error",
        "waited {seconds:g} s for another rank, the timeout that the script sets",
        "raise the timeout of init_process_group, if the other rank was preparing data (PyTorch's "
        "own is 30 minutes, or 10 with NCCL); else look for a collective that only some ranks call",
    )
    NO_STEPS = (
        "rehearsal.no-steps",
        "warning",
        "the script exited without an optimizer step",
        "check that the data set is not empty, that training is enabled in the arguments, and that "
        "a checkpoint to resume from is not of the last epoch",
    )
    NO_STEP_OF_GRADIENTS = (
        "rehearsal.no-steps",
        "warning",  # the script may change the parameters itself
        "the script exited after {backwards} backward passes without an optimizer step",
        "accumulate gradients of fewer batches than an epoch has, or step after its last batch too",
    )
    TOO_SLOW = (
        "rehearsal.too-slow",
        "warning",
        "{done} of {wanted} steps within the time limit of {seconds:g} s",
        "give it more time with --time-limit",
    )
    BUILDS_KERNEL = (
        "rehearsal.builds-kernel",
        "warning",
        "was stopped while it built the kernel {name}, as the first run on a node does",
        "rehearse again with a longer --time-limit; first remove the file `lock` of this build "
        "below ~/.cache/torch_extensions, since the next build waits for it",
    )
    UNEVEN_STEPS = (
        "rehearsal.uneven-steps",
        "error",
        "the script ended after {steps} steps, while other ranks began another one",
        "give all ranks the same number of batches: drop_last, or a sampler that pads",
    )
    UNEVEN_COLLECTIVES = (
        "rehearsal.uneven-steps",
        "error",
        "waits in {operation}, while other ranks began another step without it",
        "let all ranks call the same collectives between two optimizer steps",
    )
    NOT_DISTRIBUTED = (
        "rehearsal.not-distributed",
        "error",
        "trains alone: {world} of {ranks} ranks in its process group",
        "call torch.distributed.init_process_group without a fixed rank and world size, and start "
        "one script per rank",
    )
    LACKS_RANKS = (
        "rehearsal.world-size",
        "error",
        "waits for {world} ranks, and the run has {ranks}",
        "leave world_size to the launcher, which sets WORLD_SIZE, or start as many ranks",
    )
    LACKS_MASTER = (
        "rehearsal.master-loopback",
        "error",
        "looks for the master at {address}, which is its own node on all nodes",
        "leave MASTER_ADDR to the launcher, which sets the first node's address",
    )
    UNKNOWN_MASTER = (
        "rehearsal.master-unknown",
        "error",
        "looks for the master at {address}, a name that is unknown there",
        "leave MASTER_ADDR to the launcher, which sets the first node's address",
    )
    OTHER_PORT = (
        "rehearsal.master-port",
        "error",
        "looks for the master at port {port}; the launcher is the master, at port {served}, and "
        "no rank is one",
        "leave out init_method, or use MASTER_PORT in it, which the launcher sets",
    )
    SAME_RANK = (
        "rehearsal.same-rank",
        "error",
        "all join as rank {number}, and wait for the other ranks",
        "leave rank to the launcher, which sets RANK: LOCAL_RANK begins at 0 on every node",
    )
    PORTS_DIFFER = (
        "rehearsal.ports-differ",
        "error",
        "look for the master at different ports: {ports}",
        "leave MASTER_PORT to the launcher: a free port that a rank has found is known to it alone",
    )
    FILE_NOT_SHARED = (
        "rehearsal.file-not-shared",
        "error",
        "wait for each other in {path}, which their nodes do not share",
        "leave init_method out, so that MASTER_ADDR and MASTER_PORT are used, or take a file on "
        "shared storage",
    )
    GROUPS_DIFFER = (
        "rehearsal.groups-differ",
        "error",
        "a process group of {own}, where other ranks make one of {other}",
        "call new_group in all ranks for every group, also for those that a rank is not in, in the "
        "same order",
    )
    NOT_SYNCHRONIZED = (
        "rehearsal.not-synchronized",
        "error",
        "different parameters after step {step}, and no gradients were exchanged",
        "wrap the model: DistributedDataParallel(model), fully_shard(model) or "
        "deepspeed.initialize(model=model)",
    )
    PAST_ENGINE = (
        "rehearsal.not-synchronized",
        "error",
        "the script steps {optimizer} itself, and not the DeepSpeed engine that got it: no "
        "gradients are exchanged",
        "call engine(...), engine.backward(loss) and engine.step() instead",
    )
    PARAMETERS_DIFFER = (
        "rehearsal.parameters-differ",
        "warning",
        "different parameters after step {step}",
        "check that all forward passes use the wrapped model, and that no_sync() is left before "
        "the last micro-batch",
    )
    UNWRAPPED_DIFFER = (
        "rehearsal.parameters-differ",
        "warning",  # ranks may have layers for themselves
        "different parameters after step {step} in layers that are in no wrapped model",
        "wrap all layers that are trained, in one module: gradients of others are not exchanged",
    )
    NO_GRADIENTS = (
        "rehearsal.no-update",
        "error",
        "no parameter of {optimizer} has a gradient",
        "make the optimizer from the parameters of the model that is trained, after it was wrapped",
    )
    NO_UPDATE = (
        "rehearsal.no-update",
        "error",
        "{optimizer} did not change the parameters in {steps} steps",
        "make the optimizer from the parameters of the model that is trained, after it was wrapped "
        "and moved",
    )
    OTHER_PARAMETERS = (
        "rehearsal.no-update",
        "error",
        "{optimizer} has no parameter of the wrapped model",
        "make the optimizer from the parameters of the model that is trained",
    )
    UNTRAINED = (
        "rehearsal.no-update",
        "warning",  # it may be meant to pass gradients on
        "{model} is wrapped and has gradients, and no optimizer has its parameters",
        "make an optimizer from the parameters of each model, or freeze it: requires_grad_(False)",
    )
    ROUNDED_AWAY = (
        "rehearsal.no-update",
        "warning",
        "{optimizer} did not change the parameters in {steps} steps: its updates are smaller than "
        "the precision of {types}",
        "keep the weights in float32 and use autocast, or a larger learning rate: such updates are "
        "lost in every step",
    )
    WARMS_UP = (
        "rehearsal.schedule-unused",
        "info",  # the first two rates of DeepSpeed's WarmupLR are 0
        "the learning rate is 0 in all {steps} steps of a schedule",
        "rehearse more steps with --steps, or check the warmup",
    )
    ZERO_RATE = (
        "rehearsal.schedule-unused",
        "error",
        "the learning rate is 0 in all {steps} steps",
        "set the learning rate, and check the warmup of the scheduler",
    )
    STAYS_ZERO = (
        "rehearsal.schedule-unused",
        "error",
        "the learning rate is 0 in all {steps} steps, and its schedule leaves it there",
        "give the schedule the optimizer steps of the whole training: it ends before the first one",
    )
    SEVERAL_STEPS = (
        "rehearsal.schedule-steps",
        "info",  # Accelerate's schedulers do, which are made for the batches of all ranks
        "{scheduler} makes {each} steps in each optimizer step: its {total} steps end after {end} "
        "optimizer steps",
        "if that is too early, multiply its steps by the number of ranks, or do not pass it to "
        "accelerator.prepare()",
    )
    STEPS_OF_ONE_RANK = (
        "rehearsal.schedule-steps",
        "warning",
        "{scheduler} makes {each} steps in each optimizer step: its {total} steps end after {end} "
        "optimizer steps, in the middle of an epoch",
        "multiply its steps by accelerator.num_processes, or count the batches before "
        "accelerator.prepare()",
    )
    TOO_MANY_STEPS = (
        "rehearsal.schedule-steps",
        "warning",
        "{scheduler} makes {each} steps in each optimizer step: its {total} steps end after {end} "
        "optimizer steps",
        "call scheduler.step() only after an optimizer step, or give the schedule the number of "
        "all micro-batches",
    )
    STEPPED_TWICE = (
        "rehearsal.schedule-steps",
        "warning",
        "{scheduler} makes {each} steps in each optimizer step: DeepSpeed steps it, and the script "
        "does too",
        "leave scheduler.step() to the engine, or do not pass the scheduler to "
        "deepspeed.initialize()",
    )
    SCHEDULER_UNUSED = (
        "rehearsal.schedule-unused",
        "info",  # PyTorch's own examples, and Lightning unless told, make one step per epoch
        "{scheduler} made no step in {steps} optimizer steps",
        "call scheduler.step() after each optimizer step, unless it is meant per epoch",
    )
    STARTS_APART = (
        "rehearsal.parameters-differ",
        "error",
        "different parameters already before the first step, although the model is wrapped",
        "load a checkpoint in all ranks, or before the model is wrapped: that sends the parameters "
        "of rank 0 to all",
    )
    STARTS_DIFFERENT = (
        "rehearsal.parameters-differ",
        "warning",
        "different parameters already before the first step",
        "build the model with the same seed in all ranks, and load a checkpoint in all; wrapped in "
        "DistributedDataParallel, all get the parameters of rank 0",
    )
    AVERAGED_LATER = (
        "rehearsal.parameters-differ",
        "info",  # local SGD, federated averaging
        "different parameters after step {step}: the script averages them itself, in a later step",
        "rehearse more steps with --steps, if they should have been averaged by then",
    )
    LEFT_OUT = (
        "rehearsal.no-update",
        "warning",
        "{tensors} parameters of {model} have gradients and are in no optimizer, such as {name}",
        "pass them to the optimizer, which may have been made before they were added; set "
        "requires_grad_(False) for those that are not to be trained",
    )
    SCHEDULED_FIRST = (
        "rehearsal.schedule-steps",
        "warning",
        "{scheduler} makes a step before the first step of its optimizer: the schedule's first "
        "learning rate is left out",
        "call scheduler.step() after optimizer.step()",
    )
    BROADCAST_LOSS = (
        "rehearsal.broadcast-loss",
        "error",
        "{loss} compares values of the shape {values} with targets of the shape {targets}: each "
        "value with the targets of all samples",
        "give both the same shape: squeeze(-1) of the model's output, or unsqueeze(-1) of the "
        "targets",
    )
    CLIPPED_SCALED = (
        "rehearsal.clipped-scaled",
        "error",
        "gradients are clipped to a norm of {norm:g} while the gradient scaler has multiplied them "
        "by {scale:g}: the steps are as much smaller",
        "call scaler.unscale_(optimizer) before clip_grad_norm_()",
    )
    STEPS_SKIPPED = (
        "rehearsal.steps-skipped",
        "error",
        "the gradient scaler has skipped all {steps} steps: gradients overflow, or are NaN, at any "
        "scale",
        "use bf16, or compute the loss and what overflows in fp32; look for NaN in data and "
        "weights",
    )
    NOTHING_LOADED = (
        "rehearsal.nothing-loaded",
        "error",
        "none of the {tensors} tensors of a state dict was loaded into {model}: the first is "
        "{given}, and that of the model {wanted}",
        "rename the keys (most often a prefix such as `module.` or `model.` is too much), and load "
        "with strict=True",
    )
    TEXT_IS_TRUE = (
        "rehearsal.text-is-true",
        "error",
        "{argument} {text} is True: argparse calls bool() with the text, and only an empty text is "
        "False",
        "use action=argparse.BooleanOptionalAction (--x and --no-x), or a function that reads the "
        "text",
    )
    PARALLEL_INPUTS_DIFFER = (
        "rehearsal.parallel-inputs-differ",
        "error",
        "divide tensors among them, and read different batches: tensor parallelism needs the same",
        "divide the data by the data parallel rank only: DistributedSampler(data, "
        "mesh['dp'].size(), mesh['dp'].get_local_rank()), or none without data parallelism",
    )
    CLIPPED_IN_PARTS = (
        "rehearsal.clipped-in-parts",
        "warning",
        "gradients that FullyShardedDataParallel divides are clipped by the norm of each rank's "
        "part: the ranks scale them differently",
        "call clip_grad_norm_() of the FullyShardedDataParallel module",
    )
    LOSS_NOT_FINITE = (
        "rehearsal.loss-not-finite",
        "error",
        "the loss of step {step} is NaN or infinite",
        "check the data and the learning rate; with fp16, use bf16 or a lower loss scale",
    )
    EVALUATION_MODE = (
        "rehearsal.evaluation-mode",
        "warning",
        "the model is in evaluation mode in all {steps} steps: dropout and batch norm are off",
        "call model.train() before the steps, and after each evaluation",
    )
    GRADIENTS_KEPT = (
        "rehearsal.gradients-kept",
        "warning",
        "{optimizer} adds the gradients of step {step} to those of the step before",
        "call optimizer.zero_grad() after each step",
    )
    SAME_ORDER = (
        "rehearsal.same-order",
        "warning",
        "the second epoch has the order of the first, although the sampler shuffles",
        "call sampler.set_epoch(epoch) before each epoch",
    )
    SAME_DATA_IN_WORKERS = (
        "rehearsal.same-data",
        "error",
        "the {workers} workers of a data loader return the same samples",
        "split the data set in __iter__ by torch.utils.data.get_worker_info()",
    )
    SEEDS_DIFFER = (
        "rehearsal.same-data",
        "error",
        "the samplers have different seeds: their parts of the data overlap",
        "use the same seed for the DistributedSampler of all ranks",
    )
    SAME_DATA = (
        "rehearsal.same-data",
        "error",
        "all read the same samples in the same order",
        "use DistributedSampler, or split the data by rank",
    )
    SPAWNS_RANKS = (
        "rehearsal.spawns-ranks",
        "error",
        "the script starts {processes} processes itself, and the launcher has started it once for "
        "each rank",
        "call the function without mp.spawn: RANK, LOCAL_RANK and WORLD_SIZE are set",
    )
    ACCUMULATED_TWICE = (
        "rehearsal.accumulated-twice",
        "warning",
        "a step has {found} backward passes; gradient_accumulation_steps is {wanted}",
        "call step() of the DeepSpeed engine after each backward pass: it counts them itself",
    )
    SAME_DATA_IN_SOME = (
        "rehearsal.same-data",
        "error",
        "these read the same samples in the same order, and other ranks read others",
        "give the sampler the number of all ranks and the global rank (RANK, not LOCAL_RANK)",
    )
    ORDERS_DIFFER = (
        "rehearsal.same-data",
        "error",
        "list the same samples in different orders, which a sampler divides by their numbers: some "
        "are in several parts, and some in none",
        "sort the list, or shuffle it with the same seed in all ranks: the order of os.listdir(), "
        "glob() and of sets differs between nodes and processes",
    )
    SPLITS_DIFFER = (
        "rehearsal.same-data",
        "error",
        "each has chosen other samples of the data set before a sampler divides them: some are in "
        "several parts, and some in none",
        "split the data set with the same seed in all ranks: generator of random_split",
    )
    SPLITS_OVERLAP = (
        "rehearsal.same-data",
        "warning",  # ranks may draw their samples at random
        "each has chosen other samples of the data set: some are in several parts, some in none",
        "choose the parts with the same seed in all ranks, or use DistributedSampler",
    )
    SAME_DATA_LOADED = (
        "rehearsal.same-data",
        "warning",
        "all load the same samples in the same order; inputs or losses of the model differ",
        "check that each rank takes its own part of a batch; if not, use DistributedSampler",
    )
    SAME_INPUTS = (
        "rehearsal.same-data",
        "warning",  # inputs may be made up, as in a benchmark
        "the models of all get the same inputs in the same order",
        "divide the samples by rank, or draw them with another seed in each rank: seed + rank",
    )
    FEW_SAMPLES = (
        "rehearsal.few-samples",
        "warning",
        "{samples} samples are {each} for each of {ranks} ranks: an epoch has less than one batch "
        "of {batch}",
        "use fewer ranks, a smaller batch, or more data",
    )
    NO_BATCH = (
        "rehearsal.few-samples",
        "error",
        "{samples} samples are {each} for each of {ranks} ranks, and drop_last drops a batch of "
        "less than {batch}: no step is made",
        "use fewer ranks, a smaller batch, or more data",
    )
    UNREAD_PARTS = (
        "rehearsal.unread-data",
        "warning",  # samplers of later epochs may read the other parts
        "{sampler} divides the samples into {parts} parts, of which {ranks} ranks read {read}",
        "pass num_replicas=dist.get_world_size() and rank=dist.get_rank(), or neither",
    )
    DIVIDED_TWICE = (
        "rehearsal.unread-data",
        "warning",
        "{source} draws another part of the samples in each rank, and Accelerate divides them "
        "again: no rank reads the rest",
        "leave the data loader out of accelerator.prepare(), or let {source} draw all samples",
    )
    PLAIN_SAMPLER = (
        "rehearsal.plain-sampler",
        "warning",
        "{sampler} draws from all {samples} samples in each rank",
        "use DistributedSampler: otherwise an epoch reads every sample once per rank",
    )
    LENGTHS_DIFFER = (
        "rehearsal.lengths-differ",
        "warning",
        "data loaders of different lengths: {lengths} batches",
        "make them equal: the ranks with more batches wait at the end of the epoch",
    )
    BATCHES_DIFFER = (
        "rehearsal.batch-differs",
        "warning",
        "different batch sizes: {sizes}",
        "gradients are averaged over ranks, not samples: use one batch size",
    )
    BATCH_DIFFERS = (
        "rehearsal.batch-differs",
        "warning",
        "the data loader has batches of {loader}, train_micro_batch_size_per_gpu is {micro}",
        "use one value for both: DeepSpeed counts samples by its config",
    )
    CONFIGS_DIFFER = (
        "rehearsal.config-differs",
        "error",
        "different DeepSpeed configs",
        "use the same config on all nodes",
    )
    MODELS_DIFFER = (
        "rehearsal.model-differs",
        "error",
        "models with different numbers of parameters: {sizes}",
        "build the same model in all ranks",
    )
    ACCUMULATION_UNUSED = (
        "rehearsal.accumulation-unused",
        "warning",
        "gradient accumulation of {wanted} is configured, and a step has {found} backward passes",
        "use `with accelerator.accumulate(model)`, or remove the setting",
    )
    CHECKPOINT_OVERWRITTEN = (
        "rehearsal.checkpoint-overwritten",
        "warning",
        "all write {path}",
        "let rank 0 write it, or put the rank into its name",
    )
    CHECKPOINT_IN_PARTS = (
        "rehearsal.checkpoint-incomplete",
        "warning",
        "{path} is not shared: each of {hosts} has only its own part",
        "{advice}",
    )
    CHECKPOINT_INCOMPLETE = (
        "rehearsal.checkpoint-incomplete",
        "warning",
        "{path} is not shared, and written by {ranks} only",
        "{advice}",
    )
    CHECKPOINT_ON_ONE_NODE = (
        "rehearsal.checkpoint-incomplete",
        "info",  # the script may never load it, or load it in this rank only
        "{path} is not shared, and written by {ranks} only",
        "write to shared storage, or copy it to all nodes before all ranks load it",
    )
    CHECKPOINT_SCATTERED = (
        "rehearsal.checkpoint-incomplete",
        "error",
        "write their parts of one checkpoint to different directories: {paths}",
        "make the name in one rank, and send it to all (broadcast_object_list): a time or a random "
        "number differs between ranks",
    )
    OUTPUTS_DIFFER = (
        "rehearsal.output-differs",
        "warning",
        "different output directories: {paths}",
        "make the name in one rank, or before the launch: a time or a random number differs "
        "between ranks",
    )
    CHECKPOINT_EMPTY = (
        "rehearsal.checkpoint-incomplete",
        "error",
        "{path} has {empty} of {tensors} tensors without elements",
        "gather the parameters first: engine.save_16bit_model, or save_checkpoint and "
        "zero_to_fp32.py",
    )
    CHECKPOINT_TEMPORARY = (
        "rehearsal.checkpoint-temporary",
        "warning",
        "{path} is in a directory for temporary files",
        "write checkpoints to storage that outlasts the job",
    )
    PARAMETERS_ON_CPU = (
        "rehearsal.parameters-on-cpu",
        "warning",
        "parameters are on the CPU, although {gpus} GPUs are visible",
        "move the model to its GPU: model.to(local_rank)",
    )
    MANY_WORKERS = (
        "rehearsal.many-workers",
        "warning",
        "{workers} data loader workers in {ranks} ranks on {cpus} CPUs",
        "reduce num_workers",
    )
    MANY_THREADS = (
        "rehearsal.many-threads",
        "warning",
        "OMP_NUM_THREADS={threads} in {ranks} ranks on {cpus} CPUs",
        "set OMP_NUM_THREADS to the CPUs per rank",
    )
    GPU_MEMORY = (
        "rehearsal.gpu-memory",
        "warning",
        "{used} of {total} GPU memory in use after {steps} steps",
        "use a smaller micro-batch: longer sequences and fragmentation need more",
    )
    GPU_STATES = (
        "rehearsal.memory",
        "error",
        "{parameters} parameters need at least {need} of GPU memory for each of {ranks} ranks, and "
        "a GPU has {total}",
        "use a higher ZeRO stage, offload, or more GPUs: `dslaunch estimate` compares them",
    )
    NODE_MEMORY = (
        "rehearsal.node-memory",
        "warning",
        "{ranks} ranks used {used} of {total} of memory at most",
        "use fewer workers or ranks on a node, or less offload to the CPU",
    )
    MOSTLY_STATES = (
        "rehearsal.memory-estimate",
        "warning",
        "{used} of GPU memory at most, and the model states alone need {need} by the estimate",
        "check that the DeepSpeed config and the optimizer are those of the real run",
    )
    MOSTLY_ACTIVATIONS = (
        "rehearsal.memory-estimate",
        "info",
        "{used} of GPU memory at most, of which {need} are model states by the estimate",
        "activations and buffers use the rest: activation checkpointing or a smaller micro-batch "
        "reduces it",
    )
    NETWORK = (
        "rehearsal.network",
        "info",
        "connects to {hosts}",
        "download models and data before the run, and set HF_HUB_OFFLINE=1",
    )


class Finding(Struct, frozen=True):
    """One finding."""

    code: str
    level: Level
    where: str
    """A file with line and column, or ranks: `ds_config.json:4:3`, `ranks 0-3`."""
    text: str
    """What was found: lower case, no full stop."""
    hint: str | None = None
    evidence: str | None = None
    """What shows it, such as an exception."""
    values: Mapping[str, Value] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        fields: dict[str, Any] = to_builtins(self)
        return fields


def finding(
    kind: FindingKind, where: str, *, evidence: str | None = None, **values: Value
) -> Finding:
    """Return a finding of this table."""
    return Finding(
        code=kind.code,
        level=kind.level,
        where=where,
        text=filled(kind.text, values),
        hint=filled(kind.hint, values),
        evidence=evidence,
        values=values,
    )
