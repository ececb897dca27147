"""Runs in every rank of a rehearsal: records what the training does, and holds it after some steps.

Records are lines of JSON in `rehearsal/RANK.jsonl` of the run's directory, which only this user can
open; `rehearsal.py` reads them. Functions of PyTorch, DeepSpeed, Transformers and Accelerate are
replaced by ones that call them and then note something: arguments, results and exceptions stay as
they are. What cannot be recorded is noted as that, and never becomes an error of the job. How this
module and its parts get here: `rank_hooks.py`; they import nothing that an ordinary Python process
has not, not even `__future__`.

A part has the functions of one subject, and a table `WATCHES` of them: the module that is imported,
and what replaces functions there. `hook_recorder.py` writes the records, `hook_training.py` has
what is known of the training.

A rank is held when it begins the step after the last one: what follows a step, such as a checkpoint
or an evaluation, is rehearsed too, and no rank fails since another one has left.
"""

import os
import sys

from . import (
    hook_code,
    hook_content,
    hook_data,
    hook_deepspeed,
    hook_groups,
    hook_kernels,
    hook_models,
    hook_order,
    hook_process,
    hook_recorder,
    hook_saves,
    hook_settings,
    hook_steps,
    hook_training,
)
from .hook_recorder import Recorder, note, record_with, variable

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict

PARTS = (
    hook_code,
    hook_content,
    hook_data,
    hook_deepspeed,
    hook_groups,
    hook_kernels,
    hook_models,
    hook_order,
    hook_process,
    hook_recorder,
    hook_saves,
    hook_settings,
    hook_steps,
    hook_training,
)
"""The modules that this one needs in the rank."""
STEPS = "DSLAUNCH_REHEARSAL"
"""The variable with the number of optimizer steps; scripts may read it too."""
WORLD = "DSLAUNCH_REHEARSAL_WORLD"
"""The variable with the number of ranks of the real run, if the rehearsal has fewer."""
SECRETS = "DSLAUNCH_REHEARSAL_SECRETS"
"""The variable with the names of the variables that are secret, with commas between them."""
DIRECTORY = "rehearsal"


def start(directory: str) -> None:
    """Begin to record in this process if it is a rank, or was started by one. Raises OSError,
    ValueError."""
    global _watches
    rank, steps = variable("RANK"), variable(STEPS)
    if rank is None or steps is None:
        return
    path = os.path.join(directory, DIRECTORY, f"{rank}.jsonl")
    secrets = [os.environ.get(name) for name in os.environ.get(SECRETS, "").split(",")]
    recorder = Recorder(path, steps, variable(WORLD), [value for value in secrets if value])
    if _is_part_of_rank(os.environ["RANK"]):
        _watches = hook_groups.WATCHES_OF_PART
        record_with(recorder)
        return
    _note_start(recorder)
    record_with(recorder)
    # nothing of a forked process, such as a worker of a data loader
    os.register_at_fork(after_in_child=lambda: record_with(None))
    hook_process.watch_process()


def _note_start(recorder: Recorder) -> None:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    recorder.write(
        "start",
        pid=recorder.pid,
        world=variable("WORLD_SIZE"),
        python=sys.version.split()[0],
        cpus=cpus,
        threads=variable("OMP_NUM_THREADS"),
        cwd=recorder.cwd,
        node_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _is_part_of_rank(rank: str) -> bool:
    """Return whether the rank's own process has started this one."""
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            return f"RANK={rank}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def imported(name: str) -> None:
    """Watch what the module offers that was imported."""
    watch = _watches.get(name)
    if watch is not None:
        note(watch, sys.modules[name])


def _watch_torch(recorder: Recorder, torch: "Any") -> None:
    recorder.write("torch", version=str(torch.__version__), cuda=torch.version.cuda is not None)
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if is_compiling is not None:
        hook_recorder.leave_out_compiling(is_compiling)
    hook_saves.watch_torch_save(torch)


_WATCHES: "Dict[str, Callable[..., None]]" = {
    "torch": _watch_torch,
    **hook_data.WATCHES,
    **hook_deepspeed.WATCHES,
    **hook_groups.WATCHES,
    **hook_kernels.WATCHES,
    **hook_models.WATCHES,
    **hook_order.WATCHES,
    **hook_saves.WATCHES,
    **hook_settings.WATCHES,
    **hook_steps.WATCHES,
}
_watches = _WATCHES
IMPORTS = tuple(_WATCHES)
"""The modules after whose import `imported` is called."""
