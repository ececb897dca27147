"""What faulthandler writes, and how processes are armed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.node import hook_stacks, processes, procfs, rank_hooks, stacks

WRITTEN = """\
Thread 0x00007f1c1b7fe640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f1c1b7fe641 (most recent call first):
  <no Python frame>

Current thread 0x00007f1c3a4f5740 [main] (most recent call first):
  File "train.py", line 12 in step
  File "train.py", line ??? in <module>
  ...
"""
PROGRAM = "import time\ndef waits():\n    print('up', flush=True), time.sleep(60)\nwaits()\n"
Start = Callable[..., "subprocess.Popen[str]"]


def test_threads_and_their_frames_are_read_the_newest_thread_first() -> None:
    helper, main = stacks.parse(WRITTEN)
    assert helper == {
        "name": "",
        "main": False,
        "frames": [
            {"file": "/usr/lib/python3.11/threading.py", "line": 320, "function": "wait"},
            {"file": "/usr/lib/python3.11/threading.py", "line": 1002, "function": "_bootstrap"},
        ],
    }
    assert main == {
        "name": "main",
        "main": True,
        "frames": [
            {"file": "train.py", "line": 12, "function": "step"},
            {"file": "train.py", "line": 0, "function": "<module>"},
        ],
    }


def test_a_thread_that_outlives_the_main_one_is_not_taken_for_it() -> None:
    (helper,) = stacks.parse("\n".join(WRITTEN.splitlines()[:3]))
    assert not helper["main"]


def test_what_is_no_stack_is_no_thread() -> None:
    assert stacks.parse("Segmentation fault\n") == []


@given(st.text())
def test_any_text_gives_threads_with_frames_or_none(text: str) -> None:
    assert all(thread["frames"] for thread in stacks.parse(text))


@pytest.mark.parametrize(
    ("words", "short"),
    [
        (["/opt/venv/bin/python3", "-u", "dir/train.py", "--token", "x"], "python3 train.py"),
        (["python", "-X", "dev", "-m", "pkg.train", "--token", "x"], "python -m pkg.train"),
        (["python", "-m", "pkg.train", "--token", "x"], "python -m pkg.train"),
        (["python", "-c", "secret()"], "python -c"),
        (["/usr/bin/ninja", "-v", "token"], "ninja"),
        ([""], ""),
    ],
)
def test_a_command_is_reported_without_its_arguments(words: list[str], short: str) -> None:
    assert procfs.command(words) == short


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_find_py_spy", lambda pid: None)


@pytest.fixture
def armed(tmp_path: Path, no_py_spy: None) -> Iterator[Start]:
    """Start a Python with that program, and wait for its first line."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *options: str, **more: str) -> subprocess.Popen[str]:
        (tmp_path / "job.py").write_text(program)
        environment = {"PATH": "/usr/bin:/bin", **more}
        environment |= rank_hooks.arm(str(tmp_path), environment)
        started.append(
            subprocess.Popen(
                [sys.executable, *options, "job.py"],
                env=environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        for entry in stacks.collect({0: process.pid}, 0.1)["0"][1:]:
            os.kill(entry["pid"], 9)
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def asleep(process: subprocess.Popen[str]) -> bool:
    """Wait until it sleeps: whoever has just spoken or shown its stack may still be on its way, on
    a CPU (R) or through the kernel (D)."""
    deadline = time.monotonic() + 300
    while (fields := processes.stat(process.pid)) and fields[0] != "S":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return fields is not None


def functions(entry: dict[str, Any]) -> list[str]:
    assert entry.get("threads"), entry
    return [frame["function"] for frame in entry["threads"][0]["frames"]]


def test_an_armed_process_shows_its_stack_and_lives_on(armed: Start, tmp_path: Path) -> None:
    process = armed(PROGRAM)
    assert first_line(process) == "up"
    for _ in range(3):
        assert asleep(process)
        (entry,) = stacks.collect({3: process.pid}, 5)["3"]
        (thread,) = entry["threads"]
        assert thread["frames"] == [
            {"file": "job.py", "line": 3, "function": "waits"},
            {"file": "job.py", "line": 4, "function": "<module>"},
        ]
        assert (entry["tool"], entry["state"], thread["main"]) == ("faulthandler", "S", True)
        json.dumps(entry)
    assert process.poll() is None
    names = {path.name for path in tmp_path.iterdir()}
    # no bytecode: writing it would make a directory again that was removed meanwhile
    assert names == {"job.py", rank_hooks.ARCHIVE}
    assert (tmp_path / rank_hooks.ARCHIVE).stat().st_mode & 0o777 == 0o600


def test_all_threads_are_shown_the_main_one_first(armed: Start) -> None:
    process = armed(
        "import threading, time\n"
        "lock = threading.Lock()\n"
        "lock.acquire()\n"
        "def second():\n    lock.acquire()\n"
        "threading.Thread(target=second, daemon=True).start()\n" + PROGRAM
    )
    first_line(process)
    deadline = time.monotonic() + 300
    while True:
        (entry,) = stacks.collect({0: process.pid}, 5)["0"]
        assert functions(entry) == ["waits", "<module>"]
        if [t["frames"][0]["function"] for t in entry["threads"]] == ["waits", "second"]:
            return
        assert time.monotonic() < deadline, entry


@pytest.mark.parametrize(("work", "computes"), [("while True: pass", True), ("stop.wait()", False)])
def test_a_process_computes_while_any_thread_of_it_does(
    armed: Start, work: str, computes: bool
) -> None:
    process = armed(
        "import threading\n"
        "stop = threading.Event()\n"
        f"def second():\n    {work}\n"
        "threading.Thread(target=second, daemon=True).start()\n" + PROGRAM
    )
    first_line(process)
    assert asleep(process)
    (entry,) = stacks.collect({0: process.pid}, 5)["0"]
    assert entry["computes"] is computes


def test_children_by_fork_have_their_own_stack(armed: Start) -> None:
    process = armed(PROGRAM.replace("def waits", "import os\nos.fork()\ndef waits"))
    first_line(process)
    deadline = time.monotonic() + 300
    while len(found := stacks.collect({0: process.pid}, 5)["0"]) < 2 or any(
        "waits" not in [f["function"] for t in each["threads"] for f in t["frames"]]
        for each in found
    ):
        assert time.monotonic() < deadline, found
    assert found[0]["pid"] == process.pid
    assert [each["tool"] for each in found] == ["faulthandler"] * 2


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_ignores_its_environment_is_left_alone(armed: Start, option: str) -> None:
    process = armed(PROGRAM, option)
    first_line(process)
    (entry,) = stacks.collect({0: process.pid}, 2)["0"]
    assert (entry["threads"], entry["tool"]) == ([], "proc")
    assert entry["error"] == "py-spy: not installed; faulthandler: not armed"
    assert process.poll() is None


def test_a_process_that_ignores_the_signal_is_not_signalled(armed: Start) -> None:
    process = armed(
        f"import signal\nsignal.signal({hook_stacks.SIGNAL}, signal.SIG_DFL)\n{PROGRAM}"
    )
    first_line(process)
    (entry,) = stacks.collect({0: process.pid}, 2)["0"]
    assert "removed the handler" in entry["error"]
    assert process.poll() is None


def test_a_process_that_handles_the_signal_itself_is_distinguished(armed: Start) -> None:
    program = (
        f"import signal\nsignal.signal({hook_stacks.SIGNAL}, lambda *_: print('mine'))\n{PROGRAM}"
    )
    process = armed(program)
    first_line(process)
    (entry,) = stacks.collect({0: process.pid}, 10)["0"]
    assert f"handles signal {hook_stacks.SIGNAL} in another way" in entry["error"]
    assert process.poll() is None


def test_a_process_that_closed_our_descriptor_is_not_signalled(armed: Start) -> None:
    text = "import os\nos.closerange(3, 100)\nkept = open('data', 'wb')\nos.closerange(10, 20)\n"
    process = armed(text + PROGRAM)
    first_line(process)
    (entry,) = stacks.collect({0: process.pid}, 2)["0"]
    assert "faulthandler: not armed" in entry["error"]
    assert (Path(f"/proc/{process.pid}/cwd") / "data").read_bytes() == b""


def test_a_stopped_process_is_reported(armed: Start) -> None:
    process = armed(PROGRAM)
    first_line(process)
    os.kill(process.pid, 19)
    # not by asking for stacks: a question that comes before the stop waits in the process
    while (processes.stat(process.pid) or "?")[0] != "T":
        pass
    (entry,) = stacks.collect({0: process.pid}, 2)["0"]
    assert entry["error"].endswith("faulthandler: no thread can answer (state T)")


def test_a_thread_that_can_answer_does_so_for_a_main_one_that_blocks_signals(armed: Start) -> None:
    process = armed(
        "import signal, threading, time\n"
        "def second():\n    time.sleep(60)\n"
        "threading.Thread(target=second, daemon=True).start()\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{hook_stacks.SIGNAL}])\n" + PROGRAM
    )
    first_line(process)
    (entry,) = stacks.collect({0: process.pid}, 5)["0"]
    assert functions(entry) == ["waits", "<module>"]


def test_another_thread_answers_for_a_main_one_that_is_in_the_kernel(armed: Start) -> None:
    # a spawned child that waits to open a FIFO holds its parent uninterruptibly, and the GIL too
    process = armed(
        "import os, threading, time\n"
        "os.mkfifo('fifo')\n"
        "def second():\n    time.sleep(60)\n"
        "threading.Thread(target=second, daemon=True).start()\n"
        "opening = [(os.POSIX_SPAWN_OPEN, 0, 'fifo', os.O_RDONLY, 0)]\n"
        "def spawns():\n"
        "    print('up', flush=True), os.posix_spawn('/x', ['x'], {}, file_actions=opening)\n"
        "spawns()\n"
    )
    first_line(process)
    deadline = time.monotonic() + 300
    while True:
        found = stacks.collect({0: process.pid}, 5)["0"]
        has_child = len(found) == 2
        # on a busy machine, the other thread may come too late to answer one question
        if has_child and found[0]["state"] == "D" and found[0]["threads"]:
            break
        assert time.monotonic() < deadline, found
    parent, child = found
    assert functions(parent) == ["spawns", "<module>"]
    # it still has its parent's descriptor and handlers, in its parent's memory
    assert (child["threads"], child["tool"]) == ([], "proc")


def test_a_process_other_than_python_is_described_by_the_kernel(tmp_path: Path) -> None:
    environment = rank_hooks.arm(str(tmp_path), {})
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **environment}) as process:
        try:
            (entry,) = stacks.collect({0: process.pid}, 2)["0"]
            assert (entry["threads"], entry["tool"]) == ([], "proc")
            assert entry["error"] == "not a Python program"
            assert entry["state"] in "SDR"
            assert process.poll() is None
        finally:
            process.kill()


def test_a_rank_that_has_ended_is_reported() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    (entry,) = stacks.collect({5: process.pid}, 2)["5"]
    assert entry == {
        "pid": process.pid,
        "state": "",
        "tool": "proc",
        "threads": [],
        "error": "it has ended",
    }


def test_a_rank_that_has_ended_but_is_not_collected_is_reported() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (entry,) = stacks.collect({5: process.pid}, 2)["5"]
    assert entry["error"] == "it has ended"


def test_one_ranks_processes_are_not_anothers() -> None:
    inner = f"import subprocess\nsubprocess.run([{sys.executable!r}, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE) as outer:
        try:
            deadline = time.monotonic() + 300
            while len(below := stacks._families({0: outer.pid})[0]) < 2:
                assert time.monotonic() < deadline
            families = stacks._families({0: outer.pid, 1: below[1]})
            assert families == {0: [outer.pid], 1: [below[1]]}
        finally:
            assert outer.stdin is not None
            outer.stdin.write(b"\n")
            outer.stdin.close()


def test_a_tool_that_hangs_takes_half_of_the_time_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    start = time.monotonic()
    (entry,) = stacks.collect({0: os.getpid()}, 2)["0"][:1]
    (waited,) = re.findall(r"py-spy: no answer in ([\d.]+) s", entry["error"])
    assert 0 < float(waited) <= 1  # less where the machine was busy before
    assert time.monotonic() - start < 300


def test_a_tool_that_may_not_attach_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho 'Permission Denied' >&2\nexit 1\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    entry = stacks.collect({0: os.getpid()}, 5)["0"][0]
    assert entry["error"] == "py-spy: Permission Denied; faulthandler: not armed"


def test_a_sitecustomize_of_the_users_is_run_as_if_ours_were_not_there(
    armed: Start, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine', __name__)\nVALUE = 7\n")
    program = (
        "import sys, sitecustomize\n"
        "print(sitecustomize.VALUE, any(path.endswith('/python.zip') for path in sys.path))\n"
    )
    process = armed(program, PYTHONPATH=str(tmp_path / "own"))
    assert process.communicate() == ("mine sitecustomize\n7 False\n", "")


def test_an_error_in_a_sitecustomize_of_the_users_is_reported_as_ever(
    armed: Start, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("1 / 0\n")
    process = armed("print('up')", PYTHONPATH=str(tmp_path / "own"))
    out, err = process.communicate()
    assert out == "up\n"
    assert "ZeroDivisionError" in err


def test_without_one_there_is_no_sitecustomize(armed: Start) -> None:
    program = (
        "try:\n    import sitecustomize\n    print(sitecustomize.__file__)\n"
        "except ImportError as error:\n    print(error.name)\n"
    )
    out, err = armed(program).communicate()
    assert rank_hooks.ARCHIVE not in out
    assert err == ""


def test_a_crash_shows_where(armed: Start) -> None:
    process = armed("import os\ndef crashes():\n    os.abort()\ncrashes()\n")
    err = process.communicate()[1]
    assert "line 3 in crashes" in err
    assert process.returncode == -6


def test_a_faulthandler_that_the_user_configured_is_left_alone(armed: Start) -> None:
    process = armed("import faulthandler\nprint(faulthandler.is_enabled())", PYTHONFAULTHANDLER="")
    assert process.communicate() == ("False\n", "")


def test_a_process_survives_a_signal_that_comes_while_it_leaves(armed: Start) -> None:
    # what the interpreter does at its end: faulthandler puts back what was there before it
    program = (
        f"import faulthandler, os\nfaulthandler.unregister({hook_stacks.SIGNAL})\n"
        f"os.kill(os.getpid(), {hook_stacks.SIGNAL})\nprint('survived')\n"
    )
    process = armed(program)
    assert process.communicate() == ("survived\n", "")


def test_the_variables_keep_what_pythonpath_was(tmp_path: Path) -> None:
    place = str(tmp_path / rank_hooks.ARCHIVE)
    assert rank_hooks.arm(str(tmp_path), {}) == {"PYTHONPATH": place}
    assert rank_hooks.arm(str(tmp_path), {"PYTHONPATH": ""}) == {"PYTHONPATH": place}
    assert rank_hooks.arm(str(tmp_path), {"PYTHONPATH": "a::b"}) == {"PYTHONPATH": f"{place}:a::b"}


def test_where_nothing_can_be_written_nothing_is_armed(tmp_path: Path) -> None:
    assert rank_hooks.arm("/proc/nowhere", {}) == {}
    assert rank_hooks.arm(str(tmp_path / "a:b"), {}) == {}
