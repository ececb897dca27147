"""What nodes with 8 H100s and 8 InfiniBand adapters answer to a preflight.

No two nodes answer alike: free memory, load, addresses, temperatures and serial numbers differ, as
they do on real nodes. A few dozen nodes have each of several faults, and a few do not answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from dslaunch.cluster.load import parse_cluster
from dslaunch.cluster.model import Cluster
from dslaunch.errors import NodeFailure
from dslaunch.launch.job import Job
from dslaunch.preflight.alike import AnswersByHost
from dslaunch.preflight.check import Question, Scope
from dslaunch.preflight.checks import built_in
from dslaunch.preflight.flow import RunningCheck
from dslaunch.preflight.judge import node_answers
from dslaunch.preflight.recording import NodeRecording, Recording
from dslaunch.protocol.name_patterns import NamePatterns
from tests.checks.recorded import HELLO, job_with
from tests.testbed import gpus

START = 1_700_000_000.0
SLOTS = 8
FAULTS = (
    "adapter down", "busy", "few GPUs", "file system hung", "governor", "hot",
    "low disk", "memlock", "memory leaked", "nvidia-smi hung", "old driver", "other clock",
    "remapped", "slow Ethernet", "slow link", "torch differs",
)  # fmt: skip
FAULTY = 400
"""One node of so many has each fault."""
SILENT = 2_500
"""One node of so many does not answer."""
GIB = 1 << 30


def host(number: int) -> str:
    """Return the name of a node: 25 characters."""
    return f"gpu{number:05}.hall1.example.org"


def cluster_text(count: int) -> str:
    """Return a cluster file of that many nodes, folded as people write it."""
    text = f"gpu[{1:05}-{count:05}].hall1.example.org"
    return f"name: hall\nnodes: [{{host: '{text}', slots: {SLOTS}}}]\n"


def cluster(count: int) -> Cluster:
    """Return a cluster of that many nodes."""
    return parse_cluster(cluster_text(count), "hall.yaml")


def fault(number: int) -> str:
    """Return the fault of a node; empty: it has none."""
    place = (number - 1) % FAULTY
    return FAULTS[place] if place < len(FAULTS) else ""


def recording(count: int, *names: str) -> Recording:
    """Return the answers of that many nodes to some checks, by default all of the usual tier."""
    used = cluster(count)
    scope = Scope(
        cluster=used, nodes=used.nodes, job=Job("train.py"), named=frozenset(names), token="t"
    )
    answering = {
        node.host: number
        for number, node in enumerate(used.nodes, 1)
        if number % SILENT != SILENT - 1
    }
    nodes = {
        name: NodeRecording(
            hello=_hello(number),
            answers={},
            clock=(0.0001 * (number % 97) + 90 * (fault(number) == "other clock"), 0.0005),
            seconds=0.4 + 0.001 * (number % 211),
        )
        for name, number in answering.items()
    }
    failures = {
        node.host: NodeFailure(node.host, "timeout", "no answer within 10 s")
        for node in used.nodes
        if node.host not in answering
    }
    facts = Recording(scope, START, nodes, failures)
    for name, check in built_in().items():
        if name not in names if names else check.tier == "deep":
            continue
        running = RunningCheck(name, check, scope)
        while running.pending is not None:
            for to, asked in running.pending.asked.items():
                if to in answering:
                    _add(nodes[to].answers, asked.values(), answering[to])
            running.answered(AnswersByHost(node_answers(facts), complete=False))
    return facts


def _add(answers: Any, asked: Any, number: int) -> None:
    for question in asked:
        if question.key not in answers:
            answers[question.key] = answer(question, number)


def answer(question: Question, number: int) -> dict[str, Any]:
    """Return what a node answers to a question."""
    trouble = fault(number)
    if question.kind == "run" and trouble == "nvidia-smi hung" and "nvidia-smi" in question.key:
        return {"error": "no answer within 20 s"}
    if question.kind == "path" and trouble == "file system hung" and question.argument == "~":
        return {"error": "no answer within 5 s"}
    return {"value": _KINDS[question.kind](question.argument, number), "seconds": 0.001}


def _hello(number: int) -> Any:
    name = host(number)
    return {**HELLO, "hostname": name, "boot": f"{number:08x}-55", "cores": 224}


def _digits(number: int, what: str, count: int = 12) -> str:
    return f"{random.Random(f'{number} {what}').randrange(16**count):0{count}x}"


def _address(number: int, network: int = 1) -> str:
    return f"10.{network}.{number // 250}.{number % 250 + 1}"


# ---------------------------------------------------------------- the kernel's own tables


def _files(number: int) -> dict[str, str]:
    trouble = fault(number)
    chance = random.Random(number)
    free = 40 if trouble == "memory leaked" else 1900
    files = {
        "/proc/meminfo": f"MemTotal:       2113407812 kB\n"
        f"MemFree:        {free * 900_000 + chance.randrange(900_000)} kB\n"
        f"MemAvailable:   {free * 1_000_000 + chance.randrange(900_000)} kB\n"
        f"Cached:         {chance.randrange(90_000_000)} kB\n"
        "SwapTotal:             0 kB\nSwapFree:              0 kB",
        "/proc/loadavg": f"{chance.random() * 3 + (400 if trouble == 'busy' else 0):.2f} "
        f"{400 if trouble == 'busy' else 1}.02 0.98 {1 + chance.randrange(3)}/"
        f"{2400 + chance.randrange(400)} {chance.randrange(4_000_000)}",
        "/sys/devices/system/cpu/online": "0-223",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.48.01 "
        " Mon Jan  1 00:00:00 UTC 2026",
        "/proc/1/comm": "systemd",
        "/run/chrony/chronyd.pid": str(1000 + chance.randrange(3000)),
        "/proc/self/mountinfo": "22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/md0 rw\n"
        "30 22 0:52 / /home rw,relatime shared:2 - nfs4 store.hall1.example.org:/home rw\n"
        "31 22 0:53 / /scratch rw,relatime shared:3 - lustre 10.9.0.1@o2ib:/scratch rw\n"
        f"32 22 0:54 / /run/user/1000 rw - tmpfs tmpfs rw,size={chance.randrange(10**8)}k",
        "/etc/machine-id": _digits(number, "machine", 32),
        "/proc/self/cgroup": f"0::/user.slice/user-1000.slice/session-{chance.randrange(9999)}",
        "/proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\t"
        "Window\tIRTT\neth0\t00000000\t0100010A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": (
            "powersave" if trouble == "governor" else "performance"
        ),
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq",
        "/usr/local/cuda/version.json": json.dumps({"cuda": {"version": "12.8.1"}}),
        "/etc/security/limits.conf": "* - memlock unlimited",
    }
    for adapter in range(8):
        files.update(_adapter(number, adapter, chance))
    return files


def _adapter(number: int, adapter: int, chance: random.Random) -> dict[str, str]:
    top = f"/sys/class/infiniband/mlx5_{adapter}"
    down = fault(number) == "adapter down" and adapter == 5
    slow = fault(number) == "slow link" and adapter == 2
    return {
        f"{top}/ports/1/state": "1: DOWN" if down else "4: ACTIVE",
        f"{top}/ports/1/phys_state": "2: Polling" if down else "5: LinkUp",
        f"{top}/ports/1/rate": "200 Gb/sec (2X NDR)" if slow else "400 Gb/sec (4X NDR)",
        f"{top}/ports/1/link_layer": "InfiniBand",
        f"{top}/ports/1/counters/link_downed": str(chance.randrange(3)),
        f"{top}/fw_ver": "28.41.1000",
        f"{top}/board_id": "MT_0000000838",
        f"{top}/hca_type": "MT4129",
        f"{top}/device/current_link_width": "16",
        f"{top}/device/current_link_speed": "32.0 GT/s PCIe",
        f"{top}/device/max_link_width": "16",
        f"{top}/device/max_link_speed": "32.0 GT/s PCIe",
        f"{top}/device/net/ib{adapter}/mtu": "4092",
    }


def _read(patterns: Any, number: int) -> dict[str, str]:
    asked = NamePatterns(patterns)
    return {path: text for path, text in _files(number).items() if path in asked}


def _interfaces(_: Any, number: int) -> list[dict[str, Any]]:
    common = {"loopback": False, "up": True}
    first = {"name": "eth0", "address": _address(number), "speed": 25000, "mtu": 9000}
    local = {"name": "lo", "address": "127.0.0.1", "speed": None, "mtu": 65536}
    rest = [
        {"name": f"ib{at}", "address": _address(number, 20 + at), "speed": 400000, "mtu": 4092}
        for at in range(8)
    ]
    return [{**common, **local, "loopback": True}, *({**common, **own} for own in (first, *rest))]


def _pci(_: Any, number: int) -> dict[str, Any]:
    count = 7 if fault(number) == "few GPUs" else SLOTS
    device = {"class": "0x030200", "device": "0x2330", "driver": "nvidia"}
    return {f"0000:{at:02x}:00.0": device for at in range(count)}


# ---------------------------------------------------------------- programs


def _machine(number: int) -> gpus.Machine:
    trouble = fault(number)
    chance = random.Random(f"gpu {number}")
    cells = []
    for at, usual in enumerate(gpus.h100s(7 if trouble == "few GPUs" else SLOTS)):
        own = {
            "uuid": f"GPU-{_digits(number, f'uuid {at}', 8)}-1111-2222-3333-{number:012x}",
            "temperature.gpu": str(28 + chance.randrange(15)),
            "temperature.gpu.tlimit": str(45 + chance.randrange(10)),
            "memory.used [MiB]": str(chance.randrange(5)),
        }
        cells.append({**usual, **own})
    machine = gpus.Machine(gpus=tuple(cells))
    if trouble == "old driver":
        machine = machine.every("driver_version", "570.86.15")
    if trouble == "hot":
        machine = machine.cell(3, "temperature.gpu", "93").cell(3, "temperature.gpu.tlimit", "-2")
    if trouble == "remapped":
        machine = machine.cell(6, "remapped_rows.pending", "Yes")
    return machine


@cache
def _topo() -> str:
    return gpus.topo(SLOTS, {})


def _smi(words: str, number: int) -> str:
    machine = _machine(number)
    if words == "topo -m":
        return _topo()
    if words == "topo -p2p r":
        return gpus.p2p(SLOTS)
    if words == "nvlink -s":
        return gpus.nvlink(machine.gpus, {})
    if words == "nvlink -e":
        return gpus.nvlink_errors(machine.gpus)
    if words == "-L":
        return "".join(f"{gpus.listed(gpu)}\n" for gpu in machine.gpus)
    titles = list(machine.gpus[0])
    rows = (", ".join(gpu[title] for title in titles) for gpu in machine.gpus)
    return "".join(f"{line}\n" for line in (", ".join(titles), *rows))


def _run(argument: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {"code": 0, "out": _printed(argument, number), "err": ""}


def _printed(argument: Mapping[str, Any], number: int) -> str:
    words = argument.get("argv", ())
    shell = argument.get("shell", "")
    if words[:1] == ["nvidia-smi"]:
        return _smi(" ".join(words[1:]), number)
    if "--query-gpu" in shell:
        return _smi("--query-gpu", number)
    if "uptime" in shell:
        return f"uptime {900_000 + number}.17\nlog\n"
    if "uverbs" in shell:
        return "usable\n" * 8
    if words[:1] == ["chronyc"]:
        digits = _digits(number, "clock", 6)
        return f"Stratum         : 3\nSystem time     : 0.0000{digits}\nLeap status     : Normal\n"
    if words[:1] == ["systemctl"]:
        return "active\n"
    return ""


def _installed(number: int) -> dict[str, Any]:
    version = "2.6.0" if fault(number) == "torch differs" else "2.7.1"
    packages = {"torch": [version, "/v"], "deepspeed": ["0.17.1", "/v"]}
    torch = {"__version__": version, "cuda": "12.8", "arches": "sm_80 sm_90"}
    return dict(job_with({"packages": packages, "torch": torch}))


def _path(path: Any, number: int) -> dict[str, Any]:
    free = 1 if fault(number) == "low disk" else 300
    free = free * GIB + number * 4096
    mount = {"point": "/", "type": "ext4", "source": "/dev/md0", "options": "rw,relatime"}
    if path == "/dev/shm":
        mount = {**mount, "point": path, "type": "tmpfs", "source": "tmpfs"}
        free = 1000 * GIB - number * 4096
    room = {"size": 1000 * GIB, "free": free, "inodes": 10**7, "inodes_free": 9 * 10**6 - number}
    return {"path": path, **room, "writable": True, "mount": mount}


def _names(_: Any, number: int) -> dict[str, Any]:
    name = host(number)
    return {"hostname": name, "fqdn": name, "addresses": [_address(number)]}


def _number(name: str) -> int:
    return int(name[3:8])


def _listen(argument: Mapping[str, Any], number: int) -> dict[str, Any]:
    port = argument["ports"][0] or 32768 + number % 20000
    return {"port": port, "taken": []}


def _limits(names: Any, number: int) -> dict[str, list[int]]:
    usual = {name: [1 << 21, 1 << 21] for name in names} | {
        "MEMLOCK": [-1, -1],
        "STACK": [1 << 23, -1],
    }
    return usual | ({"MEMLOCK": [65536, 65536]} if fault(number) == "memlock" else {})


def _send_rate(told: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return what a node measured that sends: 1 Gb/s of 25, or about 24."""
    high, low = told["target"][0].split(".")[2:]
    receiver = int(high) * 250 + int(low) - 1
    slow = "slow Ethernet" in (fault(number), fault(receiver))
    seconds = 2.1 if slow else 0.08 + 0.0001 * (number % 89)
    return {"bytes": told["bytes"], "seconds": seconds}


_KINDS: Mapping[str, Callable[[Any, int], Any]] = {
    "read": _read,
    "environment": lambda _, number: {},
    "texts": lambda _, number: {},
    "present": lambda _, number: {},
    "which": lambda names, number: {name: f"/usr/bin/{name}" for name in names},
    "limits": _limits,
    "pci": _pci,
    "accelerators": lambda _, number: {},
    "interfaces": _interfaces,
    "listen": _listen,
    "run": _run,
    "send_rate": _send_rate,
    "path": _path,
    "above": _path,
    "list": lambda _, number: [],
    "each": lambda told, number: {
        name: {"code": 0, "out": "", "err": ""} for name in told["programs"]
    },
    "write": lambda _, number: None,
    "job": lambda _, number: _installed(number),
    "names": _names,
    "resolve": lambda names, number: {name: [_address(_number(name))] for name in names},
    "dial": lambda told, number: {name: {"local": _address(number)} for name in told["targets"]},
}
