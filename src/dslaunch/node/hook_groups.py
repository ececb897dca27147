"""Notes process groups and what ranks are made of: a part of `hook_rehearsal.py`."""

import os
import sys

from .hook_recorder import argument, integer, setting, variable, watch
from .hook_training import training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Optional

    from .hook_recorder import Recorder

C10D = "torch.distributed.distributed_c10d"
MOST_GROUPS = 64
_TCP = "tcp://"


def _watch_groups(recorder: "Recorder", module: "Any") -> None:
    watch(module, "init_process_group", before=_begins_rendezvous, after=_initialized)
    watch(module, "new_group", after=_grouped)


def _begins_rendezvous(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    world = integer(argument(args, kwargs, 3, "world_size"))
    if world is None or world < 1:
        world = variable("WORLD_SIZE")
    method = argument(args, kwargs, 1, "init_method")
    address = None
    if isinstance(method, str) and method.startswith(_TCP):
        address = method[len(_TCP) :].rpartition(":")[0].strip("[]")
    elif method in (None, "env://") and argument(args, kwargs, 5, "store") is None:
        address = os.environ.get("MASTER_ADDR")
    recorder.write("rendezvous", world=world, address=address)


def _initialized(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    c10d = sys.modules[C10D]
    timeout = argument(args, kwargs, 2, "timeout")
    recorder.write(
        "process-group",
        backend=str(c10d.get_backend()),
        world=c10d.get_world_size(),
        rank=c10d.get_rank(),
        method=setting(argument(args, kwargs, 1, "init_method")),
        timeout=timeout.total_seconds() if timeout is not None else None,
    )


def _grouped(recorder: "Recorder", args: "Any", kwargs: "Any", result: "Any") -> None:
    training.groups += 1
    if training.groups > MOST_GROUPS:
        return
    ranks = argument(args, kwargs, 0, "ranks")
    recorder.write("group", size=len(ranks) if ranks is not None else None)


def collectives_begun() -> "Optional[int]":
    """Return how many collectives the groups have begun so far; None: unknown."""
    c10d = sys.modules.get(C10D)
    if c10d is None or not c10d.is_initialized():
        return None
    groups = list(c10d._world.pg_map)
    return sum(int(each._get_sequence_number_for_group()) for each in groups)


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
        _splits_model(recorder)


def _splits_layers(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    _splits_model(recorder)


def _splits_model(recorder: "Recorder") -> None:
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
    recorder.write("spawned-joins")


WATCHES = {
    C10D: _watch_groups,
    "torch.distributed.algorithms.join": _watch_join,
    "torch.multiprocessing.spawn": _watch_spawn,
    "torch.distributed.tensor.parallel.api": _watch_tensor_parallelism,
    "torch.distributed.pipelining.stage": _watch_pipelines,
}
WATCHES_OF_PART = {C10D: _watch_groups_of_part}
"""In a process that a rank has started: most are workers, and some are meant as ranks."""
