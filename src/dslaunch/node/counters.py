"""The kernel's counters of this node: CPUs, memory, network, fabric, disks, CPU limits.

Counters only grow, until the node or a driver is restarted; the caller computes rates from two
readings. Sources: man 5 proc; Linux, Documentation/admin-guide/iostats.rst, cgroup-v2.rst,
scheduler/sched-bwc.rst and ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
import time

from dslaunch.node import cgroup, paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List

SECTOR = 512
"""Bytes of a sector of /proc/diskstats, whatever the disk says."""
FABRIC_WORD = 4
"""Bytes of a unit of the counters port_rcv_data and port_xmit_data."""
MOST_DEVICES = 256
"""Interfaces, ports and disks of each kind that are measured."""
FABRIC_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
)
"""Counters that only a faulty cable, connector or port increases."""
_TICKS = os.sysconf("SC_CLK_TCK")


def read(proc: str = "/proc", sys: str = "/sys") -> Dict[str, Any]:
    """Return the counters of the whole node, with the monotonic time of the reading.

    Sizes are bytes, times seconds. `network`, `fabric`: received, sent, errors by interface or
    port. `disks`: read, written. `limits`: periods of a CPU limit, and those in
    which it held processes back, by control group.
    """
    busy, total = cpu_times(paths.text_of(f"{proc}/stat"))
    memory = memory_sizes(paths.text_of(f"{proc}/meminfo"))
    load = paths.text_of(f"{proc}/loadavg").split()
    return {
        "monotonic": time.monotonic(),
        "cpus": os.cpu_count() or 1,
        "cpu_busy": busy,
        "cpu_total": total,
        "load": float(load[0]) if load else 0.0,
        "memory_total": memory.get("MemTotal", 0),
        "memory_free": memory.get("MemAvailable", memory.get("MemFree", 0)),
        "network": network(paths.text_of(f"{proc}/net/dev"), f"{sys}/class/net"),
        "fabric": fabric(f"{sys}/class/infiniband"),
        "disks": disks(paths.text_of(f"{proc}/diskstats"), f"{sys}/block"),
        "limits": limits(cgroup.cpu_groups()),
    }


def cpu_times(stat: str) -> List[float]:
    """Return the seconds in which CPUs were busy, and all seconds, over all CPUs."""
    words = stat.partition("\n")[0].split()
    if words[:1] != ["cpu"] or len(words) < 8:
        return [0.0, 0.0]
    # user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user and nice
    ticks = [int(word) for word in words[1:9]]
    idle = ticks[3] + ticks[4]
    return [(sum(ticks) - idle) / _TICKS, sum(ticks) / _TICKS]


def memory_sizes(meminfo: str) -> Dict[str, int]:
    """Return the sizes of /proc/meminfo in bytes."""
    found = {}
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def network(table: str, devices: str) -> Dict[str, List[int]]:
    """Return bytes received and sent, and errors, by interface.

    Interfaces of hardware are counted, and where a container has none, all but loopback. A bond,
    VLAN or bridge is not: its bytes go through interfaces that are counted.
    """
    found = {}
    for line in table.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 11 and fields[0].isdigit():
            numbers = [int(field) for field in fields[:11]]
            received, sent, errors = numbers[0], numbers[8], numbers[2] + numbers[10]
            found[name.strip()] = [received, sent, errors]
    found.pop("lo", None)
    hardware = {name for name in found if os.path.exists(f"{devices}/{name}/device")}
    chosen = hardware or {name for name in found if not _is_stacked(f"{devices}/{name}")}
    return {name: found[name] for name in sorted(chosen)[:MOST_DEVICES]}


def _is_stacked(interface: str) -> bool:
    """Return whether an interface sends through others (Linux: links `lower_*`, `bridge`)."""
    names = paths.entries(interface)
    return "bridge" in names or any(name.startswith("lower_") for name in names)


def fabric(devices: str) -> Dict[str, List[int]]:
    """Return bytes received and sent, and errors, by port of InfiniBand or RoCE, as `mlx5_0/1`."""
    found = {}
    for device in paths.entries(devices):
        for port in paths.entries(f"{devices}/{device}/ports"):
            where = f"{devices}/{device}/ports/{port}/counters"
            received = paths.number_of(f"{where}/port_rcv_data")
            sent = paths.number_of(f"{where}/port_xmit_data")
            if received is None or sent is None:
                continue
            errors = sum(paths.number_of(f"{where}/{name}") or 0 for name in FABRIC_ERRORS)
            found[f"{device}/{port}"] = [received * FABRIC_WORD, sent * FABRIC_WORD, errors]
    return dict(list(found.items())[:MOST_DEVICES])


def disks(table: str, devices: str) -> Dict[str, List[int]]:
    """Return bytes read and written by disk. Partitions and what is made of disks, such as RAID
    and LVM, are not counted: their bytes are those of the disks."""
    found = {}
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 10 or not os.path.exists(f"{devices}/{fields[2]}/device"):
            continue
        found[fields[2]] = [int(fields[5]) * SECTOR, int(fields[9]) * SECTOR]
    return dict(list(found.items())[:MOST_DEVICES])


def limits(groups: List[str]) -> Dict[str, List[int]]:
    """Return the periods of each group's CPU limit, and those in which it was reached; a group
    without a limit is left out."""
    found = {}
    for group in groups:
        pairs = (line.split() for line in paths.text_of(f"{group}/cpu.stat").splitlines())
        stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        if stat.get("nr_periods"):
            found[group] = [stat["nr_periods"], stat.get("nr_throttled", 0)]
    return found
