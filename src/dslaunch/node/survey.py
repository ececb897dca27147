"""Answers many questions about its node at once, each within its own time. Read-only but for what
a question says.

A question is `{"kind": ..., "argument": ..., "timeout": seconds}`; its answer is
`{"value": ..., "seconds": ...}` or `{"error": why}`. What may hang (programs, paths, names) is
asked in child processes. A child that is late is killed and left behind: one that waits for a dead
file server cannot even die.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Tuple

from dslaunch.node import questions

Answer = Dict[str, Any]
Asked = Tuple[str, Answer]
"""A question with its key."""
MOST_OUTPUT = 4 << 20
"""Bytes of a child's answers that are taken."""
AT_ONCE = 16
"""Children at a time."""


def main(arguments: Dict[str, Any]) -> None:
    """Answer one line of JSON by another until standard input ends, then leave nothing behind."""
    mark = arguments["mark"].encode()
    out = os.dup(1)
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        os.dup2(nowhere.fileno(), 1)  # a stray print must not come between the answers
    _say(out, mark, {"hello": questions.identity()})
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            break
        _say(out, mark, reply(json.loads(line)))
    questions.clean()
    os._exit(0)  # threads that serve listeners are not waited for


def reply(request: Dict[str, Any]) -> Answer:
    """The answer to one line."""
    if "questions" in request:
        return {"answers": ask(request["questions"], request.get("host", ""))}
    return {"clock": time.time()}


def ask(asked: Dict[str, Answer], host: str = "") -> Dict[str, Answer]:
    """Answer all questions. `host` is how the cluster file calls this node."""
    answers: Dict[str, Answer] = {}
    later: List[Asked] = []
    for key, question in asked.items():
        if question["kind"] in questions.AT_ONCE:
            answers[key] = answered(question)
        else:
            later.append((key, question))
    Children(later).wait(answers)
    return answers


def answered(question: Answer) -> Answer:
    """Answer a question here and now."""
    began = time.monotonic()
    argument = question["argument"]
    if question.get("text"):
        argument = {**argument, "text": question["text"]}
    try:
        value = questions.KINDS[question["kind"]](argument)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    except Exception as error:  # noqa: BLE001 - no question may take the others with it
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value, "seconds": round(time.monotonic() - began, 4)}


def _say(out: int, mark: bytes, message: Answer) -> None:
    data = memoryview(mark + json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(out, data) :]


class Child:
    """Questions that are asked one after the other in a process of their own."""

    def __init__(self, asked: List[Asked]) -> None:
        self.asked = asked
        """Those without an answer yet; the first is being answered."""
        self.rest, self.kept = b"", 0
        self.pipe, other = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(other)
        os.close(other)
        self._next()

    def _next(self) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + (_timeout(self.asked[0]) if self.asked else 10)

    def _work(self, out: int) -> None:
        """In the child: keep nothing open that the caller waits for, answer, and be gone."""
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nowhere, number)
            os.dup2(out, 3)
            os.closerange(4, 256)
            for _, question in self.asked:
                _say(3, b"", answered(question))
        finally:
            os._exit(0)

    def read(self, answers: Dict[str, Answer]) -> bool:
        """Take the answers that have come; False at the end."""
        piece = os.read(self.pipe, 65536)
        self.kept += len(piece)
        if self.kept > MOST_OUTPUT:
            return False
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            answers[self.asked[0][0]] = json.loads(line)
            self.asked = self.asked[1:]
            self._next()
        return bool(piece)

    def close(self, answers: Dict[str, Answer]) -> List[Asked]:
        """Let go of it: what it was at is an error, and those behind that are given back."""
        os.close(self.pipe)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(self.pid, os.WNOHANG)
        if not self.asked:
            return []
        late = time.monotonic() >= self.deadline
        waited = time.monotonic() - self.began
        why = f"no answer within {waited:.0f} s" if late else "it crashed"
        answers[self.asked[0][0]] = {"error": why}
        return self.asked[1:]


class Children:
    """Questions that wait to be asked, and those that are under way.

    Those that are answered in no time share one child, since a child costs more than they do; when
    one of them hangs, the others get a child each.
    """

    def __init__(self, later: List[Asked]) -> None:
        swift = [asked for asked in later if asked[1]["kind"] not in questions.SLOW]
        slow = [[asked] for asked in later if asked[1]["kind"] in questions.SLOW]
        self.later = [*slow[::-1], swift] if swift else slow[::-1]
        self.working: Dict[int, Child] = {}

    def wait(self, answers: Dict[str, Answer]) -> None:
        """Ask them all, and put down their answers."""
        while self.later or self.working:
            while self.later and len(self.working) < AT_ONCE:
                child = Child(self.later.pop())
                self.working[child.pipe] = child
            ready, _, _ = select.select(list(self.working), [], [], self._patience())
            for pipe in ready:
                if not self.working[pipe].read(answers):
                    self._end(pipe, answers)
            for pipe in [p for p, c in self.working.items() if c.deadline <= time.monotonic()]:
                self._end(pipe, answers)

    def _patience(self) -> float:
        first = min(child.deadline for child in self.working.values())
        return max(0.0, first - time.monotonic())

    def _end(self, pipe: int, answers: Dict[str, Answer]) -> None:
        self.later += [[asked] for asked in self.working.pop(pipe).close(answers)]


def _timeout(asked: Asked) -> float:
    return float(asked[1].get("timeout") or 10)
