"""What a terminal shows of a run on many nodes, over real sshd."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from tests.testbed.test_vcluster import Start

JOB = """\
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def meet():
    # as init_process_group: nobody continues before all are there
    if rank == 0:
        with socket.create_server(("", master[1]), backlog=world) as server:
            others = [server.accept()[0] for _ in range(world - 1)]
        for other in others:
            other.sendall(b"x")
        return
    while True:
        try:
            with socket.create_connection(master, timeout=300) as connection:
                connection.recv(1)
            return
        except ConnectionRefusedError:
            time.sleep(0.1)

meet()
print("The tokenizer has new PAD/BOS/EOS tokens that differ from the model config.", flush=True)
print("Some weights of LlamaForSequenceClassification were not initialized from the model "
      "checkpoint and are newly initialized: ['score.weight']", flush=True)
print("You should probably TRAIN this model on a down-stream task.", flush=True)
print("`use_cache=True` is incompatible with gradient checkpointing.", file=sys.stderr, flush=True)
if rank == 0:
    print("***** Running training *****", file=sys.stderr)
    print("  Num examples = 52,002\\n  Num Epochs = 3", file=sys.stderr)
    print("  Total optimization steps = 1,218", file=sys.stderr)
    for step in range(10):
        print(f"\\r  0%|          | {step}/1218 [00:01<20:18,  1.00s/it]", end="", file=sys.stderr)
        time.sleep(0.1)
    while not os.path.exists("/root/seen"):
        time.sleep(0.1)
    print("{'loss': 2.5, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 0.02}", flush=True)
"""
"""A training that prints what the Trainer of Hugging Face does, on every rank and on the first."""
TIMEOUT = 300.0


@pytest.mark.parametrize("nodes", [8, pytest.param(64, marks=pytest.mark.long)])
def test_a_run_on_many_nodes_prints_few_lines_before_its_first_loss(
    virtual_cluster: Start, nodes: int
) -> None:
    cluster = virtual_cluster(nodes=nodes)
    cluster.put("control", "/root/job.py", JOB)
    cluster.put(
        "control",
        "/root/c.yaml",
        f"nodes: [{{host: 'node[1-{nodes}]', slots: 1}}]\npython: {sys.executable}\n"
        "launcher: direct\nstorage: {workdir: work}\n",
    )
    command = [sys.executable, "-m", "dslaunch", "run", "c.yaml", "job.py"]
    with cluster.popen("control", command, terminal=True, cwd="/root") as running:
        assert running.terminal is not None
        seen = read_until(running.terminal, rf"running \d+ s · {nodes}/{nodes} nodes")
        cluster.put("node1", "/root/seen", "")
        seen += read_until(running.terminal, f"{nodes} ranks on {nodes} nodes finished")
    printed = shown_lines(seen)
    first_loss = next(at for at, line in enumerate(printed) if "'loss': 2.5" in line)
    assert len(printed[:first_loss]) < 40, printed
    assert re.search(rf"connecting \d+ s · \d+/{nodes} nodes", seen)
    assert re.search(rf"running \d+ s · {nodes}/{nodes} nodes · {nodes} ranks", seen)


def read_until(terminal: int, pattern: str) -> str:
    """Return what a terminal receives until a pattern is in it."""
    received, deadline = b"", time.monotonic() + TIMEOUT
    while not re.search(pattern, received.decode(errors="replace")):
        assert time.monotonic() < deadline, received.decode(errors="replace")[-2000:]
        received += os.read(terminal, 65536)
    return received.decode(errors="replace")


def shown_lines(received: str) -> list[str]:
    """Return the lines that stay on the screen: what follows the last erasure of each."""
    lines = received.replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r\x1b[K")[2] for line in lines]
