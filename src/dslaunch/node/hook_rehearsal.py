"""Runs in every rank of a rehearsal: records what the training does, and holds it after some steps.

Records are lines of JSON in `rehearsal/RANK.jsonl` of the run's directory, which only this user can
open; `rehearsal.py` reads them. Functions of PyTorch, DeepSpeed, Transformers and Accelerate are
replaced by ones that call them and then note something: arguments, results and exceptions stay as
they are. What cannot be recorded is noted as that, and never becomes an error of the job. How this
module gets here: `rank_hooks.py`; it imports nothing that an ordinary Python process has not, not
even `__future__`.

A rank is held when it begins the step after the last one: what follows a step, such as a checkpoint
or an evaluation, is rehearsed too, and no rank fails since another one has left.
"""

import functools
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, Iterable, List, Optional, Set

STEPS = "DSLAUNCH_REHEARSAL"
"""The variable with the number of optimizer steps; scripts may read it too."""
WORLD = "DSLAUNCH_REHEARSAL_WORLD"
"""The variable with the number of ranks of the real run, if the rehearsal has fewer."""
SECRETS = "DSLAUNCH_REHEARSAL_SECRETS"
"""The variable with the names of the variables that are secret, with commas between them."""
MASK = "***"
SHORTEST = 4
"""Characters of a secret at the end of a text that was cut from which on they are masked."""
DIRECTORY = "rehearsal"
MOST_RECORDS, MOST_BYTES, LONGEST = 2000, 2 << 20, 120_000
"""Records and bytes of one rank; characters of one record."""
MOST_TEXT = 1000
MOST_NAMES = 64
"""Hosts, and directories that are written to."""
MOST_CONFIG = 100_000
"""Bytes of a DeepSpeed config."""
MOST_TENSORS, MOST_ELEMENTS = 64, 4096
"""Tensors, and elements of each, that a fingerprint of the parameters is made of."""
MOST_BATCHES = 4
"""Batches of each data loader, and inputs of the model, whose content is compared between ranks."""
MOST_CHECKED = 8
"""Parameters of an optimizer whose gradients are checked."""
REDUCTIONS = frozenset(
    ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "average_parameters")
)
"""Functions by which ranks can exchange gradients or parameters themselves."""
PARAMETERS = frozenset(("parameters", "named_parameters", "state_dict"))
"""Methods of a model by which a loop gets its parameters."""
TOTALS = ("total_iters", "T_max", "total_steps")
"""Attributes of schedulers that have the number of their steps."""
HOLD = 0.2
TRAINER = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps", "learning_rate"),
    *("num_train_epochs", "fp16", "bf16", "save_strategy", "save_steps", "save_on_each_node"),
    *("output_dir", "ddp_find_unused_parameters", "ddp_backend", "dataloader_num_workers"),
    *("gradient_checkpointing", "push_to_hub", "report_to", "use_cpu", "seed", "data_seed"),
    *("group_by_length", "dataloader_drop_last", "load_best_model_at_end", "eval_strategy"),
)
"""Fields of TrainingArguments that are recorded."""


class _Recorder:
    """What this process has recorded."""

    def __init__(self, path: str, steps: int, world: "Optional[int]", secrets: "List[str]") -> None:
        self.path, self.steps = path, steps
        self.world = world
        """Ranks of the real run, if these are more; None: as many as here."""
        self.secrets = secrets
        """Spellings of values that no record may have."""
        self.pid = os.getpid()
        self.records = self.bytes = 0
        self.engine: Any = None
        """The DeepSpeed engine: its steps count, not those of the optimizers inside."""
        self.counts: Dict[int, int] = {}
        """Steps of each optimizer, by its identity."""
        self.inner: Set[int] = set()
        """Optimizers that are parts of others, by their identity. After a step of them the ranks
        may have different parameters, as with ZeroRedundancyOptimizer."""
        self.model: Any = None
        """The module that was wrapped last."""
        self.sharded = False
        self.splits = False
        """Whether it is noted that ranks have different parts of the model."""
        self.before: Optional[List[float]] = None
        """The fingerprint of the parameters before the first step."""
        self.loss: Optional[float] = None
        self.backwards = 0
        """Backward passes since the last step."""
        self.inputs = 0
        """Forward passes of the wrapped model whose input was noted."""
        self.kept: Dict[int, List[Any]] = {}
        """By the identity of an optimizer that has made a step: parameters with their gradients,
        until these have been reset."""
        self.stepped_at: Optional[float] = None
        self.collectives: Optional[int] = None
        self.loaders = 0
        self.schedulers: List[Any] = []
        self.groups = 0
        self.hosts: Set[str] = set()
        self.written: Set[str] = set()
        self.noting = False
        """Whether a note is being made, which must not be noted itself."""

    def write(self, kind: str, **values: "Any") -> None:
        """Append a record. Raises OSError, TypeError, ValueError."""
        if os.getpid() != self.pid or self.records >= MOST_RECORDS:
            return
        record = {"kind": kind, **_masked(values, self.secrets)}
        line = json.dumps(record, default=_text).encode() + b"\n"
        if len(line) > LONGEST or self.bytes + len(line) > MOST_BYTES:
            line = json.dumps({"kind": "unrecorded", "what": kind, "error": "too long"}).encode()
            line += b"\n"
        self.records += 1
        self.bytes += len(line)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)


_recorder: "Optional[_Recorder]" = None
_compiling: "List[Callable[[], bool]]" = []
"""`torch.compiler.is_compiling`, once it is there."""


def start(directory: str) -> None:
    """Begin to record in this process if it is a rank, or was started by one. Raises OSError,
    ValueError."""
    global _recorder, _watches
    rank = os.environ.get("RANK", "")
    steps = os.environ.get(STEPS, "")
    if not rank.isdigit() or not steps.isdigit():
        return
    path = os.path.join(directory, DIRECTORY, f"{int(rank)}.jsonl")
    names = os.environ.get(SECRETS, "").split(",")
    values = [os.environ[name] for name in names if os.environ.get(name)]
    secrets = [form for value in values for form in _spellings(value)]
    recorder = _Recorder(path, int(steps), _number(os.environ.get(WORLD)), secrets)
    if _is_part_of_rank(rank):
        _recorder, _watches = recorder, _WATCHES_OF_PART
        return
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    recorder.write(
        "start",
        pid=recorder.pid,
        world=_number(os.environ.get("WORLD_SIZE")),
        python=sys.version.split()[0],
        cpus=cpus,
        threads=_number(os.environ.get("OMP_NUM_THREADS")),
        cwd=os.getcwd(),
        node_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    _recorder = recorder
    os.register_at_fork(after_in_child=_stop)
    sys.addaudithook(_audited)
    import atexit

    atexit.register(_note, _ended)


def _is_part_of_rank(rank: str) -> bool:
    """Return whether the rank's own process has started this one."""
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            return f"RANK={rank}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _stop() -> None:
    """Record nothing in a forked process, such as a worker of a data loader."""
    global _recorder
    _recorder = None


def imported(name: str) -> None:
    """Watch what the module offers that was imported."""
    watch = _watches.get(name)
    if watch is not None:
        _note(watch, sys.modules[name])


# ------------------------------------------------------------ noting


def _note(work: "Callable[..., None]", *args: "Any") -> None:
    """Make a note; what fails there is noted instead."""
    recorder = _recorder
    if recorder is None or recorder.noting or _is_capturing():
        return
    recorder.noting = True
    try:
        work(recorder, *args)
    except Exception as error:  # noqa: BLE001 - it must not become an error of the job
        try:
            what = getattr(getattr(work, "func", work), "__name__", "?").strip("_")
            recorder.write("unrecorded", what=what, error=f"{type(error).__name__}: {error}"[:300])
        except Exception:  # noqa: BLE001 - a full disk, a directory that is gone
            pass
    finally:
        recorder.noting = False


def _is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, which reading a value would break."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    # not imported completely
    if cuda is None or not hasattr(cuda, "is_current_stream_capturing"):
        return False
    in_use = cuda.is_available() and cuda.is_initialized()
    return bool(in_use and cuda.is_current_stream_capturing())


def _watch(
    owner: "Any",
    name: str,
    *,
    before: "Optional[Callable[..., None]]" = None,
    after: "Optional[Callable[..., None]]" = None,
) -> None:
    """Replace a function, so that `before` gets its arguments and `after` also its result.

    Where torch.compile traces it, nothing is noted: the graph would break. Until then it may use no
    global name, since torch would import this module to look it up.
    """
    function = getattr(owner, name, None)
    if function is None:
        return
    compiling = _compiling

    @functools.wraps(function)
    def watched(*args: "Any", **kwargs: "Any") -> "Any":
        if compiling and compiling[0]():
            return function(*args, **kwargs)
        if before is not None:
            _note(before, args, kwargs)
        result = function(*args, **kwargs)
        if after is not None:
            _note(after, args, kwargs, result)
        return result

    setattr(owner, name, watched)


def _argument(args: "Any", kwargs: "Any", place: int, name: str) -> "Any":
    return args[place] if len(args) > place else kwargs.get(name)


def _spellings(secret: str) -> "List[str]":
    """Return a secret as it is, in JSON, and in representations of both."""
    in_json = json.dumps(secret)[1:-1]
    forms = (secret, in_json, repr(secret)[1:-1], repr(in_json)[1:-1])
    return list(dict.fromkeys(forms))


def _masked(value: "Any", secrets: "List[str]") -> "Any":
    """Return a value of a record with the secrets in its texts masked. The agent masks more
    spellings before a record leaves the node; here they are kept from its disk."""
    if isinstance(value, dict):
        return {key: _masked(each, secrets) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(each, secrets) for each in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = _text(value) if not isinstance(value, str) else value
    for secret in secrets:
        text = _without_beginning(text.replace(secret, MASK), secret)
    return text


def _without_beginning(text: str, secret: str) -> str:
    """Return a text that may have been cut within a secret, without the part that is left."""
    for count in range(min(len(secret) - 1, len(text)), SHORTEST - 1, -1):
        if text.endswith(secret[:count]):
            return text[:-count] + MASK
    return text


def _text(value: "Any") -> str:
    """Return what JSON cannot hold as a short text."""
    return str(value)[:MOST_TEXT]


def _number(text: "Optional[str]") -> "Optional[int]":
    return int(text) if text is not None and text.isdigit() else None


def _class(value: "Any") -> str:
    return type(value).__name__[:200]


def _plain(value: "Any") -> "Any":
    """Return a setting as a number, a switch or a short text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _text(getattr(value, "value", value))


# ------------------------------------------------------------ torch


def _watch_torch(recorder: "_Recorder", torch: "Any") -> None:
    recorder.write("torch", version=str(torch.__version__), cuda=torch.version.cuda is not None)
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if is_compiling is not None:
        _compiling.append(is_compiling)
    _watch(torch, "save", before=_saved)


def _saved(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    file = _argument(args, kwargs, 1, "f")
    file = getattr(file, "name", file)
    if isinstance(file, (str, bytes, os.PathLike)):
        tensors = _saved_tensors(_argument(args, kwargs, 0, "obj"), sys.modules["torch"], 0)
        empty = sum(not each.numel() for each in tensors)
        path = _path(file)
        recorder.write("saved", by="torch.save", path=path, tensors=len(tensors), empty=empty)


def _saved_tensors(value: "Any", torch: "Any", depth: int) -> "List[Any]":
    """Return the tensors of a state dict."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, dict) or depth > 2:
        return []
    parts = list(value.values())[:1000]
    return [each for part in parts for each in _saved_tensors(part, torch, depth + 1)]


def _path(file: "Any") -> str:
    return os.path.realpath(os.fsdecode(os.fspath(file)))[:4096]


def _watch_distributed_checkpoint(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "save", before=_saved_shards)


def _saved_shards(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    place = kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)
    if place is not None:
        recorder.write("saved", by="distributed.checkpoint", path=_path(place))


def _watch_groups(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "init_process_group", before=_begins_rendezvous, after=_initialized)
    _watch(module, "new_group", before=_groups)


def _begins_rendezvous(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    world = _joined_ranks(args, kwargs)
    rank = _integer(_argument(args, kwargs, 4, "rank"))
    if rank is None or rank < 0:
        rank = _number(os.environ.get("RANK"))
    method = _argument(args, kwargs, 1, "init_method")
    address = port = file = None
    if isinstance(method, str) and method.startswith("tcp://"):
        address, _, port = method[len("tcp://") :].rpartition(":")
        address = address.strip("[]")
    elif isinstance(method, str) and method.startswith("file://"):
        file = _path(method[len("file://") :])
    elif method in (None, "env://") and _argument(args, kwargs, 5, "store") is None:
        address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    number = _number(port)
    recorder.write("rendezvous", world=world, rank=rank, address=address, port=number, file=file)


def _joined_ranks(args: "Any", kwargs: "Any") -> "Optional[int]":
    """Return how many ranks join by arguments of init_process_group; None: unknown."""
    world = _integer(_argument(args, kwargs, 3, "world_size"))
    return world if world is not None and world > 0 else _number(os.environ.get("WORLD_SIZE"))


def _initialized(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    group = sys.modules["torch.distributed.distributed_c10d"]
    timeout = _argument(args, kwargs, 2, "timeout")
    recorder.write(
        "process-group",
        backend=str(group.get_backend()),
        world=group.get_world_size(),
        rank=group.get_rank(),
        method=_plain(_argument(args, kwargs, 1, "init_method")),
        timeout=timeout.total_seconds() if timeout is not None else None,
    )


def _groups(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    """Note a further group before it is made: ranks that do not agree on one wait for it."""
    recorder.groups += 1
    ranks = _argument(args, kwargs, 0, "ranks")
    by_members = bool(_argument(args, kwargs, 4, "use_local_synchronization"))
    if recorder.groups <= MOST_NAMES:
        size = len(ranks) if ranks is not None else None
        members = sorted(int(rank) for rank in ranks)[:MOST_NAMES] if ranks is not None else None
        recorder.write("group", size=size, members=members, by_members=by_members)


def _collectives() -> "Optional[int]":
    """Return how many collectives the groups have begun so far; None: unknown."""
    group = sys.modules.get("torch.distributed.distributed_c10d")
    if group is None or not group.is_initialized():
        return None
    groups = list(group._world.pg_map)
    return sum(int(each._get_sequence_number_for_group()) for each in groups)


def _watch_join(recorder: "_Recorder", module: "Any") -> None:
    _watch(module.Join, "__init__", after=_joins)


def _joins(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    recorder.write("join")


def _watch_tensor_parallelism(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "parallelize_module", before=_splits_tensors)


def _splits_tensors(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    mesh = _argument(args, kwargs, 1, "device_mesh")
    if mesh is None or mesh.size() > 1:
        _splits_model(recorder)


def _watch_pipelines(recorder: "_Recorder", module: "Any") -> None:
    _watch(module._PipelineStageBase, "__init__", before=_splits_layers)


def _splits_layers(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    _splits_model(recorder)


def _splits_model(recorder: "_Recorder") -> None:
    if not recorder.splits:
        recorder.splits = True
        recorder.write("splits-model")


def _watch_spawn(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "start_processes", before=_spawns)


def _spawns(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    count = _integer(_argument(args, kwargs, 2, "nprocs"))
    waits = _argument(args, kwargs, 3, "join") is not False
    recorder.write("spawn", processes=1 if count is None else count, waits=waits)


def _watch_groups_of_part(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "init_process_group", before=_joins_as_part)


def _joins_as_part(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    recorder.write("spawned-joins", world=_joined_ranks(args, kwargs))


def _watch_backward(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "backward", before=_differentiated)


def _differentiated(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    tensors = _argument(args, kwargs, 0, "tensors")
    recorder.backwards += 1
    for identity, parameters in list(recorder.kept.items()):
        if all(each.grad is None or not each.grad.any() for each in parameters):
            del recorder.kept[identity]
    first = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else tensors
    if first is not None and first.numel() == 1:
        recorder.loss = float(first.detach())


def _watch_ddp(recorder: "_Recorder", module: "Any") -> None:
    _watch(
        module.DistributedDataParallel,
        "__init__",
        after=functools.partial(_wrapped, wrapper="DistributedDataParallel", place=1),
    )
    _watch(module.DistributedDataParallel, "forward", before=_input)


def _input(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    """Note what the wrapped model gets."""
    torch = sys.modules["torch"]
    if recorder.inputs >= MOST_BATCHES or not torch.is_grad_enabled():
        return
    tensors = _tensors([list(args[1:]), kwargs], torch, 0)
    if tensors:
        recorder.inputs += 1
        size, digest = _samples(tensors), _digest(tensors)
        recorder.write("input", index=recorder.inputs, size=size, digest=digest)


def _watch_fsdp(recorder: "_Recorder", module: "Any") -> None:
    _watch(
        module.FullyShardedDataParallel,
        "__init__",
        before=functools.partial(_sharded, place=1),
    )


def _watch_fsdp2(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "fully_shard", before=functools.partial(_sharded, place=0))


def _wrapped(
    recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any", wrapper: str, place: int
) -> None:
    module = _argument(args, kwargs, place, "module")
    recorder.model = module
    recorder.write("wrapped", wrapper=wrapper, **_described(module))


def _sharded(recorder: "_Recorder", args: "Any", kwargs: "Any", place: int) -> None:
    recorder.sharded = True
    module = _argument(args, kwargs, place, "module")
    if recorder.records < MOST_RECORDS // 4:  # each layer may be wrapped by itself
        recorder.write("wrapped", wrapper="FullyShardedDataParallel", **_described(module))


def _described(module: "Any") -> "Dict[str, Any]":
    """Return the size of a model."""
    largest, largest_name = 0, ""
    for name, each in module.named_modules():
        own = sum(_elements(p) for p in each._parameters.values() if p is not None)
        if own > largest:
            largest, largest_name = own, name
    return {
        "model": _class(module),
        "largest": largest,
        "largest_name": largest_name[:200],
        **_sizes(module.parameters()),
    }


def _sizes(parameters: "Iterable[Any]") -> "Dict[str, Any]":
    """Return numbers of parameters, and by data type and by device."""
    total = trainable = 0
    types: Dict[str, int] = {}
    devices: Dict[str, int] = {}
    for each in parameters:
        count = _elements(each)
        total += count
        trainable += count if each.requires_grad else 0
        kind = str(each.dtype).replace("torch.", "")
        types[kind] = types.get(kind, 0) + count
        devices[each.device.type] = devices.get(each.device.type, 0) + count
    return {
        "parameters": total,
        "trainable": trainable,
        "types": types,
        "devices": devices,
        "gpu_total": _gpu_total() if "cuda" in devices else None,
    }


def _gpu_total() -> int:
    """Return the memory of this process's GPU in bytes."""
    cuda = sys.modules["torch"].cuda
    return int(cuda.get_device_properties(cuda.current_device()).total_memory)


def _elements(parameter: "Any") -> int:
    """Return the elements of a parameter, also of one that ZeRO-3 has partitioned."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


# ------------------------------------------------------------ kernels that are built


def _watch_builds(recorder: "_Recorder", module: "Any") -> None:
    """Note when a kernel is loaded: what no earlier run has built is built then, for minutes."""
    module.load = _noting_builds(module.load)
    module.load_inline = _noting_builds(module.load_inline)


def _noting_builds(function: "Callable[..., Any]") -> "Callable[..., Any]":
    @functools.wraps(function)
    def watched(*args: "Any", **kwargs: "Any") -> "Any":
        _note(_build_begins, args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            _note(_build_ends)

    return watched


def _build_begins(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    name = _argument(args, kwargs, 0, "name")
    recorder.write("build-begins", name=_text(name)[:200])


def _build_ends(recorder: "_Recorder") -> None:
    recorder.write("build-ends")


# ------------------------------------------------------------ data


def _watch_data(recorder: "_Recorder", module: "Any") -> None:
    _watch(module.DataLoader, "__init__", after=_loader)
    _watch(module._BaseDataLoaderIter, "__init__", after=_iterated)
    _watch(module._BaseDataLoaderIter, "__next__", after=_batch)


def _loader(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    loader = args[0]
    sampler = getattr(loader, "sampler", None)
    by_batches = getattr(loader, "batch_sampler", None)
    if recorder.loaders >= MOST_NAMES:
        return
    recorder.loaders += 1
    loader.__dict__["_dslaunch_number"] = recorder.loaders
    recorder.write(
        "loader",
        number=recorder.loaders,
        batch=loader.batch_size,
        workers=loader.num_workers,
        dataset=_class(loader.dataset),
        samples=_length(loader.dataset),
        batches=_length(loader),
        sampler=_class(sampler),
        batch_sampler=_class(by_batches),
        replicas=_integer(getattr(sampler, "num_replicas", None)),
        replica=_integer(getattr(sampler, "rank", None)),
        seed=_integer(getattr(sampler, "seed", None)),
        drop_last=bool(getattr(loader, "drop_last", False)),
        subset=_subset(loader.dataset),
    )


def _subset(dataset: "Any") -> "Optional[str]":
    """Return a digest of the samples that are chosen of a data set (`random_split`); None: all, or
    unknown."""
    import hashlib

    indices = getattr(dataset, "indices", None)
    if not isinstance(indices, (list, tuple, range)):
        return None
    chosen = ",".join(str(index) for index in indices[:MOST_ELEMENTS])
    return hashlib.sha256(chosen.encode()).hexdigest()[:16]


def _iterated(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    iterator, loader = args[0], _argument(args, kwargs, 1, "loader")
    number = loader.__dict__.get("_dslaunch_number", 0)
    epoch = _shuffled_epoch(loader)
    before = loader.__dict__.get("_dslaunch_iteration")
    place = _Iteration(number, epoch)
    iterator.__dict__["_dslaunch"] = loader.__dict__["_dslaunch_iteration"] = place
    # one that was not finished may only have been a look at the first batch
    finished = before is not None and before.batches and before.batches == _length(loader)
    if finished and epoch is not None and before.epoch == epoch:
        recorder.write("same-order", loader=number)


class _Iteration:
    """One pass over a data loader."""

    def __init__(self, loader: int, epoch: "Optional[int]") -> None:
        self.loader, self.epoch = loader, epoch
        self.batches = self.noted = 0


def _shuffled_epoch(loader: "Any") -> "Optional[int]":
    """Return the epoch on which the order of a loader depends; None: it depends on none."""
    sampler = getattr(loader, "sampler", None)
    shuffles = getattr(sampler, "shuffle", False) is True and hasattr(sampler, "set_epoch")
    return _integer(getattr(sampler, "epoch", None)) if shuffles else None


def _batch(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    torch = sys.modules["torch"]
    place = args[0].__dict__.get("_dslaunch")
    if place is None:
        return
    place.batches += 1
    if place.noted >= MOST_BATCHES or not torch.is_grad_enabled():
        return
    place.noted += 1
    tensors = _tensors(result, torch, 0)
    if tensors:
        size, digest = _samples(tensors), _digest(tensors)
        recorder.write("batch", loader=place.loader, index=place.noted, size=size, digest=digest)


def _samples(tensors: "List[Any]") -> int:
    """Return the number of samples in a batch."""
    return int(tensors[0].shape[0]) if tensors[0].dim() else 1


def _tensors(batch: "Any", torch: "Any", depth: int) -> "List[Any]":
    if isinstance(batch, torch.Tensor):
        return [batch]
    if depth > 4:
        return []
    parts: Any = ()
    if hasattr(batch, "values") and hasattr(batch, "keys"):
        parts = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = batch
    return [each for part in list(parts)[:16] for each in _tensors(part, torch, depth + 1)]


def _digest(tensors: "List[Any]") -> str:
    import hashlib

    digest = hashlib.sha256()
    for tensor in tensors[:8]:
        sample = tensor.detach().reshape(-1)[: 4 * MOST_ELEMENTS]
        digest.update(repr((tuple(tensor.shape), sample.cpu().tolist())).encode())
    return digest.hexdigest()[:16]


def _length(value: "Any") -> "Optional[int]":
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a stream has no length; a faulty one says so later
        return None


def _integer(value: "Any") -> "Optional[int]":
    return value if isinstance(value, int) and abs(value) < 2**62 else None


# ------------------------------------------------------------ steps


def _watch_optimizers(recorder: "_Recorder", module: "Any") -> None:
    module.register_optimizer_step_pre_hook(_untraced(_before_step))
    module.register_optimizer_step_post_hook(_untraced(_after_step))


def _untraced(function: "Callable[..., None]") -> "Callable[..., None]":
    """Return a function that torch.compile calls and does not trace, as optimizers have some."""
    disable = getattr(sys.modules.get("torch._compile"), "_disable_dynamo", None)
    return disable(function) if disable is not None else function


def _before_step(optimizer: "Any", args: "Any", kwargs: "Any") -> None:
    recorder = _recorder
    if recorder is None or recorder.engine is not None:
        return
    recorder.inner.add(id(getattr(optimizer, "optim", None)))
    if id(optimizer) in recorder.inner:
        return
    if recorder.counts.get(id(optimizer), 0) >= recorder.steps:
        _hold()
    if recorder.before is None:
        closure = any(callable(each) for each in (*args, *kwargs.values()))
        _note(_begin, _parameters(optimizer), optimizer, not closure)


def _after_step(optimizer: "Any", args: "Any", kwargs: "Any") -> None:
    recorder = _recorder
    if recorder is None or recorder.engine is not None or id(optimizer) in recorder.inner:
        return
    count = recorder.counts.get(id(optimizer), 0) + 1
    recorder.counts[id(optimizer)] = count
    parameters = _parameters(optimizer)
    # those of the step before; a pass by other means than `backward` cannot have reset them
    kept = recorder.backwards > 0 and recorder.kept.get(id(optimizer)) is not None
    recorder.kept[id(optimizer)] = [p for p in parameters if p.grad is not None][:MOST_CHECKED]
    if len(recorder.counts) < MOST_NAMES and count == max(recorder.counts.values()):
        stepped = functools.partial(_stepped, kept=kept, optimizer=optimizer)
        _note(stepped, count, parameters, _rates(optimizer))


def _parameters(optimizer: "Any") -> "List[Any]":
    return [each for group in optimizer.param_groups for each in group["params"]]


def _rates(optimizer: "Any") -> "List[float]":
    rates = [float(group["lr"]) for group in optimizer.param_groups[:8] if "lr" in group]
    return [rate for rate in rates if _is_finite(rate)]


def _begin(
    recorder: "_Recorder", parameters: "List[Any]", optimizer: "Any", has_gradients: bool
) -> None:
    """Note the optimizer, and the parameters before its first step. `has_gradients`: the step has
    no closure that computes them."""
    owned = None
    if recorder.model is not None and not recorder.sharded:
        inside = {id(each) for each in recorder.model.parameters()}
        owned = sum(id(each) in inside for each in parameters)
    recorder.collectives = _collectives()
    recorder.stepped_at = time.monotonic()
    recorder.before = _fingerprint(_compared(recorder, parameters))
    recorder.write(
        "optimizer",
        optimizer=_class(optimizer),
        lr=_rates(optimizer),
        tensors=len(parameters),
        owned=owned,
        gradients=sum(p.grad is not None for p in parameters) if has_gradients else None,
        fingerprint=recorder.before,
        own_bytes=sum(_local(p).numel() * p.element_size() for p in parameters),
        **_sizes(parameters),
    )


def _compared(recorder: "_Recorder", parameters: "List[Any]") -> "List[Any]":
    """Return the parameters that are the same on all ranks if these train together."""
    if recorder.sharded:
        return []
    return list(recorder.model.parameters()) if recorder.model is not None else parameters


def _fingerprint(parameters: "List[Any]") -> "List[float]":
    """Return sums of some elements of some parameters; empty: some are not finite."""
    every = max(1, -(-len(parameters) // MOST_TENSORS))
    chosen = [each.detach().reshape(-1)[:MOST_ELEMENTS] for each in parameters[::every]]
    sums = [float(each.double().sum()) for each in chosen if each.numel()]
    return sums if all(map(_is_finite, sums)) else []


def _is_finite(value: float) -> bool:
    return value - value == 0


def _stepped(
    recorder: "_Recorder",
    count: int,
    parameters: "List[Any]",
    rates: "List[float]",
    optimizer: "Any",
    **more: "Any",
) -> None:
    if count == 1:
        more["states"] = _state_bytes(optimizer)
    now = time.monotonic()
    seconds = now - recorder.stepped_at if recorder.stepped_at is not None else None
    collectives, recorder.stepped_at = _collectives(), now
    during = None
    if collectives is not None and recorder.collectives is not None:
        during = collectives - recorder.collectives
    recorder.collectives = collectives
    fingerprint = _fingerprint(_compared(recorder, parameters)) if count <= recorder.steps else []
    loss = recorder.loss
    recorder.write(
        "step",
        step=count,
        seconds=seconds,
        lr=rates,
        # JSON has no NaN
        loss=loss if loss is not None and _is_finite(loss) else None,
        finite=loss is None or _is_finite(loss),
        backwards=recorder.backwards,
        collectives=during,
        fingerprint=fingerprint,
        evaluates=_evaluates(recorder.model),
        **_memory(),
        **more,
    )
    recorder.backwards = 0
    if count == recorder.steps:
        recorder.write("schedulers", schedulers=[_scheduler(each) for each in recorder.schedulers])
        codes = _own_code()
        recorder.write(
            "steps-done",
            step=count,
            reduces=any(_names_in(code) & REDUCTIONS for code in codes),
            averages=any(_averages_parameters(code) for code in codes),
        )


def _state_bytes(optimizer: "Any") -> "Dict[str, int]":
    """Return the bytes that an optimizer keeps of its parameters in this rank, by kind of device:
    moments and the like."""
    sizes: Dict[str, int] = {}
    states = list(getattr(optimizer, "state", {}).values())
    values = [value for state in states if isinstance(state, dict) for value in state.values()]
    for value in values:
        # some keep a list of tensors for each parameter
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, sys.modules["torch"].Tensor):
                local = _local(each)
                kind = local.device.type
                sizes[kind] = sizes.get(kind, 0) + local.numel() * local.element_size()
    return sizes


def _local(tensor: "Any") -> "Any":
    """Return the part of a tensor that this rank has: all of it, unless it is a DTensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _own_code() -> "List[Any]":
    """Return the syntax trees of the script, and of modules beside it; what cannot be read or
    parsed is left out."""
    import ast

    cwd = os.getcwd() + os.sep
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    own = [
        f for f in files if f and os.path.abspath(f).startswith(cwd) and "site-packages" not in f
    ]
    trees = []
    for file in own[:MOST_NAMES]:
        try:
            with open(file, "rb") as source:
                trees.append(ast.parse(source.read(MOST_BYTES)))
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
    return trees


def _names_in(code: "Any") -> "Set[str]":
    """Return the names and attributes that a syntax tree uses."""
    import ast

    used = (getattr(each, "attr", None) or getattr(each, "id", None) for each in ast.walk(code))
    return {name for name in used if isinstance(name, str)}


def _averages_parameters(code: "Any") -> bool:
    """Return whether a syntax tree exchanges the parameters of a model, all in one call or in a
    loop over them. Ranks that do this may train alone for some steps."""
    import ast

    if "average_parameters" in _names_in(code):
        return True
    for loop in ast.walk(code):
        if not isinstance(loop, ast.For) or not _names_in(loop.iter) & PARAMETERS:
            continue
        names = _names_in(loop)
        if names & REDUCTIONS and "grad" not in names:
            return True
    return False


def _evaluates(model: "Any") -> bool:
    """Return whether a model is in evaluation mode, and layers of it work otherwise then."""
    if model is None or model.training:
        return False
    kinds = ("Dropout", "BatchNorm")
    return any(kind in type(each).__name__ for each in model.modules() for kind in kinds)


def _memory() -> "Dict[str, int]":
    import resource

    torch = sys.modules["torch"]
    found = {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    found["gpus"] = torch.cuda.device_count()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["gpu_memory"] = torch.cuda.max_memory_reserved()
        found["gpu_total"] = _gpu_total()
    return found


def _hold() -> None:
    """Keep this rank here until the run is stopped."""
    _note(lambda recorder: recorder.write("held"))
    while _recorder is not None:
        time.sleep(HOLD)


def _watch_schedulers(recorder: "_Recorder", module: "Any") -> None:
    kind = getattr(module, "LRScheduler", None) or module._LRScheduler
    _watch(kind, "__init__", after=_scheduled)


def _scheduled(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    if len(recorder.schedulers) < MOST_NAMES:
        recorder.schedulers.append(args[0])


def _scheduler(scheduler: "Any") -> "Dict[str, Any]":
    optimizer = getattr(scheduler, "optimizer", None)
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    counts = _recorder.counts if _recorder is not None else {}
    return {
        "scheduler": _class(scheduler),
        "steps": max(int(getattr(scheduler, "_step_count", 1)) - 1, 0),
        "optimizer_steps": counts.get(id(optimizer), 0),
        "total": _total_steps(scheduler),
    }


def _total_steps(scheduler: "Any") -> "Optional[int]":
    """Return the steps of a schedule of PyTorch or Transformers; None: unknown."""
    functions = getattr(scheduler, "lr_lambdas", None) or [None]
    given = getattr(functions[0], "keywords", None) or {}
    totals = [getattr(scheduler, name, None) for name in TOTALS]
    known = [_integer(total) for total in (*totals, given.get("num_training_steps"))]
    return next((total for total in known if total is not None and total > 0), None)


# ------------------------------------------------------------ DeepSpeed


def _watch_engine(recorder: "_Recorder", module: "Any") -> None:
    engine = module.DeepSpeedEngine
    step = "_take_model_step" if hasattr(engine, "_take_model_step") else "step"
    _watch(engine, "__init__", after=_engine)
    _watch(engine, "forward", before=_input)
    _watch(engine, "save_checkpoint", before=_checkpoint)
    function = getattr(engine, step)

    @functools.wraps(function)
    def watched(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        recorder = _recorder
        if recorder is None:
            return function(self, *args, **kwargs)
        if recorder.counts.get(id(self), 0) >= recorder.steps:
            _hold()
        rates: List[float] = []
        # afterwards the scheduler has set those of the next step
        _note(_note_rates, self, rates)
        result = function(self, *args, **kwargs)
        count = recorder.counts[id(self)] = recorder.counts.get(id(self), 0) + 1
        _note(_engine_stepped, self, count, rates)
        return result

    setattr(engine, step, watched)


def _watch_config(recorder: "_Recorder", module: "Any") -> None:
    function = module.DeepSpeedConfig.__init__

    @functools.wraps(function)
    def watched(self: "Any", config: "Any", *args: "Any", **kwargs: "Any") -> None:
        simulated: List[Any] = []
        _note(_config, config, simulated)
        function(self, simulated[0] if simulated else config, *args, **kwargs)

    module.DeepSpeedConfig.__init__ = watched


def _config(recorder: "_Recorder", config: "Any", simulated: "List[Any]") -> None:
    """Note the config as it was given: DeepSpeed adds defaults to it. Add to `simulated` the config
    for the number of ranks here, if it is meant for the real run."""
    path = None
    if isinstance(config, str) and os.path.isfile(config):
        path = config[:4096]
        with open(config, "rb") as file:
            text = file.read(MOST_CONFIG).decode(errors="replace")
    elif isinstance(config, dict):
        text = json.dumps(config, default=_text, indent=1)[:MOST_CONFIG]
    else:
        return
    batch = None
    if recorder.world is not None:
        parsed = config if path is None else json.loads(text)
        batch = _batch_here(parsed, recorder.world)
        if batch is not None:
            simulated.append({**parsed, TRAIN_BATCH: batch})
    recorder.write("deepspeed-config", path=path, text=text, simulated=batch)


TRAIN_BATCH = "train_batch_size"


def _batch_here(config: "Dict[str, Any]", world: int) -> "Optional[int]":
    """Return the batch size with which the ranks here have the micro-batches of the real run; None:
    the config is not meant for that many ranks."""
    here = _number(os.environ.get("WORLD_SIZE")) or 1
    train = config.get(TRAIN_BATCH)
    if not isinstance(train, int) or here >= world or train * here % world:
        return None
    micro = config.get("train_micro_batch_size_per_gpu")
    steps = config.get("gradient_accumulation_steps")
    share = (micro if isinstance(micro, int) else 1) * (steps if isinstance(steps, int) else 1)
    computed_here = isinstance(micro, int) and isinstance(steps, int) and train == share * here
    batch = train * here // world
    return None if computed_here or batch % (share * here) else batch


def _engine(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    engine = args[0]
    recorder.engine = engine
    stage = int(engine.zero_optimization_stage())
    recorder.sharded = stage == 3
    recorder.model = engine.module
    recorder.write("wrapped", wrapper="DeepSpeedEngine", **_described(engine.module))
    recorder.write(
        "engine",
        stage=stage,
        data_parallel=int(engine.dp_world_size),
        train_batch=int(engine.train_batch_size()),
        micro_batch=int(engine.train_micro_batch_size_per_gpu()),
        accumulation=int(engine.gradient_accumulation_steps()),
        pipeline=_class(engine) == "PipelineEngine",
        model_parallel=engine.mpu is not None,
        optimizer=_class(engine.basic_optimizer),
        scheduler=_class(engine.lr_scheduler) if engine.lr_scheduler is not None else None,
    )
    recorder.collectives = _collectives()
    recorder.stepped_at = time.monotonic()
    recorder.before = _fingerprint(_compared(recorder, []))
    if engine.basic_optimizer is not None:
        parameters = _parameters(engine.basic_optimizer)
        recorder.write(
            "optimizer",
            optimizer=_class(engine.basic_optimizer),
            lr=_rates(engine.basic_optimizer),
            tensors=len(parameters),
            owned=None,
            gradients=None,
            fingerprint=recorder.before,
            **_sizes(engine.module.parameters()),
        )


def _note_rates(recorder: "_Recorder", engine: "Any", rates: "List[float]") -> None:
    rates += [float(rate) for rate in (engine.get_lr() or [])[:8]]


def _engine_stepped(recorder: "_Recorder", engine: "Any", count: int, rates: "List[float]") -> None:
    optimizer = engine.basic_optimizer
    _stepped(recorder, count, [], rates, optimizer, skipped=int(engine.skipped_steps))


def _checkpoint(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    directory = _argument(args, kwargs, 1, "save_dir")
    recorder.write("saved", by="save_checkpoint", path=_path(directory))


# ------------------------------------------------------------ Transformers, Accelerate, safetensors


def _watch_arguments(recorder: "_Recorder", module: "Any") -> None:
    _watch(module.TrainingArguments, "__post_init__", after=_arguments)


def _arguments(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    given = args[0]
    values = {name: _plain(getattr(given, name, None)) for name in TRAINER}
    for name in ("deepspeed", "fsdp"):
        values[name] = bool(getattr(given, name, None))
    recorder.write("trainer", arguments=values)


def _watch_models(recorder: "_Recorder", module: "Any") -> None:
    _watch(module.PreTrainedModel, "save_pretrained", before=_pretrained)


def _pretrained(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    if kwargs.get("is_main_process", True):
        directory = _argument(args, kwargs, 1, "save_directory")
        recorder.write("saved", by="save_pretrained", path=_path(directory))


def _watch_accelerator(recorder: "_Recorder", module: "Any") -> None:
    _watch(module.Accelerator, "__init__", after=_accelerator)


def _accelerator(recorder: "_Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    accelerator = args[0]
    names = ("mixed_precision", "gradient_accumulation_steps", "distributed_type", "num_processes")
    recorder.write(
        "accelerator",
        settings={name: _plain(getattr(accelerator, name, None)) for name in names},
    )


def _watch_safetensors(recorder: "_Recorder", module: "Any") -> None:
    _watch(module, "save_file", before=_saved_file)


def _saved_file(recorder: "_Recorder", args: "Any", kwargs: "Any") -> None:
    file = _argument(args, kwargs, 1, "filename")
    recorder.write("saved", by="safetensors", path=_path(file))


# ------------------------------------------------------------ the process


def _audited(event: str, args: "Any") -> None:
    """Note names that are resolved, files that are opened for writing, and the program that takes
    the place of this one."""
    if event == "socket.getaddrinfo":
        _note(_resolved, args[0])
    elif event == "open" and _writes(args):
        _note(_opened, args[0])
    elif event == "os.exec":
        _note(_replaced, args[0])


def _writes(args: "Any") -> bool:
    mode, flags = args[1], args[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _resolved(recorder: "_Recorder", host: "Any") -> None:
    name = os.fsdecode(host)[:253] if isinstance(host, (str, bytes)) else ""
    own = ("localhost", "", os.environ.get("MASTER_ADDR", ""), os.uname().nodename)
    if name in own or name in recorder.hosts or len(recorder.hosts) >= MOST_NAMES:
        return
    recorder.hosts.add(name)
    recorder.write("host", name=name)


def _opened(recorder: "_Recorder", file: "Any") -> None:
    if not isinstance(file, (str, bytes, os.PathLike)):
        return
    path = _path(file)
    directory = os.path.dirname(path)
    if path.startswith(("/dev/", "/proc/", "/sys/")) or "__pycache__" in path:
        return
    if directory in recorder.written or len(recorder.written) >= MOST_NAMES:
        return
    recorder.written.add(directory)
    recorder.write("written", path=path)


def _replaced(recorder: "_Recorder", program: "Any") -> None:
    """Note that another program takes the place of this one, unless it cannot be started. If that
    starts this hook again, its records begin at its start."""
    recorder.write("replaced", program=_path(program)[-200:])


def _ended(recorder: "_Recorder") -> None:
    """Note that the script has ended, and the exception that ended it."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        recorder.write("exception", **_raised(error, sys.last_traceback))
    recorder.write("ended", steps=max(recorder.counts.values(), default=0))


def _raised(error: "Any", trace: "Any") -> "Dict[str, Any]":
    """Return an exception with the innermost line of the user's own code."""
    found: Dict[str, Any] = {"file": None, "line": None}
    cwd = os.getcwd()
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        path = os.path.join(cwd, file)
        own = path.startswith(cwd + os.sep) and "site-packages" not in path
        if own and not file.startswith("<"):
            found = {"file": os.path.relpath(path, cwd)[:4096], "line": trace.tb_lineno}
        trace = trace.tb_next
    return {"error": type(error).__name__, "text": str(error)[:MOST_TEXT], **found}


_WATCHES: "Dict[str, Callable[..., None]]" = {
    "torch": _watch_torch,
    "torch.autograd": _watch_backward,
    "torch.distributed.distributed_c10d": _watch_groups,
    "torch.distributed.algorithms.join": _watch_join,
    "torch.multiprocessing.spawn": _watch_spawn,
    "torch.nn.parallel.distributed": _watch_ddp,
    "torch.distributed.tensor.parallel.api": _watch_tensor_parallelism,
    "torch.distributed.pipelining.stage": _watch_pipelines,
    "torch.distributed.fsdp.fully_sharded_data_parallel": _watch_fsdp,
    "torch.distributed.fsdp._fully_shard._fully_shard": _watch_fsdp2,
    "torch.utils.data.dataloader": _watch_data,
    "torch.distributed.checkpoint.state_dict_saver": _watch_distributed_checkpoint,
    "torch.utils.cpp_extension": _watch_builds,
    "torch.optim.optimizer": _watch_optimizers,
    "torch.optim.lr_scheduler": _watch_schedulers,
    "deepspeed.runtime.engine": _watch_engine,
    "deepspeed.runtime.config": _watch_config,
    "transformers.training_args": _watch_arguments,
    "transformers.modeling_utils": _watch_models,
    "accelerate.accelerator": _watch_accelerator,
    "safetensors.torch": _watch_safetensors,
}
_WATCHES_OF_PART: "Dict[str, Callable[..., None]]" = {
    "torch.distributed.distributed_c10d": _watch_groups_of_part,
}
"""In a process that a rank has started: most are workers, and some are meant as ranks."""
_watches = _WATCHES
IMPORTS = tuple(_WATCHES)
"""The modules after whose import `imported` is called."""
