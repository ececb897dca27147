"""What is said of trainings that failed, by what they wrote and what their node found out."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.protocol.messages import Evidence
from dslaunch.run.endings import diagnose, last_exception
from dslaunch.run.known_endings import built_in

RECORDED = tomllib.loads(Path(__file__).with_name("endings.toml").read_text())
CAUSES = [(each["line"], each["code"], each.get("values", [])) for each in RECORDED["cause"]]
TEXTS = tomllib.loads(Path(__file__).with_name("recorded_endings.toml").read_text())
SOUND = Path(__file__).with_name("sound.txt").read_text().splitlines()


@pytest.mark.parametrize("line", RECORDED["secondary"])
def test_a_rank_that_lost_another_is_a_secondary_failure(line: str) -> None:
    assert diagnose(["noise", line, "more noise"]).secondary


@pytest.mark.parametrize(("line", "code", "values"), CAUSES, ids=[c[0][:40] for c in CAUSES])
def test_a_known_ending_is_a_code_with_what_it_is_about(
    line: str, code: str, values: list[str]
) -> None:
    found = diagnose(["noise", line, "more noise"])
    assert not found.secondary
    assert (found.code, list(found.values)) == (code, values)


def test_every_recorded_text_is_known_by_its_code() -> None:
    for code, recorded in TEXTS.items():
        found = diagnose(["step 7 loss 2.31", *recorded["text"].strip("\n").splitlines()])
        assert found.code == code
        assert found.what, code
        assert found.advice, code


def test_every_known_ending_has_a_source_and_a_recorded_text() -> None:
    assert built_in().keys() == set(TEXTS)
    assert all(known.source for known in built_in().values())
    assert all(each["source"] for each in TEXTS.values())


def test_no_line_of_a_sound_training_is_an_ending() -> None:
    codes = {line: diagnose([line]).code for line in SOUND}
    assert {line: code for line, code in codes.items() if code is not None} == {}


def test_an_unknown_exception_gets_no_reason_from_a_sound_log_before_it() -> None:
    found = diagnose([*SOUND, "ValueError: bad batch", *SOUND])
    assert (found.code, found.what) == (None, "ValueError: bad batch")


def test_an_exception_that_was_caught_and_printed_does_not_explain_another_one() -> None:
    caught = "AttributeError: 'Plugin' object has no attribute 'close'"
    assert diagnose(["Traceback (most recent call last):", caught]).code == "attribute-missing"
    found = diagnose([caught, "Traceback (most recent call last):", "ValueError: bad batch"])
    assert (found.code, found.what) == (None, "ValueError: bad batch")


def test_the_special_line_of_an_exception_decides_over_its_general_first_line() -> None:
    lines = ["RuntimeError: NCCL error in: x.cpp:1, unhandled system error", "Last error:"]
    more = "socketStartConnect: Connect to 127.0.1.1<45069> failed : Connection refused"
    assert diagnose(lines).code == "nccl-system"
    assert diagnose([*lines, more]).code == "nccl-loopback"


def test_the_exception_that_terminated_native_code_decides_over_the_signal_after_it() -> None:
    lines = [
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 6. ",
        "Fatal Python error: Aborted",
        "Extension modules: numpy._core._multiarray_umath (total: 1)",
    ]
    assert diagnose(lines).code == "collective-sizes"
    assert diagnose(lines[2:]).code == "native-crash"


def test_a_thread_of_native_code_decides_over_the_signal_after_it() -> None:
    # gloo's threads take the interpreter's lock while it exits (pytorch/pytorch#179291)
    lines = [
        "terminate called without an active exception",
        "Fatal Python error: Aborted",
        "",
        "Thread 0x00007f19e97c3b80 (most recent call first):",
        "  <no Python frame>",
    ]
    assert diagnose(lines).code == "thread-outlived"
    assert diagnose(lines[1:]).code == "native-crash"


REMOVED = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/data/train.py", line 12, in <module>
[rank1]:     {call}
[rank1]:   File "{frame}", line 668, in {function}
[rank1]:     entries = list(scandir_it)
[rank1]: FileNotFoundError: [Errno 2] No such file or directory: 'checkpoints'"""


@pytest.mark.parametrize(
    ("call", "frame", "function", "code"),
    [
        ("shutil.rmtree(old)", "/usr/lib/python3.11/shutil.py", "rmtree", "removed-by-another"),
        ("torch.load(old)", "/usr/lib/torch/serialization.py", "load", "file-missing"),
    ],
)
def test_the_calls_that_led_to_an_exception_tell_more_than_its_text(
    call: str, frame: str, function: str, code: str
) -> None:
    text = REMOVED.format(call=call, frame=frame, function=function)
    assert diagnose(text.splitlines()).code == code


def test_the_calls_of_an_earlier_exception_explain_no_later_one() -> None:
    removing = REMOVED.format(call="r", frame="/usr/lib/python3.11/shutil.py", function="rmtree")
    later = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']
    lines = [*removing.splitlines(), *later, "KeyError: 'labels'"]
    assert diagnose(lines).code == "key-missing"


def test_an_ending_is_known_also_where_torch_has_written_the_rank_before_it() -> None:
    assert diagnose(["[rank0]: bdb.BdbQuit"]).code == "breakpoint"
    assert diagnose(["bdb.BdbQuit"]).code == "breakpoint"


def test_an_unknown_exception_is_reported_unchanged() -> None:
    lines = ["[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: bad batch", "bye"]
    assert diagnose(lines).what == "ValueError: bad batch"


def test_a_message_that_begins_on_the_next_line_belongs_to_its_exception() -> None:
    lines = ["[rank0]: RuntimeError: ", "[rank0]:   the tensors overlap", "[rank0]: see there"]
    assert last_exception(lines) == "RuntimeError: the tensors overlap"


def test_the_last_exception_decides_not_the_one_it_came_from() -> None:
    lines = ["KeyError: 'a'", "During handling of the above exception", "my.mod.OtherError: no"]
    assert last_exception(lines) == "my.mod.OtherError: no"


def test_words_that_only_look_like_an_exception_are_none() -> None:
    assert last_exception(["Error rate: 5 %", "epoch 3 ValueError"]) is None


def test_the_nodes_evidence_comes_before_what_was_written() -> None:
    oom = Evidence(oom="its cgroup's oom_kill count went from 0 to 1", signal=9)
    assert diagnose(["ValueError: x"], oom).code == "oom-killer"
    full = diagnose([], Evidence(full=("/tmp",)))
    assert (full.code, full.values) == ("disk-full", ("/tmp",))
    assert diagnose([], Evidence(signal=7, shm_free=0)).code == "shared-memory"
    assert diagnose([], Evidence(signal=11, shm_free=0)).code is None


def test_torchs_error_file_gives_the_exception() -> None:
    text = json.dumps({"message": {"message": "ValueError: bad batch", "extraInfo": {}}})
    assert diagnose([], Evidence(error_file=text)).what == "ValueError: bad batch"
    assert Evidence(error_file=json.dumps({"message": "Signal 9"})).exception == "Signal 9"


@given(st.text() | st.sampled_from(['{"message": {}}', '{"message": 3}', "[]", "null", '{"mes']))
def test_a_broken_error_file_is_none(text: str) -> None:
    assert Evidence(error_file=text).exception is None


def test_an_error_file_that_nests_without_end_is_none() -> None:
    assert Evidence(error_file="[" * 100_000).exception is None


@given(st.lists(st.text()))
def test_any_output_can_be_diagnosed(lines: list[str]) -> None:
    found = diagnose(lines)
    assert found.advice is None or found.what
