"""Rates of counters, the file of a run with its bounded size, and what is read from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.run.usage_samples import COUNTED, RANK, Answering, gpu, node, rank

from dslaunch.protocol.usage import COUNTERS, MOST_GPUS
from dslaunch.protocol.values import InvalidAnswer, parse
from dslaunch.run.usage import USAGE, parse_usage, read_usage, usage_line
from dslaunch.run.usage_monitor import UsageMonitor
from dslaunch.run.usage_rates import Reading, usage_between
from dslaunch.run.usage_recorder import UsageFile, UsageRecorder


def reading(**fields: Any) -> Reading:
    return Reading(1e9, "n1", parse(COUNTERS, COUNTED | fields))


BEFORE = reading()


def later(**fields: Any) -> Reading:
    """The counters 10 s later."""
    cpu = {"monotonic": 110.0, "cpu_busy": 70.0, "cpu_total": 440.0}
    return reading(**{**cpu, **fields})


def test_counters_become_rates() -> None:
    found = usage_between(
        BEFORE,
        later(
            network={"eth0": [11_000, 2_500, 3]},
            fabric={"mlx5_0/1": [1, 1, 1]},
            disks={"sda": [10, 100_020]},
            limits={"/sys/fs/cgroup/a": [200, 60], "/sys/fs/cgroup": [200, 90]},
            ranks=[{**RANK, "cpu": 20.0, "ran": 9.0, "waited": 5.0}],
        ),
    )
    assert found is not None
    assert (found.cpu, found.memory_used, found.cpus) == (0.5, 600, 4)
    assert (found.received, found.sent, found.link_errors) == (1000, 50, 3)
    assert (found.fabric_received, found.fabric_sent) == (None, None)
    assert (found.disk_read, found.disk_written) == (0, 10_000)
    assert found.cpu_throttled == 0.5
    (used,) = found.ranks
    assert (used.cpu, used.memory, used.busy, used.cpu_wait) == (1.5, 4096, 0.9, 0.4)


def test_a_counter_that_was_reset_does_not_count() -> None:
    found = usage_between(BEFORE, later(network={"eth0": [5, 5, 0]}, disks={"sda": [9, 9]}))
    assert found is not None
    assert (found.received, found.disk_read) == (None, None)


def test_a_rank_that_was_started_again_counts_from_the_next_measurement_on() -> None:
    found = usage_between(BEFORE, later(ranks=[{**RANK, "pid": 10, "busiest": 10}]))
    assert found is not None
    assert found.ranks == ()


@pytest.mark.parametrize("monotonic", [99.0, 100.0, 100.01])
def test_without_time_between_two_measurements_there_are_no_rates(monotonic: float) -> None:
    assert usage_between(BEFORE, later(monotonic=monotonic)) is None


NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
COUNTS = st.dictionaries(st.sampled_from(["a", "b"]), st.tuples(NUMBERS, NUMBERS, NUMBERS))


@given(
    COUNTS, COUNTS, st.floats(min_value=0, max_value=1e18), st.floats(min_value=0, max_value=1e18)
)
def test_any_two_readings_give_a_valid_measurement(
    first: dict[str, Any], second: dict[str, Any], busy: float, total: float
) -> None:
    now = later(network=second, cpu_busy=busy, cpu_total=total)
    found = usage_between(reading(network=first), now)
    assert found is not None
    assert parse_usage(usage_line(found)) == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpus": 0},
        {"cpu_busy": float("nan")},
        {"load": -1},
        {"network": {"eth0": [1, 2]}},
        {"network": {"eth0": [1, 2, -3]}},
        {"ranks": [{**RANK, "rank": -1}]},
        {"ranks": [RANK] * 5000},
        {"output": {"0": "x" * 2000}},
        {"output": {"../0": "x"}},
        {"output": {"1\n": "x"}},
        {"output": {"\u0661": "x"}},  # a decimal digit of Arabic
        {"output": {"\U00010d41": "x"}},  # one of Garay, newer than some tables of digits
        {"output": {"0": "\ud800"}},
        {"ranks": [RANK, {**RANK, "pid": 10}]},
        {"gpus": [{"index": 0, "busy": 1.5}]},
        {"gpus": [{"index": 0, "throttled": ["\x1b[2J"]}]},
        {"gpus": [{"index": 0, "throttled": ["power", "power"]}]},
        {"gpus": [{"index": 0, "throttled": ["power"] * 5}]},
        {"gpus": [{"index": 0}, {"index": 0}]},
        {"gpus": [{"index": index} for index in range(MOST_GPUS + 1)]},
        {"gpu_error": 5},
    ],
)
def test_invalid_counters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswer):
        parse(COUNTERS, COUNTED | wrong)


# ---------------------------------------------------------------- the file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    usages = [node("n1", gpus=(gpu(throttled=("power",)),), ranks=(rank(0).usage,)), node("n2")]
    UsageFile(tmp_path).add(usages)
    assert list(read_usage(tmp_path)) == usages
    assert (tmp_path / USAGE).stat().st_mode & 0o777 == 0o600


def test_a_run_without_measurements_has_none(tmp_path: Path) -> None:
    assert list(read_usage(tmp_path)) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"time":1,"host":"n1"',
        b"[]",
        b"\xff\xfe",
        usage_line(node("n1")).replace(b'"cpu":0.1', b'"cpu":NaN'),
        usage_line(node("n1")).replace(b'"cpu":0.1', b'"cpu":7'),
        usage_line(node("n1")).replace(b'"cpu":0.1', b'"cpu":"0.1"'),
        b"[" * 100_000,
    ],
)
def test_invalid_lines_are_left_out(tmp_path: Path, line: bytes) -> None:
    good = usage_line(node("n2"))
    (tmp_path / USAGE).write_bytes(good + line + b"\n" + good)
    assert [each.host for each in read_usage(tmp_path)] == ["n2", "n2"]
    assert parse_usage(line) is None


def test_the_file_is_thinned_out_evenly_for_every_node_and_stays_small(tmp_path: Path) -> None:
    largest = 20_000
    file = UsageFile(tmp_path, largest)
    one_round = len(usage_line(node("n1"))) * 2
    for time in range(1000):
        file.add(replace(node(host), time=float(time)) for host in ("n1", "n2"))
        assert (tmp_path / USAGE).stat().st_size <= largest + one_round
    times = {host: [] for host in ("n1", "n2")}
    for usage in read_usage(tmp_path):
        times[usage.host].append(usage.time)
    assert times["n1"] == times["n2"]
    assert times["n1"][0] == 0.0
    assert times["n1"][-1] > 900
    steps = {after - before for before, after in zip(times["n1"], times["n1"][1:], strict=False)}
    assert max(steps) <= 2 * min(steps)


def test_a_directory_that_is_gone_loses_measurements_and_raises_nothing(tmp_path: Path) -> None:
    UsageFile(tmp_path / "missing").add([node("n1")])


# ---------------------------------------------------------------- rounds


def test_a_sample_has_rates_steps_and_last_lines_from_the_second_round_on() -> None:
    session, monitor = Answering("n1"), UsageMonitor()
    monitor.begin([session])
    session.answer(output={"0": "step 3 loss 1.5\n"})
    assert monitor.end().nodes == ()
    monitor.begin([session])
    session.answer(monotonic=110.0, output={"0": "step 5 loss 1.25\r\x1b[2Jdone"})
    sample = monitor.end()
    (found,) = sample.ranks
    assert (found.rank, found.host, found.last_line) == (0, "n1", "done")
    assert found.progress is not None
    assert (found.progress.step, found.progress.loss) == (5, 1.25)
    assert found.step_seconds is not None
    assert sample.progress == found.progress


def test_ranks_that_a_node_does_not_have_are_left_out() -> None:
    session, monitor = Answering("n1", range(4, 6)), UsageMonitor()
    for monotonic in (100.0, 110.0):
        monitor.begin([session])
        session.answer(monotonic=monotonic, output={"0": "step 3"})
        sample = monitor.end()
    assert sample.ranks == ()
    assert sample.progress is None


def test_a_node_that_does_not_answer_is_named_and_not_asked_again_at_once() -> None:
    session, monitor = Answering("n1"), UsageMonitor()
    monitor.begin([session])
    assert monitor.end().unanswered == ("n1",)
    monitor.begin([session])
    assert len(session.asked) == 1
    session.answer()
    assert monitor.end().unanswered == ()


def test_a_recorder_writes_and_reports_each_round(tmp_path: Path) -> None:
    samples: list[Any] = []
    session = Answering("n1")
    recorder = UsageRecorder(UsageFile(tmp_path), samples.append, interval=0)
    for round_number in range(3):
        recorder.look([session])
        session.answer(monotonic=100.0 + 10 * round_number)
    recorder.look([session])
    assert [len(each.nodes) for each in samples] == [0, 1, 1]
    text = (tmp_path / USAGE).read_text()
    assert [json.loads(line)["host"] for line in text.splitlines()] == ["n1", "n1"]


def test_ranks_that_have_just_been_started_are_not_asked_for_collectives(tmp_path: Path) -> None:
    session = Answering("n1")
    recorder = UsageRecorder(UsageFile(tmp_path), interval=0)
    recorder.look([session])
    assert session.operations == ["usage"]
    session.answer()
    recorder.look([session])
    assert session.operations == ["usage", "usage", "collectives"]
