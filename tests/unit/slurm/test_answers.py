"""What squeue and sacct print, of four releases, becomes values; no text of a user's changes one.

The answers of 22.05 were recorded on SLURM 22.05.8. Those of 23.11, 24.11 and 25.05 have the shapes
of their data_parser plugins (v0.0.40, v0.0.42, v0.0.43: src/plugins/data_parser/*/parsers.c).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.slurm.squeue import row, start

from dslaunch.slurm.answers import (
    COLUMNS,
    SlurmAnswerError,
    parse_accounting,
    parse_columns,
    parse_json,
)
from dslaunch.slurm.output_path import output_path
from dslaunch.slurm.states import JobInfo

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_bytes().decode()


def by_number(jobs: tuple[JobInfo, ...]) -> dict[str, JobInfo]:
    return {info.job: info for info in jobs}


# ---------------------------------------------------------------- recorded on 22.05.8


@pytest.fixture(params=["columns", "json"])
def answered(request: pytest.FixtureRequest) -> dict[str, JobInfo]:
    """The same jobs by both ways to ask squeue."""
    parse = {"columns": parse_columns, "json": parse_json}[request.param]
    return by_number(parse(recorded(f"squeue-22.05.8.{request.param}")))


def test_every_job_of_squeue_is_read(answered: dict[str, JobInfo]) -> None:
    assert {number: info.state for number, info in answered.items()} == {
        "12": "FAILED", "13": "RUNNING", "14": "PENDING", "15": "RUNNING", "16": "RUNNING",
        "17": "FAILED", "18": "PENDING", "19": "RUNNING", "20": "RUNNING",
    }  # fmt: skip


def test_a_name_that_looks_like_slurms_output_changes_nothing(
    answered: dict[str, JobInfo],
) -> None:
    failed, runs = answered["12"], answered["13"]
    assert (failed.code, failed.signal, failed.nodes) == (3, 0, "node1")
    assert failed.output == "/shared/out/a JobState=FAILED b-12.out"
    assert (runs.state, runs.over) == ("RUNNING", False)
    assert runs.output == "/shared/out/two\nJobId=5 JobState=FAILED|lines é-13.out"


def test_times_owner_and_token_identify_a_job(answered: dict[str, JobInfo]) -> None:
    info = answered["13"]
    assert (info.submitted, info.started, info.user) == (1795381613, 1795381613, 0)
    assert info.command == "/dev/stdin dslaunch-1111111111111111"


def test_a_requeued_job_has_a_new_time_and_one_start_more(answered: dict[str, JobInfo]) -> None:
    info = answered["18"]
    assert (info.submitted, info.restarts) == (1795381617, 1)
    assert (info.reason, info.waiting) == ("BeginTime", True)


def test_tasks_and_components_know_what_they_belong_to(answered: dict[str, JobInfo]) -> None:
    assert [(answered[n].array, answered[n].task) for n in ("14", "19", "20")] == [
        ("14", "2-3%2"), ("14", "0"), ("14", "1"),
    ]  # fmt: skip
    assert answered["19"].output == "/shared/out/14_0.out"
    assert answered["14"].output == ""
    assert [(answered[n].leader, answered[n].component) for n in ("15", "16")] == [
        ("15", 0), ("15", 1),
    ]  # fmt: skip


def test_a_signal_is_no_exit_code(answered: dict[str, JobInfo]) -> None:
    assert (answered["17"].code, answered["17"].signal) == (0, 9)


def test_the_accounting_has_every_start_also_below_names_of_several_lines() -> None:
    starts = parse_accounting(recorded("sacct-22.05.8.txt"), "@@")
    assert [(start.job, start.state) for start in starts if start.job in ("12", "13", "18")] == [
        ("12", "FAILED"), ("13", "RUNNING"), ("18", "REQUEUED"), ("18", "PENDING"),
    ]  # fmt: skip
    tasks = {start.task: start for start in starts if start.array == "14"}
    assert set(tasks) == {"0", "1", "2-3%2"}
    assert (tasks["0"].state, tasks["0"].reason, tasks["0"].nodes) == (
        *("CANCELLED", "by 0", "node1"),
    )  # fmt: skip
    assert [start.component for start in starts if start.leader == "15"] == [0, 1]


# ---------------------------------------------------------------- shapes of later releases


@dataclass(frozen=True)
class Shape:
    """How a data_parser writes values."""

    plugin: str
    typed: bool
    """Numbers are objects, states are lists, an exit code says its signal."""
    expanded: bool = False
    """The output's path is also there with its pattern filled in."""

    def number(self, value: int | None, *, infinite: bool = False) -> object:
        if not self.typed:
            return value
        return {"set": value is not None, "infinite": infinite, "number": value or 0}

    def exit(self, code: int, signal: int) -> object:
        if not self.typed:
            return code << 8 | signal
        by_signal = {"id": self.number(signal or None), "name": "KILL" if signal else ""}
        words = ["SIGNALED"] if signal else ["ERROR"] if code else ["SUCCESS"]
        return {"status": words, "return_code": self.number(code), "signal": by_signal}


SHAPES = [
    Shape("openapi/v0.0.38", typed=False),
    Shape("data_parser/v0.0.40", typed=True),
    Shape("data_parser/v0.0.42", typed=True),
    Shape("data_parser/v0.0.43", typed=True, expanded=True),
]
BY_PLUGIN = pytest.mark.parametrize("shape", SHAPES, ids=["22.05", "23.11", "24.11", "25.05"])


def job(shape: Shape, *states: str, **fields: object) -> dict[str, Any]:
    """One record of squeue --json."""
    filled = {"stdout_expanded": "/shared/train-12.out"} if shape.expanded else {}
    return {
        "job_id": 12,
        "job_state": list(states) if shape.typed else states[0],
        "array_job_id": shape.number(0),
        "array_task_id": shape.number(None),
        "array_task_string": "",
        "het_job_id": shape.number(0),
        "het_job_offset": shape.number(0),
        "batch_host": "node1",
        "command": "/dev/stdin dslaunch-0123456789abcdef",
        "end_time": shape.number(1795249000),
        "exit_code": shape.exit(0, 0),
        "name": "train",
        "nodes": "node[1-2]",
        "restart_cnt": 0,
        "standard_output": "/shared/%x-%j.out" if shape.expanded else "/shared/train-12.out",
        "start_time": shape.number(1795248001),
        "state_reason": "None",
        "submit_time": shape.number(1795248000),
        "user_id": 1000,
        "user_name": "me",
        **filled,
        **fields,
    }


def answer(shape: Shape, *jobs: dict[str, Any]) -> str:
    meta = {"plugin": {"data_parser": shape.plugin}}
    return json.dumps({"jobs": jobs, "meta": meta, "errors": [], "warnings": []})


@BY_PLUGIN
def test_a_running_job_reads_the_same_in_every_release(shape: Shape) -> None:
    (info,) = parse_json(answer(shape, job(shape, "RUNNING")))
    assert info == JobInfo(
        "12", "RUNNING", code=0, signal=info.signal, nodes="node[1-2]", batch_host="node1",
        submitted=1795248000, started=1795248001, ended=1795249000, user=1000,
        command="/dev/stdin dslaunch-0123456789abcdef", output="/shared/train-12.out",
    )  # fmt: skip
    assert not info.signal


@BY_PLUGIN
@pytest.mark.parametrize(("code", "signal"), [(3, 0), (0, 9)])
def test_an_exit_code_reads_the_same_in_every_release(shape: Shape, code: int, signal: int) -> None:
    record = job(shape, "FAILED", exit_code=shape.exit(code, signal))
    (info,) = parse_json(answer(shape, record))
    assert (info.code, info.signal or 0) == (code, signal)


@BY_PLUGIN
def test_members_read_the_same_in_every_release(shape: Shape) -> None:
    task = job(shape, "RUNNING", array_job_id=shape.number(12), array_task_id=shape.number(0))
    rest = job(shape, "PENDING", array_job_id=shape.number(12), array_task_string="1-3%1")
    part = job(shape, "RUNNING", het_job_id=shape.number(12), het_job_offset=shape.number(1))
    found = parse_json(answer(shape, task, rest, part))
    assert [(info.array, info.task) for info in found] == [("12", "0"), ("12", "1-3%1"), ("", "")]
    assert (found[2].leader, found[2].component) == ("12", 1)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=["23.11", "24.11", "25.05"])
@pytest.mark.parametrize(
    ("states", "over", "waiting"),
    [
        (["COMPLETED"], True, False),
        (["COMPLETED", "COMPLETING"], False, False),
        (["CANCELLED", "EXPEDITING"], False, False),
        (["FAILED", "LAUNCH_FAILED"], True, False),
        (["PENDING", "REQUEUED"], False, True),
        (["PENDING", "RESV_DEL_HOLD"], False, True),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], False, True),
        (["RUNNING", "EXPEDITING"], False, False),
        (["NODE_FAIL", "REQUEUE_HOLD"], False, True),
        (["RUNNING", "REVOKED"], False, False),
    ],
)
def test_a_job_is_over_only_by_a_listed_state_without_a_flag_that_says_otherwise(
    shape: Shape, states: list[str], over: bool, waiting: bool
) -> None:
    (info,) = parse_json(answer(shape, job(shape, *states)))
    assert (info.over, info.waiting) == (over, waiting)


@BY_PLUGIN
def test_a_time_that_is_not_set_is_none(shape: Shape) -> None:
    record = job(shape, "PENDING", start_time=shape.number(None if shape.typed else 0))
    endless = record | {"end_time": shape.number(None if shape.typed else 0, infinite=True)}
    (info,) = parse_json(answer(shape, endless))
    assert (info.started, info.ended) == (None, None)


# ---------------------------------------------------------------- hostile values

NASTY = st.one_of(
    st.text(max_size=200),
    st.sampled_from((
        "a JobState=FAILED b", "x\nJobId=5 JobState=FAILED", "12|FAILED|0:0", "@@FAILED@@", "\r\n",
        '{"job_state": ["FAILED"]}', "é" * 300, " ", "\x1f", row(state="FAILED"),
    )),
)  # fmt: skip
EXPECTED = ("RUNNING", 1795248000, 0, "node[1-2]", 1000)


def facts(info: JobInfo) -> tuple[object, ...]:
    return (info.state, info.submitted, info.restarts, info.nodes, info.user)


def as_bytes_of(text: str) -> str:
    """What a program may print: no surrogates, and no NUL, which ends a text in C."""
    return text.encode(errors="ignore").replace(b"\0", b"").decode()


@given(name=NASTY, output=NASTY, reason=NASTY, command=NASTY)
def test_no_text_reaches_into_another_column(
    name: str, output: str, reason: str, command: str
) -> None:
    texts = {"name": name, "stdout": output, "reason": reason, "command": command}
    line = row(**{field: as_bytes_of(text) for field, text in texts.items()})
    found = parse_columns(line + row(jobid="13"))
    assert [info.job for info in found] == ["12", "13"]
    assert facts(found[0]) == EXPECTED


@given(name=NASTY, comment=NASTY, output=NASTY)
def test_no_text_reaches_into_another_value_of_json(name: str, comment: str, output: str) -> None:
    record = job(SHAPES[1], "RUNNING", name=name, comment=comment, standard_output=output)
    (info,) = parse_json(answer(SHAPES[1], record))
    assert facts(info) == EXPECTED


@given(line=NASTY)
def test_no_text_reaches_into_another_field_of_the_accounting(line: str) -> None:
    """The delimiter is new in every question, so that no text of a job has it."""
    delimiter = "\x1f5eedbeef\x1f"
    (found,) = parse_accounting(start(delimiter, SubmitLine=as_bytes_of(line)), delimiter)
    assert (found.state, found.submitted, found.user) == ("COMPLETED", 1795248000, 1000)


@given(said=st.text())
def test_what_is_no_answer_is_invalid_and_nothing_else(said: str) -> None:
    for parse in (parse_columns, parse_json):
        with pytest.raises(SlurmAnswerError):
            parse(said)


@pytest.mark.parametrize(
    "said",
    [
        "{}", "[]", '{"jobs": [{}]}', '{"jobs": [3]}', '{"jobs": [{"job_id": 12}]}',
        '{"jobs": [{"job_id": 12, "job_state": []}]}',
        '{"jobs": [{"job_id": -1, "job_state": "R"}]}',
        '{"jobs": [{"job_id": ' + "9" * 5000 + "}]}", "[" * 100_000,
        '{"jobs": [{"job_id": 12, "job_state": ["\\u001b[2J"]}]}',
    ],
)  # fmt: skip
def test_json_of_another_shape_is_invalid(said: str) -> None:
    with pytest.raises(SlurmAnswerError):
        parse_json(said)


def test_a_value_that_fills_its_column_may_be_cut_and_is_not_taken() -> None:
    (info,) = parse_columns(row(nodelist="n" * COLUMNS["nodelist"]))
    assert info.nodes == ""


# ---------------------------------------------------------------- paths


def test_a_separate_standard_error_has_a_path_and_that_of_the_output_has_none() -> None:
    (one,) = parse_columns(row())
    (apart,) = parse_columns(row(stderr="/shared/%j.err"))
    assert (one.output, one.error) == ("/shared/train-12.out", "")
    assert (apart.output, apart.error) == ("/shared/train-12.out", "/shared/12.err")
    record = {
        "job_id": 12, "job_state": ["RUNNING"], "standard_output": "/shared/%j.out",
        "stderr_expanded": "/shared/12.err",
    }  # fmt: skip
    (said,) = parse_json(json.dumps({"jobs": [record]}))
    assert said.error == "/shared/12.err"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/s/%x-%j.out", "/s/train-13.out"),
        ("/s/%A_%a.out", "/s/12_3.out"),
        ("/s/%4a-%N-%u-%%.out", "/s/0003-node1-me-%.out"),
        ("/s/slurm-13.out", "/s/slurm-12_3.out"),
        ("/s/%q.out", ""),
        ("train.out", ""),
    ],
)
def test_the_pattern_of_an_output_is_filled_in(pattern: str, path: str) -> None:
    values = {"job": "13", "array": "12", "task": "3", "name": "train", "user": "me"}
    assert output_path(pattern, host="node1.site", **values) == path


def test_an_array_of_which_no_task_has_begun_has_no_output() -> None:
    values = {"job": "12", "array": "12", "task": "0-3%2", "name": "train", "user": "me"}
    assert output_path("/s/%A_%a.out", host="", **values) == ""
