"""What the ranks are doing: the stacks of all threads of all their Python processes.

py-spy shows them where it is installed and may attach. Elsewhere Python's own faulthandler does:
it is armed in every Python process of a run before the training's first line, by a
`sitecustomize` module in front of PYTHONPATH, and writes when it gets a signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional

from dslaunch.node import processes

SIGNAL = signal.SIGRTMIN + 11
"""A realtime signal: trainings use SIGUSR1 and SIGUSR2 (SLURM's warnings, torch's own)."""
DIRECTORY = "DSLAUNCH_STACKS"
SETTLE = 0.05
Process = Dict[str, Any]
_SITECUSTOMIZE = '''\
"""Arms Python's faulthandler for dslaunch; then the sitecustomize that it stands in front of."""


def _arm():
    import faulthandler, os, sys

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]

    def register():
        try:
            path = os.path.join(os.environ["{directory}"], str(os.getpid()))
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            faulthandler.register({signal}, file=fd, all_threads=True, chain=False)
        except Exception:
            pass

    register()
    os.register_at_fork(after_in_child=register)


def _go_on():
    import importlib.machinery, importlib.util, sys

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _arm()
except Exception:
    pass
_go_on()
'''
_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def arm(directory: str, environment: Dict[str, str]) -> Dict[str, str]:
    """Variables that arm every Python process below; `directory` is the run's own. Never fails."""
    place, out = os.path.join(directory, "arm"), os.path.join(directory, "stacks")
    try:
        os.mkdir(place, 0o700)
        os.mkdir(out, 0o700)
        with open(os.path.join(place, "sitecustomize.py"), "w") as file:
            file.write(_SITECUSTOMIZE.format(directory=DIRECTORY, signal=int(SIGNAL)))
    except OSError:
        return {}
    before = environment.get("PYTHONPATH")
    return {"PYTHONPATH": f"{place}:{before}" if before else place, DIRECTORY: out}


def collect(pids: Dict[int, int], directory: str, timeout: float) -> Dict[str, List[Process]]:
    """The processes of every rank with their stacks, within `timeout` seconds. Never raises."""
    found: Dict[str, List[Process]] = {
        str(rank): [{"pid": each} for each in sorted({pid, *processes.descendants(pid)})]
        for rank, pid in sorted(pids.items())
    }
    threads = [
        threading.Thread(target=_look, args=(entry, directory, timeout))
        for entries in found.values()
        for entry in entries
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout + 1)
    return found


def _look(entry: Process, directory: str, timeout: float) -> None:
    pid = entry["pid"]
    entry.update(_from_proc(pid))
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        threads = _by_py_spy(pid, timeout) or _by_faulthandler(pid, directory, timeout)
        if threads:
            entry["threads"] = [
                _from_here(thread, os.readlink(f"/proc/{pid}/cwd")) for thread in threads
            ]


def _from_here(thread: Process, cwd: str) -> Process:
    """The thread with paths as the process itself would write them: equal on all nodes."""
    start = f"{cwd}/"
    frames = [[f[len(start) :] if f.startswith(start) else f, n, w] for f, n, w in thread["frames"]]
    return {**thread, "frames": frames}


def _from_proc(pid: int) -> Process:
    def read(name: str) -> str:
        try:
            with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
                return file.read().strip("\0\n")
        except OSError:
            return ""

    state = re.search(r"^State:\s+(\S)", read("status"), re.MULTILINE)
    return {
        "state": state[1] if state else "",
        "waits_in": read("wchan").strip("0"),
        "command": read("cmdline").replace("\0", " ")[:200],
    }


def _by_py_spy(pid: int, timeout: float) -> List[Process]:
    program = shutil.which("py-spy")
    if program is None:
        return []
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=timeout
    )
    if done.returncode:
        return []
    return [
        {
            "name": thread.get("thread_name") or "",
            "frames": [[f["filename"], f["line"], f["name"]] for f in thread["frames"]],
        }
        for thread in json.loads(done.stdout)
    ]


def _by_faulthandler(pid: int, directory: str, timeout: float) -> List[Process]:
    """Have the process write its stacks; it is left alone if it would not survive the signal."""
    path = os.path.join(directory, "stacks", str(pid))
    if not _catches(pid) or not os.path.exists(path):
        return []
    start = os.path.getsize(path)
    os.kill(pid, SIGNAL)
    deadline = time.monotonic() + timeout
    size = start
    while time.monotonic() < deadline:
        time.sleep(SETTLE)
        now = os.path.getsize(path)
        if now == size and now > start:
            break
        size = now
    with open(path, encoding="utf-8", errors="replace") as file:
        file.seek(start)
        return parse(file.read())


def _catches(pid: int) -> bool:
    """Whether the process has a handler for our signal; without one it would be killed."""
    with open(f"/proc/{pid}/status") as file:
        caught: Optional[str] = next((s for s in file if s.startswith("SigCgt:")), None)
    return caught is not None and bool(int(caught.split()[1], 16) >> (int(SIGNAL) - 1) & 1)


def parse(text: str) -> List[Process]:
    """What faulthandler wrote: threads with frames, the innermost first."""
    found: List[Process] = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread:
            found.append({"name": thread[3] or "", "frames": []})
        elif frame and found:
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1]["frames"].append([frame[1], number, frame[3]])
    return [thread for thread in found if thread["frames"]]
