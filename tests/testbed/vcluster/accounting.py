"""SLURM's accounting on the control machine: slurmdbd with a MariaDB of its own, for sacct.

The database starts from an empty directory in a tenth of a second, without accounts and without
a network: whoever is on the control machine may read it.
"""

from __future__ import annotations

from pathlib import Path

from tests.testbed.vcluster.state import CONTROL, Cluster, Node

SOCKET = "/run/mysqld/mysqld.sock"
"""Where MariaDB's client library looks."""
DATABASE = f"""\
[mariadbd]
datadir=/var/lib/mysql
socket={SOCKET}
pid-file=/run/mysqld/mysqld.pid
log-error=/var/log/slurm/mariadb.log
skip-networking
skip-grant-tables
performance_schema=OFF
innodb_buffer_pool_size=16M
innodb_log_file_size=4M
innodb_doublewrite=0
innodb_flush_log_at_trx_commit=0
"""
START_DATABASE = f"""
/usr/sbin/mariadbd --defaults-file=/etc/slurm/mariadb.cnf "$@" > /dev/null 2>&1 &
for i in $(seq 1000); do [ ! -S {SOCKET} ] || exit 0; sleep .02; done
exit 1
"""
"""It does not put itself into the background."""
START_SLURMDBD = """
/usr/sbin/slurmdbd
for i in $(seq 1000); do
  ! bash -c ': < /dev/tcp/127.0.0.1/6819' 2> /dev/null || exit 0
  sleep .02
done
exit 1
"""
"""It is in the background before it listens, and slurmctld ends when it does not."""


def slurmdbd_conf(owner: str) -> str:
    """The configuration of slurmdbd."""
    return f"""\
AuthType=auth/munge
DbdHost={CONTROL}
SlurmUser={owner}
PidFile=/run/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={owner}
CommitDelay=1
"""


def accounting_lines() -> list[str]:
    """What slurm.conf has to say about it."""
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={CONTROL}",
    ]


def build_accounting(cluster: Cluster, node: Node, root: Path, owner: str) -> None:
    """Write the control machine's files, if accounting was asked for."""
    slurm = cluster.settings.slurm
    if slurm is None or not slurm.accounting or node.name != CONTROL:
        return
    for path in ("run/mysqld", "var/lib/mysql"):
        (root / path).mkdir(parents=True)
    (root / "etc/slurm/mariadb.cnf").write_text(DATABASE)
    conf = root / "etc/slurm/slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(owner))
