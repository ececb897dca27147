"""Answers many questions about its node at once, each with its own timeout. It changes nothing but
what a question asks for.

A question is `{"kind": ..., "argument": ..., "timeout": seconds}`; its answer is
`{"value": ..., "seconds": ...}` or `{"error": why}`. What may hang (programs, paths, names) is
answered by child processes. A child that exceeds the timeout is killed and not waited for: one that
waits for a dead file server cannot even be killed.

It receives and sends frames, as the agent does. A preflight starts it as a program; a run's agent
starts it as a process beside itself.
"""

from __future__ import annotations

import os
import select
import sys
import time

from dslaunch.node import frames, plain_json, questions

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import `typing` takes a node longer than to answer most of its questions
    import signal
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    Answer = Dict[str, Any]
    Asked = Tuple[str, Answer]
    """A question with its key."""
else:
    import _signal as signal  # why not `signal`: see paths.py

PIECE = 65536
MOST_OUTPUT = 4 << 20
"""Bytes of a child's answers that are read."""
AT_ONCE = 16
"""Children that work at the same time."""
HOLD_UP = 2.0
"""Seconds that a question may take before the questions behind it are given to other children. On a
node with busy CPUs, a shorter limit would be mistaken for a hanging disk."""


def main(arguments: Dict[str, Any]) -> None:
    """Answer requests on standard input, without an agent."""
    out = os.dup(1)
    with open(os.devnull, "r+b", buffering=0) as nowhere:
        os.dup2(nowhere.fileno(), 1)  # output of a library must not come between the frames
    try:
        _write(out, frames.GREETING)
    except OSError:
        pass  # the launcher is gone
    requests: Any = sys.stdin.buffer  # the loader may have read more than the program from it
    serve(lambda: requests.read1(PIECE), lambda data: _write(out, data))


def serve(read: Callable[[], bytes], write: Callable[[bytes], object]) -> None:
    """Reply to each request until there are no more, then clean up: answer the questions that
    requests gave as `last`, also when the launcher was killed. Never returns."""
    hello = {**questions.identity(), "umask": questions.umask()}
    children = Children()
    last: Dict[str, Answer] = {}
    try:
        for request in messages(read):
            received = time.time()
            last.update(request.get("last", {}))
            reply: Answer = {"reply": request["id"], "value": None}
            if "questions" in request:
                answers = ask(request["questions"], children)
                reply["value"] = {"hello": hello, "answers": answers}
            reply.update(received=received, time=time.time())
            write(frames.frame(frames.MESSAGE, _text(reply)))
    except ConnectionError:
        pass  # the launcher is gone
    except Exception:  # noqa: BLE001 - any error, such as requests that are no frames, must not skip the cleanup
        sys.excepthook(*sys.exc_info())
    finally:
        ask(last, children)
        children.end()
        questions.clean()
        os._exit(0)  # threads that serve listeners are not waited for


def messages(read: Callable[[], bytes]) -> Iterator[frames.Message]:
    """Yield the messages that are read; an incomplete last one is dropped: its sender was
    killed."""
    decoder = frames.Decoder(lambda body: plain_json.value(body.decode()))
    while True:
        data = read()
        if not data:
            return
        for frame in decoder.feed(data):
            assert isinstance(frame, dict)
            yield frame


def ask(asked: Dict[str, Answer], children: Children) -> Answer:
    """Return the answers to all questions, by key."""
    answers: Answer = {}
    later: List[Asked] = []
    for key, question in asked.items():
        if question["kind"] in questions.AT_ONCE:
            answers[key] = answered(question)
        else:
            later.append((key, question))
    children.ask(later, answers)
    return answers


def answered(question: Answer) -> Answer:
    """Return the answer to a question, with the seconds that it took."""
    began = time.monotonic()
    argument = question["argument"]
    if question.get("text"):
        argument = {**argument, "text": question["text"]}
    answer = questions.answered(lambda: questions.KINDS[question["kind"]](argument))
    return {**answer, "seconds": round(time.monotonic() - began, 4)}


def _text(value: Any) -> bytes:
    """Return JSON; undecodable bytes of file names become question marks."""
    return plain_json.text(value).encode(errors="replace")


def _line(value: Any) -> bytes:
    return _text(value) + b"\n"


def _write(out: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(out, left) :]


class Child:
    """A process that answers questions, one after the other; it can be asked again."""

    def __init__(self) -> None:
        self.asked: List[Asked] = []
        """The questions without an answer yet; the first is being answered."""
        self.alone = False
        """Whether the questions behind the first were given to other children; it ends after
        that."""
        self.rest, self.kept = b"", 0
        requests, self.requests = os.pipe()
        self.pipe, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(requests, answers)
        os.close(requests)
        os.close(answers)

    def give(self, asked: List[Asked]) -> None:
        """Ask questions; it must have none."""
        self.asked, self.kept = asked, 0
        self._next()
        try:
            _write(self.requests, _line([question for _, question in asked]))
        except OSError:
            pass  # it died: its answers end

    def _next(self) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + (_timeout(self.asked[0]) if self.asked else 10)

    def _work(self, requests: int, out: int) -> None:
        """In the child: close what the parent waits for, answer, and exit."""
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nowhere, number)
            low, high = sorted((requests, out))
            os.closerange(3, low)
            os.closerange(low + 1, high)
            os.closerange(high + 1, 256)
            with open(requests, "rb") as lines:
                for line in lines:
                    for question in plain_json.value(line.decode()):
                        _write(out, _line(answered(question)))
        finally:
            os._exit(0)

    def read(self, answers: Answer) -> bool:
        """Read the answers that have come; return whether more may follow."""
        piece = os.read(self.pipe, PIECE)
        self.kept += len(piece)
        if self.kept > MOST_OUTPUT:
            return False
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines[: len(self.asked)]:
            answers[self.asked[0][0]] = plain_json.value(line.decode())
            self.asked = self.asked[1:]
            self._next()
        return bool(piece) and not (self.alone and not self.asked)

    def leave(self) -> List[Asked]:
        """Return the questions behind the one that it is answering, which it loses."""
        rest, self.asked = self.asked[1:], self.asked[:1]
        self.alone = self.alone or bool(rest)
        return rest

    def close(self, answers: Answer) -> List[Asked]:
        """Kill it: the question that it was answering gets an error, those behind it are
        returned."""
        os.close(self.pipe)
        os.close(self.requests)
        try:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, os.WNOHANG)
        except OSError:
            pass  # it has exited, or its status was collected
        if not self.asked:
            return []
        late = time.monotonic() >= self.deadline
        waited = time.monotonic() - self.began
        why = f"no answer within {waited:.0f} s" if late else "it crashed"
        answers[self.asked[0][0]] = {"error": why}
        return self.asked[1:]


class Children:
    """The processes that answer the questions that may hang.

    One child answers nearly all of them, in all requests, since starting a child costs more than
    answering. When a question takes long, each of those behind it gets its own child. Of the
    questions of which each may take long, one is asked behind all others, of the same child.
    """

    def __init__(self) -> None:
        self.idle: Optional[Child] = None
        self.waiting: List[List[Asked]] = []
        self.working: Dict[int, Child] = {}

    def ask(self, later: List[Asked], answers: Answer) -> None:
        """Ask all questions, and add their answers to `answers`."""
        slow = [asked for asked in later if asked[1]["kind"] in questions.SLOW]
        swift = [asked for asked in later if asked[1]["kind"] not in questions.SLOW]
        swift.sort(key=lambda asked: asked[1]["kind"] in questions.REMOTE)
        first = [*swift, *slow[:1]]
        self.waiting = [[asked] for asked in slow[:0:-1]]
        if first:
            self.waiting.append(first)
        while self.waiting or self.working:
            while self.waiting and len(self.working) < AT_ONCE:
                self._start(self.waiting.pop())
            self._hear(answers)
            self._give_up(answers)

    def end(self) -> None:
        """End the child that is kept for further questions."""
        if self.idle is not None:
            self.idle.close({})
            self.idle = None

    def _start(self, asked: List[Asked]) -> None:
        child, self.idle = self.idle or Child(), None
        child.give(asked)
        self.working[child.pipe] = child

    def _hear(self, answers: Answer) -> None:
        """Wait for answers, or until a child must be checked."""
        first = min(_look_at(child) for child in self.working.values())
        ready, _, _ = select.select([*self.working], [], [], max(0.0, first - time.monotonic()))
        for pipe in ready:
            child = self.working[pipe]
            if not child.read(answers):
                self._end(child, answers)
            elif not child.asked:
                del self.working[pipe]
                spare, self.idle = self.idle, child
                if spare is not None:
                    spare.close({})

    def _give_up(self, answers: Answer) -> None:
        """End children that exceed a timeout, and reassign questions that wait behind a slow
        one."""
        now = time.monotonic()
        for child in [*self.working.values()]:
            if child.deadline <= now:
                self._end(child, answers)
            elif _look_at(child) <= now:
                self.waiting += [[asked] for asked in child.leave()]

    def _end(self, child: Child, answers: Answer) -> None:
        del self.working[child.pipe]
        self.waiting += [[asked] for asked in child.close(answers)]


def _look_at(child: Child) -> float:
    """Return when a child must be checked although it has not answered."""
    held_up = len(child.asked) > 1
    return min(child.deadline, child.began + HOLD_UP) if held_up else child.deadline


def _timeout(asked: Asked) -> float:
    return float(asked[1].get("timeout") or 10)
