"""A process beside the agent that reads the GPUs: a driver that hangs must not hold up the agent.

It is no child of the agent, for the reason that the surveyor is none (`surveyor.py`). It spends
at most BUDGET of one CPU: what costs more is read less often.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import threading
import time

from dslaunch.node import paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Callable, Dict, List, Optional

    Gpus = List[Dict[str, Any]]

DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of the drivers of NVIDIA and AMD."""
BUDGET = 0.004
"""The share of one CPU that reading GPUs may take."""
ANSWER_TIMEOUT = 2.0
"""Seconds for an answer; one that comes later belongs to the next question."""
RETRY = 60.0
"""Seconds until the sources are tried again when none of them works."""
PIECE = 65536


class GpuMeter:
    """The agent's end: asks the process, and never waits longer than its timeout."""

    def __init__(self, timeout: float = ANSWER_TIMEOUT) -> None:
        self._timeout = timeout
        self.socket, requests = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self.socket.close()
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nowhere, number)
            serve(requests)
        requests.close()
        self._asking = threading.Lock()
        self._asked = False
        """Whether an answer is outstanding."""
        self._rest = b""

    def read(self) -> Dict[str, Any]:
        """Return `gpus`, or the `error`: a driver that does not answer is one."""
        with self._asking:
            try:
                return self._answer()
            except OSError as error:
                return {"error": f"the process that reads the GPUs has ended: {error.strerror}"}

    def _answer(self) -> Dict[str, Any]:
        if not self._asked:
            self.socket.sendall(b"?")
            self._asked = True
        deadline = time.monotonic() + self._timeout
        while b"\n" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.socket], [], [], left)
            if not ready:
                return {"error": "the GPU driver does not answer"}
            piece = self.socket.recv(PIECE)
            if not piece:
                raise ConnectionResetError(104, "connection closed")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        self._asked = False
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def leave(self) -> None:
        """Close the connection in a process that does not ask."""
        self.socket.close()

    def end(self) -> None:
        """Let the process exit. One that waits for a driver is killed with the program that it
        runs; it cannot have ended, or its end of the connection would be closed."""
        if self._asked and not self._is_closed():
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        self.socket.close()

    def _is_closed(self) -> bool:
        """Return whether the process has ended or answered."""
        try:
            self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


def needed() -> bool:
    """Return whether the node has a driver whose GPUs can be read, or the program that reads them;
    each agent asks, so that it must not cost more."""
    return any(map(os.path.exists, DRIVERS)) or paths.program("nvidia-smi") is not None


def serve(requests: socket.socket) -> None:
    """Answer each byte with a line, until the connection ends. Never returns."""
    reader = Reader()
    with contextlib.suppress(BaseException):
        while requests.recv(1):
            requests.sendall(json.dumps(reader.read()).encode() + b"\n")
    os._exit(0)


class Reader:
    """Reads the GPUs by the first source that works, and not more often than BUDGET allows."""

    def __init__(self) -> None:
        self._source: Optional[Callable[[], Gpus]] = None
        self._last: Dict[str, Any] = {}
        self._next = 0.0
        """When they may be read again, on the monotonic clock."""

    def read(self) -> Dict[str, Any]:
        """Return `gpus`, or the `error`."""
        if time.monotonic() < self._next:
            return self._last
        before = _cpu_seconds()
        first = self._source is None
        self._last = self._measure()
        pause = (_cpu_seconds() - before) / BUDGET
        if "error" in self._last:
            self._source, pause = None, RETRY
        # to load and initialize a library is done once
        self._next = time.monotonic() + (0.0 if first and "gpus" in self._last else pause)
        return self._last

    def _measure(self) -> Dict[str, Any]:
        if self._source is not None:
            try:
                return {"gpus": self._source()}
            except Exception as error:  # noqa: BLE001 - whatever a driver does is an answer
                return {"error": str(error)[:300]}
        errors = []
        for find in (_nvml, _nvidia_smi, _amdgpu):
            try:
                source = find()
                gpus = source() if source is not None else []
            except Exception as error:  # noqa: BLE001 - the next one may work
                errors.append(str(error)[:100])
                continue
            if gpus:
                self._source = source
                return {"gpus": gpus}
        return {"error": "; ".join(errors) or "no GPU found"}


def _nvml() -> Callable[[], Gpus]:
    from dslaunch.node import nvml  # with ctypes: only where there is a driver

    return nvml.Nvml().read


def _nvidia_smi() -> Optional[Callable[[], Gpus]]:
    from dslaunch.node import gpu_sources  # with subprocess

    program = paths.program("nvidia-smi")
    if program is None:
        return None
    return lambda: gpu_sources.from_nvidia_smi(program)


def _amdgpu() -> Callable[[], Gpus]:
    from dslaunch.node import gpu_sources

    return gpu_sources.from_amdgpu


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the programs that it has run."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
