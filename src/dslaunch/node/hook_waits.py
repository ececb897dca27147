"""What the main thread of a rank waits in, by its frames: a transfer between two ranks, a process
group that is formed, or a lock in a file. Part of `hook_collectives.py`.

Frames of the process itself have variables, which the stacks that others read do not have.
"""

import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterator, Optional

    from dslaunch.node.hook_calls import Calls

MOST_CALLS = 300
"""Of a thread that are searched: a compiler is far from the innermost one."""
_TRANSFERS = {"send": "dst", "recv": "src"}
"""Functions of torch that return when a transfer is complete, and their parameter for the other
rank. With gloo, no recorder has transfers."""
_FORMING = ("_new_group_with_tag", "new_group")
"""Functions that form a process group: of torch 2, and before."""
_LOCKS = (
    ("torch/utils/file_baton.py", "lock_file_path"),
    ("filelock/", "lock_file"),
)
"""Part of a file's path, and the attribute of the object that waits there for a lock in a file. Of
PyTorch's extension builds, and of the package filelock, which the Hugging Face libraries use."""


def calls(frame: "Any") -> "Iterator[Any]":
    """Yield a call and those that led to it, the innermost first."""
    for _ in range(MOST_CALLS):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def transfer(c10d: "Any", begun: "Calls") -> "Optional[Dict[str, Any]]":
    """Return the transfer between two ranks that the main thread waits in: `kind`, and `peer`, the
    other rank (None: it receives from any). None: it waits in none, or that is not known."""
    main = _main()
    for call in calls(main):
        function = call.f_code.co_name
        if call.f_code.co_filename == c10d.__file__ and function in _TRANSFERS:
            try:
                return {"kind": function, "peer": _peer(c10d, call.f_locals, _TRANSFERS[function])}
            except Exception:  # noqa: BLE001 - private to torch, and may have changed
                return None
    pending = begun.pending() if main is not None and _called_in(main) == "wait" else None
    return {"kind": pending[0], "peer": pending[1]} if pending is not None else None


def forming(c10d: "Any") -> "Optional[Dict[str, Any]]":
    """Return the process group that the main thread forms: `name`, and `ranks`. None: it forms
    none, or that is not known."""
    for call in calls(_main()):
        if call.f_code.co_filename == c10d.__file__ and call.f_code.co_name in _FORMING:
            name, ranks = call.f_locals.get("group_name"), call.f_locals.get("ranks")
            if isinstance(name, str) and isinstance(ranks, list):
                return {"name": name, "ranks": sorted(map(int, ranks))}
    return None


def lock_file() -> "Optional[str]":
    """Return the path of the lock that the main thread waits for; None: it waits for none that is
    known here."""
    for call in calls(_main()):
        for file, attribute in _LOCKS:
            path = getattr(call.f_locals.get("self"), attribute, None)
            if file in call.f_code.co_filename and isinstance(path, str):
                return os.path.abspath(path)
    return None


def _main() -> "Any":
    """Return the innermost frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _called_in(frame: "Any") -> "Optional[str]":
    """Return the name of the method that a frame calls, by its code: one of native code has no
    frame. None: unknown."""
    import dis  # in a rank only: agents import this module too

    name = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti:
            break
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            name = instruction.argval
    return name


def _peer(c10d: "Any", variables: "Any", parameter: str) -> "Optional[int]":
    """Return the other rank of a transfer by the variables of its function: as it was given, or by
    its number in the group. Raises KeyError or ValueError if they have other names."""
    peer = variables[parameter]
    in_group = variables[f"group_{parameter}"]
    if peer is None and in_group is not None:
        group = variables["group"] or c10d.group.WORLD
        peer = c10d.get_global_rank(group, in_group)
    return None if peer is None else int(peer)
