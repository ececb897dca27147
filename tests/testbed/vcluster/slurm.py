"""Real SLURM on the nodes: munge, a controller on the control machine, a daemon per node.

The daemons know nothing of cgroups, of which a node has none of its own: processes are followed
by parent (proctrack/linuxproc), and a step that takes more memory than its job has (`--mem`, 8 GB
unless told) is killed by the daemon that watches it, not by the kernel: such a job is FAILED and
says "exceeded memory limit"; OUT_OF_MEMORY would need cgroups. The controller believes in 64 CPUs,
500 GB and the GPUs that were asked for; a GPU is /dev/null under its name.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.vcluster.accounting import accounting_lines, build_accounting
from tests.testbed.vcluster.inside import run_in
from tests.testbed.vcluster.network import address_of
from tests.testbed.vcluster.state import CONTROL, Cluster, ClusterError, Node, Slurm
from tests.testbed.vcluster.syscalls import bind

DIRECTORIES = (
    *("run/munge", "var/lib/munge", "var/log/munge"),
    *("var/log/slurm", "var/spool/slurmd", "var/spool/slurmctld", "var/lib/slurm"),
    "var/spool/slurmctld-other",
)
ASKING = 0.3
"""Seconds between two questions to SLURM, each of which is a process on the control machine."""
NO_ACCOUNTING = ["AccountingStorageType=accounting_storage/none"]
JOB_SUBMIT = ["JobSubmitPlugins=lua"]
FIELD = re.compile(r"(?P<nodes>.+)=gpu(:(?P<kind>[a-z]\w*))?:(?P<count>\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of one node."""

    kind: str
    """Such as `a100`; empty when SLURM is not told."""
    count: int

    @property
    def gres(self) -> str:
        """As slurm.conf has it."""
        return ":".join(part for part in ("gpu", self.kind, str(self.count)) if part)


def parse_gres(text: str) -> tuple[str, Gpus]:
    """Read `NODES=gpu[:KIND]:COUNT`, NODES being a shell pattern. ClusterError: it is not that."""
    match = FIELD.fullmatch(text)
    if match is None:
        raise ClusterError(f"--gres {text}: is not NODES=gpu[:KIND]:COUNT, as node[12]=gpu:8")
    return match["nodes"], Gpus(match["kind"] or "", int(match["count"]))


def gpus_of(slurm: Slurm, name: str) -> Gpus | None:
    """What the first entry that fits gives a node; None: no GPUs."""
    given = (parse_gres(text) for text in slurm.gres)
    found = next((gpus for nodes, gpus in given if fnmatch.fnmatch(name, nodes)), None)
    return found if found and found.count else None


@dataclass(frozen=True, slots=True)
class Member:
    """One of the SLURM clusters that share the control machine, munge's key and slurmdbd."""

    name: str
    nodes: tuple[Node, ...]
    port: int
    """Of its controller."""
    suffix: str = ""
    """Of its controller's own files and directories."""

    @property
    def configuration(self) -> str:
        """The directory of its slurm.conf on the control machine."""
        return f"/etc/slurm{self.suffix}"


def members(cluster: Cluster, slurm: Slurm) -> list[Member]:
    """The SLURM clusters: `vcluster`, whose commands are the default, and `other` if wanted."""
    nodes = [node for node in cluster.nodes.values() if node.name != CONTROL]
    apart = [node for node in nodes if slurm.other and fnmatch.fnmatch(node.name, slurm.other)]
    first = Member("vcluster", tuple(node for node in nodes if node not in apart), port=6817)
    second = Member("other", tuple(apart), port=6827, suffix="-other")
    return [first, second] if apart else [first]


def build_slurm(cluster: Cluster, node: Node, root: Path) -> None:
    """Write a node's share of SLURM below its future root directory, if it has any."""
    slurm = cluster.settings.slurm
    if slurm is None:
        return
    for path in DIRECTORIES:
        (root / path).mkdir(parents=True, exist_ok=True)
    (root / "etc/munge").mkdir(mode=0o700)
    key = root / "etc/munge/munge.key"
    key.touch(mode=0o600)
    key.write_bytes((cluster.directory / "keys/munge.key").read_bytes())
    for member in members(cluster, slurm):
        if node.name == CONTROL:
            write_configuration(cluster, slurm, member, root / member.configuration[1:])
        elif node in member.nodes:
            write_configuration(cluster, slurm, member, root / "etc/slurm")
    build_accounting(cluster, node, root, owner_of(cluster))
    gpus = gpus_of(slurm, node.name)
    for number in range(gpus.count if gpus else 0):
        bind("/dev/null", root / f"dev/nvidia{number}")


def write_configuration(cluster: Cluster, slurm: Slurm, member: Member, directory: Path) -> None:
    """Write slurm.conf and what belongs to it."""
    directory.mkdir()
    for file, text in slurm_files(cluster, slurm, member).items():
        (directory / file).write_text(text)


def owner_of(cluster: Cluster) -> str:
    """The account of SLURM's daemons."""
    return cluster.settings.user if cluster.settings.single_uid else "root"


def make_munge_key(cluster: Cluster) -> None:
    """The cluster's secret: credentials of one cluster mean nothing to another."""
    key = cluster.directory / "keys/munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def slurm_files(cluster: Cluster, slurm: Slurm, member: Member) -> dict[str, str]:
    """What is in a cluster's directory of configuration, the same on all its nodes."""
    gpus = {node.name: found for node in member.nodes if (found := gpus_of(slurm, node.name))}
    lines = [node_line(node, gpus.get(node.name)) for node in member.nodes]
    has_job_submit = bool(slurm.job_submit) and not member.suffix
    further = ["GresTypes=gpu"] if gpus else []
    further += accounting_lines() if slurm.accounting else NO_ACCOUNTING
    further += JOB_SUBMIT if has_job_submit else []
    names = [node.name for node in member.nodes]
    conf = [daemons_conf(cluster, slurm, member), *further, *lines, *partitions(names)]
    gres = [gres_line(name, found) for name, found in gpus.items()]
    # slurmd would look for the kind of /sys/fs/cgroup, which a node may not have, and stop
    files = {"slurm.conf": "\n".join(conf) + "\n", "cgroup.conf": "CgroupPlugin=cgroup/v1\n"}
    files |= {"job_submit.lua": Path(slurm.job_submit).read_text()} if has_job_submit else {}
    return files | {"gres.conf": "\n".join(gres) + "\n"}


def node_line(node: Node, gpus: Gpus | None) -> str:
    """A node of slurm.conf."""
    gres = f" Gres={gpus.gres} Feature={gpus.kind or 'gpu'}" if gpus else ""
    address = f"NodeAddr={address_of(node.index)}"
    return f"NodeName={node.name} {address} CPUs=64 RealMemory=500000{gres} State=UNKNOWN"


def gres_line(name: str, gpus: Gpus) -> str:
    """A node of gres.conf. A count without device files is not accepted for GPUs."""
    kind = f" Type={gpus.kind}" if gpus.kind else ""
    return f"NodeName={name} Name=gpu{kind} File=/dev/nvidia[0-{gpus.count - 1}]"


def partitions(names: Sequence[str]) -> list[str]:
    """main; short, which refuses long jobs; urgent, whose jobs push those of the others away."""
    nodes = ",".join(names)
    return [
        f"PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE PriorityTier=1",
        f"PartitionName=short Nodes={nodes} MaxTime=10 PriorityTier=1",
        f"PartitionName=urgent Nodes={nodes} MaxTime=INFINITE PriorityTier=10 PreemptMode=off",
    ]


def daemons_conf(cluster: Cluster, slurm: Slurm, member: Member) -> str:
    """The part of slurm.conf that does not name nodes.

    cred_expire: a requeued job waits that long, 120 s unless told. bf_interval: heterogeneous
    jobs are started by the backfill scheduler alone, which looks every 30 s unless told.
    """
    owner = owner_of(cluster)
    return f"""\
ClusterName={member.name}
SlurmctldHost={CONTROL}({address_of(0)})
SlurmctldPort={member.port}
SlurmUser={owner}
SlurmdUser={owner}
AuthType=auth/munge
AuthInfo=cred_expire=8
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld{member.suffix}
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld{member.suffix}.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld{member.suffix}.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=8000
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
EnforcePartLimits=ALL
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout={slurm.timeout}
KillWait=3
MinJobAge={slurm.min_job_age}
JobRequeue=1
TreeWidth=64"""


def await_idle(cluster: Cluster, within: float = 300, names: Sequence[str] = ()) -> None:
    """Return once SLURM has nothing against any of the nodes (all, unless named), and they are
    free; ClusterError with what it says when it is not `within` seconds."""
    wanted = {(name, "idle") for name in names or cluster.nodes if name != CONTROL}
    deadline = time.monotonic() + within
    # not `sinfo -n`: for one node it answers with a state of long ago
    command = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
    while time.monotonic() < deadline:
        said = ask_members(cluster, *command)
        if {tuple(line.split()) for line in said.splitlines()} >= wanted:
            return
        time.sleep(ASKING)
    said = ask_members(cluster, "sinfo", "--Node", "--long")
    raise ClusterError(f"SLURM did not bring all nodes to idle within {within:.0f} s:\n{said}")


def await_registered(cluster: Cluster, within: float = 300) -> None:
    """Return once slurmdbd knows where every controller listens, if there is accounting: only then
    can `--clusters` reach it. ClusterError when it is not `within` seconds.

    A controller answers before it has registered, and slurmdbd starts without its controllers.
    """
    slurm = cluster.settings.slurm
    if slurm is None or not slurm.accounting:
        return
    wanted = {(member.name, str(member.port)) for member in members(cluster, slurm)}
    ask = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster")
    command = (*ask, "format=cluster,controlport")
    deadline = time.monotonic() + within
    said = ""
    while time.monotonic() < deadline:
        said = run_in(cluster, cluster.node(CONTROL), *command, ok=True)
        if {tuple(line.split("|")) for line in said.splitlines()} >= wanted:
            return
        time.sleep(ASKING)
    raise ClusterError(f"not all controllers registered within {within:.0f} s:\n{said}")


def ask_members(cluster: Cluster, *command: str) -> str:
    """What a command of SLURM answers, asked of every SLURM cluster of the control machine."""
    slurm = cluster.settings.slurm
    assert slurm is not None
    answers = (
        run_in(cluster, cluster.node(CONTROL), *asking(member), *command, ok=True)
        for member in members(cluster, slurm)
    )
    return "".join(answers)


def asking(member: Member) -> tuple[str, ...]:
    """Command prefix with which SLURM's commands ask this cluster's controller, without the help
    of slurmdbd that `--clusters` needs."""
    return ("env", f"SLURM_CONF={member.configuration}/slurm.conf")
