"""Before DeepSpeed's converter is started."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

import pytest

from dslaunch.deepspeed.checkpoint import Checkpoint
from dslaunch.errors import DslaunchError, PreflightError, ToolMissingError
from dslaunch.launch.command import Command
from dslaunch.protocol import checkpoints as protocol
from dslaunch.run import consolidate


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
    ("memory", "free", "words"),
    [
        (14 << 30, 100 << 30, "15.7 GB of memory are needed, 15.0 GB are there"),
        (100 << 30, 26 << 30, "/out has 27.9 GB free, 28.0 GB are to be written"),
    ],
)
def test_too_little_memory_or_disk_is_told_before_the_conversion(
    memory: int, free: int, words: str
) -> None:
    params = 1_750_000_000 if "memory" in words else 7_000_000_000
    with pytest.raises(PreflightError) as raised:
        consolidate.check_room(of(params), Room(memory, free), "/out")
    assert words in raised.value.message


def test_where_there_is_enough_or_nothing_is_known_it_goes_on() -> None:
    consolidate.check_room(of(7_000_000_000), Room(80 << 30, 80 << 30), "/out")
    consolidate.check_room(of(None), Room(0, 0), "/out")


def test_what_the_converter_prints_is_passed_on_and_its_last_words_are_told() -> None:
    said: list[str] = []
    with pytest.raises(DslaunchError, match="ended with 3: bad shard"):
        consolidate.convert_here(Command(("sh", "-c", "echo bad shard; exit 3")), said.append)
    assert said == ["bad shard"]
    with pytest.raises(ToolMissingError, match="/no/python: no such program"):
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


def test_the_converter_may_load_everything_only_when_it_is_told_so() -> None:
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
