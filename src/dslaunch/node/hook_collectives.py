"""Runs in every rank that uses torch.distributed: answers questions about its collectives.

PyTorch's flight recorder keeps the last collectives of a process in a ring buffer. A thread of
this module answers over a Unix socket in the run's directory; `collectives.py` asks. How this
module gets here: `rank_hooks.py`, after the import of `torch.distributed.distributed_c10d`, which
has imported all that this module needs.

- The recorder is on where a buffer size is set: TORCH_FR_BUFFER_SIZE since torch 2.9,
  TORCH_NCCL_TRACE_BUFFER_SIZE before. It is read when the first group is made, so it is set here,
  by the version of torch, unless the user has set one of the two.
- `_dump_fr_trace` has the collectives of gloo, `_dump_nccl_trace` those of NCCL (torch 2.2).
- The entries of NCCL have events of the GPU, which are queried when entries are asked for; for the
  numbers alone (`status`) none is.
- Stacks are taken only where `torch._inductor.codecache` has been imported: torch 2.13 imports it
  to symbolize them, which takes seconds of CPU time and 800 modules.
- The thread is none of `threading`: it is in no list of threads, and no exit waits for it.
"""

import contextlib
import functools
import gc
import json
import os
import socket
import struct
import sys
import time

from . import hook_calls, hook_waits

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, Iterator, List

PARTS = (hook_calls, hook_waits)
"""The modules that this one needs in the rank."""

AFTER = "torch.distributed.distributed_c10d"
"""The module after whose import this one is started."""
PREFIX = "collectives-"
"""The beginning of the names of the sockets; the rank's number follows."""
LONGEST = 256 * 1024
"""Bytes of an answer."""
LONGEST_REQUEST = 64
WHAT = ("status", "full", "times")
BUFFER = 512
"""Collectives that are recorded. PyTorch documents 2000; a quarter still holds some steps."""
MOST_READ = 2048
"""Entries of a recorder that `times` reads while the program trains. Meanwhile no other thread runs
and no garbage is collected: 5 ms for 512 entries, 30 ms for these. A larger buffer, which only a
user sets, is read for `full` alone, when a run makes no progress."""
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The variables that set the recorder's size: the new name, and the old one."""
RENAMED = (2, 9)
"""The version of torch whose recorder reads TORCH_FR_BUFFER_SIZE."""
MOST_TIMES = 2048
"""Collectives in an answer to `times`."""
PER_GROUP = 32
"""The last collectives of each group in a `full` answer."""
MOST_FRAMES, MOST_OF_COMPLETED = 64, 12
"""Of the stack of a collective: the user's line is below dozens of frames of PyTorch and DeepSpeed
in a backward pass."""
MOST_TENSORS, MOST_DIMENSIONS = 8, 8
"""Of one collective; an all_gather can have thousands of tensors."""
MOST_NAME = 200
TIMEOUT = 2.0
"""Seconds for a client to send its request, and to read the answer."""
REST = 0.5
"""Seconds without service after a client could not be accepted."""
_SYMBOLIZER = "torch._inductor.codecache"
_COMPILERS = (
    # torch.compile, of which the part for the backward pass may run on its own
    ("torch/_dynamo/convert_frame.py", ("__call__", "_compile", "compile_inner")),
    ("torch/_inductor/compile_fx.py", ("compile_fx_inner", "fx_codegen_and_compile")),
    ("triton/compiler/compiler.py", ("compile",)),
    # extensions, also those of DeepSpeed
    ("torch/utils/cpp_extension.py", ("load", "load_inline", "_jit_compile")),
)
"""Functions in whose calls something is compiled. Others in these files run the result."""
_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")
_OUR_OWN = 0o077
_CALLS = hook_calls.Calls()


def start(directory: str) -> None:
    """Turn the recorder on, and answer once a process group is initialized.

    Raises whatever fails: it is dropped (`rank_hooks.py`).
    """
    if not os.environ.get("RANK", "").isdigit():  # a launcher, or another program
        return
    c10d = sys.modules[AFTER]
    _turn_on(str(sys.modules["torch"].__version__))
    original = c10d.init_process_group
    served: "List[int]" = []

    @functools.wraps(original)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        if os.getpid() not in served:  # a forked child answers for itself
            served[:] = [os.getpid()]
            with contextlib.suppress(Exception):  # it must not become an error of the job
                _serve_in_thread(directory)
        _leave_out_compiling()
        return original(*args, **kwargs)

    c10d.init_process_group = init_process_group  # type: ignore[attr-defined]
    _CALLS.watch(c10d)


def _leave_out_compiling() -> None:
    """Let no call be noted while it is compiled. Only now is all of torch imported."""
    compiler = getattr(sys.modules["torch"], "compiler", None)
    is_compiling = getattr(compiler, "is_compiling", None)
    if is_compiling is not None:
        _CALLS.leave_out_compiling(is_compiling)


def _turn_on(version: str) -> None:
    """Set the size of the recorder's buffer, unless the user has."""
    if any(name in os.environ for name in SIZES):
        return
    new, old = SIZES
    numbers = tuple(int(part) for part in version.split(".")[:2])
    # the old name makes a new torch print a warning
    os.environ[new if numbers >= RENAMED else old] = str(BUFFER)


# ------------------------------------------------------------ the socket


def _serve_in_thread(directory: str) -> None:
    """Listen in the run's directory, and answer in a thread. Raises OSError."""
    import _thread

    server = _listen(directory)
    owner = os.getpid()

    def close_copy() -> None:
        if os.getpid() != owner:
            server.close()

    # a child that kept it would hold connections that it never accepts
    os.register_at_fork(after_in_child=close_copy)
    _thread.start_new_thread(serve, (server,))


def _listen(directory: str) -> socket.socket:
    """Return a listening socket in a directory of ours. Raises OSError."""
    within = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(within)
        if about.st_uid != os.geteuid() or about.st_mode & _OUR_OWN:
            raise PermissionError(1, "others own it or have access to it", directory)
        # the random end: the process numbers of two containers can be equal
        name = f"{PREFIX}{os.environ['RANK']}-{os.getpid()}-{os.urandom(4).hex()}"
        server = socket.socket(socket.AF_UNIX)
        # the path in sockaddr_un has 108 bytes (man 7 unix)
        server.bind(f"/proc/self/fd/{within}/.{name}")
        server.listen(8)
        # found only now: who asks removes a socket that refuses, which a process has left
        os.rename(f".{name}", name, src_dir_fd=within, dst_dir_fd=within)
        return server
    finally:
        os.close(within)


def serve(server: socket.socket) -> None:
    """Answer one client after another, until the socket is closed."""
    try:
        own = os.fstat(server.fileno())
        # the program may close all descriptors, and open another one with this number
        while os.path.samestat(os.fstat(server.fileno()), own):
            try:
                client, _ = server.accept()
            except OSError:  # the program has as many files open as it may have, for the moment
                time.sleep(REST)
                continue
            with contextlib.suppress(Exception), client:  # whatever fails, the next one is served
                _converse(client)
    except Exception:  # noqa: BLE001 - must not become an error of the job
        return


def _converse(client: socket.socket) -> None:
    """Read a request and send the answer, to a program of the same user. Raises OSError."""
    client.settimeout(TIMEOUT)
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", credentials)[1] not in (0, os.geteuid()):
        return
    asked = b""
    while not asked.endswith(b"\n") and len(asked) < LONGEST_REQUEST:
        piece = client.recv(LONGEST_REQUEST)
        if not piece:
            return
        asked += piece
    what, _, since = asked.strip().decode("ascii", "replace").partition(" ")
    if what not in WHAT:
        return
    try:
        told = times(float(since)) if what == "times" else answer(what)
    except Exception as error:  # noqa: BLE001 - a private interface of torch may have changed
        told = {"error": f"{type(error).__name__}: {error}"[:MOST_NAME]}
    client.sendall(_bounded(told))


def _bounded(told: "Dict[str, Any]") -> bytes:
    """Return the answer as JSON, without its oldest entries if it would be too long."""
    while True:
        text: bytes = json.dumps(told, separators=(",", ":")).encode()
        entries = told.get("entries")
        if len(text) <= LONGEST:
            return text
        if not entries:
            return b'{"error":"the answer is too long"}'
        told["entries"] = entries[len(entries) // 4 + 1 :]


# ------------------------------------------------------------ the answer


def answer(what: str) -> "Dict[str, Any]":
    """Return what the process knows of its collectives, and of what it waits for.

    `now`: its time. `initialized`: whether there is a default group. `groups`: `id`, which is this
    process's own, `name`, `description`, `backend`, `ranks`, and the numbers of the last collective
    that was `enqueued`, `started` and `completed`; what is unknown is missing, and for `status` all
    but `id` and the numbers. `transfers`: how many transfers between two ranks it has made;
    missing without a recorder, since that many are not all it does. `compiles`, for `status`:
    whether a thread compiles. `entries`, for `full`: the last of each group, the oldest first, with
    their `frames`, the innermost first. `transfer`, `forming` and `lock`, for `full`: what the main
    thread waits in, see `hook_waits`; `lock` also while it compiles. `error`: why there is no
    recorder.
    """
    told: "Dict[str, Any]" = {"now": time.time()}
    world = _groups()
    told["initialized"] = bool(world)
    if what == "full":
        told["transfer"] = hook_waits.transfer(sys.modules[AFTER], _CALLS)
        told["forming"] = hook_waits.forming(sys.modules[AFTER])
        told["lock"] = hook_waits.lock_file()
    dumps = _dumps(what)
    if not dumps:
        return {**told, "groups": world, "error": "this PyTorch has no recorder"}
    told["transfers"] = _CALLS.transfers
    if what == "status":
        told.update(groups=_numbered(dumps, []), compiles=_compiles())
        if told["compiles"]:
            told["lock"] = hook_waits.lock_file()
        return told
    entries = [entry for dump in dumps for entry in dump.get("entries", ())]
    told["groups"] = _numbered(dumps, _named(world, entries))
    entries.sort(key=lambda entry: entry["time_created_ns"])
    entries = _last_of_each_group(entries)
    start = f"{os.getcwd()}/"
    return {**told, "entries": [_entry(entry, start) for entry in entries]}


def _compiles() -> bool:
    """Return whether a thread is inside a compiler, or waits for one."""
    return any(map(_is_compiler, sys._current_frames().values()))


def _is_compiler(frame: "Any") -> bool:
    """Return whether this call, or one that led to it, is a compiler's."""
    return any(
        call.f_code.co_filename.endswith(file) and call.f_code.co_name in functions
        for call in hook_waits.calls(frame)
        for file, functions in _COMPILERS
    )


def times(since: float) -> "Dict[str, Any]":
    """Return in short when the process entered the collectives after a time.

    `times`: per group `group`, `backend`, `ranks`, `kinds` (operations with their sizes) and
    `calls`: the number of each collective, the index of its kind, when it was entered, and the
    seconds that it took (None: unknown). `spent`: seconds of CPU time that this took. `error`: the
    buffer is too large for it.
    """
    if _recorded() > MOST_READ:
        return {"now": time.time(), "error": "the recorder is too large to be read while training"}
    began = time.thread_time()
    with _without_collection():
        found = _times(since)
    return {"now": time.time(), "times": found, "spent": time.thread_time() - began}


def _recorded() -> int:
    """Return how many collectives the recorder keeps, by its variables."""
    sizes = [os.environ[name] for name in SIZES if name in os.environ]
    return max((int(size) for size in sizes if size.isdigit()), default=0)


@contextlib.contextmanager
def _without_collection() -> "Iterator[None]":
    """Start no garbage collection meanwhile, for the milliseconds that `MOST_READ` bounds:
    thousands of objects are made and dropped here, and one collection of all objects of torch holds
    up the training for 0.1 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _times(since: float) -> "List[Dict[str, Any]]":
    members = {group["name"]: group["ranks"] for group in _groups()}
    found: "Dict[str, Dict[str, Any]]" = {}
    indexes: "Dict[Any, int]" = {}
    entries = [
        entry
        for dump in _dumps("times")
        for entry in dump.get("entries", ())
        if not entry["is_p2p"] and entry["time_created_ns"] > since * 1e9
    ]
    for entry in entries[-MOST_TIMES:]:
        name = str(entry["process_group"][0])[:MOST_NAME]
        backend, _, operation = str(entry["profiling_name"]).rpartition(":")
        group = found.setdefault(
            name,
            {
                "group": name,
                "backend": backend[:MOST_NAME],
                "ranks": members.get(name, []),
                "kinds": [],
                "calls": [],
            },
        )
        kind = f"{operation} {entry['input_sizes']}"[:MOST_NAME]
        index = indexes.setdefault((name, kind), len(group["kinds"]))
        if index == len(group["kinds"]):
            group["kinds"].append(kind)
        took = entry.get("duration_ms")
        group["calls"].append(
            [
                entry["collective_seq_id"],
                index,
                entry["time_created_ns"] / 1e9,
                took / 1e3 if took is not None else None,
            ]
        )
    return list(found.values())


def _dumps(what: str) -> "List[Dict[str, Any]]":
    """Return what the recorders of this torch have."""
    import pickle

    bindings = sys.modules["torch._C._distributed_c10d"]
    functions = [getattr(bindings, name, None) for name in _RECORDERS]
    # without collectives no event of a GPU is queried
    how = {
        "includeCollectives": what != "status",
        "includeStackTraces": what == "full" and _SYMBOLIZER in sys.modules,
        "onlyActive": False,
    }
    return [pickle.loads(dump(**how)) for dump in functions if dump is not None]


def _groups() -> "List[Dict[str, Any]]":
    """Return the groups that this process is a member of, as far as torch tells."""
    c10d = sys.modules[AFTER]
    world: "Any" = getattr(c10d, "_world", None)
    found = []
    for group, ranks in list(getattr(world, "pg_group_ranks", {}).items()):
        name = world.pg_names.get(group)
        if name is None:  # the place of a group that this rank is no member of
            continue
        found.append(
            {
                "name": str(name)[:MOST_NAME],
                "description": str(getattr(group, "group_desc", ""))[:MOST_NAME],
                "backend": str(world.pg_map.get(group, ("",))[0])[:MOST_NAME],
                "ranks": sorted(ranks),
            }
        )
    return found


def _named(
    world: "List[Dict[str, Any]]", entries: "List[Dict[str, Any]]"
) -> "List[Dict[str, Any]]":
    """Return the groups with the numbers that the recorder gives them; missing without entries."""
    ids = {str(entry["process_group"][0]): int(entry["pg_id"]) for entry in entries}
    return [
        {**group, "id": ids[group["name"]]} if group["name"] in ids else group for group in world
    ]


def _numbered(
    dumps: "List[Dict[str, Any]]", world: "List[Dict[str, Any]]"
) -> "List[Dict[str, Any]]":
    """Return the groups with the numbers of their last collectives."""
    groups = {group["id"]: dict(group) for group in world if "id" in group}
    rest = [group for group in world if "id" not in group]
    for dump in dumps:
        for id, status in dump.get("pg_status", {}).items():
            group = groups.setdefault(int(id), {"id": int(id)})
            for name in ("enqueued", "started", "completed"):
                number = status.get(f"last_{name}_collective", -1)
                if number >= 0:
                    group[name] = number
    return [*groups.values(), *rest]


def _last_of_each_group(entries: "List[Dict[str, Any]]") -> "List[Dict[str, Any]]":
    kept: "Dict[Any, int]" = {}
    found = []
    for entry in reversed(entries):
        group = entry["process_group"][0]
        kept[group] = kept.get(group, 0) + 1
        if kept[group] <= PER_GROUP:
            found.append(entry)
    return found[::-1]


def _entry(entry: "Dict[str, Any]", start: str) -> "Dict[str, Any]":
    """Return a collective in short. `start`: the working directory."""
    backend, _, operation = str(entry["profiling_name"]).rpartition(":")
    told: "Dict[str, Any]" = {
        "group": str(entry["process_group"][0])[:MOST_NAME],
        "seq": entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
        "operation": operation[:MOST_NAME],
        "backend": backend[:MOST_NAME],
        "sizes": [list(sizes[:MOST_DIMENSIONS]) for sizes in entry["input_sizes"][:MOST_TENSORS]],
        "tensors": len(entry["input_sizes"]),
        "dtypes": [str(each)[:MOST_NAME] for each in entry["input_dtypes"][:MOST_TENSORS]],
        "entered": entry["time_created_ns"] / 1e9,
        "completed": bool(entry["retired"]) or entry["state"] == "completed",
        "p2p": bool(entry["is_p2p"]),
    }
    if entry.get("time_discovered_started_ns"):
        told["started"] = True
    root = _CALLS.root_of(operation, entry["time_created_ns"])
    if root is not None:
        told["root"] = root
    if entry.get("timeout_ms"):
        told["timeout"] = entry["timeout_ms"] / 1e3
    if entry.get("frames"):
        most = MOST_OF_COMPLETED if told["completed"] else MOST_FRAMES
        told["frames"] = [_frame(each, start) for each in entry["frames"][:most]]
    return told


def _frame(frame: "Dict[str, Any]", start: str) -> "Dict[str, Any]":
    file = str(frame["filename"])
    if len(start) > 1 and file.startswith(start):
        file = file[len(start) :]
    return {"file": file[-1000:], "line": int(frame["line"]), "function": str(frame["name"])[:200]}
