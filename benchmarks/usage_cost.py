"""How much CPU time measuring what a node uses takes on that node.

    python -m benchmarks.usage_cost [RANKS] [PROCESSES]

Starts RANKS processes (default 8) with PROCESSES sleeping child processes each (default 16, as
workers of data loaders), measures them as the agent does, with a thread and JSON for each answer,
and prints the share of one CPU at the intervals of `run` and `top`. The goal: below 0.5 %. GPUs are
read by a separate process, which limits itself to 0.4 %.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from dslaunch.node import frames
from dslaunch.node.usage import KEPT_OUTPUT, UsageMeter
from dslaunch.run.usage_recorder import INTERVAL

TOP_INTERVAL = 2.0
READINGS = 100
RANK = """\
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print("up", flush=True)
time.sleep(600)
"""


def measure(ranks: int, children: int) -> float:
    """Return the CPU seconds of one reading."""
    command = [sys.executable, "-S", "-c", RANK, str(children)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(ranks)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        return _cpu_of_readings({rank: process.pid for rank, process in enumerate(running)})
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _cpu_of_readings(pids: dict[int, int]) -> float:
    meter = UsageMeter(None)
    for rank in pids:
        meter.output(rank, b"x" * KEPT_OUTPUT)

    def answer() -> None:
        frames.pack_message({"reply": 1, "value": meter.read(pids, KEPT_OUTPUT // 2)})

    answer()
    before = time.process_time()
    for _ in range(READINGS):
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()
    return (time.process_time() - before) / READINGS


def main() -> None:
    """Print the cost of a reading, and its share at both intervals."""
    ranks, children = (int(word) for word in (*sys.argv[1:], "8", "16")[:2])
    seconds = measure(ranks, children)
    print(
        f"{ranks} ranks with {children} child processes each: {1000 * seconds:.2f} ms per reading"
    )
    for name, interval in (("run", INTERVAL), ("top", TOP_INTERVAL)):
        print(f"{name}: every {interval:g} s, {seconds / interval:.3%} of one CPU")


if __name__ == "__main__":
    main()
