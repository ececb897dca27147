"""A cable that is slow: passes Ethernet frames between two interfaces, each after a delay."""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import socket
import struct
import time

from tests.testbed.vcluster.state import Cluster, ClusterError
from tests.testbed.vcluster.syscalls import enter_namespaces

SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 1, 15, 23
PACKET_MR_PROMISC, ETH_P_ALL = 1, 3


def start_relay(cluster: Cluster, one: str, other: str, delay_ms: float, jitter_ms: float) -> None:
    """Relay in the background, in the switch's namespaces; it ends with them, or when one of
    its interfaces goes."""
    if cluster.switch is None:
        raise ClusterError("the switch is not up")
    enter_namespaces(cluster.switch.pid, ["net", "pid"])
    sockets = _open(one), _open(other)
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    with contextlib.suppress(OSError):
        _relay(sockets, delay_ms / 1000, jitter_ms / 1000)
    os._exit(0)


def _open(interface: str) -> socket.socket:
    """Frames with their virtio header, so that packets whose checksum or segmentation the
    kernel left for later stay intact."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    everything = struct.pack("IHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
    sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything)
    sock.bind((interface, ETH_P_ALL))
    return sock


def _relay(sockets: tuple[socket.socket, socket.socket], delay: float, jitter: float) -> None:
    queue: list[tuple[float, int, socket.socket, bytes]] = []
    count = 0
    while True:
        timeout = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        for sock in select.select(sockets, [], [], timeout)[0]:
            due = time.monotonic() + max(0.0, delay + random.uniform(-jitter, jitter))
            count += 1
            to = sockets[sock is sockets[0]]
            heapq.heappush(queue, (due, count, to, sock.recv(70000)))
        while queue and queue[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(queue)
            with contextlib.suppress(OSError):  # a full queue drops the frame, as a switch would
                target.send(frame)
