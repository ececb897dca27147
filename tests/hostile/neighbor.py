"""A user whose runs are attacked, on nodes emulated on this machine, and the attacker's uid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dslaunch.node import processes

STRANGER = 4242
"""The uid of the attacker."""
SLEEPER = "import os, time\nprint('up', os.environ['RANK'], flush=True)\ntime.sleep(300)\n"


@dataclass(frozen=True)
class Victim:
    """A directory with a cluster file, a state directory, and a directory like /tmp."""

    path: Path

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def shared(self) -> Path:
        """A directory for temporary files that everybody can write to."""
        return self.path / "shared"  # sorts before the state directory

    @property
    def place(self) -> Path:
        """The place in it that is ours, unless a stranger makes it before us."""
        return self.shared / f"dslaunch-{os.geteuid()}"

    def home(self, host: str = "v0") -> Path:
        return self.state / "emulated" / "v" / host

    def describe(self, settings: str = "") -> None:
        nodes = "[{host: v0, slots: 1}, {host: v1, slots: 1}]"
        text = f"name: v\ntransport: local\nlauncher: direct\nnodes: {nodes}\n"
        text += f"storage: {{workdir: work}}\npython: {sys.executable}\n{settings}\n"
        (self.path / "c.yaml").write_text(text)

    def dslaunch(self, *words: str, umask: int = -1, timeout: float = 300) -> Text:
        """Any command of dslaunch."""
        environment = {**os.environ, "DSLAUNCH_STATE": str(self.state), "TMPDIR": str(self.shared)}
        command = [sys.executable, "-m", "dslaunch", *words]
        return subprocess.run(
            command,
            cwd=self.path,
            env=environment,
            umask=umask,
            timeout=timeout,
            text=True,
            capture_output=True,
            check=False,
        )

    def detach(self, script: str = SLEEPER, umask: int = -1) -> str:
        """Start a run in the background; give its name."""
        (self.path / "job.py").write_text(script)
        done = self.dslaunch("run", "--detach", "--grace", "1", "c.yaml", "job.py", umask=umask)
        assert done.returncode == 0, done.stderr
        (run,) = set(re.findall(r"dslaunch stop (\S+)", done.stderr))
        return run

    def directory(self, run: str, host: str = "v0") -> Path:
        """The directory of a detached run."""
        (found,) = (self.home(host) / ".local/state/dslaunch/nodes").glob(f"{run}.{host}.*")
        return found


Text = subprocess.CompletedProcess[str]


def ranks(run: str) -> set[int]:
    """The processes of a run on all emulated nodes."""
    return processes.tagged(run, "v0") | processes.tagged(run, "v1")


def agents(run: str) -> set[int]:
    """The agents of a run: the parents of its processes."""
    return {int((processes.stat(pid) or ["", "0"])[1]) for pid in ranks(run)} - {0}


def give_away(path: Path) -> Path:
    """Make a stranger the owner of a tree."""
    for each in (path, *path.rglob("*")):
        os.chown(each, STRANGER, STRANGER, follow_symlinks=False)
    return path


def until(condition: Callable[[], bool], seconds: float = 150) -> bool:
    """Wait for a condition; whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def listening(run: str) -> tuple[str, int]:
    """The address, as /proc has it, and the port at which an agent of a run listens."""
    inodes = set()
    for pid in agents(run):
        with suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(fd.readlink()))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                return address, int(port, 16)
    raise AssertionError(f"no agent of {run} listens")
