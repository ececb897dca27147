"""`dslaunch preflight` over real sshd: a healthy cluster is found healthy, and each fault planted
on one node is found, there, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.testbed.vcluster import VirtualCluster
from tests.testbed.vcluster.api import Running, Text

SITE = "/root/venv/lib/python3.11/site-packages".replace(
    "3.11", f"{sys.version_info[0]}.{sys.version_info[1]}"
)
CLUSTER = """
nodes: [{host: 'node[1-4]', slots: 1}]
python: /root/venv/bin/python
storage: {workdir: /root/work, checkpoints: /shared/preflight, node_local: /scratch}
job: {script: code/train.py}
"""
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n10.77.255.1 control\n"
FIREWALL = """\
add table inet planted
add chain inet planted {hook} {{ type filter hook {hook} priority 0; }}
add rule inet planted {hook} {rule}
"""
OLD = "torch-2.4.0.dist-info"
NEW = "torch-2.5.1.dist-info"
TORCH = f"mkdir -p {SITE}/torch/distributed; cd {SITE}/torch; touch __init__.py distributed/run.py"
"""What has to be there of torch for its launcher to start; it is not run."""


@dataclass
class Site:
    """A cluster with an environment and a script on every node, and a project on control."""

    cluster: VirtualCluster

    def sh(self, node: str, line: str) -> None:
        """Run a shell line as root of a node."""
        self.cluster.run(node, ["sh", "-c", line], user="root", check=True)

    def preflight(self, *words: str) -> Text:
        """`dslaunch preflight` with these words, in the project."""
        command = [sys.executable, "-m", "dslaunch", "preflight", *words]
        return self.cluster.run("control", command, cwd="/root/project", timeout=300)

    def findings(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """The exit code, and what was found that is not well."""
        done = self.preflight("c.yaml", "--json", *words)
        assert done.stdout.startswith("{"), done.stderr
        found = json.loads(done.stdout)["findings"]
        return done.returncode, [f for f in found if f["level"] in ("fail", "warn", "unknown")]

    def firewall(self, node: str, hook: str, rule: str) -> None:
        """Add a rule to a node's firewall."""
        text = FIREWALL.format(hook=hook, rule=rule)
        self.cluster.run(node, ["nft", "-f", "-"], stdin=text, user="root", check=True)


@pytest.fixture(scope="module")
def site(session_cluster4: VirtualCluster) -> Iterator[Site]:
    made = Site(session_cluster4)
    if made.cluster.cluster.settings.single_uid:
        pytest.skip("faults are planted as root of the nodes")
    made.sh("control", "mkdir -p /root/project/code /shared/preflight")
    made.cluster.put("control", "/root/project/c.yaml", CLUSTER)
    made.cluster.put("control", "/root/project/code/train.py", "print('hello')\n")
    for node in made.cluster.names:
        made.sh(node, f"{sys.executable} -I -m venv --without-pip --symlinks /root/venv")
        made.sh(node, f"mkdir -p {SITE}/{NEW} /root/work/code; {TORCH}")
        made.cluster.put(node, "/root/work/code/train.py", "print('hello')\n")
    yield made
    for node in made.cluster.names:
        made.sh(node, "rm -rf /root/venv /root/work")
    made.sh("control", "rm -rf /root/project /shared/preflight")


def test_a_healthy_cluster_is_fit_and_saved_answers_say_the_same(site: Site) -> None:
    done = site.preflight("c.yaml", "--json", "--save", "facts.json")
    live = json.loads(done.stdout)
    good = ("pass", "skip", "info")
    assert (done.returncode, [f for f in live["findings"] if f["level"] not in good]) == (0, [])
    again = site.preflight("--from", "facts.json", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["findings"] == live["findings"]
    assert {f["check"] for f in live["findings"]} > {"net.mesh", "fs.shared", "ssh.client"}


def test_the_mesh_of_logins_between_nodes_is_tried_when_asked_for(site: Site) -> None:
    done = site.preflight("c.yaml", "--only", "ssh.mesh", "--json")
    found = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["ssh.mesh"]["level"] == "pass", found["ssh.mesh"]
    assert found["ssh.mesh"]["hosts"] == ["node1", "node2", "node3", "node4"]


@dataclass(frozen=True)
class Fault:
    """What is planted, how it is undone, and what must be found: check, level, words."""

    name: str
    node: str
    plant: Callable[[Site], None]
    heal: Callable[[Site], None]
    finds: tuple[tuple[str, str, str], ...]


def by_shell(name: str, node: str, plant: str, heal: str, *finds: tuple[str, str, str]) -> Fault:
    """A fault of two shell lines."""
    return Fault(name, node, lambda s: s.sh(node, plant), lambda s: s.sh(node, heal), finds)


def by_name(name: str, node: str, fault: tuple[str, ...], *finds: tuple[str, str, str]) -> Fault:
    """A fault that the virtual cluster has."""
    return Fault(
        name,
        node,
        lambda s: s.cluster.fault(node, *fault),
        lambda s: s.cluster.heal(node),
        finds,
    )


def by_firewall(name: str, node: str, rules: dict[str, str], *finds: tuple[str, str, str]) -> Fault:
    """A fault of rules by hook."""

    def plant(s: Site) -> None:
        for hook, rule in rules.items():
            s.firewall(node, hook, rule)

    return Fault(name, node, plant, lambda s: s.sh(node, "nft delete table inet planted"), finds)


HANGS = """
import ctypes, os, stat, sys, time
os.mknod("/dev/fuse", 0o600 | stat.S_IFCHR, os.makedev(10, 229))
server = os.open("/dev/fuse", os.O_RDWR)
os.unlink("/dev/fuse")
options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"hung", b"/scratch", b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
time.sleep(600)
"""
"""A file system whose server has the kernel's question and never answers it."""


def hung_mount(name: str, node: str, *finds: tuple[str, str, str]) -> Fault:
    """A mount that hangs whoever touches it, until its server is gone."""
    servers: list[Running] = []

    def plant(s: Site) -> None:
        servers.append(s.cluster.popen(node, [sys.executable, "-c", HANGS], user="root"))
        assert servers[-1].stdout.readline() == "mounted\n", servers[-1].stderr.read()

    def heal(s: Site) -> None:
        with servers.pop():
            s.sh(node, "umount -l /scratch")

    return Fault(name, node, plant, heal, finds)


NODES = HOSTS + "".join(f"10.77.0.{n} node{n}\n" for n in (1, 3, 4))
FAULTS = [
    by_shell(
        "wrong key",
        "node2",
        "mv /root/.ssh/authorized_keys /root/.ssh/away",
        "mv /root/.ssh/away /root/.ssh/authorized_keys",
        ("ssh.connect", "fail", "key"),
    ),
    by_name("changed host key", "node3", ("host-key",), ("ssh.connect", "fail", "host key")),
    by_shell(
        "missing package",
        "node4",
        f"mkdir {SITE}/away; mv {SITE}/{NEW} {SITE}/torch {SITE}/away",
        f"mv {SITE}/away/* {SITE}; rmdir {SITE}/away",
        ("sw.packages", "fail", "torch is not installed for /root/venv/bin/python"),
        ("sw.versions", "fail", "torch not installed"),
    ),
    by_shell(
        "other version",
        "node1",
        f"mv {SITE}/{NEW} {SITE}/{OLD}",
        f"mv {SITE}/{OLD} {SITE}/{NEW}",
        ("sw.versions", "fail", "torch 2.4.0"),
    ),
    by_shell(
        "other script",
        "node2",
        "cp /root/work/code/train.py /root/away; echo '#' >>/root/work/code/train.py",
        "mv /root/away /root/work/code/train.py",
        ("code.files", "fail", "train.py: another version"),
    ),
    by_name(
        "clock ahead",  # libfaketime in the logins of the node
        "node3",
        ("skew", "+90"),
        ("clock.skew", "fail", "ahead"),
        ("sw.environment", "warn", "LD_PRELOAD"),
    ),
    by_shell(
        "127.0.1.1",
        "node2",
        f"cp /etc/hosts /root/hosts; printf '{NODES}127.0.1.1 node2\\n' >/etc/hosts",
        "cat /root/hosts >/etc/hosts; rm /root/hosts",
        ("host.names", "warn", "resolves to 127.0.1.1"),
    ),
    by_firewall(
        "blocked between two nodes",
        "node4",
        {"input": "ip saddr 10.77.0.3 tcp flags syn / syn,ack drop"},
        ("net.mesh", "fail", "node3 cannot connect to it"),
    ),
    by_firewall(
        "MTU black hole",
        "node2",
        {h: f"ip {to} 10.77.0.0/24 meta length > 1200 drop" for h, to in
         (("input", "saddr"), ("output", "daddr"))},
        ("net.mesh", "fail", "big ones do not"),
    ),
    by_name("full disk", "node3", ("disk-full", "/"), ("fs.free", "fail", "free of")),
    by_shell(
        "read-only scratch",
        "node1",
        "mount -o remount,bind,ro /scratch",
        "mount -o remount,bind,rw /scratch",
        ("fs.writable", "fail", "/scratch (node-local storage) is mounted read-only"),
    ),
    by_shell(
        "64 MiB of shared memory",
        "node4",
        "mount -o remount,size=64m /dev/shm",
        "mount -o remount,size=256m /dev/shm",
        ("shm.size", "fail", "/dev/shm is 64 MiB"),
    ),
    hung_mount("hung mount", "node3", ("fs.hung", "fail", "/scratch does not respond")),
    by_name("silent node", "node4", ("cut", "drop"), ("ssh.connect", "fail", "")),
    by_shell(
        "a shared directory that is not",
        "node2",
        "mount -t tmpfs none /shared/preflight",
        "umount /shared/preflight",
        ("fs.shared", "fail", "is not the directory that"),
    ),
]  # fmt: skip


RECORDED_TOO = {
    "missing package",
    "other version",
    "other script",
    "full disk",
    "read-only scratch",
    "64 MiB of shared memory",
}
"""Faults whose answers are recorded below tests/checks too."""
SHOWN_BY_RUNS = {"changed host key", "silent node"}
"""Faults of which test_runs.py has one: a wrong key is the connection that fails here."""


def planted(fault: Fault) -> object:
    """Return a case; what something else shows too is long."""
    is_kept = fault.name not in RECORDED_TOO and fault.name not in SHOWN_BY_RUNS
    marks = () if is_kept else (pytest.mark.long,)
    return pytest.param(fault, id=fault.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("fault", [planted(fault) for fault in FAULTS])
def test_a_fault_is_found_on_its_node_and_nothing_else(site: Site, fault: Fault) -> None:
    fault.plant(site)
    try:
        code, found = site.findings()
    finally:
        fault.heal(site)
    bad = [f for f in found if f["level"] != "unknown"]
    said = [(f["check"], f["level"], f["found"], f["hosts"]) for f in bad]
    assert code == (4 if any(level == "fail" for _, level, _, _ in said) else 0)
    assert len(said) == len(fault.finds), said
    for (check, level, words), one in zip(fault.finds, said, strict=True):
        assert one[:2] == (check, level), said
        assert words in one[2].lower() or words in one[2], said
    assert {host for f in found for host in f["hosts"]} == {fault.node}, found
    assert all(f["fix"] and f["see"] for f in bad), bad


CARD = """
mkdir -p /run/kernel /run/class/infiniband/mlx5_0/ports/1/counters
mount --rbind /sys /run/kernel
for entry in /run/kernel/class/*; do ln -s "$entry" /run/class/; done
cd /run/class/infiniband/mlx5_0
echo 28.41.1000 >fw_ver; echo MT_0000000838 >board_id; echo MT4129 >hca_type
cd ports/1
echo '4: ACTIVE' >state; echo '5: LinkUp' >phys_state
echo '400 Gb/sec (4X NDR)' >rate; echo InfiniBand >link_layer
echo 0 >counters/link_downed
mkdir /dev/infiniband; : >/dev/infiniband/uverbs0
mount --bind /run/class /sys/class
"""
"""A card as the kernel's tables show it, which is all that is asked of it."""
LOCKED = "preflight: {limits: {lim.memlock: {fail: 1}}}\n"
NO_CARD = """
umount /sys/class
umount -l /run/kernel
rm -r /run/class /dev/infiniband
rmdir /run/kernel
"""


def lockable(site: Site, node: str, limit: str) -> str:
    """Set how many bytes the sessions of a node may lock; give how many it was."""
    show = "prlimit -p $s -l -o SOFT --noheadings"
    line = f"s=$(pgrep -o -x sshd); {show}; prlimit -p $s --memlock={limit}:"
    said = site.cluster.run(node, ["sh", "-c", line], user="root", check=True)
    return said.stdout.strip()


@pytest.fixture
def infiniband(site: Site) -> Iterator[None]:
    """Every node has a card, and less than 1 MiB is too little for it."""
    site.cluster.put("control", "/root/project/c.yaml", f"{CLUSTER}{LOCKED}")
    for node in site.cluster.names:
        site.sh(node, CARD)
    yield
    for node in site.cluster.names:
        site.sh(node, NO_CARD)
    site.cluster.put("control", "/root/project/c.yaml", CLUSTER)


def test_little_lockable_memory_is_found_where_infiniband_needs_it(
    site: Site, infiniband: None
) -> None:
    """Not every machine may raise the limit that it has: its nodes are warned of all the time."""

    def said() -> list[tuple[str, str, list[str]]]:
        _, found = site.findings()
        return [(f["check"], f["level"], f["hosts"]) for f in found]

    nodes = [*site.cluster.names]
    before = lockable(site, "node3", "65536")
    others = [node for node in nodes if node != "node3"]
    warned = [] if before == "unlimited" else [("lim.memlock", "warn", others)]
    try:
        assert said() == [("lim.memlock", "fail", ["node3"]), *warned]
    finally:
        lockable(site, "node3", before)
    assert said() == [("lim.memlock", "warn", nodes) for _ in warned]
