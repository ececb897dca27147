"""NVIDIA GPUs by NVML, the library of the node's own driver, called by ctypes.

Signatures and constants: NVML API reference, nvml.h. A field that the GPU or driver does not have
is None.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Tuple

LIBRARY = "libnvidia-ml.so.1"
MOST_GPUS = 64
_TEMPERATURE_GPU, _CLOCK_SM = 0, 1
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The same function before and after it was renamed (R535)."""
_THERMAL, _POWER_CAP, _POWER_BRAKE, _HARDWARE = 0x20 | 0x40, 0x4, 0x80, 0x8


class NvmlError(Exception):
    """The library is missing, or a function of it has failed."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The library, initialized for as long as this process lives: to initialize it takes the driver
    up to seconds."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load and initialize it. Raises NvmlError."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(str(error)) from None
        self._call("nvmlInit_v2")

    def read(self) -> List[Dict[str, Any]]:
        """Return all GPUs. Raises NvmlError."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(min(count.value, MOST_GPUS))]

    def _gpu(self, index: int) -> Dict[str, Any]:
        gpu: Dict[str, Any] = {"index": index}
        handle = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        except NvmlError:  # it has fallen off the bus, or this user may not use it
            return gpu
        memory = self._ask("nvmlDeviceGetMemoryInfo", _Memory(), handle)
        used = self._ask("nvmlDeviceGetUtilizationRates", _Utilization(), handle)
        power = self._number("nvmlDeviceGetPowerUsage", handle)
        gpu["busy"] = None if used is None else used.gpu / 100
        gpu["memory_used"] = None if memory is None else memory.used
        gpu["memory_total"] = None if memory is None else memory.total
        gpu["power"] = None if power is None else power / 1000
        gpu["temperature"] = self._number("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU)
        gpu["clock"] = self._number("nvmlDeviceGetClockInfo", handle, _CLOCK_SM)
        gpu["throttled"] = throttled(self._reasons(handle))
        return gpu

    def _reasons(self, handle: ctypes.c_void_p) -> int:
        for name in _REASONS:
            found = self._ask(name, ctypes.c_ulonglong(), handle)
            if found is not None:
                return int(found.value)
        return 0

    def _number(self, name: str, handle: ctypes.c_void_p, *arguments: int) -> Optional[int]:
        found = self._ask(name, ctypes.c_uint(), handle, *map(ctypes.c_uint, arguments))
        return None if found is None else int(found.value)

    def _ask(self, name: str, into: Any, *arguments: Any) -> Any:
        """Return what a function has written into its last argument; None if it failed."""
        try:
            self._call(name, *arguments, ctypes.byref(into))
        except NvmlError:
            return None
        return into

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(f"{name}: not in this driver") from None
        code = function(*arguments)
        if code:
            raise NvmlError(f"{name}: error {code}")


def throttled(reasons: int) -> Tuple[str, ...]:
    """Return why a GPU's clock is reduced, by the bits nvmlClocksEventReason*.

    An idle GPU and clocks that a user has set are not named. `hardware` stands for the general bit
    alone, which is also set with thermal and power brake slowdowns.
    """
    found = []
    if reasons & _THERMAL:
        found.append("thermal")
    if reasons & _POWER_CAP:
        found.append("power")
    if reasons & _POWER_BRAKE:
        found.append("power-brake")
    if reasons & _HARDWARE and not reasons & (_THERMAL | _POWER_BRAKE):
        found.append("hardware")
    return tuple(found)
