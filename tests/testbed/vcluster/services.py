"""The daemons of a node. A new kind of daemon is an entry in SERVICES, the nodes that it runs on
in `services_of`, and its files in `rootfs.build_root`."""

from __future__ import annotations

from dataclasses import dataclass

from tests.testbed.vcluster.accounting import START_DATABASE, START_SLURMDBD
from tests.testbed.vcluster.accounts import sshd_config
from tests.testbed.vcluster.inside import as_user, run_in, skew_env, write_file
from tests.testbed.vcluster.slurm import members
from tests.testbed.vcluster.state import CONTROL, Cluster, Node


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon that puts itself into the background and writes its PID."""

    command: tuple[str, ...]
    pid_file: str


SERVICES = {
    "sshd": Service(("/usr/sbin/sshd", "-E", "/var/log/sshd.log"), "/run/sshd.pid"),
    "munged": Service(("/usr/sbin/munged", "--force", "--num-threads=2"), "/run/munge/munged.pid"),
    "mariadbd": Service(("sh", "-c", START_DATABASE, "sh"), "/run/mysqld/mysqld.pid"),
    "slurmdbd": Service(("sh", "-c", START_SLURMDBD), "/run/slurmdbd.pid"),
    "slurmctld": Service(("/usr/sbin/slurmctld",), "/run/slurmctld.pid"),
    "slurmctld-other": Service(
        ("/usr/sbin/slurmctld", "-f", "/etc/slurm-other/slurm.conf"), "/run/slurmctld-other.pid"
    ),
    "slurmd": Service(("/usr/sbin/slurmd",), "/run/slurmd.pid"),
}
SIGNALS = {"stop": "TERM", "kill": "KILL", "pause": "STOP", "resume": "CONT", "reload": "HUP"}
ACTIONS = ("start", "restart", *SIGNALS)

STOP = """
pid=$(cat "$1") && kill "-$2" "$pid" || exit 0
[ "$2" = TERM ] || [ "$2" = KILL ] || exit 0
for i in $(seq 500); do kill -0 "$pid" 2>/dev/null || exit 0; sleep .01; done
kill -KILL "$pid"
"""


def services_of(cluster: Cluster, node: Node) -> list[str]:
    """The names of the daemons that a node runs, in the order in which they start."""
    slurm = cluster.settings.slurm
    if slurm is None:
        return ["sshd"]
    if node.name != CONTROL:
        return ["sshd", "munged", "slurmd"]
    accounting = ["mariadbd", "slurmdbd"] if slurm.accounting else []
    controllers = [f"slurmctld{member.suffix}" for member in members(cluster, slurm)]
    return ["sshd", "munged", *accounting, *controllers]


def service_command(cluster: Cluster, node: Node, name: str) -> list[str]:
    """The command that starts a daemon, for use inside a node. Its clock is the node's, but for
    sshd's, which gives the node's to its sessions."""
    user = cluster.settings.user if cluster.settings.single_uid else "root"
    clock = {} if name == "sshd" else skew_env(node)
    environment = ["env", *(f"{key}={value}" for key, value in clock.items())] if clock else []
    account = [f"--user={user}"] if name == "mariadbd" else []
    return [*as_user(cluster, user), *environment, *SERVICES[name].command, *account]


def service(cluster: Cluster, node: Node, name: str, action: str) -> None:
    """start, stop, kill, pause (it accepts connections and never answers), resume, restart."""
    if action == "restart":
        service(cluster, node, name, "stop")
        action = "start"
    if action == "start":
        run_in(cluster, node, *service_command(cluster, node, name))
    else:
        pid_file = SERVICES[name].pid_file
        run_in(cluster, node, "sh", "-c", STOP, "sh", pid_file, SIGNALS[action])


def reconfigure(cluster: Cluster, node: Node) -> None:
    """Apply the recorded faults to the daemons' configuration."""
    write_file(cluster, node, "/etc/ssh/sshd_config", sshd_config(cluster, node))
    for name in services_of(cluster, node):
        service(cluster, node, name, "restart")
