"""SLURM's output, cut or damaged: nothing is raised, and a job that runs is not called over."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.cluster.nodeset import fold
from dslaunch.errors import UsageError
from dslaunch.run.run_directory import RunDirectory
from dslaunch.run.view import View
from dslaunch.run.watch import Watch
from dslaunch.slurm.allocation import allocated_nodes, seen_by_steps
from dslaunch.slurm.answers import SlurmAnswerError, parse_accounting, parse_columns, parse_json
from dslaunch.slurm.client import Done, SlurmClient
from dslaunch.slurm.follow import Following
from dslaunch.slurm.identity import JobId
from dslaunch.slurm.output import Layout, OutputReader
from dslaunch.slurm.output_evidence import SLURM, Starts
from dslaunch.slurm.output_sources import Tail
from dslaunch.slurm.partition import parse_partition, partition_file
from dslaunch.slurm.query_failures import QueryError, QueryFailure
from dslaunch.slurm.refusal import parse_refusal
from dslaunch.slurm.reported_ends import RootCauses, task_ends
from dslaunch.slurm.scontrol import allowed_accounts, excluded_nodes, gpu_indexes
from dslaunch.slurm.stream import Stream
from tests.hostile.laden_text import LADEN
from tests.unit.slurm.squeue import SUBMITTED, TOKEN, row

RUNNING = row()
ENDED = "srun: error: n[1-2]: tasks 0-1,3: Exited with exit code 3"
NODE = "NodeName=n1 Gres=gpu:a100:4 State=IDLE Partitions=a,b\n"
DIGITS = "9" * 5000
ODD = (
    "", LADEN, "JobId=", "JobId=12\n", f"JobId=12 JobState=RUNNING Restarts={DIGITS}\n",
    "JobId=12 JobState=RUNNING NodeList=n[1- HetJobOffset=x ExitCode=:\n",
    f"srun: error: n[1-{DIGITS}]: tasks {DIGITS}: Exited with exit code {DIGITS}",
    "srun: error: n[: tasks -: Killed", "srun: error: n1: tasks 3-: Killed",
    "srun: error: n1: tasks 0-999999999: Killed", f"{DIGITS}: words", f"[default{DIGITS}]: words",
    "NodeName= State=\n", "Partitions=a NodeName=\n",
    f"NodeName=n1 Partitions=a Gres=gpu:{DIGITS}\n",
    f"n1={DIGITS}", f"Nodes=n[1- GRES=gpu:2(IDX:{DIGITS})", "Nodes=n1 GRES=gpu(IDX:3-1)",
    "12|RUNNING|0:0", f"12+0|RUNNING|{DIGITS}:{DIGITS}|n|n|n", "rank : ", "time : x\nexitcode : x",
)  # fmt: skip


class Silent(View):
    """A screen that shows nothing."""

    def line(self, line: object) -> None:
        """Nothing."""

    def event(self, event: object) -> None:
        """Nothing."""


def client(out: str, code: int = 0) -> SlurmClient:
    def run(argv: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        return Done(code, out if argv[0] != "sacct" else "", "")

    return SlurmClient({}, run)


def read_all(text: str) -> None:
    """Give a text to every parser of SLURM's output."""
    layout = Layout(((2, 2),), direct=False)
    for answer in (parse_columns, parse_json, lambda said: parse_accounting(said, "|")):
        with contextlib.suppress(SlurmAnswerError):
            answer(text)
    parse_refusal(text)
    gpu_indexes(text)
    seen_by_steps(text)
    list(task_ends(text, layout, 1.0))
    list(OutputReader(layout, ("n1", "n2")).feed(text.encode(errors="replace") + b"\n"))
    causes = RootCauses()
    for line in ("Root Cause (first observed failure):", *text.splitlines()):
        list(causes.feed("n1", line))
    allowed_accounts(text)
    excluded_nodes(text)
    with contextlib.suppress(UsageError):
        partition_file(parse_partition(text, "a"))
    with contextlib.suppress(UsageError):
        allocated_nodes({"SLURM_JOB_NODELIST": text, "SLURM_HET_SIZE": text}, text)
    client(text).nodes("n1")
    following = Following(client(text), JobId("12"), layout, Watch(Silent()), lambda words: None)
    following.ask()


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_output_raises_nothing(text: str) -> None:
    read_all(text)


@given(st.text(), st.sampled_from((RUNNING, ENDED, NODE)), st.integers(0, 300), st.integers(0, 9))
def test_any_text_within_real_output_raises_nothing(
    text: str, real: str, at: int, length: int
) -> None:
    read_all(text)
    read_all(real[:at] + text + real[at + length :])


JOB = JobId("12", submitted=SUBMITTED, token=TOKEN)


def test_a_job_whose_answer_is_cut_anywhere_is_not_over() -> None:
    layout = Layout(((2, 2),), direct=False)
    for length in range(0, len(RUNNING), 31):
        cut = RUNNING[:length]
        following = Following(client(cut), JOB, layout, Watch(Silent()), lambda words: None)
        following.ask()
        assert not following.over, length
        assert following.unknown is QueryFailure.CUT_ANSWER, length


def test_an_answer_without_a_state_is_an_answer_that_is_missing() -> None:
    with pytest.raises(QueryError):
        client(row(state="")).jobs(JOB)
    assert client(RUNNING).jobs(JOB)[0].state == "RUNNING"


def test_a_line_of_a_job_that_never_ends_fills_no_memory() -> None:
    reader = OutputReader(Layout(((1, 1),), direct=False))
    pieces = sum(len(list(reader.feed(b"x" * 50_000))) for _ in range(100))
    assert pieces >= 50
    assert len(reader.rest) <= 1 << 17


@pytest.mark.parametrize("digits", [18, 19, 100, 250, 5000])
def test_names_with_many_digits_are_folded_or_left_as_they_are(digits: int) -> None:
    names = [f"n{'9' * digits}", f"n{'1' * digits}x2", "n1"]
    folded = fold(names)
    assert len(folded) >= 2 * digits
    assert (names[0] in folded.split(",")) == (digits > 18)


LISTS = ("../../x", "/etc/x", "a,../b", "a b", "-x", "a/[1-2]", "", "n[1-")


@pytest.mark.parametrize("folded", LISTS)
def test_a_list_of_nodes_in_an_output_has_nodes_alone(folded: str) -> None:
    """Their names become those of logs."""
    starts = Starts(Layout(((1, 1),), direct=False))
    starts.begins(SLURM, f"dslaunch: job 12, start 1 on {folded}")
    assert starts.hosts == ()


def test_no_output_makes_a_log_outside_of_the_record(tmp_path: Path) -> None:
    output = tmp_path / "job.out"
    output.write_text(f"dslaunch: job 12, start 1 on {tmp_path}/stolen\n0: own words\n")
    record = RunDirectory(tmp_path / "runs" / "run")
    stream = Stream.of(str(output), Layout(((1, 1),), direct=False), Watch(Silent(), record))
    while stream.read():
        pass
    stream.end()
    record.let_go()
    assert {path.name for path in tmp_path.iterdir()} == {"job.out", "runs"}


def test_a_pipe_in_the_place_of_an_output_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.out")
    tail = Tail(tmp_path / "job.out")
    assert tail.read() == b""
    with (tmp_path / "job.out").open("wb", buffering=0) as writer:
        assert tail.read() == b""
        writer.write(b"0: x\n")
    tail.close()


@pytest.mark.parametrize(
    "value", ["a\0b", "--all", "../x", "\ud800", "a\nb", "x" * 70_000, LADEN], ids=range(7)
)
def test_no_value_of_squeue_becomes_an_option_or_a_path(value: str) -> None:
    record = {
        "job_id": 12, "job_state": "RUNNING", "nodes": value, "batch_host": value,
        "array_job_id": 12, "array_task_string": value, "standard_output": f"/{value}",
    }  # fmt: skip
    (info,) = parse_json(json.dumps({"jobs": [record]}))
    assert (info.nodes, info.batch_host, info.task) == ("", "", "")
    assert "\0" not in info.output
    assert len(info.output.encode("utf-8", "surrogateescape")) <= 4096
