"""A marker secret is searched for in all processes, files and output, during and after runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pytest
from tests.streams import communicate
from tests.testbed.secret_scan import JOB, forms, found_in, scan

from dslaunch.node import processes

FURTHER = [
    pytest.param("elastic", marks=pytest.mark.long),
    pytest.param("accelerate", marks=pytest.mark.long),
]
DIRECT = pytest.param("direct", marks=pytest.mark.long)
TORCHRUN = pytest.param("torchrun", marks=pytest.mark.long)
DEEPSPEED = pytest.param("deepspeed", marks=pytest.mark.long)
"""It differs from torchrun in how it starts ranks and hands on their output, which one test with
it shows; with a launcher, up to three processes import torch."""


@dataclass
class Site:
    """A directory to run in; every temporary file of what runs there is in it too."""

    path: Path
    secret: str

    @property
    def project(self) -> Path:
        """What is shipped to nodes."""
        return self.path / "project"

    @property
    def environ(self) -> dict[str, str]:
        """Names this directory for state and temporary files; does not hold the secret."""
        places = {"DSLAUNCH_STATE": str(self.path / "state"), "TMPDIR": str(self.path / "tmp")}
        return {**os.environ, **places}

    @contextlib.contextmanager
    def start(self, launcher: str, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Start the job that shows the secret, on two ranks of one emulated node. Left by an
        exception, nothing of it goes on."""
        (self.project / "job.py").write_text(JOB)
        settings = {
            "nodes": "[{host: n1, slots: 2}]",
            "transport": "local",
            "launcher": launcher,
            "python": sys.executable,
            "secrets": f"[{{TOKEN: {{file: {self.path}/private/token}}}}]",
            "storage": "{workdir: work}",
        }
        text = "".join(f"{key}: {value}\n" for key, value in settings.items())
        (self.project / "c.yaml").write_text(text)
        words = ["run", *options, "c.yaml", "job.py", str(self.path / "go")]
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "dslaunch", *words]
        with subprocess.Popen(
            command, cwd=self.project, env=self.environ, stdout=pipe, stderr=pipe, text=True
        ) as running:
            try:
                yield running
            except BaseException:
                running.kill()
                self.end()
                raise

    def end(self) -> None:
        """Kill what was started here."""
        for pid in self.of_the_run():
            processes.send([pid], signal.SIGKILL)

    def dslaunch(self, *words: str) -> str:
        """What a command prints, on both streams."""
        command = [sys.executable, "-m", "dslaunch", *words]
        done = subprocess.run(
            command, cwd=self.project, env=self.environ, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def following(self) -> Iterator[subprocess.Popen[str]]:
        """Start a command that prints the output of the last run as it comes; ended at the exit."""
        command = [sys.executable, "-m", "dslaunch", "logs", "--follow", "latest", "c.yaml"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=self.project, env=self.environ, stdout=pipe, stderr=pipe, text=True
        ) as following:
            try:
                yield following
            finally:
                following.kill()

    def found(self) -> list[str]:
        """Where the secret is found."""
        places = [self.path / name for name in ("state", "tmp", "project")]
        return scan([*map(str, places), "/dev/shm", "/var/tmp"], forms(self.secret))

    def go(self) -> None:
        """Let the ranks go on."""
        (self.path / "go").touch()

    def of_the_run(self) -> dict[int, bool]:
        """The processes that were started here: whether it is a rank or a launcher of ranks."""
        mark = str(self.path / "state").encode()
        found = {}
        for pid in processes.pids():
            environment = processes.environment(pid)
            if environment.get(b"DSLAUNCH_STATE") == mark and pid != os.getpid():
                found[pid] = b"DSLAUNCH_RUN_ID" in environment
        return found


def wait_for(running: subprocess.Popen[str], text: str, *, times: int) -> str:
    """Read the run's output until a text came so many times."""
    assert running.stdout is not None
    came = ""
    while came.count(text) < times:
        line = running.stdout.readline()
        assert line, communicate(running)[1]
        came += line
    return came


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    for name in ("private", "project", "tmp"):
        (tmp_path / name).mkdir(mode=0o700)
    secret = f"-----BEGIN {token_hex(8)}-----\nsé\"c'r\\e/t&<{token_hex(8)}>"
    (tmp_path / "private" / "token").write_text(secret + "\n")
    made = Site(tmp_path, secret)
    yield made
    made.end()


@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", DIRECT, *FURTHER])
def test_a_secret_is_found_nowhere_during_and_after_a_run_that_fails_with_it(
    launcher: str, site: Site
) -> None:
    with site.start(launcher, "--json") as running:
        out = wait_for(running, "shown by", times=2)
        assert site.found() == []
        site.go()
        rest, err = communicate(running, timeout=300)
    assert running.returncode == 1, err
    assert "RuntimeError: token ***" in rest
    assert site.found() == []
    told = site.dslaunch("status", "--json", "latest") + site.dslaunch("logs", "latest")
    assert found_in((out + rest + err + told).encode(), forms(site.secret)) == []


@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["torchrun", DEEPSPEED])
def test_a_secret_is_in_no_file_after_everything_is_killed_at_once(
    launcher: str, site: Site
) -> None:
    with site.start(launcher) as running:
        wait_for(running, "shown by", times=2)
        started = site.of_the_run()
        assert list(started.values()).count(True) >= 2
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in started:
                processes.send([pid], number)
        running.wait(300)
    assert site.found() == []


@pytest.mark.torch
@pytest.mark.parametrize("launcher", ["direct", TORCHRUN, DEEPSPEED, *FURTHER])
def test_a_secret_is_found_nowhere_during_and_after_a_run_in_the_background(
    launcher: str, site: Site
) -> None:
    with site.start(launcher, "--detach") as running:
        out, err = communicate(running, timeout=300)
    assert running.returncode == 0, err
    with site.following() as followed:
        told = wait_for(followed, "shown by", times=2)
        followed.kill()
        told += "".join(communicate(followed))
    assert site.found() == []
    told += site.dslaunch("stacks", "latest", "c.yaml")
    site.go()
    until = time.monotonic() + 300
    while site.of_the_run():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert site.found() == []
    told += site.dslaunch("status", "--json", "latest") + site.dslaunch("logs", "latest")
    assert "RuntimeError: token ***" in told
    assert found_in((out + err + told).encode(), forms(site.secret)) == []
