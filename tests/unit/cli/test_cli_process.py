"""The program as a process: pipes, terminals, signals, what it imports."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.streams import read_terminal

DSLAUNCH = [sys.executable, "-m", "dslaunch"]
HEAVY = (
    "ClusterShell",
    "asyncio",
    "fabric",
    "invoke",
    "jinja2",
    "paramiko",
    "pydantic",
    "rich",
    "torch",
    "yaml",
)


@pytest.mark.parametrize("words", [["schema"], ["--help"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_error_to_speak_of(words: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*DSLAUNCH, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.stderr == ""


def test_the_first_line_can_be_had_with_head(cluster_file: Path):
    line = f"{sys.executable} -m dslaunch nodes --json c.yaml | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_a_full_disk_is_one_line_and_code_1():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*DSLAUNCH, "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output: No space left on device\n",
    )


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_on_a_full_disk_is_one_line_and_code_1(words: list[str]):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*DSLAUNCH, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output: No space left on device\n",
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(cluster_file: Path, closed: str):
    line = f"{sys.executable} -m dslaunch nodes c.yaml {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


EMULATED = """\
nodes: [{host: "node[1-2]", slots: 1}]
transport: local
launcher: direct
storage: {workdir: work}
"""


def run_in_shell(words: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """`dslaunch run` on emulated nodes in a shell line, and how the run was recorded."""
    Path("e.yaml").write_text(EMULATED)
    line = f"set -o pipefail; {sys.executable} -m dslaunch run --no-python --grace 1 {words}"
    done = subprocess.run(
        ["bash", "-c", line],
        env=os.environ | {"DSLAUNCH_STATE": str(Path("state").absolute())},
        capture_output=True,
        text=True,
        check=False,
    )
    (result,) = Path("state/runs").glob("*/result.json")
    status: str = json.loads(result.read_text())["status"]
    return done, status


def test_a_run_whose_reader_leaves_ends_and_is_recorded(directory: Path):
    done, status = run_in_shell("e.yaml sh -c 'yes; sleep 60' | head -1")
    assert done.stdout.endswith("│y\n")
    assert (done.returncode, status) == (141, "interrupted")
    (result,) = Path("state/runs").glob("*/result.json")
    assert json.loads(result.read_text())["reason"] == {"code": "output-closed"}
    assert "Traceback" not in done.stderr
    assert "all processes of this run have exited" in done.stderr


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_run_continues_if_the_disk_is_full(directory: Path, option: str):
    done, status = run_in_shell(f"{option} e.yaml echo hello > /dev/full")
    assert (done.returncode, status) == (0, "ok")
    assert done.stderr.count("standard output: No space left on device") == 1


def test_a_run_continues_if_it_cannot_print(directory: Path):
    done, status = run_in_shell("e.yaml echo hello 2> /dev/full")
    assert (done.returncode, status) == (0, "ok")
    assert sorted(done.stdout.splitlines()) == ["node1:0│hello", "node2:1│hello"]


def test_bytes_that_are_no_text_are_printed_as_they_came(cluster_file: Path):
    done = subprocess.run(
        [*DSLAUNCH, "render", "env", "c.yaml", "--env", b"X=\xff"],
        capture_output=True,
        check=False,
    )
    assert b"X='\xff'\n" in done.stdout


def test_output_is_utf_8_in_every_locale(directory: Path):
    text = "env: {X: caf\u00e9}\nnodes: [{host: a, slots: 1}]\n"
    Path("u.yaml").write_text(text, "utf-8")
    done = subprocess.run(
        [*DSLAUNCH, "render", "env", "u.yaml"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert "X='caf\u00e9'\n".encode() in done.stdout


def test_a_current_directory_that_is_gone_is_one_line_and_code_2(cluster_file: Path):
    render = f"{sys.executable} -m dslaunch render env {cluster_file}"
    line = f"mkdir gone; cd gone; rmdir ../gone; {render}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: the current directory no longer exists\nhint: run: cd\n",
    )


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)],
    ids=["terminal", "no-color", "no-color-is-empty"],
)
def test_errors_have_color_on_a_terminal_only_unless_refused(
    environment: dict[str, str], colored: bool
):
    ours, theirs = pty.openpty()
    subprocess.run(
        [*DSLAUNCH, "nodes", "x.yaml"], stderr=theirs, env=os.environ | environment, check=False
    )
    os.close(theirs)
    said = read_terminal(ours).decode()
    os.close(ours)
    assert ("\x1b[" in said) == colored
    assert "error:" in said and "hint:" in said


def test_errors_in_a_file_have_no_color():
    done = subprocess.run([*DSLAUNCH, "nodes", "x.yaml"], capture_output=True, check=False)
    assert b"\x1b" not in done.stderr


def test_ctrl_c_exits_with_130_without_output(directory: Path):
    os.mkfifo("started")
    program = directory / "nvidia-smi"
    program.write_text("#!/bin/sh\necho > started\nexec sleep 600\n")
    program.chmod(0o755)
    with subprocess.Popen(
        [*DSLAUNCH, "init", "--local"],
        env=os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        Path("started").read_text()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dslaunch ren", "render"),
        ("dslaunch run --inc", "--include"),
        ("dslaunch run c.yaml -N 2 --inc", "--include"),
    ],
    ids=["command", "option", "option-behind-file"],
)
def test_the_shell_completes(words: str, offered: str):
    asked = {
        "_DSLAUNCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    program = "from dslaunch.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['dslaunch']; {program}"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == ([offered], "")


@pytest.mark.parametrize("words", [["--help"], ["--version"]], ids=" ".join)
def test_help_imports_nothing_that_costs_time(words: list[str]):
    program = (
        "import sys\n"
        "from dslaunch.cli.main import main\n"
        f"sys.argv = ['dslaunch', *{words!r}]\n"
        "try: main()\n"
        f"except SystemExit: sys.exit(str([m for m in {HEAVY!r} if m in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == "[]\n"


def test_a_hostfile_is_rendered_without_ssh_templates_or_torch(cluster_file: Path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dslaunch", "render", "hostfile", "c.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    unneeded = {"fabric", "paramiko", "jinja2", "torch", "ClusterShell", "asyncio", "rich"}
    assert "yaml" in imported
    assert not imported & unneeded


def test_ctrl_c_while_the_program_is_still_being_imported_says_nothing() -> None:
    program = """
import os, signal, sys
from dslaunch.cli.start import start
class Now:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Now())
start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


SWALLOWED = """
import os, signal, sys
from dslaunch.cluster.model import Cluster
def load(path):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except SystemExit:
        {then}
    return load_cluster(path)
load_cluster, Cluster.load = Cluster.load, load
sys.argv = ["dslaunch", "run", "c.yaml", "job.py"]
from dslaunch.cli.start import start
start()
"""


@pytest.mark.parametrize("then", ["pass", "raise ValueError('a schema is wrong')"])
def test_ctrl_c_counts_though_a_library_swallows_its_exception(directory: Path, then: str) -> None:
    (directory / "c.yaml").write_text("nodes: [{host: n1, slots: 1}]\ntransport: local\n")
    (directory / "job.py").write_text("open('started', 'w')\n")
    program = SWALLOWED.format(then=then)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    assert not (directory / "started").exists()


@pytest.mark.parametrize("module", ["contextlib", "dslaunch.cli.main", "dslaunch.cli.run"])
def test_ctrl_c_at_any_import_says_nothing(module: str) -> None:
    # where a finalizer runs, an exception can only be printed
    program = f"""
import sys
class Finalized:
    def __del__(self):
        import _signal, os
        os.kill(os.getpid(), _signal.SIGINT)
class Now:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            Finalized()
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Now())
sys.argv = ["dslaunch", "run", "--help"]
from dslaunch.cli.start import start
start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
