"""Notes process groups and what ranks are made of: a part of `hook_rehearsal.py`."""

import os
import sys

from .hook_order import watch_collectives
from .hook_recorder import argument, integer, path_of, setting, variable, watch
from .hook_training import training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Optional

    from .hook_recorder import Recorder

C10D = "torch.distributed.distributed_c10d"
MOST_GROUPS = MOST_MEMBERS = 64
_TENSOR_STYLES = {"ColwiseParallel", "RowwiseParallel", "SequenceParallel"}
_TCP, _FILE = "tcp://", "file://"
_OF_LAUNCHER = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable by which torchrun tells ranks that it is the master itself: no rank becomes one
then (torch/distributed/rendezvous.py)."""
_MASTER_PORT = variable("MASTER_PORT")
"""As the launcher has set it: the script may change it."""


def _watch_groups(recorder: "Recorder", module: "Any") -> None:
    watch(module, "init_process_group", before=_begins_rendezvous, after=_initialized)
    watch(module, "new_group", before=_groups)
    watch_collectives(module)


def _begins_rendezvous(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    method = argument(args, kwargs, 1, "init_method")
    has_store = argument(args, kwargs, 5, "store") is not None
    rank, world = _joins_as(args, kwargs, 4), _joined_ranks(args, kwargs)
    _note_rendezvous(recorder, method, has_store, rank, world)


def _note_rendezvous(
    recorder: "Recorder",
    method: "Any",
    has_store: bool,
    rank: "Optional[int]",
    world: "Optional[int]",
) -> None:
    """Note that this process begins to wait for the others. `has_store`: it was given where they
    meet."""
    address = port = file = None
    if isinstance(method, str) and method.startswith(_TCP):
        address, _, digits = method[len(_TCP) :].rpartition(":")
        address, port = address.strip("[]"), int(digits) if digits.isdigit() else None
    elif isinstance(method, str) and method.startswith(_FILE):
        file = path_of(method[len(_FILE) :])
    elif method in (None, "env://") and not has_store:
        address, port = os.environ.get("MASTER_ADDR"), variable("MASTER_PORT")
    recorder.write(
        "rendezvous",
        world=world,
        rank=rank,
        address=address,
        resolves=_resolves(address) if address else None,
        port=port,
        served=_MASTER_PORT if os.environ.get(_OF_LAUNCHER) == "True" else None,
        file=file,
    )


def _joins_as(args: "Any", kwargs: "Any", place: int) -> "Optional[int]":
    """Return the rank as which this process joins; None: unknown."""
    rank = integer(argument(args, kwargs, place, "rank"))
    return rank if rank is not None and rank >= 0 else variable("RANK")


def _resolves(address: str) -> bool:
    """Return whether this node knows an address or a name, as PyTorch asks next."""
    import socket  # PyTorch has imported it

    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError):
        return False
    return True


def _joined_ranks(args: "Any", kwargs: "Any") -> "Optional[int]":
    """Return how many ranks join, by the arguments of init_process_group or init_rpc, which have
    the number at one place; None: unknown."""
    world = integer(argument(args, kwargs, 3, "world_size"))
    return world if world is not None and world > 0 else variable("WORLD_SIZE")


def _initialized(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    c10d = sys.modules[C10D]
    timeout = argument(args, kwargs, 2, "timeout")
    training.world = c10d.get_world_size()
    recorder.write(
        "process-group",
        backend=str(c10d.get_backend()),
        world=training.world,
        rank=c10d.get_rank(),
        method=setting(argument(args, kwargs, 1, "init_method")),
        timeout=timeout.total_seconds() if timeout is not None else None,
    )


def _groups(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    """Note a further group before it is made: ranks that do not agree on one wait for it."""
    training.groups += 1
    if training.groups > MOST_GROUPS:
        return
    ranks = argument(args, kwargs, 0, "ranks")
    by_members = bool(argument(args, kwargs, 4, "use_local_synchronization"))
    size = len(ranks) if ranks is not None else None
    members = sorted(int(rank) for rank in ranks)[:MOST_MEMBERS] if ranks is not None else None
    recorder.write("group", size=size, members=members, by_members=by_members)


def collectives_begun() -> "Optional[int]":
    """Return how many collectives the groups have begun so far; None: unknown."""
    c10d = sys.modules.get(C10D)
    if c10d is None or not c10d.is_initialized():
        return None
    try:
        return sum(map(_begun_in, list(c10d._world.pg_map)))
    except RuntimeError:  # a backend that counts none, such as MPI
        return None


def _begun_in(group: "Any") -> int:
    """Return how many collectives a group has begun. One with a backend for each kind of device
    ("cpu:gloo,cuda:nccl") has no number itself, and raises RuntimeError."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        backends = [group._get_backend(device) for device in group._device_types]
        return sum(int(each._get_sequence_number_for_group()) for each in backends)


# ------------------------------------------------------------ remote procedure calls


def _watch_rpc(recorder: "Recorder", module: "Any") -> None:
    watch(module, "init_rpc", before=_begins_rpc, after=_joined_rpc)


def _begins_rpc(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    options = argument(args, kwargs, 4, "rpc_backend_options")
    method = getattr(options, "init_method", None)
    rank, world = _joins_as(args, kwargs, 2), _joined_ranks(args, kwargs)
    _note_rendezvous(recorder, method, False, rank, world)


def _joined_rpc(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    api = sys.modules["torch.distributed.rpc.api"]
    recorder.write("joined-rpc", world=len(api._get_current_rpc_agent().get_worker_infos()))


# ------------------------------------------------------------ ranks with uneven data


def _watch_join(recorder: "Recorder", module: "Any") -> None:
    watch(module.Join, "__init__", after=_joins)


def _joins(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    recorder.write("join")


# ------------------------------------------------------------ ranks with parts of the model


def _watch_tensor_parallelism(recorder: "Recorder", module: "Any") -> None:
    watch(module, "parallelize_module", before=_splits_tensors)


def _watch_pipelines(recorder: "Recorder", module: "Any") -> None:
    watch(module._PipelineStageBase, "__init__", before=_splits_layers)


def _splits_tensors(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    mesh = argument(args, kwargs, 1, "device_mesh")
    if mesh is None or mesh.size() > 1:
        splits_model(recorder)
    plan = argument(args, kwargs, 2, "parallelize_plan")
    if mesh is not None and mesh.ndim == 1 and mesh.size() > 1 and _divides_tensors(plan):
        members = tuple(sorted(mesh.mesh.flatten().tolist())[:MOST_MEMBERS])
        if members not in training.tensor_parallel and len(training.tensor_parallel) < MOST_GROUPS:
            training.tensor_parallel.add(members)
            recorder.write("tensor-parallel", members=members)


def _divides_tensors(plan: "Any") -> bool:
    """Return whether the ranks that follow a plan compute the same samples together: experts that
    they divide get other ones each."""
    styles = plan.values() if isinstance(plan, dict) else [plan]
    names = {kind.__name__ for style in styles for kind in type(style).__mro__}
    return bool(names & _TENSOR_STYLES)


def _splits_layers(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    splits_model(recorder)


def splits_model(recorder: "Recorder") -> None:
    """Note that ranks have different parts of the model."""
    if not training.splits:
        training.splits = True
        recorder.write("splits-model")


# ------------------------------------------------------------ ranks that start processes


def _watch_spawn(recorder: "Recorder", module: "Any") -> None:
    watch(module, "start_processes", before=_spawns)


def _spawns(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    count = integer(argument(args, kwargs, 2, "nprocs"))
    waits = argument(args, kwargs, 3, "join") is not False
    recorder.write("spawn", processes=1 if count is None else count, waits=waits)


def _watch_groups_of_part(recorder: "Recorder", module: "Any") -> None:
    watch(module, "init_process_group", before=_joins_as_part)


def _joins_as_part(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    recorder.write("spawned-joins", world=_joined_ranks(args, kwargs))


WATCHES = {
    C10D: _watch_groups,
    "torch.distributed.rpc": _watch_rpc,
    "torch.distributed.algorithms.join": _watch_join,
    "torch.multiprocessing.spawn": _watch_spawn,
    "torch.distributed.tensor.parallel.api": _watch_tensor_parallelism,
    "torch.distributed.pipelining.stage": _watch_pipelines,
}
WATCHES_OF_PART = {C10D: _watch_groups_of_part}
"""In a process that a rank has started: most are workers, and some are meant as ranks."""
