"""What faulthandler writes, and how processes are armed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from dslaunch.node import stacks

WRITTEN = """\
Thread 0x00007f1c1b7fe640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f1c3a4f5740 [main] (most recent call first):
  File "train.py", line 12 in step
  File "train.py", line ??? in <module>
  ...
"""
PROGRAM = "import sys, time\nprint('up', flush=True)\ndef waits():\n    time.sleep(60)\nwaits()\n"


def test_threads_and_their_frames_are_read() -> None:
    helper, main = stacks.parse(WRITTEN)
    assert helper["frames"][0] == ["/usr/lib/python3.11/threading.py", 320, "wait"]
    assert main == {
        "name": "main",
        "frames": [["train.py", 12, "step"], ["train.py", 0, "<module>"]],
    }


def test_what_is_no_stack_is_no_thread() -> None:
    assert stacks.parse("Segmentation fault\n") == []


def armed(directory: Path, command: list[str], **more: str) -> subprocess.Popen[str]:
    environment = {"PATH": "/usr/bin:/bin", **more}
    environment |= stacks.arm(str(directory), environment)
    return subprocess.Popen(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, text=True
    )


def test_an_armed_process_shows_its_stack_and_lives_on(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    with armed(tmp_path, [sys.executable, "job.py"]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for _ in range(2):
                found = stacks.collect({3: process.pid}, str(tmp_path), 5)
                (thread,) = found["3"][0]["threads"]
                assert [frame[::2] for frame in thread["frames"]] == [
                    ["job.py", "waits"],
                    ["job.py", "<module>"],
                ]
            assert process.poll() is None
        finally:
            process.kill()


def test_children_by_fork_have_their_own_stack(tmp_path: Path) -> None:
    text = PROGRAM.replace("def waits", "import os\nos.fork()\ndef waits")
    (tmp_path / "job.py").write_text(text)
    with armed(tmp_path, [sys.executable, "job.py"]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            deadline = time.monotonic() + 5
            while len(found := stacks.collect({0: process.pid}, str(tmp_path), 2)["0"]) < 2:
                assert time.monotonic() < deadline
            assert all("threads" in each for each in found)
        finally:
            for each in stacks.collect({0: process.pid}, str(tmp_path), 1)["0"]:
                subprocess.run(["kill", "-KILL", str(each["pid"])], check=False)


def test_a_process_that_is_not_armed_is_not_signalled(tmp_path: Path) -> None:
    with armed(tmp_path, ["sleep", "60"]) as process:
        try:
            found = stacks.collect({0: process.pid}, str(tmp_path), 1)
            assert "threads" not in found["0"][0]
            assert found["0"][0]["state"] in "SDR"
            assert process.poll() is None
        finally:
            process.kill()


def test_a_sitecustomize_of_the_users_is_still_run(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine')")
    program = "import sys; print(any(path.endswith('arm') for path in sys.path))"
    command = [sys.executable, "-c", program]
    with armed(tmp_path, command, PYTHONPATH=str(tmp_path / "own")) as process:
        assert process.communicate()[0] == "mine\nFalse\n"


def test_where_nothing_can_be_written_nothing_is_armed() -> None:
    assert stacks.arm("/proc/nowhere", {}) == {}
