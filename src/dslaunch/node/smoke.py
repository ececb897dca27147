"""A small job of PyTorch over all nodes: do they meet, is all-reduce right, and how fast is it. A
program of its own, read from standard input by the job's interpreter."""

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
    """Look what there is, or take part with `ranks`; see `look` and `Rank`."""
    return run(arguments) if "ranks" in arguments else look()


def look() -> Answer:
    """What PyTorch there is, how many GPUs it sees, and a port that is free now."""
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
    """Start this node's ranks, and give for each how far it came. Ends after `seconds`."""
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
    """See a rank off."""
    if late:
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    if late:
        result.setdefault("error", "no end within the time")
        result["late"] = True
    elif status:
        result.setdefault("error", f"ended by signal {status}" if status < 128 else "it ended")


def work(arguments: Answer, local: int, rank: int, pipe: int) -> None:
    """In a child: take part, tell, and be gone."""

    def tell(**told: Any) -> None:
        os.write(pipe, json.dumps(told).encode() + b"\n")

    code = 0
    try:
        Rank(arguments, local, rank, tell).run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
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
        """Meet, and measure: the node by itself, pairs of nodes, all."""
        began = time.monotonic()
        import torch

        if self.gpu:
            torch.cuda.set_device(self.local)
        self.tell(stage="meet", imported=round(time.monotonic() - began, 3))
        store = self.meet()
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

    def meet(self) -> Any:
        """The store that rank 0 serves, once all are there; says who is missing."""
        import torch

        dist: Any = torch.distributed
        address, port = self.told["meet"]
        patience = datetime.timedelta(seconds=self.told["patience"])
        store = dist.TCPStore(address, port, None, self.rank == 0, patience)
        store.set(f"here/{self.rank}", "1")
        everybody = [f"here/{rank}" for rank in range(self.world)]
        try:
            store.wait(everybody, patience)
        except Exception:
            missing = [rank for rank, key in enumerate(everybody) if not store.check([key])]
            self.tell(missing=missing)
            raise
        return store

    def join(self, store: Any) -> None:
        """Make the process group, and say how long that took."""
        import torch

        dist: Any = torch.distributed
        self.tell(stage="join")
        began = time.monotonic()
        group = dist.PrefixStore("group", store)
        patience = datetime.timedelta(seconds=self.told["patience"])
        dist.init_process_group(
            self.told["backend"],
            store=group,
            rank=self.rank,
            world_size=self.world,
            timeout=patience,
        )
        self.reduce(None, 1, 1)
        self.tell(init=round(time.monotonic() - began, 3))

    def check(self) -> None:
        """The sum over ones must be the number of ranks, everywhere."""
        self.tell(stage="all-reduce")
        found = self.reduce(None, self.told["size"] // 4, 1)[1]
        self.tell(low=float(found.min()), high=float(found.max()))

    def compare(self) -> None:
        """Bus bandwidths in bytes per second."""
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
            self.reduce(None, 1, 1)  # all begin together
            if any(self.node in pair for pair in pairing):
                count = len(nodes[self.node]) + len(nodes[partner])
                pairs[str(partner)] = self.speed(mine, count)
                self.tell(pairs=pairs)
        self.tell(stage="all nodes")
        self.reduce(None, 1, 1)
        self.tell(all=self.speed(None, self.world))

    def speed(self, group: Any, count: int) -> float:
        """Bus bandwidth as nccl-tests count it: size over time, times 2 (n-1) / n."""
        best: float = self.reduce(group, self.told["size"] // 4, self.told["repeat"])[0]
        size: int = self.told["size"]
        return size / max(best, 1e-9) * 2 * (count - 1) / count

    def reduce(self, group: Any, count: int, repeat: int) -> Any:
        """All-reduce `count` ones (float32); the best time in seconds, and the sum."""
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
        """Until the GPU has done what it was told."""
        if self.gpu:
            import torch

            torch.cuda.synchronize()


def program() -> None:
    """Answer on standard output alone: NCCL_DEBUG and others print there too."""
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, json.dumps(main(json.loads(sys.argv[1]))).encode() + b"\n")


if __name__ == "__main__":
    program()
