"""How runs end: always with the right cause and with nothing left. Every run here is checked by
the fixture to have left no process behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dslaunch.node import cgroup, processes
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.timeouts import Timeouts

if TYPE_CHECKING:
    from conftest import Emulated

RANK = "import os, time\nrank = int(os.environ['RANK'])\n"
TOGETHER = """
import pathlib
up = pathlib.Path(os.environ["DSLAUNCH_STATE"]).parent / "up"
up.mkdir(exist_ok=True)
(up / str(rank)).touch()
while len(list(up.iterdir())) < 3:
    time.sleep(0.01)
"""
"""Wait until all three ranks have come to this line."""


def test_a_good_run_is_ok_and_says_what_its_ranks_said(emulated: Emulated) -> None:
    seen = emulated.run("import os; print('I am', os.environ['RANK'])")
    assert seen.outcome.exit_code == 0
    assert [seen.text(rank) for rank in range(3)] == [["I am 0"], ["I am 1"], ["I am 2"]]


def test_a_script_that_fails_at_import_on_one_rank_is_the_cause(emulated: Emulated) -> None:
    script = f"{RANK}if rank == 2:\n    import nowhere\ntime.sleep(600)"
    seen = emulated.run(script)
    assert seen.outcome.reason == EndReason(EndCode.RANK_FAILED, "n1", 2, exit_code=1)
    assert seen.outcome.last_lines[-1] == "ModuleNotFoundError: No module named 'nowhere'"
    assert "install nowhere" in seen.outcome.hint


def test_a_failing_rank_gives_the_run_its_exit_code(emulated: Emulated) -> None:
    seen = emulated.run(f"{RANK}if rank == 1: raise SystemExit(42)\ntime.sleep(600)")
    assert (seen.outcome.exit_code, seen.outcome.cause.rank) == (42, 1)


def test_a_killed_rank_is_reported_with_its_signal(emulated: Emulated) -> None:
    script = f"{RANK}if rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(600)"
    seen = emulated.run(script)
    assert seen.outcome.exit_code == 137
    assert seen.outcome.reason.signal == 9


def test_the_others_end_within_seconds(emulated: Emulated) -> None:
    began = time.monotonic()
    emulated.run(f"{RANK}if rank == 0: raise SystemExit(1)\ntime.sleep(600)")
    assert time.monotonic() - began < 300


def test_a_rank_that_ignores_being_asked_is_made_to_end(emulated: Emulated) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    script = f"{RANK}{deaf}{TOGETHER}if rank == 0: raise SystemExit(3)\ntime.sleep(600)"
    seen = emulated.run(script, timeouts=Timeouts(grace=0.5))
    assert seen.outcome.exit_code == 3
    assert {e.signal for e in seen.events if e.kind == "exit" and e.rank in (1, 2)} == {9}


def test_ranks_that_hang_at_exit_are_named_and_ended(emulated: Emulated) -> None:
    script = (
        f"{RANK}import threading\n"
        "if rank == 1: threading.Thread(target=time.sleep, args=(600,)).start()\n"
        f"{TOGETHER}"
    )
    seen = emulated.run(script, timeouts=Timeouts(grace=0.5, exit_timeout=10))
    assert seen.outcome.exit_code == 1
    expected = EndReason(EndCode.EXIT_TIMEOUT, seconds=10, ranks=(("n0", 1),))
    assert seen.outcome.reason == expected


DAEMON = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {forget}
        time.sleep({nap})
    os._exit(0)
time.sleep(0.3)
"""
NAP = str(100_000 + os.getpid())
"""Seconds by which the processes of these tests are told from those of others."""


@pytest.mark.parametrize(
    "forget",
    ["pass", "os.execve('/bin/sleep', ['sleep', '{nap}'], {{}})"],
    ids=["tagged", "untagged"],
)
def test_a_process_that_detaches_itself_does_not_outlive_the_run(
    emulated: Emulated, forget: str
) -> None:
    seen = emulated.run(DAEMON.format(forget=forget.format(nap=NAP), nap=NAP))
    assert seen.outcome.exit_code == 0
    assert napping() == []


def napping() -> list[int]:
    return [pid for pid in processes.pids() if _argv(pid)[1:2] == [NAP.encode()]]


def _argv(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_a_program_that_is_not_there_is_said_so(emulated: Emulated) -> None:
    seen = emulated.run("", program="/nowhere/prog", kind="command")
    assert seen.outcome.exit_code == 127
    assert seen.outcome.reason.code is EndCode.START_FAILED
    assert seen.outcome.reason.error == "/nowhere/prog: No such file or directory"


def test_the_output_of_secondary_failures_is_in_their_logs(emulated: Emulated) -> None:
    handler = (
        "import signal, sys\n"
        "def end(*_):\n    print('cleaning up'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
    )
    script = f"{RANK}{handler}{TOGETHER}if rank == 0: sys.exit(1)\ntime.sleep(600)"
    seen = emulated.run(script)
    assert (seen.directory / "logs" / "n1.2.log").read_text() == "cleaning up\n"


HIDES_AND_FIGHTS = """\
import os, signal, sys, time
AGENT = os.getppid()
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            {harm}
            os.execve("/bin/sleep", ["sleep", "{nap}"], {{}})
        os._exit(0)
time.sleep(2)
"""
HARMS = {
    "hides": "pass",
    "stops its agent": "os.kill(AGENT, signal.SIGSTOP)",
    "changes its user": "os.geteuid() or os.setuid(65534)",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_rank_that_hides_or_fights_leaves_nothing(emulated: Emulated, harm: str) -> None:
    seen = emulated.run(HIDES_AND_FIGHTS.format(harm=HARMS[harm], nap=NAP))
    assert seen.outcome.exit_code == 0
    assert {e.contained for e in seen.events if e.kind == "contained"} <= {"cgroup", "descendants"}
    assert napping() == []


def test_a_rank_that_kills_our_programs_is_ended_with_its_control_group(emulated: Emulated) -> None:
    if (group := cgroup.make("test")) is None:
        pytest.skip("no cgroup v2 that this user may divide")
    cgroup.remove(group)
    kills = (
        "parent = int(open(f'/proc/{AGENT}/stat').read().rpartition(')')[2].split()[1]); "
        "os.kill(parent, 9); os.kill(AGENT, 9)"
    )
    text = HIDES_AND_FIGHTS.format(harm=kills, nap=NAP)
    seen = emulated.run(text.replace("time.sleep(2)", "time.sleep(1000)"))
    assert seen.outcome.exit_code == 5
    assert {e.contained for e in seen.events if e.kind == "contained"} == {"cgroup"}
    assert napping() == []


NOTICED = f"""{RANK}
import pathlib, signal, sys
here = pathlib.Path(sys.argv[2])
got = []
if rank != 2:
    signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
here.mkdir(exist_ok=True)
(here / str(rank)).touch()
if rank == 0:
    while len(list(here.iterdir())) < 3:
        time.sleep(0.05)
    os.kill(int(sys.argv[1]), signal.SIGUSR1)
while not got and rank != 2:
    time.sleep(0.05)
time.sleep(rank)
print("saved", flush=True)
sys.exit(3 if rank == 0 else 0)
"""


def test_after_a_notice_every_rank_saves_before_the_run_ends(emulated: Emulated) -> None:
    """The first that ends with a failure does not end the others; one without a handler goes on."""
    words = (str(os.getpid()), str(emulated.path / "up"))
    seen = emulated.run(NOTICED, *words, notice=signal.SIGUSR1)
    assert [seen.text(rank) for rank in range(3)] == [["saved"]] * 3
    assert seen.outcome.exit_code == 3
    assert [event.kind for event in seen.events].count("noticed") == 1
