"""What nodes say of their usage, and what is done with it, never ends a run."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.launch.job import Job
from dslaunch.run.launch import run_job
from dslaunch.run.request import RunRequest
from dslaunch.run.usage import read_usage
from dslaunch.run.usage_monitor import UsageSample
from tests.hostile.conftest import HostileCluster
from tests.local.conftest import Seen

UNTIL = "import pathlib, time\nwhile not pathlib.Path({!r}).exists():\n    time.sleep(0.02)\n"
"""A script that ends once a file exists."""


@pytest.mark.parametrize(
    "lie",
    [
        "value['output'] = {'\\u0661': 'x'}",
        "value['output'] = {'\\U00010d41': 'x'}",
        "value['output'] = {'1\\n': 'x'}",
        "value['output'] = {'1': '\\ud800'}",
        "value['ranks'] = [value['ranks'][0]] * 2",
        "value['gpus'] = [{'index': 0}] * 2000",
        "value['monotonic'] = 'now'",
        "value.clear()",
    ],
)
def test_an_answer_that_lies_does_not_end_the_run(
    hostile: Callable[..., HostileCluster], lie: str
) -> None:
    cluster = hostile(f"""
        told = __file__.rpartition("/bad/")[0] + "/told"

        def tamper(message):
            value = message.get("value")
            if isinstance(value, dict) and "cpu_busy" in value:
                {lie}
                open(told, "w").close()
            return message
    """)
    _, outcome = cluster.run(UNTIL.format(str(cluster.home / "told")))
    assert (outcome.status, outcome.exit_code) == ("ok", 0)


def test_what_fails_with_a_measurement_ends_the_measuring_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DSLAUNCH_STATE", str(tmp_path / "state"))
    told = tmp_path / "told"
    (tmp_path / "train.py").write_text(UNTIL.format(str(told)))
    cluster = Cluster("test", (Node("n1", (0,), python=sys.executable),), transport="local")
    request = RunRequest(
        cluster=cluster,
        allocation=Allocation.of([(node, node.slots) for node in cluster.nodes]),
        job=Job("train.py", (), launcher="direct"),
        cwd=tmp_path,
        environ=dict(os.environ),
    )
    samples: list[UsageSample] = []

    def fails(run: str, sample: UsageSample) -> None:
        samples.append(sample)
        told.touch()
        raise ZeroDivisionError(run)

    seen = Seen()
    with caplog.at_level(logging.INFO):
        outcome, directory = run_job(request, lambda: seen, on_usage=fails)
    assert (outcome.status, outcome.exit_code) == ("ok", 0)
    assert len(samples) == 1
    events = [getattr(record, "event", None) for record in caplog.records]
    assert events.count("measuring-ended") == 1
    assert list(read_usage(directory)) == []
