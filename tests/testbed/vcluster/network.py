"""The cables: one bridge per network in a namespace of its own, without a way out."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.testbed.vcluster.inside import nsenter, run_in
from tests.testbed.vcluster.state import Cluster, ClusterError, Node, Process
from tests.testbed.vcluster.syscalls import (
    CLONE_NEWNET,
    CLONE_NEWPID,
    reap_forever,
    spawn_init,
)

GATEWAY = "10.77.255.254"
"""The default route points here; nothing answers."""


def address_of(index: int, nic: int = 0) -> str:
    """The control machine is 10.77.255.1, node i is 10.77.(i/256).(i%256); NIC k: 10.(77+k)."""
    return f"10.{77 + nic}.255.1" if index == 0 else f"10.{77 + nic}.{index >> 8}.{index & 255}"


def mac_of(index: int, nic: int) -> str:
    """The hardware address of a node's NIC."""
    return f"02:00:00:{nic:02x}:{index >> 8:02x}:{index & 255:02x}"


def port_of(index: int, nic: int) -> str:
    """The switch's end of a node's cable."""
    return f"p{index}e{nic}"


def ports_of(cluster: Cluster, node: Node) -> list[str]:
    """The switch's ends of all of a node's cables."""
    return [port_of(node.index, nic) for nic in range(cluster.settings.nics)]


def switch_batch(cluster: Cluster, tool: str, lines: Iterable[str], ok: bool = False) -> bool:
    """Run `ip -batch`, `bridge -batch` or `tc -batch` in the namespace of the bridges."""
    if cluster.switch is None:
        raise ClusterError("the switch is not up")
    command = [*nsenter(cluster, cluster.switch.pid, "n"), tool, "-batch", "-"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode and not ok:
        raise ClusterError(f"{tool} in the switch: {done.stderr.strip()}")
    return done.returncode == 0


def start_switch(cluster: Cluster) -> None:
    """Start the namespace of the bridges."""
    log = cluster.directory / "switch.log"
    cluster.switch = Process.of(spawn_init(CLONE_NEWNET | CLONE_NEWPID, reap_forever, log))
    lines = ["link set lo up"]
    for nic in range(cluster.settings.nics):
        lines += [f"link add name br{nic} type bridge", f"link set br{nic} up"]
    switch_batch(cluster, "ip", lines)


def plug_in(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Lay a cable from every NIC of the nodes to its bridge."""
    cables = []
    for node in nodes:
        pid = cluster.init_of(node)
        for nic in range(cluster.settings.nics):
            port, mac = port_of(node.index, nic), mac_of(node.index, nic)
            peer = f"peer name eth{nic} address {mac} netns {pid}"
            cables.append(f"link add name {port} type veth {peer}")
            cables += [f"link set {port} master br{nic}", f"link set {port} up"]
    switch_batch(cluster, "ip", cables)


def unplug(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Remove what is left of dead nodes' cables: the kernel does it too, a moment later."""
    for node in nodes:
        for port in ports_of(cluster, node):
            switch_batch(cluster, "ip", [f"link del {port}"], ok=True)


def configure(cluster: Cluster, node: Node) -> None:
    """Give a node its addresses. Runs inside the node, as its init."""
    for setting, value in {
        "ipv6/conf/all/disable_ipv6": "1",
        "ipv4/ip_unprivileged_port_start": "0",
    }.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys/net", setting).write_text(value)
    lines = ["link set lo up"]
    for nic in range(cluster.settings.nics):
        lines.append(f"addr add {address_of(node.index, nic)}/16 dev eth{nic}")
        lines.append(f"link set eth{nic} up")
    # with a default route "which address would I use" is answered as on a real node
    lines.append(f"route add default via {GATEWAY}")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def set_neighbors(cluster: Cluster, node: Node, verb: str, suffix: str = "") -> None:
    """Change the ARP entry that every other node has of this one."""
    lines = []
    for nic in range(cluster.settings.nics):
        link = f" lladdr {mac_of(node.index, nic)} {suffix}" if suffix else ""
        lines.append(f"neigh {verb} {address_of(node.index, nic)} dev eth{nic}{link}")
    for other in cluster.nodes.values():
        if other is not node and other.alive:
            batch = "ip", "-force", "-batch", "-"
            run_in(cluster, other, *batch, stdin="\n".join(lines) + "\n", ok=True)
