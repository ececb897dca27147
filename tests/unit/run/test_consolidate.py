"""Before DeepSpeed's converter is started."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.transport.fake import Answer, FakeChannel

from dslaunch.cluster.model import Node
from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.errors import DslaunchError, NodeError, PreflightError, ToolMissingError
from dslaunch.launch.command import Command
from dslaunch.protocol import checkpoints as protocol
from dslaunch.run import consolidate
from dslaunch.transport.future import Future


class Room:
    """A place with so much memory and disk."""

    name = "node1"

    def __init__(self, memory: int, free: int) -> None:
        self.said = protocol.Room(memory=memory, free=free, path="/out")

    def ask(self, operation: str, path: str, **more: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(self.said)
        return answer


def of(params: int | None) -> Checkpoint:
    return Checkpoint(".", "t", protocol.Header(stage=2, world=1, params=params), {})


@pytest.mark.parametrize(
    ("params", "memory", "free", "needed"),
    [
        (1_750_000_000, 14 << 30, 100 << 30, ("15.7 GB", "15.0 GB")),
        (7_000_000_000, 100 << 30, 26 << 30, ("28.0 GB", "27.9 GB")),
    ],
)
def test_too_little_memory_or_disk_is_reported_before_the_conversion(
    params: int, memory: int, free: int, needed: tuple[str, str]
) -> None:
    with pytest.raises(PreflightError) as raised:
        consolidate.check_resources(of(params), Room(memory, free), "/out")
    assert re.findall(r"[\d.]+ GB", raised.value.message) == list(needed)


def test_it_continues_with_enough_or_unknown_space() -> None:
    consolidate.check_resources(of(7_000_000_000), Room(80 << 30, 80 << 30), "/out")
    consolidate.check_resources(of(None), Room(0, 0), "/out")


def test_output_of_the_converter_is_shown_and_its_last_lines_are_reported() -> None:
    said: list[str] = []
    with pytest.raises(DslaunchError, match=r"3: bad shard$"):
        consolidate.convert_here(Command(("sh", "-c", "echo bad shard; exit 3")), said.append)
    assert said == ["bad shard"]
    with pytest.raises(ToolMissingError, match=r"^/no/python "):
        consolidate.convert_here(Command(("/no/python",)), said.append)


def test_an_interpreter_without_deepspeed_is_a_missing_tool() -> None:
    made = consolidate.command(sys.executable, "i", "o", "t", safetensors=False, trust=True)
    without_packages = (made.argv[0], "-S", *made.argv[1:])
    with pytest.raises(ToolMissingError):
        consolidate.convert_here(Command(without_packages), lambda line: None)


def test_the_converter_is_deepspeeds_own() -> None:
    made = consolidate.command("python3", "/in", "/out", "step5", safetensors=True, trust=False)
    assert made.argv[0] == "python3"
    assert "deepspeed.utils.zero_to_fp32" in str(made.argv[4])
    assert made.argv[6:] == ("/in", "/out", "--tag=step5", "--safe_serialization")


def test_the_converter_loads_everything_only_with_trust() -> None:
    def names(*, trust: bool) -> object:
        return consolidate.command("p", "/in", "/out", "t", safetensors=False, trust=trust).argv[5]

    assert names(trust=True) == ""
    assert "deepspeed.runtime.zero.config.ZeroStageEnum" in str(names(trust=False)).split(",")


def test_the_converter_starts_without_the_callers_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_marker")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    said: list[str] = []
    consolidate.convert_here(Command(("env",)), said.append)
    assert "OMP_NUM_THREADS=3" in said
    assert "hf_marker" not in "".join(said)


def test_a_line_without_an_end_is_passed_on_in_pieces() -> None:
    said: list[str] = []
    consolidate.convert_here(Command(("head", "-c", "300000", "/dev/zero")), said.append)
    assert [len(line) for line in said] == [65536, 65536, 65536, 65536, 37856]


class Lines:
    """A connection over which the converter prints, and which may break."""

    def __init__(self, answer: Answer, breaks: OSError | None = None) -> None:
        self.answer, self.breaks = answer, breaks
        self.closed = False

    def start(self, line: str, text: Sequence[bytes] = ()) -> FakeChannel:
        if self.breaks is not None:
            raise self.breaks
        return FakeChannel(self.answer)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("connection", "kind"),
    [
        (Lines(Answer(), ConnectionResetError(104, "Connection reset by peer")), "broken"),
        (Lines(Answer(stdout=b"loading\n", exit_code=None)), "lost"),
    ],
)
def test_a_connection_that_breaks_during_the_conversion_is_a_failure_of_the_node(
    connection: Lines, kind: str
) -> None:
    with pytest.raises(NodeError) as raised:
        consolidate.convert_over(connection, Node("node1", (0,)), Command(("true",)), print)
    (failure,) = raised.value.failures
    assert (failure.host, failure.kind) == ("node1", kind)
    assert connection.closed
