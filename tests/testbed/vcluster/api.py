"""The virtual cluster as a value that tests hold."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.streams import communicate
from tests.testbed.vcluster import outside, processes, state
from tests.testbed.vcluster.access import command_line, login
from tests.testbed.vcluster.inside import node_command, skew_env
from tests.testbed.vcluster.network import address_of
from tests.testbed.vcluster.services import SERVICES
from tests.testbed.vcluster.state import Cluster, ClusterError

Text = subprocess.CompletedProcess[str]
DAEMONS = set(SERVICES) - {"sshd"}
"""Those whose sessions and tasks are processes of another name."""
SESSION_ENDS = 120.0
"""Seconds that an SSH server may need to learn of the end of a client."""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A process that runs in a node, under the PID that it has there."""

    pid: int
    parent: int
    state: str
    """As in /proc/PID/stat; `Z` is a zombie."""
    argv: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def system(self) -> bool:
        """Whether a node always has it."""
        return is_system(self.pid, self.argv)


def is_system(pid: int, argv: Sequence[str]) -> bool:
    """Whether a node always has such a process: init, the sshd that listens, SLURM's daemons."""
    title = " ".join(argv)
    daemon = Path(title.partition(" ")[0].rstrip(":")).name in DAEMONS
    return pid == 1 or daemon or (title.startswith("sshd: ") and "[listener]" in title)


class Running:
    """A program that was started in a node and not waited for. As a context manager it kills
    the program at the end, if it is still there."""

    def __init__(self, popen: subprocess.Popen[str], terminal: int | None = None) -> None:
        self.popen = popen
        self.terminal = terminal
        """The other end of its terminal, when it has one: what is written here is typed, so
        that b"\\x03" is Ctrl-C."""

    @property
    def stdin(self) -> IO[str]:
        """Its standard input."""
        return _open(self.popen.stdin)

    @property
    def stdout(self) -> IO[str]:
        """Its standard output."""
        return _open(self.popen.stdout)

    @property
    def stderr(self) -> IO[str]:
        """Its standard error."""
        return _open(self.popen.stderr)

    def host_pid(self) -> int:
        """Its PID on the host; nsenter(1), which we started, is its parent."""
        while self.popen.poll() is None:
            if found := _children(self.popen.pid):
                return found[0]
            time.sleep(0.01)
        raise ProcessLookupError(f"the program has ended with {self.popen.returncode}")

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the program itself, alone."""
        os.kill(self.host_pid(), number)

    def wait(self, timeout: float = 300) -> int:
        """Its exit code; a death by signal N is 128 + N. Raises TimeoutExpired."""
        code = self.popen.wait(timeout)
        return code if code >= 0 else 128 - code

    def communicate(self, text: str | None = None, timeout: float = 300) -> tuple[str, str]:
        """Send `text`, wait for its end, return the rest of its output and standard error."""
        return communicate(self.popen, text, timeout)

    def kill(self) -> None:
        """End it; safe when it has ended."""
        self.popen.kill()
        self.popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream:
                stream.close()
        if self.terminal is not None:
            os.close(self.terminal)


class VirtualCluster:
    """A cluster that is up inside `with`. It ends with this process, however that ends.

    `options` are those of the command line: nics=2, disk="64m", pam=True,
    loopback_hostname=True, bind=["/data:/data:rw"], own_disk=["/tmp"], shared="/some/dir",
    slurm=True, gres=["node[12]=gpu:a100:4"], accounting=True, slurmd_timeout=4.
    """

    def __init__(
        self, nodes: int = 4, directory: Path | str | None = None, **options: object
    ) -> None:
        self.count = nodes
        self.directory = Path(directory or tempfile.mkdtemp(prefix="vcluster-")).absolute()
        self.options = options
        self._holder: subprocess.Popen[str] | None = None

    # ------------------------------------------------------------ up and down

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> None:
        """Start it. ClusterError says why it could not be."""
        arguments = ["up", "--hold", "--nodes", str(self.count), *_flags(self.options)]
        self._holder = subprocess.Popen(
            [*command_line(self.directory), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C at the terminal is for the tests
        )
        if not _open(self._holder.stdout).readline():
            said = self._holder.communicate()[1]
            raise ClusterError(f"up failed: {said.strip()}")

    def down(self) -> None:
        """End it and everything that runs in it."""
        if self._holder:
            self._holder.communicate(timeout=300)
            self._holder = None

    @property
    def cluster(self) -> Cluster:
        """Its state as it is now."""
        return state.require(self.directory)

    @property
    def user(self) -> str:
        """The ordinary account (alice, or the caller when there is one UID only)."""
        return self.cluster.settings.user

    @property
    def login(self) -> str:
        """The account that ssh and `run` use by default: root where there is one."""
        return login(self.cluster)

    @property
    def names(self) -> tuple[str, ...]:
        """node1, node2, ...: all but the control machine."""
        return tuple(name for name in self.cluster.nodes if name != state.CONTROL)

    # ------------------------------------------------------------ inside

    @property
    def shared(self) -> Path:
        """The host directory that is /shared on every node."""
        return Path(self.cluster.settings.shared)

    @property
    def known_hosts(self) -> Path:
        """Everybody's public host keys, as a file on the host; nodes have it system-wide."""
        return self.directory / "keys/known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F` on the host."""
        return self.directory / "ssh_config"

    def address(self, node: str, nic: int = 0) -> str:
        """A node's address."""
        return address_of(self.cluster.node(node).index, nic)

    def command(
        self,
        node: str,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> list[str]:
        """The host's command that runs `argv` in a node, starting in the account's home."""
        cluster = self.cluster
        environment = skew_env(cluster.node(node)) | dict(env or {})
        who = user or login(cluster)
        return node_command(cluster, node, argv, user=who, env=environment, cwd=cwd)

    def run(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 300,
        check: bool = False,
        **where: Any,
    ) -> Text:
        """Run a program in a node (user=, env=, cwd= as for `command`) and wait for it.

        Raises TimeoutExpired after `timeout` seconds and kills the program then.
        """
        command = self.command(node, argv, **where)
        streams = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        done: Text = subprocess.run(
            command, text=True, capture_output=True, timeout=timeout, check=False, **streams
        )
        if check and done.returncode:
            what = f"{node}: {shlex.join(argv)}: exit code {done.returncode}"
            raise ClusterError(f"{what}: {(done.stderr or done.stdout).strip()}")
        return done

    def popen(
        self, node: str, argv: Sequence[str], *, terminal: bool = False, **where: Any
    ) -> Running:
        """Start a program in a node with pipes for its streams, or on a terminal of its own."""
        if terminal:
            return self._on_terminal(self.command(node, ["setsid", "--ctty", *argv], **where))
        pipe = subprocess.PIPE
        command = self.command(node, argv, **where)
        popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        return Running(popen)

    def _on_terminal(self, command: list[str]) -> Running:
        ours, theirs = os.openpty()
        popen = subprocess.Popen(
            command,
            text=True,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,  # else setsid(1) in the node could not leave our terminal
        )
        os.close(theirs)
        return Running(popen, ours)

    def put(self, node: str, path: str, content: str | bytes, mode: int = 0o755) -> None:
        """Write a file into the nodes that match the pattern, as root. A program in
        /usr/local/bin is on every PATH there."""
        data = content.encode() if isinstance(content, str) else content
        script = 'mkdir -p "$(dirname "$1")" && rm -f "$1" && cat > "$1" && chmod "$2" "$1"'
        for found in self.cluster.match(node):
            argv = ["sh", "-c", script, "sh", path, f"{mode:o}"]
            subprocess.run(self.command(found.name, argv, user="root"), input=data, check=True)

    def processes(self, node: str, *, system: bool = False) -> list[NodeProcess]:
        """What runs in a node's PID namespace; without init and sshd's listener unless asked."""
        python = [sys.executable, "-I", "-S", processes.__file__]
        found = json.loads(self.run(node, python, user="root", check=True).stdout)
        all_of_them = [NodeProcess(**{**one, "argv": tuple(one["argv"])}) for one in found]
        return [process for process in all_of_them if system or not process.system]

    def seen(self) -> dict[str, list[outside.Seen]]:
        """What runs on the nodes that are up, cut off or not; cheap enough to be asked often."""
        nodes = self.cluster.nodes.items()
        return outside.look({name: n.init.pid for name, n in nodes if n.init and n.alive})

    def leftovers(self, within: float = 30) -> dict[str, list[NodeProcess]]:
        """What still runs on nodes that are up, after `within` seconds; then it is killed.

        SSH sessions have `SESSION_ENDS` seconds more: where a cable was cut, the server learns of
        its client's end when it sends its next packet, and each one comes later than the last.
        """
        deadline = time.monotonic() + within
        while busy := self._busy():
            running = [process for found in busy.values() for process in found]
            only_sessions = all(" ".join(p.argv).startswith("sshd: ") for p in running)
            if time.monotonic() >= deadline + (SESSION_ENDS if only_sessions else 0):
                break
            time.sleep(0.05)
        looked = {name: self.processes(name) for name in busy}
        left = {name: found for name, found in looked.items() if found}
        for name, found in left.items():
            pids = [str(process.pid) for process in found]
            self.run(name, ["sh", "-c", 'kill -KILL "$@"', "sh", *pids], user="root")
        return left

    def _busy(self) -> dict[str, list[outside.Seen]]:
        """What runs on nodes beside what they always have; looks from outside, which starts no
        process."""
        running = {
            name: [process for process in there if not is_system(process.pid, process.argv)]
            for name, there in self.seen().items()
        }
        return {name: found for name, found in running.items() if found}

    # ------------------------------------------------------------ faults

    def fault(self, node: str, kind: str, *arguments: str | float) -> None:
        """Break nodes (a pattern); the kinds are in `faults.FAULTS`."""
        self._door("fault", node, kind, "--", *map(str, arguments))

    def heal(self, node: str = "*") -> None:
        """Undo every fault of nodes, and power those on that are off."""
        nodes = self.cluster.match(node)
        if any(found.faults for found in nodes):
            self._door("heal", node)
        if not all(found.alive for found in nodes):
            self.boot(node)

    def service(self, node: str, name: str, action: str) -> None:
        """start, restart, stop, kill, pause or resume a daemon of nodes (`services.SERVICES`)."""
        self._door("svc", node, name, action)

    def crash(self, node: str) -> None:
        """Power nodes off."""
        self._door("crash", node)

    def boot(self, node: str) -> None:
        """Power nodes on, with empty disks and a new boot_id."""
        self._door("boot", node)

    def _door(self, *arguments: str) -> None:
        """Through the command line, so that a fork is one of a small process without threads."""
        command = [*command_line(self.directory), *arguments]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode:
            raise ClusterError((done.stderr or done.stdout).strip())


def _flags(options: Mapping[str, object]) -> list[str]:
    flags: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags += [flag] if value else []
        else:
            values = value if isinstance(value, list | tuple) else [value]
            flags += [word for one in values for word in (flag, str(one))]
    return flags


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _open(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ValueError("the program was started without a pipe for this stream")
    return stream
