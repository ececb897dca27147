"""The command line: start a virtual cluster, break it, look at it.

python -m tests.testbed.vcluster up --nodes 4
python -m tests.testbed.vcluster exec control -- ssh node1 hostname
python -m tests.testbed.vcluster exec control -- dslaunch nodes cluster.yaml
python -m tests.testbed.vcluster fault node2 delay 50
python -m tests.testbed.vcluster heal 'node*'
python -m tests.testbed.vcluster down
python -m tests.testbed.vcluster up --slurm --gres 'node*=gpu:8'
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.testbed.vcluster import faults, lifecycle, state
from tests.testbed.vcluster.access import login, proxy
from tests.testbed.vcluster.inside import node_command, run_in, skew_env, terminal_env
from tests.testbed.vcluster.network import address_of
from tests.testbed.vcluster.relay import start_relay
from tests.testbed.vcluster.requirements import missing
from tests.testbed.vcluster.rootfs import CHECKOUT, software_binds
from tests.testbed.vcluster.services import ACTIONS, SERVICES, service
from tests.testbed.vcluster.slurm import parse_gres
from tests.testbed.vcluster.state import Bind, ClusterError, Node, Settings, Slurm
from tests.testbed.vcluster.users import join_users, map_users

HELP = """\
{count} nodes and a control machine, up in {seconds:.2f} s. Try:

  {me} exec control -- ssh node1 hostname
  {me} exec control -- dslaunch nodes cluster.yaml
  {me} exec control              # a shell there; cluster.yaml is in its home directory
  {me} fault node2 delay 50      # and: heal 'node*', status, down

From this machine: ssh -F {directory}/ssh_config node1
Cluster file for dslaunch on this machine: {directory}/cluster.yaml"""

SLURM_HELP = """\
SLURM: {me} exec control -- srun --nodes {count} hostname"""

Arguments = argparse.Namespace


def up(arguments: Arguments) -> None:
    """Start a cluster; with --hold end it when standard input ends."""
    reason = missing(slurm=arguments.slurm, accounting=arguments.accounting)
    if reason:
        raise ClusterError(reason)
    if os.geteuid() != 0:
        map_users(arguments.state_dir, arguments.again)
    began = time.monotonic()
    cluster, _ = lifecycle.up(arguments.state_dir, settings_of(arguments))
    if arguments.hold:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # nobody may read that it is up
        try:
            print("up", flush=True)
            sys.stdin.read()
        finally:
            lifecycle.down(arguments.state_dir)
        return
    texts = [HELP, SLURM_HELP] if cluster.settings.slurm else [HELP]
    print(
        "\n".join(texts).format(
            count=cluster.settings.nodes,
            seconds=time.monotonic() - began,
            directory=cluster.directory,
            me=short_command(cluster.directory),
        )
    )


def short_command(directory: Path) -> str:
    """What a person types in the checkout."""
    option = "" if directory == state.default_directory() else f" --state-dir {directory}"
    python = Path(sys.executable)
    if python.is_relative_to(CHECKOUT):
        python = python.relative_to(CHECKOUT)
    return f"{shlex.quote(str(python))} -m tests.testbed.vcluster{option}"


def settings_of(arguments: Arguments) -> Settings:
    """The settings that the options of `up` give."""
    user, uid = arguments.user, 2001
    if arguments.mode == "single-uid":
        user, _, text = arguments.account.partition(":")
        uid = int(text)
    return Settings(
        nodes=arguments.nodes,
        shared=str(Path(arguments.shared or arguments.state_dir / "shared").absolute()),
        mode=arguments.mode,
        user=user,
        uid=uid,
        nics=arguments.nics,
        disk=arguments.disk,
        scratch=arguments.scratch,
        shm=arguments.shm,
        pam=arguments.pam and arguments.mode == "root",
        loopback_hostname=arguments.loopback_hostname,
        own_disks=tuple(arguments.own_disk),
        slurm=slurm_of(arguments),
        binds=(*map(Bind.parse, arguments.bind), *software_binds()),
    )


def slurm_of(arguments: Arguments) -> Slurm | None:
    """What the options of `up` ask of SLURM. ClusterError names GPUs that cannot be read."""
    for text in arguments.gres:
        parse_gres(text)
    if not arguments.slurm:
        return None
    return Slurm(
        gres=tuple(arguments.gres),
        timeout=arguments.slurmd_timeout,
        accounting=arguments.accounting,
        other=arguments.other_cluster,
        job_submit=str(Path(arguments.job_submit).absolute()) if arguments.job_submit else "",
        min_job_age=arguments.min_job_age,
    )


def down(arguments: Arguments) -> None:
    """End everything and remove the state directory."""
    cluster = state.load(arguments.state_dir)
    if cluster and cluster.settings.mode == "subuid":  # files may belong to subordinate UIDs
        join = arguments.mode == "root" and os.geteuid() != 0
        if join:
            map_users(arguments.state_dir, arguments.again)
    if not lifecycle.down(arguments.state_dir):
        print("nothing to do")


def execute(arguments: Arguments) -> None:
    """Become a command in a node."""
    cluster = state.require(arguments.state_dir)
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    given = dict(pair.split("=", 1) for pair in arguments.env)
    env = skew_env(cluster.node(arguments.node)) | terminal_env() | given
    user = arguments.user or login(cluster)
    full = node_command(cluster, arguments.node, words or ["bash", "-l"], user=user, env=env)
    os.execvp(full[0], full)


def put(arguments: Arguments) -> None:
    """Copy a text file into nodes."""
    cluster = state.require(arguments.state_dir)
    script = 'mkdir -p "$(dirname "$1")" && rm -f "$1" && cat > "$1" && chmod "$2" "$1"'
    for node in cluster.match(arguments.node):
        argv = ["sh", "-c", script, "sh", arguments.path, arguments.mode_bits]
        run_in(cluster, node, *argv, stdin=Path(arguments.source).read_text())


def cut(arguments: Arguments) -> None:
    """Unplug nodes from the network."""
    with state.changing(arguments.state_dir) as cluster:
        faults.inject(cluster, arguments.node, "cut", ["drop"] if arguments.drop else [])


def fault(arguments: Arguments) -> None:
    """Break nodes."""
    words = [word for word in arguments.arguments if word != "--"]
    with state.changing(arguments.state_dir) as cluster:
        faults.inject(cluster, arguments.node, arguments.kind, words)


def heal(arguments: Arguments) -> None:
    """Undo every fault of nodes."""
    with state.changing(arguments.state_dir) as cluster:
        faults.heal(cluster, arguments.node)


def crash(arguments: Arguments) -> None:
    """Power nodes off."""
    with state.changing(arguments.state_dir) as cluster:
        lifecycle.crash(cluster, arguments.node)


def boot(arguments: Arguments) -> None:
    """Power nodes on."""
    join_users(state.require(arguments.state_dir), arguments.again)
    with state.changing(arguments.state_dir) as cluster:
        lifecycle.boot(cluster, arguments.node)


def svc(arguments: Arguments) -> None:
    """Act on a daemon."""
    cluster = state.require(arguments.state_dir)
    for node in cluster.match(arguments.node):
        service(cluster, node, arguments.service, arguments.action)


def status(arguments: Arguments) -> None:
    """Print what is up, and what is broken."""
    cluster = state.load(arguments.state_dir)
    if cluster is None:
        print("no cluster")
        return
    settings = cluster.settings
    print(f"{settings.nodes} nodes and {state.CONTROL}, mode {settings.mode}, {cluster.directory}")
    for node in cluster.nodes.values():
        print(status_line(node))


def status_line(node: Node) -> str:
    """One node's line of `status`."""
    condition = f"up, init {node.init.pid}" if node.alive and node.init else "DOWN"
    broken = ", ".join(" ".join([kind, *words]) for kind, words in node.faults.items())
    return f"{node.name:10} {address_of(node.index):13} {condition:18} {broken}".rstrip()


def ssh_config(arguments: Arguments) -> None:
    """Print the path of a configuration for ssh -F on the host."""
    print(state.require(arguments.state_dir).directory / "ssh_config")


def run_proxy(arguments: Arguments) -> None:
    """ssh's ProxyCommand (internal)."""
    proxy(state.require(arguments.state_dir), arguments.host, arguments.port)


def run_relay(arguments: Arguments) -> None:
    """The cable that is slow (internal)."""
    cluster = state.require(arguments.state_dir)
    start_relay(cluster, arguments.one, arguments.other, arguments.delay, arguments.jitter)


Adder = Callable[..., argparse.ArgumentParser]


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    top = argparse.ArgumentParser(
        prog="python -m tests.testbed.vcluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--state-dir", type=Path, default=state.default_directory(), metavar="DIR")
    top.add_argument("--mode", default="root", help=argparse.SUPPRESS)
    top.add_argument("--account", default="", help=argparse.SUPPRESS)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Arguments], None], *names: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        for positional in names:
            sub.add_argument(positional)
        sub.set_defaults(run=run)
        return sub

    add_up(add("up", up))
    add("down", down)
    add_node_commands(add)
    add("status", status)
    add("ssh-config", ssh_config)
    add("proxy", run_proxy, "host").add_argument("port", type=int)
    relay = add("relay", run_relay, "one", "other")
    relay.add_argument("delay", type=float)
    relay.add_argument("jitter", type=float)
    return top


def add_up(up: argparse.ArgumentParser) -> None:
    """The options of `up`."""
    option = up.add_argument
    option("--nodes", type=int, default=4)
    option("--shared", metavar="DIR", help="mounted at /shared (default: one in the state dir)")
    option("--bind", action="append", default=[], metavar="SRC[:DST][:rw]")
    option("--nics", type=int, default=1, help="network interfaces per node")
    option("--disk", default="256m", help="size of a node's root file system (memory)")
    option("--scratch", default="64m", help="size of /scratch")
    option("--shm", default="256m", help="size of /dev/shm")
    option("--own-disk", action="append", default=[], metavar="DIR", help="make it a small disk")
    option("--user", default="alice", help="ordinary account on every node")
    option("--pam", action="store_true", help="sshd with PAM, as Debian's: slower logins")
    option("--loopback-hostname", action="store_true", help="a node's own name is 127.0.1.1 there")
    option("--slurm", action="store_true", help="SLURM too: partitions main, short and urgent")
    option("--gres", action="append", default=[], metavar="NODES=gpu[:KIND]:COUNT")
    option("--accounting", action="store_true", help="SLURM's too, for sacct")
    option("--other-cluster", default="", metavar="NODES", help="a second cluster; --accounting")
    option("--job-submit", default="", metavar="FILE", help="the site's job_submit.lua")
    option("--min-job-age", type=int, default=600, help="seconds until SLURM forgets a job")
    option("--slurmd-timeout", type=int, default=10, help="seconds until a silent node is DOWN")
    option("--hold", action="store_true", help="stay, and go down when standard input ends")


def add_node_commands(add: Adder) -> None:
    """The commands that work on nodes."""
    run = add("exec", execute, "node")
    run.add_argument("--user")
    run.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    run.add_argument("command", nargs=argparse.REMAINDER)
    copy = add("put", put, "node", "source", "path")
    copy.add_argument("--mode", dest="mode_bits", default="755")
    add("cut", cut, "node").add_argument("--drop", action="store_true", help="silence")
    kinds = "; ".join(f"{kind} {fault.usage}".strip() for kind, fault in faults.FAULTS.items())
    broken = add("fault", fault, "node", "kind")
    broken.add_argument("arguments", nargs=argparse.REMAINDER)
    broken.epilog = kinds.replace("%", "%%")
    add("heal", heal, "node")
    daemon = add("svc", svc, "node")
    daemon.add_argument("service", choices=list(SERVICES))
    daemon.add_argument("action", choices=ACTIONS)
    add("crash", crash, "node")
    add("boot", boot, "node")


def main() -> None:
    """Parse, act; a ClusterError is one line and exit code 1."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    arguments = parser().parse_args()
    arguments.again = _without_options(sys.argv[1:])
    arguments.state_dir = arguments.state_dir.absolute()
    try:
        arguments.run(arguments)
    except (ClusterError, OSError) as error:
        sys.exit(f"vcluster: {error}")


def _without_options(words: Sequence[str]) -> list[str]:
    """The command line from the command's name on, to be started over elsewhere."""
    rest = list(words)
    while rest and rest[0].startswith("--"):
        del rest[: 1 if "=" in rest[0] else 2]
    return rest
