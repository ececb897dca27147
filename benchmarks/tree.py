"""What the launcher spends on many nodes, directly and over a tree.

    python benchmarks/tree.py [NODES [FANOUT]] [OPTIONS]

A virtual cluster with real sshd. All nodes share the processors of this machine, so seconds say
little about a real cluster; the processor time of the launcher and of all nodes, memory and bytes
do. The goal: bytes and logins of the launcher grow with the fan-out, not with the nodes.

`--transports` and `--commands` choose what is measured. `--kex` sets KexAlgorithms of the nodes'
ssh: inside dslaunch (`fabric`), keys are exchanged with curve25519-sha256; OpenSSH 9.0 to 9.9
prefer sntrup761x25519-sha512, which costs several times the processor time of the whole login.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.testbed.vcluster import VirtualCluster, missing

METER = """\
import json, resource, subprocess, sys, time
began = time.monotonic()
out = open("/root/out", "w")
threads = 0
running = subprocess.Popen(sys.argv[1:], stdout=out, stderr=out)
while running.poll() is None:
    with open("/proc/%d/status" % running.pid) as status:
        found = [int(line.split()[1]) for line in status if line.startswith("Threads:")]
    threads = max([threads, *found])
    time.sleep(0.1)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = time.monotonic() - began
cpu = used.ru_utime + used.ru_stime
print(json.dumps([running.returncode, seconds, cpu, used.ru_maxrss, threads]))
"""
COMMANDS = {
    "run": ("run", "c.yaml", "--no-preflight", "--no-python", "--", "true"),
    "preflight": ("preflight", "c.yaml"),
}


def parsed() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int, nargs="?", default=64)
    parser.add_argument("fan_out", type=int, nargs="?", default=8)
    parser.add_argument("--transports", default="fabric,tree,openssh")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--kex")
    return parser.parse_args()


def main() -> None:
    """One cluster; each command directly and over a tree."""
    if reason := missing():
        sys.exit(f"skipped: {reason}")
    options = parsed()
    nodes, fan_out = options.nodes, options.fan_out
    columns = (
        f"{'seconds':>9}{'CPU s':>8}{'peak MiB':>10}{'threads':>9}{'sent MB':>9}{'nodes CPU s':>13}"
    )
    print(f"{nodes} nodes{'':13}{columns}")
    with VirtualCluster(nodes, directory=tempfile.mkdtemp(prefix="bench-")) as cluster:
        cluster.put("control", "/root/meter.py", METER)
        if options.kex:
            for node in cluster.names:
                line = f"KexAlgorithms {options.kex}\n"
                cluster.put(node, "/etc/ssh/ssh_config.d/kex.conf", line, mode=0o644)
        for transport in options.transports.split(","):
            text = (
                f"transport: {transport}\nssh: {{tree_fanout: {fan_out}}}\n"
                f"python: {sys.executable}\nlauncher: direct\n"
                f"nodes: [{{host: 'node[1-{nodes}]', slots: 1}}]\n"
            )
            cluster.put("control", "/root/c.yaml", text, 0o644)
            for name in options.commands.split(","):
                measure(cluster, f"{name}, {transport}", COMMANDS[name])


def measure(cluster: VirtualCluster, name: str, words: tuple[str, ...]) -> None:
    """One command, as one row."""
    before = sent(cluster)
    used_before = used_by_nodes(cluster)
    command = [sys.executable, "/root/meter.py", sys.executable, "-m", "dslaunch", *words]
    done = cluster.run("control", command, cwd="/root", timeout=600, check=True)
    code, seconds, cpu, memory, threads = json.loads(done.stdout)
    if code:
        sys.exit(f"{name}: exit code {code}: {cluster.run('control', ['cat', '/root/out']).stdout}")
    megabytes = (sent(cluster) - before) / 1e6
    by_nodes = used_by_nodes(cluster) - used_before
    launcher = f"{seconds:9.1f}{cpu:8.2f}{memory / 1024:10.0f}{threads:9}{megabytes:9.1f}"
    print(f"{name:22}{launcher}{by_nodes:13.1f}", flush=True)


def sent(cluster: VirtualCluster) -> int:
    """Return the bytes that the control machine has sent (proc(5), /proc/net/dev)."""
    text = cluster.run("control", ["cat", "/proc/net/dev"], check=True).stdout
    return int(text.partition("eth0:")[2].split()[8])


def used_by_nodes(cluster: VirtualCluster) -> float:
    """Return the processor seconds of all nodes so far, also of processes that have exited: their
    parents have them among those of their children (proc(5), /proc/PID/stat)."""
    ticks = 0
    for node in cluster.names:
        text = cluster.run(node, ["sh", "-c", "cat /proc/[0-9]*/stat"]).stdout
        for line in text.splitlines():
            after_name = line.rpartition(")")[2].split()
            ticks += sum(map(int, after_name[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
