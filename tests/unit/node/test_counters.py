"""The kernel's counters: which interfaces, ports and disks count, in which unit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from dslaunch.node import cgroup, counters
from dslaunch.node.rank_usage import RankMeter
from dslaunch.node.redact import Secrets
from dslaunch.node.usage import KEPT_OUTPUT, UsageMeter
from dslaunch.protocol.usage import COUNTERS
from dslaunch.protocol.values import parse

DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0: 1000 10 1 0 0 0 0 0 2000 20 2 0 0 0 0 0
  eth1: 10 10 0 0 0 0 0 0 20 20 0 0 0 0 0 0
 bond0: 1010 10 1 0 0 0 0 0 2020 20 2 0 0 0 0 0
 veth5: 5 10 0 0 0 0 0 0 5 20 0 0 0 0 0 0
"""
DISKS = """\
 259       0 nvme0n1 10 0 8 5 20 0 16 5 0 5 5
 259       1 nvme0n1p1 10 0 8 5 20 0 16 5 0 5 5
 253       0 dm-0 10 0 8 5 20 0 16 5 0 5 5
"""
SPINS = """\
import os, time
os.fork()
while time.process_time() < 0.2:
    pass
print("spun", flush=True)
time.sleep(600)
"""


def tree(root: Path, **files: str) -> str:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_interfaces_of_hardware_count_and_not_what_is_made_of_them(tmp_path: Path) -> None:
    sys_net = tree(tmp_path, eth0__device="", eth1__device="", bond0__lower_eth0="", veth5__x="")
    assert counters.network(DEV, sys_net) == {"eth0": [1000, 2000, 3], "eth1": [10, 20, 0]}


def test_in_a_container_all_interfaces_but_loopback_and_stacked_ones_count(tmp_path: Path) -> None:
    sys_net = tree(tmp_path, bond0__lower_eth0="")
    assert list(counters.network(DEV, sys_net)) == ["eth0", "eth1", "veth5"]


def test_fabric_counters_are_words_of_4_bytes(tmp_path: Path) -> None:
    where = "mlx5_0__ports__1__counters__"
    files = {"port_rcv_data": "100", "port_xmit_data": "200", "symbol_error": "7"}
    tree(tmp_path, **{f"{where}{name}": f"{text}\n" for name, text in files.items()})
    tree(tmp_path, mlx5_1__ports__1__counters__port_rcv_data="N/A (no PMA)\n")
    assert counters.fabric(str(tmp_path)) == {"mlx5_0/1": [400, 800, 7]}


def test_disks_count_without_partitions_and_volumes(tmp_path: Path) -> None:
    block = tree(tmp_path, nvme0n1__device="", **{"dm-0__dm": ""})
    assert counters.disks(DISKS, block) == {"nvme0n1": [8 * 512, 16 * 512]}


def test_cpu_time_without_idle_and_waiting_for_disks() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    busy, total = counters.cpu_times("cpu  100 0 50 800 40 5 3 2 0 0\ncpu0 1 2 3\n")
    assert (busy * ticks, total * ticks) == (160, 1000)
    assert counters.cpu_times("") == [0.0, 0.0]


def test_groups_without_a_cpu_limit_are_left_out(tmp_path: Path) -> None:
    tree(tmp_path, a__cpu_stat="")
    for name, text in (("a", "usage_usec 5\n"), ("b", "nr_periods 9\nnr_throttled 4\n")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cpu.stat").write_text(text)
    groups = [str(tmp_path / name) for name in ("a", "b", "missing")]
    assert counters.limits(groups) == {str(tmp_path / "b"): [9, 4]}


def test_a_rank_counts_with_its_descendants_and_not_with_those_of_other_ranks() -> None:
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with subprocess.Popen(
        [sys.executable, "-c", SPINS], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as busy:
        try:
            assert busy.stdout is not None
            for _ in range(2):
                busy.stdout.readline()
            first, second = RankMeter().read({0: busy.pid, 1: inner.pid})
            assert (first["rank"], first["pid"]) == (0, busy.pid)
            # two processes of 0.2 s, each with two counters that are cut to ticks of 10 ms
            assert first["cpu"] >= 0.3
            assert first["ran"] >= 0.18
            assert (second["rank"], second["pid"]) == (1, inner.pid)
            assert second["memory"] > 1 << 20
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
            inner.kill()
            inner.wait()


def test_a_rank_that_has_ended_is_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert RankMeter().read({3: ended.pid}) == []


def test_the_answer_is_valid_and_has_the_end_of_the_output() -> None:
    meter = UsageMeter(None)
    meter.output(0, b"x" * 5000)
    meter.output(0, b"\nstep 9 \xff")
    answer = meter.read({0: os.getpid()}, KEPT_OUTPUT)
    found = parse(COUNTERS, answer)
    assert len(found.output["0"]) == KEPT_OUTPUT
    assert found.output["0"].endswith("x\nstep 9 �")
    assert found.cpu_busy <= found.cpu_total
    assert meter.read({0: os.getpid()}, 0)["output"] == {}


def test_the_answer_of_a_run_with_secrets_is_masked() -> None:
    meter = UsageMeter(None)
    meter.output(0, b"hello correct-horse")
    answer = Secrets(["correct-horse"]).values(meter.read({0: os.getpid()}, KEPT_OUTPUT))
    assert parse(COUNTERS, answer).output == {"0": "hello ***"}


def test_a_group_and_all_above_it_are_found() -> None:
    groups = [Path(group) for group in cgroup.cpu_groups()]
    assert all(group.is_dir() for group in groups)
    assert [group.parent for group in groups[:-1]] == groups[1:]
