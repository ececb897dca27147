"""Notes the collectives that a rank begins, in their order: a part of `hook_rehearsal.py`.

A backend may end a rank in native code when ranks are in different collectives, so that it cannot
be asked afterwards: a note is made before each one.
"""

import functools
import os
import sys

from .hook_recorder import LONGEST_PATH, argument, watch
from .hook_training import training

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Optional

    from .hook_recorder import Recorder

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
)
"""Functions of torch.distributed. Those that send objects call these."""
FUNCTIONAL = {
    "all_gather_single": 2,
    "all_reduce": 2,
    "all_to_all_single": 3,
    "broadcast": 2,
    "reduce_scatter_single": 3,
}
"""Functions of torch.distributed._functional_collectives, by which the ranks exchange parts of a
DTensor, with the place of their group. The others there call these."""
BACKWARD, FORWARD = "backward pass", "forward pass"
"""Of a model in DistributedDataParallel, which exchanges gradients in native code, and buffers."""
WRAPPING = "DistributedDataParallel()"
"""It compares and sends the parameters in native code."""
MOST_COLLECTIVES = 400
"""That are noted: two steps of most jobs have fewer."""
_INSTALLED = "site-packages/"
_LAYERS = ("torch/", "accelerate/", "deepspeed/comm/")
"""Packages below `site-packages` by which others call collectives."""


def watch_collectives(module: "Any") -> None:
    """Note what `torch.distributed.distributed_c10d` begins in all ranks."""
    for name in COLLECTIVES:
        watch(module, name, before=functools.partial(_begins, operation=name))


def _begins(recorder: "Recorder", args: "Any", kwargs: "Any", operation: str) -> None:
    group = sys.modules["torch"].distributed.ProcessGroup
    # the ranks of another group count other ones
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, group)]
    if all(each.size() == training.world for each in given):
        note_collective(recorder, operation)


def _watch_functional(recorder: "Recorder", module: "Any") -> None:
    for name, place in FUNCTIONAL.items():
        begins = functools.partial(_begins_functional, operation=name, place=place)
        watch(module, name, before=begins)


def _begins_functional(
    recorder: "Recorder", args: "Any", kwargs: "Any", operation: str, place: int
) -> None:
    if _size(argument(args, kwargs, place, "group")) == training.world:
        note_collective(recorder, operation)


def _size(group: "Any") -> "Optional[int]":
    """Return how many ranks a group has: a mesh, a mesh and one of its dimensions, a process group
    or its name; None: unknown."""
    if isinstance(group, tuple):
        mesh, dimension = group
        return int(mesh.size(dimension))
    if isinstance(group, str):
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        group = c10d._resolve_process_group(group)
    return int(group.size()) if hasattr(group, "size") else None


def note_collective(recorder: "Recorder", operation: str) -> None:
    """Note that all ranks are to begin a collective."""
    if training.begun >= MOST_COLLECTIVES:
        return
    training.begun += 1
    places = _places(recorder.cwd)
    recorder.write("collective-begins", number=training.begun, operation=operation, **places)


def _places(cwd: str) -> "Dict[str, Any]":
    """Return the innermost line of the user's own code, which is below `cwd`, and the innermost one
    of all code that is not a layer below the collective."""
    found: Dict[str, Any] = {"file": None, "line": None, "caller": None, "caller_line": None}
    frame: Any = sys._getframe()
    # the agent, which imports this module too, has no files
    own = os.path.dirname(frame.f_code.co_filename)
    while frame is not None and found["file"] is None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        path = os.path.join(cwd, file)
        _, installed, package = path.rpartition(_INSTALLED)
        if file.startswith(("<", own)):
            pass
        elif not installed and path.startswith(cwd + os.sep):
            found["file"], found["line"] = os.path.relpath(path, cwd)[:LONGEST_PATH], line
        elif installed and found["caller"] is None and not package.startswith(_LAYERS):
            found["caller"], found["caller_line"] = package[:LONGEST_PATH], line
        frame = frame.f_back
    return found


WATCHES = {"torch.distributed._functional_collectives": _watch_functional}
