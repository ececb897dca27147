"""A small PyTorch job over all nodes: rendezvous, correctness and bandwidth of all-reduce.

A separate program, given to the job's interpreter with `-c`: its first argument is the file that it
reports into, its second what to do.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict

Answer = Dict[str, Any]


def main(arguments: Answer) -> Answer:
    """Return what is installed, or with `ranks` the results of this node's ranks."""
    return run(arguments) if "ranks" in arguments else look()


def look() -> Answer:
    """Return PyTorch's version, the GPUs that it sees, and a port that is free now."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    distributed = torch.distributed.is_available()
    with socket.socket() as handle:
        handle.bind(("", 0))
        port = handle.getsockname()[1]
    return {
        "torch": str(torch.__version__),
        "gpus": gpus,
        "nccl": bool(distributed and torch.distributed.is_nccl_available()),
        "gloo": bool(distributed and torch.distributed.is_gloo_available()),
        "port": port,
    }


def run(arguments: Answer) -> Answer:
    """Start this node's ranks, and return how far each came. Ends after `seconds`."""
    deadline = time.monotonic() + arguments["seconds"]
    started: Dict[int, int] = {}  # the end of a pipe that is read -> process
    results: Dict[int, Answer] = {}
    rests: Dict[int, bytes] = {}
    for local, rank in enumerate(arguments["ranks"]):
        pipe, other = os.pipe()
        started[pipe] = os.fork()
        if started[pipe] == 0:
            work(arguments, local, rank, other)
        os.close(other)
        results[pipe], rests[pipe] = {"rank": rank, "stage": "start"}, b""
    running = set(started)
    while running and time.monotonic() < deadline:
        ready, _, _ = select.select(list(running), [], [], max(0, deadline - time.monotonic()))
        for pipe in ready:
            piece = os.read(pipe, 65536)
            *lines, rests[pipe] = (rests[pipe] + piece).split(b"\n")
            for line in lines:
                results[pipe].update(json.loads(line))
            running -= set() if piece else {pipe}
    for pipe, process in started.items():
        end(process, results[pipe], pipe in running)
    return {"ranks": list(results.values())}


def end(process: int, result: Answer, late: bool) -> None:
    """Collect a rank's exit status, and kill it first if it is late."""
    if late:
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    if late:
        result.setdefault("error", "no end within the time")
        result["late"] = True
    elif status:
        result.setdefault("error", f"ended by signal {status}" if status < 128 else "it ended")


def work(arguments: Answer, local: int, rank: int, pipe: int) -> None:
    """In a child: run a rank, report, and exit."""

    def tell(**told: Any) -> None:
        os.write(pipe, json.dumps(told).encode() + b"\n")

    code = 0
    try:
        Rank(arguments, local, rank, tell).run()
    except Exception as error:  # noqa: BLE001 - any error is reported
        words = str(error).strip().splitlines() or [type(error).__name__]
        tell(error=words[0][:300])
        code = 1
    finally:
        os._exit(code)


class Rank:
    """One process of the job. `nodes` has each node's ranks, `rounds` lists of pairs of nodes,
    `size` is in bytes, `repeat` how often a figure is measured: the best one counts."""

    def __init__(self, told: Answer, local: int, rank: int, tell: Callable[..., None]) -> None:
        self.told, self.local, self.rank, self.tell = told, local, rank, tell
        self.world = sum(len(ranks) for ranks in told["nodes"])
        self.node = next(at for at, ranks in enumerate(told["nodes"]) if rank in ranks)
        self.gpu = told["backend"] == "nccl"

    def run(self) -> None:
        """Join the job, and measure: the node by itself, pairs of nodes, all nodes."""
        began = time.monotonic()
        import torch

        if self.gpu:
            torch.cuda.set_device(self.local)
        self.tell(stage="rendezvous", imported=round(time.monotonic() - began, 3))
        store = self.rendezvous()
        self.join(store)
        self.check()
        self.compare()
        self.tell(stage="end")
        store.set(f"done/{self.rank}", "1")
        if self.rank == 0:  # its store must outlive the others
            with contextlib.suppress(Exception):
                store.wait(
                    [f"done/{rank}" for rank in range(self.world)], datetime.timedelta(seconds=5)
                )

    def rendezvous(self) -> Any:
        """Return the store that rank 0 serves, once all ranks have joined; report missing ones."""
        import torch

        dist: Any = torch.distributed
        address, port = self.told["master"]
        timeout = datetime.timedelta(seconds=self.told["timeout"])
        store = dist.TCPStore(
            host_name=address,
            port=port,
            world_size=None,
            is_master=self.rank == 0,
            timeout=timeout,
        )
        store.set(f"here/{self.rank}", "1")
        everybody = [f"here/{rank}" for rank in range(self.world)]
        try:
            store.wait(everybody, timeout)
        except Exception:
            missing = [rank for rank, key in enumerate(everybody) if not store.check([key])]
            self.tell(missing=missing)
            raise
        return store

    def join(self, store: Any) -> None:
        """Initialize the process group, and report how long that took."""
        import torch

        dist: Any = torch.distributed
        self.tell(stage="join")
        began = time.monotonic()
        group = dist.PrefixStore("group", store)
        timeout = datetime.timedelta(seconds=self.told["timeout"])
        dist.init_process_group(
            self.told["backend"],
            store=group,
            rank=self.rank,
            world_size=self.world,
            timeout=timeout,
        )
        self.reduce(None, 1, 1)
        self.tell(init=round(time.monotonic() - began, 3))

    def check(self) -> None:
        """Report the lowest and highest sum over ones; both must be the number of ranks."""
        self.tell(stage="all-reduce")
        found = self.reduce(None, self.told["size"] // 4, 1)[1]
        self.tell(low=float(found.min()), high=float(found.max()))

    def compare(self) -> None:
        """Measure and report bus bandwidths in bytes per second."""
        import torch.distributed as dist

        nodes = self.told["nodes"]
        if any(len(ranks) > 1 for ranks in nodes):
            self.tell(stage="each node alone")
            groups = [dist.new_group(ranks) for ranks in nodes]
            if len(nodes[self.node]) > 1:
                self.tell(single=self.speed(groups[self.node], len(nodes[self.node])))
        pairs: Answer = {}
        for pairing in self.told["rounds"]:
            self.tell(stage="pairs of nodes")
            for one, other in pairing:
                group = dist.new_group(nodes[one] + nodes[other])
                if self.node in (one, other):
                    mine, partner = group, other if self.node == one else one
            self.reduce(None, 1, 1)  # all ranks begin together
            if any(self.node in pair for pair in pairing):
                count = len(nodes[self.node]) + len(nodes[partner])
                pairs[str(partner)] = self.speed(mine, count)
                self.tell(pairs=pairs)
        self.tell(stage="all nodes")
        self.reduce(None, 1, 1)
        self.tell(all=self.speed(None, self.world))

    def speed(self, group: Any, count: int) -> float:
        """Return the bus bandwidth as nccl-tests define it: size over time, times 2 (n-1) / n."""
        best: float = self.reduce(group, self.told["size"] // 4, self.told["repeat"])[0]
        size: int = self.told["size"]
        return size / max(best, 1e-9) * 2 * (count - 1) / count

    def reduce(self, group: Any, count: int, repeat: int) -> Any:
        """All-reduce `count` ones (float32); return the best time in seconds, and the sum."""
        import torch
        import torch.distributed as dist

        best = float("inf")
        for turn in range(repeat + (repeat > 1)):  # the first of several makes the connections
            ones = torch.ones(count, device="cuda" if self.gpu else "cpu")
            self.wait()
            began = time.monotonic()
            dist.all_reduce(ones, group=group)
            self.wait()
            if turn or repeat == 1:
                best = min(best, time.monotonic() - began)
        return best, ones

    def wait(self) -> None:
        """Wait until the GPU has finished."""
        if self.gpu:
            import torch

            torch.cuda.synchronize()


def program() -> None:
    """Report into the file of the first argument: NCCL and others print to standard output."""
    result = json.dumps(main(json.loads(sys.argv[2])))
    with open(sys.argv[1], "w") as file:
        file.write(result + "\n")


if __name__ == "__main__":
    program()
