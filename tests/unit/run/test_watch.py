"""What is made of output that nobody sees."""

from __future__ import annotations

from dataclasses import dataclass, field

from dslaunch.node.frames import Output
from dslaunch.run.events import Event, Line
from dslaunch.run.view import View as AnyView
from dslaunch.run.watch import KEPT_LINES, Watch


@dataclass
class View(AnyView):
    """Keeps the lines that it is given."""

    lines: list[str] = field(default_factory=list)

    def line(self, line: Line) -> None:
        self.lines.append(line.text)

    def event(self, event: Event) -> None:
        """Nothing."""


def test_of_many_hidden_lines_only_the_last_are_kept_and_none_is_split() -> None:
    screen, source = View(), ("n1", 0)
    watch = Watch(screen, unseen=lambda: True)
    for data in (b"begin", b"".join(b"line %d\n" % i for i in range(1000)) + b"half", b" done\n"):
        watch.output("n1", Output(0, 1, 1.0, data), 0.0)
    last = [f"line {i}" for i in range(1000 - KEPT_LINES, 1000)]
    assert screen.lines == ["begin", *last, "half done"]
    assert list(watch.last[source]) == [*last[1:], "half done"]


def test_the_exception_that_ends_native_code_is_kept_before_the_stacks_after_it() -> None:
    watch = Watch(View())
    reason = b"  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 6\n"
    stacks = b"".join(b'  File "model.py", line %d in forward\n' % line for line in range(200))
    watch.output("n1", Output(0, 2, 1.0, reason + b"Fatal Python error: Aborted\n" + stacks), 0.0)
    failed = Event(2.0, "exit", "n1", rank=0, signal=6)
    watch.happened(failed)
    assert watch.outcome().ending == "collective-sizes"


def test_an_exception_whose_message_has_megabytes_is_kept_with_what_came_before_it() -> None:
    watch = Watch(View())
    traceback = b'Traceback (most recent call last):\n  File "train.py", line 4, in step\n'
    message = b"torch.OutOfMemoryError: CUDA out of memory. " + b"x" * 5_000_000
    written = traceback + message + b"\nthe last line\n"
    for at in range(0, len(written), 65536):
        watch.output("n1", Output(0, 2, 1.0, written[at : at + 65536]), 0.0)
    watch.happened(Event(2.0, "exit", "n1", rank=0, code=1))
    outcome = watch.outcome()
    assert outcome.ending == "gpu-memory"
    begins = [line[:9].strip() for line in outcome.last_lines]
    assert begins == ["Traceback", 'File "t', "torch.Out", "the last"]


def test_long_last_lines_of_a_rank_take_little_memory_and_keep_their_ends() -> None:
    watch = Watch(View())
    line = b"begin " + b"x" * 60_000 + b" end\n"
    for _ in range(2 * KEPT_LINES):
        watch.output("n1", Output(0, 1, 1.0, line), 0.0)
    last = watch.last["n1", 0]
    assert len(last) == KEPT_LINES
    assert {(text[:5], text[-3:]) for text in last} == {("begin", "end")}
    assert sum(map(len, last)) < 400_000


def test_few_lines_are_all_kept() -> None:
    seen, unseen = View(), View()
    data = b"".join(b"line %d\n" % i for i in range(KEPT_LINES))
    for screen in (seen, unseen):
        watch = Watch(screen, unseen=lambda screen=screen: screen is unseen)  # type: ignore[misc]
        for _ in range(3):
            watch.output("n1", Output(0, 1, 1.0, data), 0.0)
    assert seen.lines == unseen.lines
    assert len(seen.lines) == 3 * KEPT_LINES
