"""What squeue and sacct print becomes typed values. Pure.

A job's name, comment and paths are free text of its owner, and may look like any output of SLURM.
No value can change another field: they come as JSON (SLURM 23.02 and later), in columns of a fixed
number of bytes (squeue of older releases), or with a delimiter that is new in every query (sacct).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from dslaunch.slurm.output_path import output_path
from dslaunch.slurm.states import (
    BASE_STATES,
    UNKNOWN,
    JobInfo,
    given,
    moment,
    state_word,
    whole_number,
)


class SlurmAnswerError(ValueError):
    """An answer is incomplete, damaged, or of a form that no release of SLURM is known to have."""


# ---------------------------------------------------------------- squeue, columns

FORMAT = (
    "jobid:12,arrayjobid:12,arraytaskid:80,hetjobid:12,hetjoboffset:12,state:32,exit_code:12,"
    "restartcnt:12,submittime:16,starttime:16,endtime:16,userid:12,batchhost:80,reason:160,"
    "nodelist:2048,command:64,stdout:1024,stderr:1024,name:1024,username:64"
)
"""Fields of `squeue --Format` and their widths in bytes; SLURM truncates longer values."""
COLUMNS = {name: int(width) for name, width in (c.split(":") for c in FORMAT.split(","))}
_ROW = sum(COLUMNS.values()) + len("\n")


def parse_columns(printed: str) -> tuple[JobInfo, ...]:
    """Parse `squeue --noheader --Format=FORMAT`, with SLURM_TIME_FORMAT=%s. Raises
    SlurmAnswerError."""
    try:
        data = printed.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SlurmAnswerError("not text") from error
    if not data or len(data) % _ROW:
        raise SlurmAnswerError("a row has not its full width")
    rows = (data[start : start + _ROW] for start in range(0, len(data), _ROW))
    return tuple(_of_columns(_cells(row)) for row in rows)


def _cells(row: bytes) -> dict[str, str]:
    """Return the fields of a row. A value that fills its column may be truncated, and becomes
    empty, except the command, of which the beginning is enough."""
    cells = {}
    start = 0
    for name, width in COLUMNS.items():
        cell = row[start : start + width]
        is_truncated = cell[-1:] != b" " and name != "command"
        cells[name] = "" if is_truncated else cell.decode("utf-8", "surrogateescape").rstrip(" ")
        start += width
    return cells


def _of_columns(cells: Mapping[str, str]) -> JobInfo:
    task = given(cells["arraytaskid"])
    array = cells["arrayjobid"] if task else ""
    code, signal = _exit_of_text(cells["exit_code"])
    output, error = _output_paths(
        given(cells["stdout"]),
        given(cells["stderr"]),
        job=cells["jobid"],
        array=array,
        task=task,
        name=cells["name"],
        user=cells["username"],
        host=given(cells["batchhost"]),
    )
    return _valid(
        job=cells["jobid"],
        state=state_word(cells["state"]),
        reason=given(cells["reason"]),
        code=code,
        signal=signal,
        nodes=given(cells["nodelist"]),
        batch_host=given(cells["batchhost"]),
        restarts=whole_number(cells["restartcnt"]) or 0,
        submitted=moment(cells["submittime"]),
        started=moment(cells["starttime"]),
        ended=moment(cells["endtime"]),
        user=whole_number(cells["userid"]),
        command=given(cells["command"]),
        output=output,
        error=error,
        array=array,
        task=task,
        leader=given(cells["hetjobid"]),
        component=whole_number(cells["hetjoboffset"]) or 0,
    )


def _output_paths(output: str, error: str, **job: str) -> tuple[str, str]:
    """Return the paths of a job's output and of its standard error; the second is empty if both are
    one file, for which squeue prints the path twice."""
    first, second = output_path(output, **job), output_path(error, **job)
    return first, "" if second == first else second


def _exit_of_text(text: str) -> tuple[int | None, int | None]:
    """Parse `3:0`, a code and a signal, or a status of wait(2), as squeue 22.05 prints it."""
    both = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,3})", text)
    if both is not None:
        return int(both[1]), int(both[2])
    return _exit_of_status(whole_number(text))


def _exit_of_status(status: int | None) -> tuple[int | None, int | None]:
    if status is None or status > 0xFFFF:
        return None, None
    return status >> 8, status & 0x7F


# ---------------------------------------------------------------- squeue, JSON


def parse_json(printed: str) -> tuple[JobInfo, ...]:
    """Parse `squeue --json`: data_parser v0.0.38 (22.05) to v0.0.43 (25.05). Raises
    SlurmAnswerError."""
    try:
        answer = json.loads(printed)
        jobs = answer["jobs"]
        return tuple(_of_json(record) for record in jobs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SlurmAnswerError("not the JSON of a list of jobs") from error


def _of_json(record: Mapping[str, Any]) -> JobInfo:
    words = tuple(_states(record["job_state"]))
    state = next((word for word in words if word in BASE_STATES), words[0])
    job = str(_number(record["job_id"]))
    array = str(_number(record.get("array_job_id")) or "")
    one_task = _number(record.get("array_task_id"))
    waiting_tasks = _text(record.get("array_task_string"))
    task = waiting_tasks or ("" if one_task is None or not array else str(one_task))
    batch_host = given(_text(record.get("batch_host")))
    code, signal = _exit_of_json(record.get("exit_code"))
    output, error = _output_paths(
        _text(record.get("stdout_expanded") or record.get("standard_output")),
        _text(record.get("stderr_expanded") or record.get("standard_error")),
        job=job,
        array=array,
        task=task,
        name=_text(record.get("name")),
        user=_text(record.get("user_name")),
        host=batch_host,
    )
    return _valid(
        job=job,
        state=state,
        flags=tuple(word for word in words if word != state),
        reason=given(_text(record.get("state_reason"))),
        code=code,
        signal=signal,
        nodes=given(_text(record.get("nodes"))),
        batch_host=batch_host,
        restarts=_number(record.get("restart_cnt")) or 0,
        submitted=_number(record.get("submit_time")) or None,
        started=_number(record.get("start_time")) or None,
        ended=_number(record.get("end_time")) or None,
        user=_number(record.get("user_id")),
        command=_text(record["command"]) if "command" in record else None,
        output=output,
        error=error,
        array=array,
        task=task,
        leader=str(_number(record.get("het_job_id")) or ""),
        component=_number(record.get("het_job_offset")) or 0,
    )


def _states(value: object) -> Iterator[str]:
    """Return the one state, or since v0.0.40 the base state and the flags."""
    words = value if isinstance(value, list) else [value]
    if not words:
        raise SlurmAnswerError("a job has no state")
    for word in words:
        yield state_word(_text(word))


def _number(value: object) -> int | None:
    """Return a number; since v0.0.39 it is an object with the field `set`."""
    if isinstance(value, dict):
        has_one = value.get("set") is True and value.get("infinite") is not True
        value = value.get("number") if has_one else None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and 0 <= value < 2**63 else None


def _text(value: object) -> str:
    """Return text; empty for other types, and for text with half of a surrogate pair."""
    if not isinstance(value, str):
        return ""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return ""
    return value


def _exit_of_json(value: object) -> tuple[int | None, int | None]:
    """Parse a status of wait(2), or since v0.0.40 an object with the code and the signal."""
    if not isinstance(value, dict) or "return_code" not in value:
        return _exit_of_status(_number(value))
    signal = value.get("signal")
    by_id = signal.get("id", signal.get("signal_id")) if isinstance(signal, dict) else None
    return _number(value.get("return_code")), _number(by_id)


# ---------------------------------------------------------------- sacct

ACCOUNTING = "JobIDRaw,JobID,State,ExitCode,Submit,Start,End,UID,NodeList,SubmitLine"
"""The fields of a query to sacct. The last is free text and may contain newlines."""
_MEMBER = re.compile(r"([0-9]{1,18})(?:_(?P<task>[0-9]{1,18}|\[[^]]*\])|\+(?P<part>[0-9]{1,9}))?")


def parse_accounting(printed: str, delimiter: str) -> tuple[JobInfo, ...]:
    """Parse `sacct --noheader --parsable2 --allocations --duplicates --format=ACCOUNTING` with that
    delimiter: one record per start. Raises SlurmAnswerError for an incomplete answer."""
    rows = [line.split(delimiter) for line in printed.split("\n") if delimiter in line]
    complete = [cells for cells in rows if len(cells) == ACCOUNTING.count(",") + 1]
    is_whole = printed.endswith("\n") and len(complete) == len(rows) and bool(rows)
    if printed.strip() and not is_whole:
        raise SlurmAnswerError("a record lacks fields")
    starts = [_of_accounting(cells) for cells in complete]
    return tuple(sorted(starts, key=lambda start: start.submitted or 0))


def _of_accounting(cells: list[str]) -> JobInfo:
    member = _MEMBER.fullmatch(cells[1])
    if member is None:
        raise SlurmAnswerError("a job number has an unknown form")
    code, signal = _exit_of_text(cells[3])
    state, _, by = cells[2].partition(" ")
    return _valid(
        job=cells[0],
        state=state_word(state),
        reason=by,
        code=code,
        signal=signal,
        nodes=given(cells[8]),
        submitted=moment(cells[4]),
        started=moment(cells[5]),
        ended=moment(cells[6]),
        user=whole_number(cells[7]),
        command=cells[9] or None,
        array=member[1] if member["task"] else "",
        task=(member["task"] or "").strip("[]"),
        leader=member[1] if member["part"] else "",
        component=int(member["part"] or 0),
    )


_NUMBER = re.compile(r"[0-9]{1,18}")
_TASK = re.compile(r"[0-9][0-9,:%.-]{0,4095}")
_NODES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]{0,65535}")
_PATH = re.compile(r"/[^\x00]{0,4095}")
_REASON = re.compile(r"[^\x00\r\n]{1,1024}")


def _valid(**fields: Any) -> JobInfo:
    """Return a record that has a number and a state. Values that are used in commands and paths are
    empty unless they are valid there. Raises SlurmAnswerError."""
    info = JobInfo(**fields)
    if not _NUMBER.fullmatch(info.job) or info.state == UNKNOWN:
        raise SlurmAnswerError("a record has no number or no state")
    return replace(
        info,
        reason=_fitting(_REASON, info.reason),
        nodes=_fitting(_NODES, info.nodes),
        batch_host=_fitting(_NODES, info.batch_host),
        output=_fitting(_PATH, info.output),
        error=_fitting(_PATH, info.error),
        array=_fitting(_NUMBER, info.array),
        task=_fitting(_TASK, info.task),
        leader=_fitting(_NUMBER, info.leader),
    )


def _fitting(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else ""
