"""Metrics: valid in Prometheus' text format, in a file and over HTTP."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
import typing
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.run.usage_samples import RANK, Answering, gpu, rank, sample

from dslaunch.errors import ErrorCode, UsageError
from dslaunch.protocol.usage import MOST_GPUS, MOST_THROTTLES, Throttle
from dslaunch.protocol.values import InvalidAnswer
from dslaunch.report.metrics import METRICS, PREFIX, Measured, metrics_text
from dslaunch.report.metrics_output import MOST_CONNECTIONS, Endpoint, open_output
from dslaunch.run.progress import Progress
from dslaunch.run.slower_rank import Evidence, SlowerRank
from dslaunch.run.usage_monitor import UsageMonitor

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
TEXT = r'(?:[^"\\\n]|\\\\|\\"|\\n)*'
LABEL = re.compile(rf'(?P<label>{NAME})="(?P<text>{TEXT})"')
LABELS = rf'{NAME}="{TEXT}"(?:,{NAME}="{TEXT}")*'
SAMPLE = re.compile(rf"(?P<name>{NAME})\{{(?P<labels>{LABELS})\}} (?P<value>\S+)")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """The samples of a text; fails for whatever the format does not allow (Prometheus,
    "Exposition formats"): each metric has its HELP and TYPE once and before its samples, which
    stand together and are different."""
    found: Samples = {}
    described: list[str] = []
    assert text.endswith("\n")
    lines = text.removesuffix("\n").split("\n")
    while lines:
        helped = re.fullmatch(rf"# HELP ({NAME}) ([^\n]+)", lines.pop(0))
        typed = re.fullmatch(rf"# TYPE ({NAME}) gauge", lines.pop(0))
        assert helped is not None
        assert typed is not None
        assert helped[1] == typed[1]
        assert helped[1] not in described
        described.append(helped[1])
        while lines and not lines[0].startswith("#"):
            matched = SAMPLE.fullmatch(lines.pop(0))
            assert matched is not None
            assert matched["name"] == helped[1]
            labels = tuple(
                (each["label"], unescaped(each["text"]))
                for each in LABEL.finditer(matched["labels"])
            )
            assert len(dict(labels)) == len(labels)
            assert (helped[1], labels) not in found
            found[helped[1], labels] = float(matched["value"])
    return found


def unescaped(text: str) -> str:
    plain = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    return re.sub(r"\\.", lambda match: plain[match[0]], text)


def measured(host: str = "node1", run: str = "1123-train") -> Measured:
    progress = Progress(step=7, loss=2.5, tokens_per_second=1e4)
    one = replace(
        rank(0, host, gpu=gpu(throttled=("thermal", "power")), late=0.02),
        progress=progress,
        step_seconds=0.5,
    )
    network = {"received": 5.0, "sent": 6.0, "fabric_received": 7.0, "fabric_sent": 8.0}
    more = {"disk_read": 1.0, "disk_written": 2.0, "cpu_throttled": 0.0, "link_errors": 0}
    return Measured(
        run,
        sample(one, **{host: network | more}),
        (SlowerRank(0, host, Evidence.CPU),),
    )


def test_every_metric_is_written_with_its_labels_and_base_units() -> None:
    found = parsed(metrics_text(measured()))
    assert {name for name, _ in found} == {PREFIX + metric.name for metric in METRICS}
    run = ("run", "1123-train")
    on_gpu = (run, ("node", "node1"), ("gpu", "0"))
    on_rank = (run, ("node", "node1"), ("rank", "0"))
    assert found["dslaunch_gpu_sm_clock_hertz", on_gpu] == 1.98e9
    assert found["dslaunch_gpu_throttled", (*on_gpu, ("reason", "thermal"))] == 1
    assert found["dslaunch_rank_step_seconds", on_rank] == 0.5
    assert found["dslaunch_rank_straggler", (*on_rank, ("evidence", "cpu"))] == 1


def test_labels_are_those_that_are_documented() -> None:
    documented = {PREFIX + metric.name: ("run", *metric.labels) for metric in METRICS}
    for name, labels in parsed(metrics_text(measured())):
        assert tuple(label for label, _ in labels) == documented[name]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_labels_with_any_text_are_escaped(host: str) -> None:
    found = parsed(metrics_text(measured(host=host, run=host)))
    assert {dict(labels)["run"] for _, labels in found} == {host}


FEW = st.integers(min_value=0, max_value=3)
REASONS = st.lists(st.sampled_from(typing.get_args(Throttle)), max_size=6)
ANSWERED_GPU = st.builds(
    lambda index, throttled: {"index": index, "busy": 0.5, "throttled": throttled}, FEW, REASONS
)
ANSWERED_RANK = st.builds(lambda number, pid: {**RANK, "rank": number, "pid": pid + 1}, FEW, FEW)
ANSWERED = st.fixed_dictionaries(
    {
        "gpus": st.lists(ANSWERED_GPU, max_size=5) | st.lists(ANSWERED_GPU, max_size=1),
        "ranks": st.lists(ANSWERED_RANK, max_size=5) | st.lists(ANSWERED_RANK, max_size=1),
        "output": st.dictionaries(
            st.text("0123\u0660\u0661\n", min_size=1, max_size=3), st.just("step 3 loss 1.5")
        ),
    }
)


@given(ANSWERED, ANSWERED)
def test_no_answers_of_a_node_make_a_series_twice(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    session, monitor = Answering("n1", range(4)), UsageMonitor()
    for monotonic, answer in ((100.0, first), (110.0, second)):
        monitor.begin([session])
        try:
            session.answer(**answer, monotonic=monotonic)
        except InvalidAnswer:
            return
        measured = monitor.end()
    parsed(metrics_text(Measured("r", measured)))


def test_the_largest_answer_of_a_node_makes_a_text_of_bounded_size() -> None:
    reasons = list(typing.get_args(Throttle))
    assert len(reasons) == MOST_THROTTLES
    every = [
        {"index": index, "busy": 1.0, "memory_used": 2**62, "memory_total": 2**62, "power": 1e18}
        | {"temperature": 1e3, "clock": 2**62, "throttled": reasons}
        for index in range(MOST_GPUS)
    ]
    session, monitor = Answering("n1", range(8)), UsageMonitor()
    for monotonic in (100.0, 110.0):
        monitor.begin([session])
        session.answer(monotonic=monotonic, gpus=every)
        largest = monitor.end()
    found = parsed(metrics_text(Measured("r", largest)))
    of_gpus = [name for name, _ in found if name.startswith("dslaunch_gpu_")]
    assert len(of_gpus) == MOST_GPUS * (6 + MOST_THROTTLES)


def test_what_is_unknown_is_left_out() -> None:
    found = {name for name, _ in parsed(metrics_text(Measured("r", sample(rank(0)))))}
    assert "dslaunch_node_cpu_busy_ratio" in found
    assert not any(name.startswith("dslaunch_gpu") for name in found)
    assert "dslaunch_rank_step" not in found


def test_a_file_is_replaced_as_a_whole_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "dslaunch.prom"
    output = open_output(str(path))
    first, second = metrics_text(measured("first")), metrics_text(measured("second"))
    output.write(first)
    with path.open() as before:
        output.write(second)
        assert before.read() == first
    assert path.read_text() == second
    assert path.stat().st_mode & 0o777 == 0o644
    output.close()
    assert list(tmp_path.iterdir()) == []


def contents(directory: Path) -> dict[str, str | None]:
    """All that a directory holds: the text of each file, None for other things."""
    return {path.name: path.read_text() if path.is_file() else None for path in directory.iterdir()}


def notes(path: Path) -> None:
    path.write_text("my notes\n")


def metrics_of_others(path: Path) -> None:
    path.write_text("# HELP node_cpu CPUs.\n")


def no_text(path: Path) -> None:
    path.write_bytes(b"\0")


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


def link_to_metrics(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text(metrics_text(measured()))
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    os.mkfifo(path)


OTHER_THINGS = [notes, metrics_of_others, no_text, link_to_nothing, link_to_metrics, pipe]


@pytest.mark.parametrize("make", OTHER_THINGS, ids=lambda make: str(make.__name__))
def test_what_is_no_file_of_metrics_is_refused_and_stays(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "x.prom"
    make(path)
    before = contents(tmp_path)
    with pytest.raises(UsageError) as caught:
        open_output(str(path))
    assert caught.value.error_code is ErrorCode.NOT_A_METRICS_FILE
    assert contents(tmp_path) == before


@pytest.mark.parametrize("make", OTHER_THINGS, ids=lambda make: str(make.__name__))
def test_what_comes_there_during_a_run_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x.prom"
    output = open_output(str(path))
    output.write(metrics_text(measured()))
    path.unlink()
    make(path)
    before = contents(tmp_path)
    output.write(metrics_text(measured()))
    output.close()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", metrics_text(measured("before"))])
def test_an_empty_file_and_that_of_a_run_before_are_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.prom"
    path.write_text(text)
    output = open_output(str(path))
    output.write(metrics_text(measured()))
    assert path.read_text() == metrics_text(measured())
    output.close()
    assert contents(tmp_path) == {}


def test_the_file_of_another_run_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    first, second = open_output(str(path)), open_output(str(path))
    first.write(metrics_text(measured("first")))
    second.write(metrics_text(measured("second")))
    first.close()
    assert path.read_text() == metrics_text(measured("second"))
    second.close()
    assert contents(tmp_path) == {}


def test_a_run_that_measured_nothing_removes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    path.touch()
    open_output(str(path)).close()
    assert contents(tmp_path) == {"x.prom": ""}


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, "", ""


def test_an_endpoint_serves_the_latest_metrics_on_this_machine_only() -> None:
    endpoint = Endpoint("127.0.0.1", 0)
    try:
        endpoint.write("first 1\n")
        endpoint.write("second 2\n")
        where = f"http://127.0.0.1:{endpoint.port}"
        kind = "text/plain; version=0.0.4; charset=utf-8"
        assert get(f"{where}/metrics") == (200, kind, "second 2\n")
        assert get(f"{where}/")[0] == 404
        taken = f"127.0.0.1:{endpoint.port}"
        with pytest.raises(UsageError):
            open_output(taken)
    finally:
        endpoint.close()


@contextmanager
def serving(limit: float = 60.0) -> Iterator[int]:
    """The port of an endpoint with metrics. `limit`: seconds for a connection."""
    endpoint = Endpoint("127.0.0.1", 0, limit)
    try:
        endpoint.write(metrics_text(measured()))
        yield endpoint.port
    finally:
        endpoint.close()


def until_served(port: int) -> None:
    """Ask for the metrics until a connection is free."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with suppress(OSError, HTTPException):
            assert get(f"http://127.0.0.1:{port}/metrics")[0] == 200
            return
    raise AssertionError("never served")


def test_connections_beyond_a_limit_are_closed_at_once() -> None:
    with serving() as port, ExitStack() as held:
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        with socket.create_connection(("127.0.0.1", port), timeout=300) as more:
            assert more.recv(1) == b""
        held.close()
        until_served(port)


@pytest.mark.parametrize("sent", [b"G", b"GET /metrics HTTP/1.1\r\na: b\r\nx"])
def test_a_client_that_sends_a_byte_now_and_then_is_left(sent: bytes) -> None:
    with serving(limit=0.3) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=0.02) as slow:
            slow.sendall(sent)
            ended = False
            for _ in range(3000):
                try:
                    ended = slow.recv(1) == b""
                except TimeoutError:
                    slow.sendall(b"x")
                except ConnectionError:
                    ended = True
                if ended:
                    break
            assert ended
        until_served(port)


def test_a_client_that_breaks_off_leaves_no_trace_on_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    at_once = struct.pack("ii", 1, 0)  # closing resets the connection
    with serving() as port:
        for _ in range(MOST_CONNECTIONS):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                client.sendall(b"GET /metr")
        until_served(port)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("target", ["70000", "localhost:0", "/missing/directory/x.prom", "/tmp"])
def test_targets_that_cannot_be_used_are_refused(target: str) -> None:
    with pytest.raises(UsageError):
        open_output(target)
