"""A transport: nodes that are pods of Kubernetes, reached by `kubectl exec`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from dslaunch.plugin import (
    Cluster,
    FailureKind,
    Node,
    NodeError,
    NodeFailure,
    ProcessChannel,
    ToolMissingError,
    TransportType,
    inherited,
)


class PodConnection:
    """A pod that answered."""

    def __init__(self, pod: str, environ: Mapping[str, str]) -> None:
        self._pod, self._environ = pod, environ

    def start(self, line: str, text: Sequence[bytes] = ()) -> ProcessChannel:
        """Run a POSIX shell line in the pod."""
        return ProcessChannel(kubectl(self._pod, line), text=text, env=self._environ)

    def close(self) -> None:
        """Nothing is held: each program has its own connection."""


class KubectlTransport:
    """A node's `host` is the name of a pod in the current namespace."""

    def __init__(self, timeout: float, environ: Mapping[str, str]) -> None:
        self._timeout, self._environ = timeout, environ

    def connect(self, node: Node) -> PodConnection:
        """Start a program in the pod, to see whether it can be used. Raises NodeError."""
        try:
            subprocess.run(
                kubectl(node.host, "true"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._timeout,
                check=True,
                env=self._environ,
            )
        except FileNotFoundError:
            raise ToolMissingError("kubectl is not there", hint="install kubectl") from None
        except subprocess.CalledProcessError as error:
            raise failed(node, "name", error.stderr.strip()) from None
        except subprocess.TimeoutExpired:
            raise failed(node, "timeout", f"no answer within {self._timeout:g} s") from None
        return PodConnection(node.host, self._environ)

    def close(self) -> None:
        """Nothing is held."""


def kubectl(pod: str, line: str) -> list[str]:
    """Return the command that runs a shell line in a pod."""
    return ["kubectl", "exec", "--stdin", pod, "--", "/bin/sh", "-c", line]


def failed(node: Node, kind: FailureKind, why: str) -> NodeError:
    """Return the error for a pod that cannot be used."""
    hint = f"kubectl describe pod {node.host}"
    return NodeError((NodeFailure(node.host, kind, why, hint),))


def make(cluster: Cluster) -> KubectlTransport:
    """Return the transport for a cluster. Secrets of the cluster file stay out of programs."""
    return KubectlTransport(cluster.ssh.connect_timeout, inherited(os.environ, cluster))


TRANSPORT = TransportType(make, summary="pods of the current Kubernetes namespace")
