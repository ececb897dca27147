"""Our own programs on nodes are killed, stopped, or cannot be started: each is named."""

from __future__ import annotations

from pathlib import PurePosixPath
from signal import SIGKILL, SIGSEGV, SIGTERM

import pytest

from dslaunch.node import processes
from tests.testbed.project import Project
from tests.testbed.scheduler import until
from tests.testbed.test_faults import Watched
from tests.testbed.vcluster.api import NodeProcess

OPTIONS = ("--grace", "2", "--heartbeat-timeout", "20", "--reconnect-timeout", "10")
"""For nodes that are lost. A node that is not may need longer on a busy machine."""
PATIENT = ("--grace", "2", "--heartbeat-timeout", "20", "--reconnect-timeout", "150")
RUNS_ON = "import os, time\nprint('up', os.environ['RANK'], flush=True)\ntime.sleep({seconds})\n"

RUNS_UNTIL = """\
import os, time
print('up', os.environ['RANK'], flush=True)
while not os.path.exists({file!r}):
    time.sleep(0.1)
"""


def on_every_node(project: Project, *command: str) -> None:
    for node in project.cluster.names:
        project.cluster.run(node, list(command), user="root", check=True)


def programs(project: Project, node: str) -> dict[str, NodeProcess]:
    """The bridge, the guardian and the agent of a node."""
    seen = project.cluster.processes(node)
    ours = {p.pid: p for p in seen if "DSLAUNCH_PROGRAM" in p.environ and p.state != "Z"}
    bridges = [p for p in ours.values() if p.parent not in ours and "RANK" not in p.environ]
    found = {}
    for bridge in bridges:
        for guardian in (p for p in ours.values() if p.parent == bridge.pid):
            agents = [p for p in ours.values() if p.parent == guardian.pid]
            if agents:  # else it is what answers before the start
                found = {"bridge": bridge, "guardian": guardian, "agent": agents[0]}
    return found


def send(project: Project, name: str, which: list[str]) -> None:
    """Send a signal to programs of node2."""
    found = programs(project, "node2")
    pids = [str(found[each].pid) for each in which]
    project.cluster.run("node2", ["kill", f"-{name}", *pids], user="root", check=True)


def wait_for_ranks(running_stdout: object, count: int) -> None:
    seen = 0
    while seen < count:
        line = running_stdout.readline()  # type: ignore[attr-defined]
        assert line
        seen += "up" in line


KILLED: list[tuple[list[str], str, str, dict[str, object]]] = [
    (["agent"], "KILL", "process-killed", {"process": "agent", "signal": SIGKILL}),
    (["agent"], "SEGV", "process-killed", {"process": "agent", "signal": SIGSEGV}),
    (["agent"], "TERM", "process-killed", {"process": "agent", "signal": SIGTERM}),
    (["guardian"], "KILL", "process-killed", {"process": "guardian"}),
    (["guardian"], "TERM", "process-killed", {"process": "agent", "signal": SIGTERM}),
    (["guardian", "agent"], "KILL", "node-lost", {"failure": "lost"}),
]


def killed(case: tuple[list[str], str, str, dict[str, object]]) -> object:
    """SIGKILL of each program is for every run of the tests; the other signals are long."""
    which, name, code, _ = case
    marks = () if name == "KILL" else (pytest.mark.long,)
    return pytest.param(*case, id=f"{'+'.join(which)}-{name}-{code}", marks=marks)


@pytest.mark.parametrize(("which", "name", "code", "parameters"), [killed(case) for case in KILLED])
def test_a_program_of_ours_that_is_killed_is_named(
    project: Project, which: list[str], name: str, code: str, parameters: dict[str, object]
) -> None:
    project.write("job.py", RUNS_ON.format(seconds=1000))
    with project.start(*OPTIONS, "c.yaml", "job.py") as running:
        wait_for_ranks(running.stdout, 8)
        send(project, name, which)
        _, err = running.communicate(timeout=300)
    assert running.popen.returncode == 5, err
    assert project.reason("code", "host") == (code, "node2"), err
    assert project.reason(*parameters) == tuple(parameters.values()), err
    assert "Traceback" not in err
    project.cluster.run("control", project.command("clean", "c.yaml"), cwd=project.path, check=True)
    assert project.nothing_is_left()


@pytest.mark.parametrize(
    "which",
    # the guardian before the agent, which it would wake at once
    [
        pytest.param(["agent"], marks=pytest.mark.long),
        pytest.param(["guardian"], marks=pytest.mark.long),
        pytest.param(["guardian", "agent"], marks=pytest.mark.long),
        ["bridge", "guardian", "agent"],
    ],
    ids="+".join,
)
def test_a_stopped_program_of_dslaunch_is_resumed(project: Project, which: list[str]) -> None:
    finish = f"/tmp/finish-{PurePosixPath(project.path).name}"
    project.write("job.py", RUNS_UNTIL.format(file=finish))
    all_stop = {"agent", "guardian"} <= set(which)
    with project.start(*PATIENT, "c.yaml", "job.py") as running:
        wait_for_ranks(running.stdout, 8)
        send(project, "STOP", which)
        on_every_node(project, "touch", finish)
        _, err = running.communicate(timeout=300)
        on_every_node(project, "rm", finish)
    assert running.popen.returncode == 0, err
    # where one is not stopped it wakes the other, long before the launcher misses them
    stopped = [event for event in project.events() if event.get("failure") == "stopped"]
    assert all_stop or stopped == [], err
    project.cluster.run("control", project.command("clean", "c.yaml"), cwd=project.path, check=True)
    assert project.nothing_is_left()


def test_a_program_that_is_stopped_in_a_container_is_left_alone(project: Project) -> None:
    """A virtual node is to this machine what a container is to its host."""
    stops = ["sh", "-c", "kill -STOP $$; sleep 1000"]
    with project.cluster.popen("node1", stops, env={processes.PROGRAM: "1"}) as running:
        program = running.host_pid()
        until(lambda: processes.is_stopped(program), within=150)
        assert program not in processes.resume_programs()
        assert processes.is_stopped(program)


def test_programs_that_are_stopped_are_ended_by_clean(project: Project) -> None:
    project.write("job.py", RUNS_ON.format(seconds=1000))
    with project.start(*OPTIONS, "c.yaml", "job.py") as running:
        wait_for_ranks(running.stdout, 8)
        send(project, "STOP", ["guardian", "agent"])
        running.send_signal(SIGKILL)
    project.cluster.run("control", project.command("clean", "c.yaml"), cwd=project.path, check=True)
    assert project.cluster.leftovers(within=150) == {}


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param("import shutil; shutil.rmtree(os.environ['DSLAUNCH_NODE_DIR'])", id="removed"),
        pytest.param(
            "os.rename(os.environ['DSLAUNCH_NODE_DIR'], '/tmp/elsewhere-' + os.environ['RANK'])",
            id="renamed",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "os.chmod(os.environ['DSLAUNCH_NODE_DIR'], 0)", id="closed", marks=pytest.mark.long
        ),
    ],
)
def test_a_rank_that_takes_what_the_agent_needs_makes_no_traceback(
    project: Project, harm: str
) -> None:
    script = (
        "import os, sys, time\nif os.environ['RANK'] == '2':\n    {}\ntime.sleep(1)\nsys.exit(3)"
    )
    text = script.format(harm)
    project.write("job.py", text)
    done = project.run("--grace", "2", "c.yaml", "job.py", timeout=300)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr + done.stdout


NOISE = {
    "prints-for-ever": ("while :; do echo y; done", "endless output"),
    "becomes-another": ("exec head -c 300000 /dev/urandom", "login shell"),
    "leaves": ("echo 'account closed'; exit 3", '"account closed"'),
    "reads-a-line": ("read x", "reads standard input"),
    "reads-all": ("cat > /dev/null", "did not start the agent"),
}


def noise(kind: str, transport: str) -> object:
    """What prints and what reads are for every run of the tests, over one transport each."""
    usual = (kind, transport) in {("prints-for-ever", "openssh"), ("reads-all", "fabric")}
    marks = () if usual else (pytest.mark.long,)
    return pytest.param(kind, transport, id=f"{kind}-{transport}", marks=marks)


@pytest.mark.parametrize(
    ("kind", "transport"),
    [noise(kind, transport) for kind in NOISE for transport in ("fabric", "openssh")],
)
def test_a_start_up_file_that_disturbs_is_named(
    project: Project, kind: str, transport: str
) -> None:
    text, words = NOISE[kind]
    home = "/root"
    project.describe(transport=transport)
    project.write("job.py", "print('up')")
    project.cluster.put("node2", f"{home}/.bashrc", f"{text}\n", mode=0o644)
    try:
        done = project.run("--no-preflight", "c.yaml", "job.py", timeout=300)
    finally:
        project.cluster.run("node2", ["rm", "-f", f"{home}/.bashrc"], user="root", check=True)
    assert done.returncode == 5, done.stderr
    told = [line for line in done.stderr.splitlines() if "node2" in line]
    assert words in " ".join(told)
    assert len(done.stderr.splitlines()) <= 6
    assert done.stderr.isprintable() or done.stderr.replace("\n", "").isprintable()
    assert ".bashrc" in done.stderr


def test_ranks_end_soon_after_their_launcher_was_killed(project: Project) -> None:
    project.write("job.py", RUNS_ON.format(seconds=1000))
    with project.start("c.yaml", "job.py") as running:
        wait_for_ranks(running.stdout, 8)
        running.send_signal(SIGKILL)
    # without a look at how the connection ended it would be --reconnect-timeout, 20 s
    assert project.cluster.leftovers(within=150) == {}


def reconnects(project: Project) -> int:
    """How often the launcher has connected again to a node."""
    return sum(event["kind"] == "back" for event in project.events())


PRINTS_UNTIL = """\
import itertools, os, time
for number in itertools.count():
    print("line", number, flush=True)
    if os.path.exists("enough"):
        break
    time.sleep(0.05)
"""


def test_sessions_that_are_dropped_again_and_again_lose_nothing(project: Project) -> None:
    project.write("job.py", PRINTS_UNTIL)
    with project.start(*PATIENT, "c.yaml", "job.py") as running:
        watched = Watched(running)
        watched.wait_for("line 5$", times=8)
        for times in range(1, 5):
            kill = "kill -KILL $(pgrep -f '[s]shd: root@notty')"
            project.cluster.run("node2", ["sh", "-c", kill], user="root", check=True)
            until(lambda times=times: reconnects(project) == times, 300, watched.text, pause=0.2)
        project.cluster.put("node*", "/root/work/enough", "")
        code = watched.end(300)
    assert code == 0, watched.text()
    for rank in (2, 3):
        lines = [text for _, _, text in watched.lines if text.startswith(f"node2:{rank}│line")]
        assert [int(line.split()[-1]) for line in lines] == list(range(len(lines)))
