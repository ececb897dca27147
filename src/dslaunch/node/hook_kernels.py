"""Notes when kernels are built: a part of `hook_rehearsal.py`.

What no earlier run has built is built when it is loaded, for minutes.
"""

import functools

from .hook_recorder import LONGEST_NAME, argument, note, text

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable

    from .hook_recorder import Recorder


def _watch_builds(recorder: "Recorder", module: "Any") -> None:
    module.load = _noting_builds(module.load)
    module.load_inline = _noting_builds(module.load_inline)


def _noting_builds(function: "Callable[..., Any]") -> "Callable[..., Any]":
    @functools.wraps(function)
    def watched(*args: "Any", **kwargs: "Any") -> "Any":
        note(_build_begins, args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            note(_build_ends)

    return watched


def _build_begins(recorder: "Recorder", args: "Any", kwargs: "Any") -> None:
    name = argument(args, kwargs, 0, "name")
    recorder.write("build-begins", name=text(name)[:LONGEST_NAME])


def _build_ends(recorder: "Recorder") -> None:
    recorder.write("build-ends")


WATCHES = {"torch.utils.cpp_extension": _watch_builds}
