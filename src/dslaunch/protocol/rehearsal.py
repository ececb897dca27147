"""What the ranks of a rehearsal have recorded (`node/hook_rehearsal.py`), as typed values.

The records are made in the processes of the job. One that is invalid is dropped and counted: it
must not end the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from dslaunch.protocol.values import (
    Count,
    InvalidAnswer,
    Path,
    Pid,
    RankKey,
    Sent,
    Several,
    Short,
    Text,
    adapter_of,
    parse,
)

MOST_RECORDS = 10_000
"""Records of one rank in one answer."""
MOST_NUMBERS = 64
Number = Annotated[float, Field(allow_inf_nan=False)]
Numbers = Annotated[Several[Number], Field(max_length=MOST_NUMBERS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Counts = Annotated[Mapping[Short, Count], Field(max_length=MOST_NUMBERS)]
Integer = Annotated[int, Field(ge=-(2**62), le=2**62)]
Setting = bool | Integer | Number | Short | None
Settings = Annotated[Mapping[Short, Setting], Field(max_length=MOST_NUMBERS)]


class Started(Sent):
    """A rank's process has started."""

    kind: Literal["start"]
    pid: Pid
    world: Count | None
    python: Short
    cpus: Count | None
    """CPUs that the process may use."""
    threads: Count | None
    """`OMP_NUM_THREADS`."""
    cwd: Path
    node_memory: Count | None = None
    """Memory of the node in bytes."""


class TorchImported(Sent):
    """PyTorch was imported."""

    kind: Literal["torch"]
    version: Short
    cuda: bool
    """Whether it is built with CUDA."""


class RendezvousBegun(Sent):
    """A rank begins to wait for the others, to initialize the default process group."""

    kind: Literal["rendezvous"]
    world: Count | None
    """Ranks that it waits for; None: unknown."""
    address: Short | None
    """Where it looks for the master; None: unknown, or it looks for none."""
    resolves: bool | None = None
    """Whether the node knows this address; None: not asked."""
    rank: Count | None = None
    """The rank as which it joins; None: unknown."""
    port: Count | None = None
    """Of the master."""
    served: Count | None = None
    """The port at which the launcher is the master; None: rank 0 is the master, at any port."""
    file: Path | None = None
    """In which it looks for the others, instead of asking a master."""


class ProcessGroup(Sent):
    """The default process group was initialized."""

    kind: Literal["process-group"]
    backend: Short
    world: Count
    rank: Count
    method: Short | None
    timeout: Number | None
    """Seconds; None: the default."""


class JoinedRpc(Sent):
    """It has joined the ranks that call each other's functions (`torch.distributed.rpc`)."""

    kind: Literal["joined-rpc"]
    world: Count
    """Ranks that have joined."""


class Group(Sent):
    """A further group is made."""

    kind: Literal["group"]
    size: Count | None
    """None: all ranks."""
    members: Annotated[Several[Count], Field(max_length=MOST_NUMBERS)] | None = None
    """The first ranks of it; None: all ranks, or unknown."""
    by_members: bool = False
    """Whether only its members make it, and other ranks do not know of it."""


class _Sizes(Sent):
    parameters: Count
    trainable: Count
    types: Counts
    """Parameters by data type: float32, bfloat16."""
    devices: Counts
    """Parameters by kind of device: cpu, cuda."""
    gpu_total: Count | None = None
    """Memory of the rank's GPU in bytes, if parameters are on one."""


class Wrapped(_Sizes):
    """A model was wrapped for training on several ranks."""

    kind: Literal["wrapped"]
    wrapper: Short
    model: Short
    largest: Count
    """Parameters of the module with the most, without its children."""
    largest_name: Short


class OptimizerBuilt(_Sizes):
    """An optimizer makes its first step; the sizes are of its parameters."""

    kind: Literal["optimizer"]
    optimizer: Short
    lr: Numbers
    tensors: Count
    owned: Count | None
    """How many of its tensors are of the wrapped model; None: there is none, or it is sharded."""
    gradients: Count | None
    """How many of its tensors have a gradient then; None: unknown."""
    fingerprint: Numbers
    """Sums of some parameters before the step."""
    unwrapped: Numbers = ()
    """The same of those that are in no wrapped model, if others are."""
    own_bytes: Count | None = None
    """Bytes of its parameters in this rank; None: of an engine."""


class Loader(Sent):
    """A data loader was made."""

    kind: Literal["loader"]
    number: Count
    batch: Count | None
    workers: Count
    dataset: Short
    samples: Count | None
    batches: Count | None
    sampler: Short
    batch_sampler: Short
    replicas: Count | None
    replica: Count | None
    seed: Integer | None
    drop_last: bool
    subset: Digest | None = None
    """Of the samples that are chosen of a data set, if it is a part of one."""
    chosen: Annotated[Several[Count], Field(max_length=MOST_NUMBERS)] = ()
    """The smallest hashes of these samples."""
    listed: Digest | None = None
    """Of the names of the samples that the data set has, in any order; None: it has none."""
    order: Digest | None = None
    """Of these names in their order."""


class Batch(Sent):
    """A data loader has returned a batch for training."""

    kind: Literal["batch"]
    loader: Count
    index: Count
    size: Count
    digest: Digest


class PreparedLoader(Sent):
    """Accelerate divides the samples of a data loader among ranks."""

    kind: Literal["prepared-loader"]
    source: Short
    """The class of the sampler, or of a data set that is a stream: it decides which samples this
    rank would get without Accelerate."""
    part: Count
    """Of this rank, from 0."""
    parts: Count
    samples: Count | None
    """Of the data set; None: it is a stream."""
    drawn: Count | None
    """Samples that the sampler draws in an epoch; None: unknown."""
    numbers: Annotated[Mapping[Short, Integer], Field(max_length=MOST_NUMBERS)]
    """Attributes of the source."""
    chosen: Digest | None
    """Of the numbers of the samples that a sampler has; None: it has no list of them."""


class Input(Sent):
    """The wrapped model has got an input for training."""

    kind: Literal["input"]
    index: Count
    digest: Digest
    size: Count | None = None
    """Samples; None: not recorded."""


class SameOrder(Sent):
    """A data loader that shuffles begins another epoch in the order of the one before."""

    kind: Literal["same-order"]
    loader: Count


class CollectiveBegun(Sent):
    """It begins a collective of all ranks; only the first ones are noted."""

    kind: Literal["collective-begins"]
    number: Count
    """Among those that it has begun, from 1."""
    operation: Short
    file: Path | None
    """Where in the script's own code, relative to the working directory; None: unknown."""
    line: Count | None
    caller: Path | None = None
    """Where in a library, which the script's own code has called; None: in none."""
    caller_line: Count | None = None


class Joins(Sent):
    """Ranks may end before others: `torch.distributed.algorithms.Join` is used."""

    kind: Literal["join"]


class ClipsParts(Sent):
    """Gradients that are divided among the ranks are clipped by the norm of this rank's part."""

    kind: Literal["clips-parts"]


class ClipsScaled(Sent):
    """Gradients are clipped while the gradient scaler has scaled them."""

    kind: Literal["clips-scaled"]
    scale: Number
    norm: Number
    """To which they are clipped."""


class ScaleFell(Sent):
    """A gradient scaler has skipped steps until its scale was below 1."""

    kind: Literal["scale-fell"]
    updates: Count
    """Of the scaler, until then."""


class NothingLoaded(Sent):
    """A state dict was loaded of which the model has no tensor."""

    kind: Literal["nothing-loaded"]
    model: Short
    tensors: Count
    """In the state dict."""
    given: Short
    """The name of its first one."""
    wanted: Short
    """The name of the first one of the model."""


class BroadcastLoss(Sent):
    """A loss compares each value with the targets of all samples."""

    kind: Literal["broadcast-loss"]
    loss: Short
    values: Short
    """Their shape: `(8, 1)`."""
    targets: Short


class ScheduledFirst(Sent):
    """A scheduler has made its first step before its optimizer."""

    kind: Literal["scheduled-first"]
    scheduler: Short


class TextIsTrue(Sent):
    """argparse has made True of a text that means False."""

    kind: Literal["text-is-true"]
    argument: Short
    text: Short


class TensorParallel(Sent):
    """The ranks of a group divide tensors among them, and need the same inputs."""

    kind: Literal["tensor-parallel"]
    members: Annotated[Several[Count], Field(max_length=MOST_NUMBERS)]


class ModelSplit(Sent):
    """Ranks have different parts of the model: PyTorch's tensor or pipeline parallelism is used."""

    kind: Literal["splits-model"]


class BuildBegun(Sent):
    """A kernel is loaded, which may have to be built (`torch.utils.cpp_extension.load`)."""

    kind: Literal["build-begins"]
    name: Short


class BuildEnded(Sent):
    """The kernel was loaded, or could not be."""

    kind: Literal["build-ends"]


class Replaced(Sent):
    """Another program takes the place of the rank's own (`os.exec`). What it does is not recorded
    after this: a program that starts the hook is recorded from its start."""

    kind: Literal["replaced"]
    program: Short


class Spawned(Sent):
    """The script starts processes itself (`torch.multiprocessing.spawn`)."""

    kind: Literal["spawn"]
    processes: Count
    waits: bool = True
    """Whether the rank does nothing until they have ended."""


class SpawnedJoins(Sent):
    """A process that the rank has started joins a process group."""

    kind: Literal["spawned-joins"]
    world: Count | None = None
    """Ranks of the group; None: unknown."""


class Step(Sent):
    """An optimizer step was made."""

    kind: Literal["step"]
    step: Count
    seconds: Number | None
    """Since the step before."""
    lr: Numbers
    loss: Number | None
    finite: bool
    """Whether the loss is."""
    backwards: Count
    """Backward passes since the step before."""
    collectives: Count | None
    """Collectives that were begun since the step before; None: unknown."""
    fingerprint: Numbers
    unwrapped: Numbers = ()
    """Of the parameters that are in no wrapped model, if others of the optimizer are."""
    memory: Count
    """Largest resident memory so far, in bytes."""
    gpus: Count
    gpu_memory: Count | None = None
    """Largest memory that PyTorch has reserved on the GPU, in bytes."""
    gpu_total: Count | None = None
    skipped: Count | None = None
    """Steps that DeepSpeed has skipped since gradients overflowed."""
    states: Counts | None = None
    """Bytes that the optimizer keeps of its parameters in this rank, by kind of device; None: not
    the first step."""
    kept: bool = False
    """Whether its gradients were added to those of the step before."""
    evaluates: bool = False
    """Whether the model is in evaluation mode, in which some of its layers work otherwise."""
    loaders: Annotated[Several[Count], Field(max_length=MOST_NUMBERS)] = ()
    """Numbers of the data loaders that were being read."""


class Untrained(Sent):
    """The wrapped models that have gradients and were not changed by the steps."""

    kind: Literal["untrained"]
    models: Annotated[Several[Short], Field(max_length=MOST_NUMBERS)]
    """Their classes."""


class LeftOut(Sent):
    """Some parameters of a wrapped model have gradients and are in no optimizer."""

    kind: Literal["left-out"]
    model: Short
    tensors: Count
    name: Short
    """Of the first one."""


class SteppedPastEngine(Sent):
    """The script steps the optimizer that it gave DeepSpeed, and the engine has made no step."""

    kind: Literal["stepped-past-engine"]
    optimizer: Short


class SchedulerUse(Sent):
    """How often a scheduler and its optimizer have made a step."""

    scheduler: Short
    steps: Count
    optimizer_steps: Count
    total: Count | None = None
    """Steps until its end; None: unknown, or it has none."""
    stays_zero: bool | None = None
    """Whether its rates of later steps are 0; None: unknown."""
    by_engine: bool = False
    """Whether the DeepSpeed engine steps it."""


class Schedulers(Sent):
    """The schedulers after the last step."""

    kind: Literal["schedulers"]
    schedulers: Annotated[Several[SchedulerUse], Field(max_length=MOST_NUMBERS)]


class StepsDone(Sent):
    """All steps of the rehearsal were made."""

    kind: Literal["steps-done"]
    step: Count
    reduces: bool = False
    """Whether the script's code names a collective that may exchange parameters in a later step."""
    averages: bool = False
    """Whether it exchanges the parameters themselves, as ranks do that train alone for a while."""
    passes: bool = False
    """Whether it may pass activations between ranks that have different parts of a model."""


class Held(Sent):
    """The rank waits at the beginning of the step after the last one."""

    kind: Literal["held"]


class GivenConfig(Sent):
    """A DeepSpeed config as DeepSpeed got it."""

    kind: Literal["deepspeed-config"]
    path: Path | None
    """None: it was given as a dict."""
    text: Text
    simulated: Count | None = None
    """The `train_batch_size` that DeepSpeed got instead, for the number of ranks here."""


class UnfilledConfig(Sent):
    """A DeepSpeed config as Accelerate or Transformers got it, which fills in `auto`."""

    kind: Literal["unfilled-config"]
    path: Path | None
    """None: it was given as a dict."""
    text: Text


class Engine(Sent):
    """A DeepSpeed engine was made."""

    kind: Literal["engine"]
    stage: Annotated[int, Field(ge=0, le=3)]
    data_parallel: Count
    train_batch: Count
    micro_batch: Count
    accumulation: Count
    pipeline: bool
    model_parallel: bool
    optimizer: Short
    scheduler: Short | None


class TrainerArguments(Sent):
    """TrainingArguments were made."""

    kind: Literal["trainer"]
    arguments: Settings


class AcceleratorBuilt(Sent):
    """An Accelerator was made."""

    kind: Literal["accelerator"]
    settings: Settings


class Saved(Sent):
    """A checkpoint or another file of tensors is written."""

    kind: Literal["saved"]
    by: Short
    path: Path
    tensors: Count = 0
    empty: Count = 0
    """How many of its tensors have no elements."""


class Written(Sent):
    """A file was opened for writing; the first one in its directory."""

    kind: Literal["written"]
    path: Path


class Host(Sent):
    """The name of another host was resolved."""

    kind: Literal["host"]
    name: Short
    """A field `host` would not be masked (`node/redact.py`), and a name may have a secret in it."""


class Raised(Sent):
    """An exception has ended the script."""

    kind: Literal["exception"]
    error: Short
    text: Text
    file: Path | None
    """The innermost file of the script itself, relative to the working directory."""
    line: Count | None


class Ended(Sent):
    """The script has ended."""

    kind: Literal["ended"]
    steps: Count
    backwards: Count = 0
    """Backward passes since the last step."""


class Unrecorded(Sent):
    """Something could not be recorded."""

    kind: Literal["unrecorded"]
    what: Short
    error: Short


Record = (
    Started
    | TorchImported
    | RendezvousBegun
    | ProcessGroup
    | JoinedRpc
    | Group
    | Wrapped
    | OptimizerBuilt
    | Loader
    | Batch
    | PreparedLoader
    | Input
    | SameOrder
    | CollectiveBegun
    | Joins
    | ClipsParts
    | ClipsScaled
    | ScaleFell
    | NothingLoaded
    | BroadcastLoss
    | ScheduledFirst
    | TextIsTrue
    | TensorParallel
    | ModelSplit
    | BuildBegun
    | BuildEnded
    | Replaced
    | Spawned
    | SpawnedJoins
    | Step
    | Schedulers
    | StepsDone
    | Untrained
    | SteppedPastEngine
    | LeftOut
    | Held
    | GivenConfig
    | UnfilledConfig
    | Engine
    | TrainerArguments
    | AcceleratorBuilt
    | Saved
    | Written
    | Host
    | Raised
    | Ended
    | Unrecorded
)
_RECORD: TypeAdapter[Record] = adapter_of(Annotated[Record, Field(discriminator="kind")])


def _valid_records(value: object) -> tuple[Record, ...]:
    if not isinstance(value, list) or len(value) > MOST_RECORDS:
        raise ValueError("not a list, or too long")
    return tuple(record for record in map(_valid_record, value) if record is not None)


def _valid_record(value: object) -> Record | None:
    try:
        return parse(_RECORD, value)
    except InvalidAnswer:
        return Unrecorded(kind="unrecorded", what="record", error="invalid")


class NewRecords(Sent):
    """What one rank has recorded since it was asked before."""

    records: Annotated[tuple[Record, ...], BeforeValidator(_valid_records)]
    position: Count
    """Where the next ones begin."""


REHEARSAL: TypeAdapter[Mapping[str, NewRecords]] = adapter_of(
    Annotated[Mapping[RankKey, NewRecords], Field(max_length=MOST_RECORDS)]
)
