"""Breaking nodes on purpose, and undoing it. Every fault is one pair of functions in FAULTS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.vcluster.access import command_line
from tests.testbed.vcluster.cpu import free_cpu, limit_cpu
from tests.testbed.vcluster.inside import FAKETIME, run_in, write_file
from tests.testbed.vcluster.memory import limit_memory, return_memory
from tests.testbed.vcluster.network import (
    address_of,
    port_of,
    ports_of,
    set_neighbors,
    switch_batch,
)
from tests.testbed.vcluster.services import reconfigure, service
from tests.testbed.vcluster.state import Cluster, ClusterError, Node
from tests.testbed.vcluster.syscalls import (
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
    enter_namespaces,
    mount,
)

LASTING = ("cpu", "cut", "memory")
"""Faults that a dead node leaves behind on this machine."""
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"


@dataclass(frozen=True, slots=True)
class Fault:
    """How a node is broken and repaired; both get the arguments of the fault."""

    usage: str
    inject: Callable[[Cluster, Node, list[str]], None]
    undo: Callable[[Cluster, Node, list[str]], None]


def inject(cluster: Cluster, patterns: str, kind: str, arguments: list[str]) -> None:
    """Break the nodes that match. ClusterError when they have this fault already."""
    if kind not in FAULTS:
        raise ClusterError(f"unknown fault {kind!r}; there are {', '.join(FAULTS)}")
    for node in cluster.match(patterns):
        if kind in node.faults:
            raise ClusterError(f"{node.name} has the fault {kind} already: heal it first")
        node.faults[kind] = list(arguments)
        try:
            FAULTS[kind].inject(cluster, node, node.faults[kind])
        except (ClusterError, IndexError, ValueError) as error:
            del node.faults[kind]
            usage = f"usage: fault {node.name} {kind} {FAULTS[kind].usage}"
            raise ClusterError(str(error) if isinstance(error, ClusterError) else usage) from error


def heal(cluster: Cluster, patterns: str) -> None:
    """Undo every fault of the nodes that match. Those of a dead node died with it."""
    for node in cluster.match(patterns):
        while node.faults:
            kind, arguments = node.faults.popitem()
            if node.alive or kind in LASTING:
                FAULTS[kind].undo(cluster, node, arguments)


# ---------------------------------------------------------------- sshd


def _sshd(action: str) -> Callable[[Cluster, Node, list[str]], None]:
    return lambda cluster, node, _: service(cluster, node, "sshd", action)


def _reconfigure(cluster: Cluster, node: Node, _: list[str]) -> None:
    reconfigure(cluster, node)


def _new_host_key(cluster: Cluster, node: Node, _: list[str]) -> None:
    run_in(cluster, node, "rm", HOST_KEY)
    run_in(cluster, node, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", HOST_KEY)
    service(cluster, node, "sshd", "restart")


def _old_host_key(cluster: Cluster, node: Node, _: list[str]) -> None:
    key = (cluster.directory / "keys" / node.name).read_text()
    write_file(cluster, node, HOST_KEY, key)
    service(cluster, node, "sshd", "restart")


def _skew(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    float(arguments[0])
    if not Path(FAKETIME).exists():
        raise ClusterError("skew needs a library: apt-get install libfaketime")
    reconfigure(cluster, node)


# ---------------------------------------------------------------- network


def _cut(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    ports = ports_of(cluster, node)
    if arguments == ["drop"]:  # links stay up and peers keep the ARP entry: pure silence
        switch_batch(cluster, "bridge", [f"link set dev {port} state 0" for port in ports])
        set_neighbors(cluster, node, "replace", "nud permanent")
    else:
        switch_batch(cluster, "ip", [f"link set {port} down" for port in ports])


def _reconnect(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    ports = ports_of(cluster, node)
    if arguments == ["drop"]:
        switch_batch(cluster, "bridge", [f"link set dev {port} state 3" for port in ports])
        set_neighbors(cluster, node, "del")
    else:
        switch_batch(cluster, "ip", [f"link set {port} up" for port in ports])


def _netfilter(cluster: Cluster, node: Node, table: str, rule: str) -> None:
    rules = f"""\
add table inet {table}
add chain inet {table} input {{ type filter hook input priority 0; }}
add rule inet {table} input iifname != lo {rule}
"""
    run_in(cluster, node, "nft", "-f", "-", stdin=rules)


def _no_netfilter(table: str) -> Callable[[Cluster, Node, list[str]], None]:
    def undo(cluster: Cluster, node: Node, _: list[str]) -> None:
        run_in(cluster, node, "nft", "delete", "table", "inet", table)

    return undo


def _verdict(arguments: list[str]) -> str:
    return "reject with tcp reset" if arguments == ["reject"] else "drop"


def _loss(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    limit = round(float(arguments[0]) * 100)
    _netfilter(cluster, node, "loss", f"numgen random mod 10000 < {limit} drop")


def _block(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    rule = f"tcp dport {{ {arguments[0]} }} {_verdict(arguments[1:])}"
    _netfilter(cluster, node, "block", rule)


def _reset(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """A firewall forgets: what is connected now is reset by its next packet, new connections,
    from other ports, live. The peer, once reset, resets the node's end by its own answer."""
    arguments[:] = arguments or ["22"]
    listening = f"( sport = :{arguments[0]} )"
    seen = run_in(cluster, node, "ss", "-Htn", "state", "established", listening)
    ports = sorted({line.split()[3].rpartition(":")[2] for line in seen.splitlines()})
    if not ports:
        raise ClusterError(f"{node.name} has no connection to port {arguments[0]}")
    which = f"tcp dport {arguments[0]} tcp sport {{ {', '.join(ports)} }} tcp flags & rst != rst"
    _netfilter(cluster, node, "resets", f"{which} reject with tcp reset")


def _only_from(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    source = address_of(cluster.node(arguments[0]).index)
    rule = f"tcp dport 22 ip saddr != {source} {_verdict(arguments[1:])}"
    _netfilter(cluster, node, "only_from", rule)


def _rate(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    shape = f"root tbf rate {arguments[0]} burst 64kb latency 200ms"
    for nic, port in enumerate(ports_of(cluster, node)):
        switch_batch(cluster, "tc", [f"qdisc replace dev {port} {shape}"])
        run_in(cluster, node, "tc", "qdisc", "replace", "dev", f"eth{nic}", *shape.split())


def _no_qdisc(cluster: Cluster, node: Node, _: list[str]) -> None:
    for nic, port in enumerate(ports_of(cluster, node)):
        switch_batch(cluster, "tc", [f"qdisc del dev {port} root"], ok=True)
        run_in(cluster, node, "tc", "qdisc", "del", "dev", f"eth{nic}", "root", ok=True)


def _delay(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """tc netem, or a relay where the kernel has none; half the delay in each direction."""
    delay, jitter = float(arguments[0]), float(arguments[1] if arguments[1:] else 0)
    netem = f"root netem delay {delay / 2}ms {jitter / 2}ms"
    for nic in range(cluster.settings.nics):
        port = port_of(node.index, nic)
        if switch_batch(cluster, "tc", [f"qdisc replace dev {port} {netem}"], ok=True):
            run_in(cluster, node, "tc", "qdisc", "replace", "dev", f"eth{nic}", *netem.split())
        else:
            _start_relay(cluster, node, nic, (delay / 2, jitter / 2))


def _start_relay(cluster: Cluster, node: Node, nic: int, half: tuple[float, float]) -> None:
    port, pair = port_of(node.index, nic), f"d{node.index}e{nic}"
    lines = [f"link set {port} nomaster", f"link add name {pair}r type veth peer name {pair}b"]
    lines += [f"link set {pair}r up", f"link set {pair}b up", f"link set {pair}b master br{nic}"]
    switch_batch(cluster, "ip", lines)
    ends = ["relay", port, f"{pair}r", str(half[0]), str(half[1])]
    subprocess.run([*command_line(cluster.directory), *ends], check=True)


def _no_delay(cluster: Cluster, node: Node, _: list[str]) -> None:
    _no_qdisc(cluster, node, [])
    for nic, port in enumerate(ports_of(cluster, node)):  # without its cable the relay ends
        switch_batch(cluster, "ip", [f"link del d{node.index}e{nic}r"], ok=True)
        switch_batch(cluster, "ip", [f"link set {port} master br{nic}"])


# ---------------------------------------------------------------- disk


def _fill(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    """Shrink a disk to what it holds now, and remember its size for the repair."""
    path = arguments[0] if arguments else "/"
    df = run_in(cluster, node, "df", "-B1", "--output=size,used", path)
    size, used = (int(word) for word in df.split()[-2:])
    _resize(cluster, node, path, max(used, 4096))
    arguments[:] = [path, str(size)]


def _unfill(cluster: Cluster, node: Node, arguments: list[str]) -> None:
    _resize(cluster, node, arguments[0], int(arguments[1]))


def _resize(cluster: Cluster, node: Node, path: str, size: int) -> None:
    """Change a tmpfs's size. mount(8) would repeat the uid= and gid= it finds in the mount
    table, which the kernel refuses inside a user namespace."""
    child = os.fork()
    if child == 0:
        try:
            enter_namespaces(cluster.init_of(node), ["mnt"])
            flags = os.statvfs(path).f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
            mount("none", path, flags=MS_REMOUNT | flags, data=f"size={size}")
            os._exit(0)
        except OSError as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise ClusterError(f"{node.name}: could not change the size of {path}")


FAULTS = {
    "sshd-down": Fault("", _sshd("stop"), _sshd("start")),
    "sshd-hang": Fault("", _sshd("pause"), _sshd("resume")),
    "password-only": Fault("", _reconfigure, _reconfigure),
    "host-key": Fault("", _new_host_key, _old_host_key),
    "skew": Fault("SECONDS, such as +300", _skew, _reconfigure),
    "cut": Fault("[drop]", _cut, _reconnect),
    "delay": Fault("MS [JITTER_MS]", _delay, _no_delay),
    "loss": Fault("PERCENT of the packets that it receives", _loss, _no_netfilter("loss")),
    "block": Fault("PORTS [reject], such as 29500,30000-30010", _block, _no_netfilter("block")),
    "only-from": Fault("NODE [reject]", _only_from, _no_netfilter("only_from")),
    "reset": Fault("[PORT], by default 22", _reset, _no_netfilter("resets")),
    "rate": Fault("RATE, such as 10mbit", _rate, _no_qdisc),
    "disk-full": Fault("[/ | /scratch | /dev/shm | a directory of --own-disk]", _fill, _unfill),
    "cpu": Fault("PERCENT of one CPU that it may use", limit_cpu, free_cpu),
    "memory": Fault("BYTES that it may still take", limit_memory, return_memory),
}
