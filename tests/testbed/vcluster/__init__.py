"""A real multi-node cluster on one Linux machine, without containers.

Every node has its own network, mount, PID, UTS and IPC namespace: its own address on a private
bridge, host name, /etc, /tmp, /home, /scratch, process table and a real OpenSSH sshd. Nodes share
the machine's software (read-only) and one directory mounted at /shared. The bridge lives in a
namespace of its own and has no uplink, so that no packet can leave the cluster, and nothing is
created in the host's own network or mount tables: killing the recorded namespace inits removes
everything. It works as root, and as an ordinary user through a user namespace.

Tests use `VirtualCluster`; people use `python -m tests.testbed.vcluster`.
"""

from tests.testbed.vcluster.api import NodeProcess, Running, VirtualCluster
from tests.testbed.vcluster.requirements import missing
from tests.testbed.vcluster.state import CONTROL, ClusterError

__all__ = ["CONTROL", "ClusterError", "NodeProcess", "Running", "VirtualCluster", "missing"]
