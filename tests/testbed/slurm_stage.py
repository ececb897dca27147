"""Where a scenario of SLURM is played: a directory of its own, and what dslaunch did there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from signal import SIGINT

from dslaunch.render.script_functions import VERDICT_SUFFIX
from tests.testbed.scheduler import PROGRAM, Site, until
from tests.testbed.slurm_scenarios import RUNNING
from tests.testbed.vcluster import CONTROL
from tests.testbed.vcluster.api import Running, Text
from tests.testbed.vcluster.slurm import ASKING

PATIENCE = 300.0
"""Seconds for anything, while many scenarios share two CPUs."""
GO = """\
import os, sys, time
rank = os.environ["RANK"]
print("up", rank, "cpus", os.environ.get("SLURM_CPUS_PER_TASK"), flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
"""
PROGRAMS = {
    "ok.py": "import os\nprint('up', os.environ['RANK'], 'cpus', "
    "os.environ.get('SLURM_CPUS_PER_TASK'))\n",
    "go.py": GO,
    "go_fails.py": f"{GO}\nif rank == '1': sys.exit(3)\ntime.sleep(60)\n",
    "fails.py": "import os, sys, time\n"
    "print('up', os.environ['RANK'], flush=True)\n"
    "if os.environ['RANK'] == '1': sys.exit(3)\n"
    "time.sleep(60)\n",
}
"""`go` programs run until there is a file `go` in their directory."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a scenario came to."""

    code: int
    state: str
    text: str = ""


@dataclass
class Stage(Site):
    """A directory of the site for one scenario."""

    nodes: str = "{host: 'node[1-2]', slots: 1}"
    user: str | None = None
    environ: dict[str, str] = field(default_factory=dict)
    """Of every command here."""
    has_gpus: bool = False
    """Whether the site has GRES."""

    def set(self, **slurm: str) -> None:
        """Make the directory, its programs and its cluster file."""
        self.here.mkdir(mode=0o777, exist_ok=True)
        self.here.chmod(0o777)
        for name, text in PROGRAMS.items():
            self.write(name, text)
        self.describe(self.nodes, **slurm)

    def describe(self, nodes: str = "", **slurm: str) -> None:
        """Write its cluster file. A job takes little memory, so that many run side by side; the
        default is all of a node."""
        gpus = {} if self.has_gpus else {"gpus": "none"}
        super().describe(nodes or self.nodes, **{"mem": "1GB"} | gpus | slurm)

    def add(self, lines: str) -> None:
        """Add lines to the cluster file."""
        self.write("c.yaml", f"{self.read('c.yaml')}{lines}\n")

    def env(self) -> dict[str, str]:
        return super().env() | self.environ

    def call(self, *words: str, **environ: str) -> Text:
        """`dslaunch` with these words, waited for."""
        env = self.env() | environ
        return self.cluster.run(
            CONTROL, [*PROGRAM, *words], cwd=self.path, env=env, user=self.user, timeout=PATIENCE
        )

    def open(self, *words: str, said: str = "said") -> Running:
        """`dslaunch` with these words, not waited for; the file `said` gets what it prints."""
        shell = ["sh", "-c", f'exec "$@" >{said} 2>&1', "sh", *PROGRAM, *words]
        return self.cluster.popen(CONTROL, shell, cwd=self.path, env=self.env(), user=self.user)

    # ------------------------------------------------------------ the job

    def job(self, running: Running, said: str = "said") -> str:
        """The number of the job that a command in the background has submitted. TimeoutError."""
        found = re.compile(r"job (\d+)")

        def knows() -> bool:
            ended = running.popen.poll() is not None
            return ended or bool(found.search(self.read(said)))

        until(knows, PATIENCE, lambda: self.read(said))
        numbers = found.findall(self.read(said))
        assert numbers, self.read(said)
        return numbers[0]

    def up(self, number: str, text: str = "up 0") -> None:
        """Wait until the job's output has a text."""
        self.says(number, text, within=PATIENCE)

    def go(self) -> None:
        """Let a `go` program come to its end."""
        (self.here / "go").touch()

    def state(self, number: str, **environ: str) -> str:
        """A job's state as scontrol has it; what sacct has of one that is forgotten; empty: it
        is not known."""
        env = self.environ | environ
        clusters = [f"--clusters={env['SBATCH_CLUSTERS']}"] if "SBATCH_CLUSTERS" in env else []
        show = ["scontrol", *clusters, "--oneliner", "show", "job", number]
        said = self.cluster.run(CONTROL, show).stdout
        states = set(re.findall(r"(?m)^JobId=.*? JobState=(\w+) Reason=", said))
        if not states:
            sacct = ["sacct", *clusters, "-nPX", f"--jobs={number}", "--format=State"]
            states = {
                line.split()[0]
                for line in self.cluster.run(CONTROL, sacct).stdout.split("\n")
                if line
            }
        return "FAILED" if "FAILED" in states else next(iter(states), "")

    def settled(self, number: str) -> str:
        """Its state, once nothing of it is ending."""
        until(lambda: self.state(number) != "COMPLETING", PATIENCE, pause=ASKING)
        return self.state(number)

    def has_verdict(self) -> bool:
        """Whether a job here has written how it ended."""
        written = (json.loads(file.read_text()) for file in self.here.glob(f"*{VERDICT_SUFFIX}"))
        return any(verdict["ended"] is not None for verdict in written)

    # ------------------------------------------------------------ scenes

    def follow(
        self,
        *words: str,
        act: Callable[[str], None] = lambda number: None,
        program: str = "go.py",
        awaited: str = "up 0",
    ) -> Seen:
        """`dslaunch slurm`, followed to its end; once its output has what is `awaited`, act on the
        job, and let it go on."""
        with self.open("slurm", "c.yaml", *words, program) as running:
            number = self.job(running)
            if awaited:
                self.up(number, awaited)
            act(number)
            self.go()
            code = running.wait(PATIENCE)
        return Seen(code, self.settled(number), self.said)

    def to_the_end(self, *words: str, program: str = "ok.py") -> Seen:
        """`dslaunch slurm`, waited for."""
        done = self.call("slurm", "c.yaml", *words, program)
        text = done.stdout + done.stderr
        found = re.findall(r"job (\d+)", text)
        return Seen(done.returncode, self.settled(found[0]) if found else "", text)

    def leave(self, *words: str, program: str = "go.py", awaited: str = "up 0") -> str:
        """Submit, leave, and give the job's number once it runs."""
        done = self.call("slurm", "--detach", "c.yaml", *words, program)
        assert done.returncode == 0, done.stderr
        number = re.findall(r"job (\d+)", done.stderr)[0]
        if awaited:
            self.up(number, awaited)
        return number

    def ask(self, number: str, *words: str, state: str = "") -> Seen:
        """`dslaunch` with these words, and the job's state afterwards."""
        done = self.call(*words)
        if state:

            def told() -> str:
                return self.state(number)

            until(lambda: self.state(number) == state, PATIENCE, told, pause=ASKING)
        return Seen(done.returncode, self.settled(number), done.stdout + done.stderr)

    def control(self, *words: str, user: str = "root") -> None:
        """A command of SLURM on the control machine."""
        self.cluster.run(CONTROL, list(words), user=user, check=True)

    def interrupt(self, program: str = "go.py") -> Seen:
        """Ctrl-C while it runs."""
        with self.open("slurm", "c.yaml", program) as running:
            number = self.job(running)
            self.up(number)
            running.send_signal(SIGINT)
            code = running.wait(PATIENCE)
        return Seen(code, self.settled(number), self.said)

    def is_running(self, number: str) -> bool:
        """Whether the job runs."""
        return self.state(number) == RUNNING
