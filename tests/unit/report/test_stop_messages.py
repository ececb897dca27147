"""After a requested stop the screen shows what ranks say, and not how their launcher ends."""

from __future__ import annotations

import io

import pytest

from dslaunch.report.live import TerminalView
from dslaunch.report.stop_messages import MOST_LINES, StopMessages
from dslaunch.run.events import Event, Line, LineBlock
from dslaunch.run.reasons import EndCode, EndReason

# torch 2.13, torchrun on TERM; shortened in the middle
STOPPED = """\
Traceback (most recent call last):
  File "torch/distributed/run.py", line 1028, in main
    run(args)
    ^^^^^^^^^
  File "torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 16364 got signal: 15
""".splitlines()
WARNINGS = (
    # torch 2.13
    "W1127 23:23:15.873000 21533 /lib/python3.11/site-packages/torch/distributed/elastic/agent/"
    "server/api.py:753] Received 15 death signal, shutting down workers",
    "W1127 23:23:15.874000 21533 /lib/python3.11/site-packages/torch/distributed/elastic/"
    "multiprocessing/api.py:1028] Sending process 21621 closing signal SIGTERM",
    # torch 2.1
    "[2024-02-08 10:11:12,345] torch.distributed.elastic.agent.server.api: [WARNING] Received "
    "Signals.SIGTERM death signal, shutting down workers",
)
OTHER_WARNING = WARNINGS[1].replace("closing signal SIGTERM", "to another place")
FAILED = [*STOPPED[:-1], "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "]


def said(text: str, *, rank: int | None = None, host: str = "node1") -> Line:
    return Line(0.0, host, rank, "stderr", text)


def shown(lines: list[Line]) -> list[str]:
    messages = StopMessages()
    passed = [each for line in lines for each in messages.shown(line)]
    return [line.text for line in (*passed, *messages.rest())]


def test_the_traceback_of_a_stopped_launcher_is_left_out() -> None:
    lines = [said("earlier"), *map(said, STOPPED), said("later")]
    assert shown(lines) == ["earlier", "later"]


def test_the_warnings_of_a_stopped_launcher_are_left_out_and_no_others() -> None:
    lines = [said(text) for text in (*WARNINGS, OTHER_WARNING)]
    assert shown(lines) == [OTHER_WARNING]


def test_the_tracebacks_of_several_nodes_may_arrive_in_turn() -> None:
    lines = [said(text, host=host) for text in STOPPED for host in ("node1", "node2")]
    assert shown(lines) == []


def test_another_traceback_of_a_launcher_is_shown_whole() -> None:
    assert shown([said(text) for text in FAILED]) == FAILED


def test_a_traceback_without_its_end_is_shown_at_the_end() -> None:
    assert shown([said(text) for text in STOPPED[:-1]]) == STOPPED[:-1]


def test_a_traceback_that_does_not_end_is_not_kept() -> None:
    lines = [said(STOPPED[0]), *[said("  File")] * (2 * MOST_LINES)]
    messages = StopMessages()
    assert len([each for line in lines for each in messages.shown(line)]) == len(lines)


def test_the_same_lines_of_a_rank_are_shown() -> None:
    texts = [*WARNINGS, *STOPPED]
    assert shown([said(text, rank=0) for text in texts]) == texts


@pytest.mark.parametrize("stopped", [False, True])
def test_a_screen_leaves_them_out_after_a_stop_alone(stopped: bool) -> None:
    err = io.StringIO()
    screen = TerminalView(io.StringIO(), err, nodes=("node1",))
    if stopped:
        screen.event(Event(0.0, "stopping", reason=EndReason(EndCode.INTERRUPTED)))
    screen.block(LineBlock(0.0, "node1", None, "stderr", "\n".join([*WARNINGS, *STOPPED])))
    screen.close()
    assert ("SignalException" in err.getvalue()) is not stopped
    assert ("death signal" in err.getvalue()) is not stopped
