"""The shell functions that run a task: its exit code arrives, whatever signals come and when."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from dslaunch.render.script_functions import DECLARED, run_functions, task_functions

TRIES = 60
ATTENDED = 'attend "$@"\nleave\nexit "$code"\n'
TASK = run_functions(signal=False) + task_functions(signal=False, python=False) + ATTENDED
TASK_WITH_NOTICE = run_functions(signal=True) + task_functions(signal=True, python=True) + ATTENDED
NOTICED = "notice=USR1; trap 'noticed=1 early+=\" USR1\"' USR1\n"
PYTHON_ENDS_WELL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(60)
"""
ENDS_WELL = (sys.executable, "-c", PYTHON_ENDS_WELL)
IS_KILLED = ("bash", "-c", "echo ready; exec sleep 60")
FAILS = ("bash", "-c", "echo ready; sleep 0.02; exit 3")

Task = subprocess.Popen[bytes]


def started(*command: str, text: str = TASK) -> Task:
    """A task in a process group of its own, whose command is ready."""
    task = subprocess.Popen(
        ["bash", "-c", text, "task", *command], stdout=subprocess.PIPE, start_new_session=True
    )
    assert task.stdout is not None
    assert task.stdout.readline() == b"ready\n"
    return task


def signal_the_task_alone(task: Task) -> None:
    task.send_signal(signal.SIGTERM)


def signal_all_processes(task: Task) -> None:
    os.killpg(task.pid, signal.SIGTERM)


def signal_all_and_once_more(task: Task) -> None:
    os.killpg(task.pid, signal.SIGTERM)
    time.sleep(0.001)
    task.send_signal(signal.SIGTERM)


each_way = pytest.mark.parametrize(
    "send", [signal_the_task_alone, signal_all_processes, signal_all_and_once_more]
)


each_text = pytest.mark.parametrize("text", [TASK, f"notice=USR1\n{TASK_WITH_NOTICE}"])


def exit_codes(
    tries: int, command: tuple[str, ...], send: Callable[[Task], None], text: str = TASK
) -> Counter[int]:
    tasks = [started(*command, text=text) for _ in range(tries)]
    for task in tasks:
        send(task)
    codes = Counter(task.wait(timeout=300) for task in tasks)
    for task in tasks:
        task.communicate()
    return codes


@each_way
@each_text
@pytest.mark.parametrize(("command", "code"), [(ENDS_WELL, 0), (IS_KILLED, 143)])
def test_the_exit_code_of_a_terminated_command_arrives(
    command: tuple[str, ...], code: int, text: str, send: Callable[[Task], None]
) -> None:
    assert exit_codes(3, command, send, text) == {code: 3}


@pytest.mark.long
@each_way
@pytest.mark.parametrize(("command", "code"), [(ENDS_WELL, 0), (IS_KILLED, 143)])
def test_the_exit_code_arrives_every_time(
    command: tuple[str, ...], code: int, send: Callable[[Task], None]
) -> None:
    rounds = 6
    codes = sum((exit_codes(TRIES // rounds, command, send) for _ in range(rounds)), Counter())
    assert codes == {code: TRIES}


def test_a_command_that_ends_as_the_signal_arrives_keeps_its_exit_code() -> None:
    """The signal comes before, while and after the command ends by itself; never twice."""
    codes = set()
    for attempt in range(12):
        with started(*FAILS) as task:
            time.sleep(0.015 + attempt * 0.001)
            task.send_signal(signal.SIGTERM)
            codes.add(task.wait(timeout=300))
    assert codes == {3}


def test_an_exit_code_without_a_signal_arrives() -> None:
    with started("bash", "-c", "echo ready; exit 127") as task:
        assert task.wait(timeout=300) == 127


def test_a_command_without_a_handler_ignores_the_notice() -> None:
    script = ("bash", "-c", "echo ready; sleep 0.6; exit 5")
    with started(*script, text=f"notice=USR1\n{TASK_WITH_NOTICE}") as task:
        task.send_signal(signal.SIGUSR1)
        assert task.wait(timeout=300) == 5


def test_a_notice_before_the_command_is_there_is_kept_for_it() -> None:
    """A task can take long before its command: activation, versions."""
    arrives = "kill -USR1 $$\n"
    at_its_end = f"{NOTICED}{arrives}{TASK_WITH_NOTICE}".replace(
        'exit "$code"', 'exit "$code$noticed"'
    )
    with started("bash", "-c", "echo ready; sleep 0.6; exit 5", text=at_its_end) as task:
        assert task.wait(timeout=300) == 51


def living(group: int) -> list[str]:
    """The processes of a group that run, zombies left out."""
    done = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in done.stdout.splitlines()]
    return [row[2] for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


def test_nothing_of_a_task_is_left() -> None:
    with started("bash", "-c", "echo ready") as task:
        task.wait(timeout=300)
    deadline = time.monotonic() + 300
    while living(task.pid):
        assert time.monotonic() < deadline, living(task.pid)
        time.sleep(0.02)


def test_the_functions_are_passed_to_another_shell() -> None:
    text = (
        run_functions(signal=False)
        + f'bash -c "$({DECLARED}); start false; finish; exit \\"\\$code\\""'
    )
    assert subprocess.run(["bash", "-c", text], check=False).returncode == 1


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_shellcheck_has_no_complaint() -> None:
    called = 'print_versions python3 torch; attend "$@"'
    text = "notice=USR1\n" + TASK_WITH_NOTICE.replace('attend "$@"', called)
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "-"], input=text, capture_output=True, text=True
    )
    assert done.stdout == ""
