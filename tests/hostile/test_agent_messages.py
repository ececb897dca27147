"""Everything that an agent says, with every field changed: it is used as a typed value, or the
node has failed with its name. Nothing else happens: no other exception, no waiting, no growth."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from dslaunch.cli.clean import cleaned, words
from dslaunch.cli.status import page as status_page
from dslaunch.cluster.model import Allocation, Cluster, Node
from dslaunch.errors import DslaunchError, NodeError, NodeFailure
from dslaunch.launch.facts import Facts, PortFact
from dslaunch.launch.job import Job
from dslaunch.launch.plan import NodePlan, Plan, Rendezvous
from dslaunch.launch.planner import make_plan
from dslaunch.node import frames
from dslaunch.protocol.collectives import COLLECTIVES, MOST_ENTRIES, MOST_NAME, RankAnswer
from dslaunch.protocol.messages import HELLO, Hello, Incoming, NodeEvent, ProtocolError, Reply
from dslaunch.protocol.queries import (
    CLEAN,
    DETACHED,
    JOURNAL,
    STACKS,
    Answers,
    KnownValues,
    Questions,
    parse_answers,
)
from dslaunch.protocol.rehearsal import REHEARSAL, GivenConfig
from dslaunch.protocol.usage import COUNTERS
from dslaunch.protocol.values import MOST_TEXT, InvalidAnswer, parse
from dslaunch.rehearsal.judge import judge_rehearsal
from dslaunch.report import stacks
from dslaunch.report.decision_rows import decision_rows
from dslaunch.report.json_view import JsonView
from dslaunch.report.live import TerminalView
from dslaunch.report.metrics import Measured, metrics_text
from dslaunch.report.rehearsal import rehearsal_rows
from dslaunch.report.status import run_row
from dslaunch.report.usage_table import Choice, Size, page
from dslaunch.run.collective_times import CollectiveTimes
from dslaunch.run.collectives import RankRecord, with_collectives
from dslaunch.run.collectives import records as collective_records
from dslaunch.run.evidence import Inquiry, gather
from dslaunch.run.follow import read_kept
from dslaunch.run.gpu_errors import with_gpu_errors
from dslaunch.run.hang import judge
from dslaunch.run.hang_evidence import ask_for_evidence, evidence_of
from dslaunch.run.hang_text import hang_text
from dslaunch.run.interrupts import Interrupts
from dslaunch.run.job_files import JobFiles
from dslaunch.run.kept_hang import with_hang_verdict
from dslaunch.run.nccl_ras import ranks_waited_for
from dslaunch.run.outcome import Outcome
from dslaunch.run.prepare import decide
from dslaunch.run.rank_signals import Order, send_signal
from dslaunch.run.rank_views import rank_views
from dslaunch.run.reach import ReachedNodes
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.rehearsal import MOST_SIZE, RehearsalLimits, RehearsalMonitor, Rehearsed
from dslaunch.run.session import Session
from dslaunch.run.status import node_runs
from dslaunch.run.usage import parse_usage, usage_line
from dslaunch.run.usage_monitor import UsageSample
from dslaunch.run.usage_rates import Reading, usage_between
from dslaunch.run.view import ignore
from dslaunch.run.watch import Watch, read_event
from dslaunch.slurm.job_signals import ask_node
from dslaunch.transport.future import Future
from dslaunch.transport.wire import LostError
from tests.growth import Work, grows, result_within
from tests.hostile.mutations import Mutation, mutations, sample, text_sample

SLOWEST = 2.0
"""Seconds of processor time that one variant may take."""
HOSTS = ("good", "bad")
NODES = tuple(Node(host, (0, 1)) for host in HOSTS)
ALLOCATION = Allocation.of([(node, node.slots) for node in NODES])
CLUSTER = Cluster("test", NODES)
DIGEST = "0" * 64
RANKS = range(4)
HELLO_MESSAGE: dict[str, Any] = {
    "event": "hello", "time": 1.7e9, "run": "r", "started": False, "last": 0, "hostname": "h",
    "boot": "boot", "network": "net:[1]", "home": "/home/me",
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"event": "started", "rank": 2, "pid": 1234, "time": 1.7e9},
    {"event": "unstarted", "rank": 2, "error": "train.py: no such file", "time": 1.7e9},
    {"event": "joined", "rank": -1, "time": 1.7e9},
    {"event": "exit", "rank": 2, "code": None, "signal": 9, "asked": False, "time": 1.7e9,
     "evidence": {"signal": 9, "shm_free": 100, "oom": "killed", "full": ["/tmp"],
                  "error_file": '{"message": {"message": "ValueError: x"}}'}},
    {"event": "exit", "rank": 3, "code": 1, "signal": None, "asked": True, "time": 1.7e9},
    {"event": "stopping", "rank": -1, "by": "me@there", "time": 1.7e9},
    {"event": "ending", "rank": -1, "error": "the launcher is gone", "time": 1.7e9},
    {"event": "done", "left": [17], "time": 1.7e9},
    {"event": "beat", "time": 1.7e9, "idle": 3.5},
    HELLO_MESSAGE,
    {"reply": 1, "value": None, "time": 1.7e9, "received": 1.6e9},
    {"reply": 1, "error": "no", "time": 1.7e9, "received": 1.6e9},
]  # fmt: skip
RUN = {
    "run": "1122-1-train-ab", "cluster": "test", "launcher": "torchrun", "hosts": [*HOSTS],
    "world_size": 4, "ranks": [2, 3], "started": 1.7e9, "detached": True, "living": False,
    "directory": "/tmp/x", "left": [17], "events": EVENTS[:8],
}  # fmt: skip
PROCESS = {
    "pid": 7, "command": "python train.py", "state": "S", "wchan": "futex", "syscall": "futex",
    "on": "", "stack": ["futex_wait"], "tool": "py-spy", "error": "",
    "threads": [{"name": "MainThread", "main": True,
                 "frames": [{"file": "train.py", "line": 3, "function": "main"}]}],
}  # fmt: skip


def honest_answer(name: str, argument: Any) -> Any:
    """What an honest node answers to a question."""
    made: dict[str, Callable[[Any], Any]] = {
        "interfaces": lambda _: [
            {"name": "eth0", "address": "10.0.0.1", "loopback": False, "up": True,
             "speed": 1000, "mtu": 1500},
            {"name": "lo", "address": "127.0.0.1", "loopback": True, "up": True,
             "speed": None, "mtu": 65536},
        ],
        "gpus": lambda _: 8,
        "accelerators": lambda _: {"amd": {"devices": 8, "bus": 8}},
        "resolve": lambda names: {name: ["10.0.0.1"] for name in names},
        "interpreter": lambda _: "/usr/bin/python3",
        "directories": lambda asked: {
            p: {"path": f"/home/me/{p}", "made": False, "error": None} for p in asked
        },
        "mark": lambda a: dict.fromkeys(a["paths"]),
        "marks": lambda a: {p: list(a["names"]) for p in a["paths"]},
        "claim": lambda a: dict.fromkeys(a["paths"], a["text"]),
        "unmark": lambda _: None,
        "digests": lambda a: dict.fromkeys(a["paths"]),
        "listen": lambda a: {"port": a["ports"][0], "taken": []},
        "dial": lambda a: {x: {"local": "10.0.0.1"} for x in a["targets"]},
        "runs": lambda _: [RUN],
        "job_signal": lambda _: {"sent": [2], "unhandled": []},
        "clean": lambda _: {"killed": [17], "removed": ["1122-1-train-ab"]},
        "journal": lambda a: {"data": "aGVsbG8=", "size": 5},
        "hang": lambda _: {
            "time": 2.0, "stacks": {"2": [PROCESS]}, "collectives": {"2": RECORDED},
        },
        "nccl_ras": lambda _: NCCL_REPORT,
        "run": lambda _: {"code": 0, "out": KERNEL_LOG, "err": ""},
    }  # fmt: skip
    return {"value": made[name](argument)}


@pytest.fixture
def variants(mutation_count: int) -> int:
    """How many variants are tried of each message and answer: some ten tests share a suite's."""
    return mutation_count // 8


class Scripted:
    """A session whose node answers as an honest one, but for one question, or its greeting."""

    def __init__(self, host: str, changed: tuple[str, Mutation] | None = None) -> None:
        self.host, self.offset, self.ranks = host, 0.0, RANKS
        self.changed = changed
        self.hello: Future[Hello] = Future()
        greeting = HELLO_MESSAGE
        if changed is not None and changed[0] == "hello":
            greeting = changed[1].value
        try:
            self.hello.set_result(parse(HELLO, greeting).kept())
        except InvalidAnswer as error:
            self.hello.set_exception(self._lost(error))

    def measure_clock(self) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def ask(self, questions: Questions, known: KnownValues | None = None) -> Future[Answers]:
        raw = {q.name: honest_answer(q.name, argument) for q, argument in questions.items()}
        if self.changed is not None and self.changed[0] in raw:
            raw[self.changed[0]] = self.changed[1].value
        answer: Future[Answers] = Future()
        try:
            answer.set_result(parse_answers(self.host, questions, raw, known))
        except InvalidAnswer as error:
            answer.set_exception(self._lost(error))
        return answer

    def skip(self, number: int) -> None:
        """Nothing follows what this node has kept."""

    def _lost(self, error: Exception) -> LostError:
        return LostError(NodeFailure(self.host, "protocol", str(error)))


def within_time(work: Callable[[], object]) -> None:
    """Do something that may only fail with an error of ours, naming the compromised node."""

    def attempt() -> None:
        try:
            work()
        except NodeError as error:
            assert {failure.host for failure in error.failures} == {"bad"}
        except DslaunchError:
            pass

    result_within(SLOWEST, attempt)


def sessions_of(changed: tuple[str, Mutation], bad_first: bool) -> list[Session]:
    every = [Scripted("good"), Scripted("bad", changed)]
    return [cast(Session, session) for session in (every[::-1] if bad_first else every)]


QUESTIONS = {
    "interfaces": None, "gpus": None, "accelerators": None, "resolve": ["good"],
    "interpreter": "python3",
    "directories": ["work"], "mark": {"paths": ["work"]},
    "marks": {"paths": ["work"], "names": ["m-0", "m-1"]},
    "claim": {"paths": ["work"], "name": "m-first", "text": "m-0", "count": 2},
    "digests": {"paths": ["train.py"]}, "listen": {"ports": [20000, 20037]},
    "dial": {"targets": {"10.0.0.1": ["10.0.0.1", 20000], "127.0.0.1": ["127.0.0.1", 20000]}},
}  # fmt: skip


@pytest.mark.parametrize("name", [*QUESTIONS, "hello"])
@pytest.mark.parametrize("bad_first", [False, True])
def test_no_answer_before_a_run_does_more_than_fail_its_node(
    name: str, bad_first: bool, variants: int, tmp_path: Path
) -> None:
    if name == "hello":
        honest: Any = HELLO_MESSAGE
    else:
        honest = honest_answer(name, QUESTIONS[name])
    ordered = NODES[::-1] if bad_first else NODES
    allocation = Allocation.of([(node, node.slots) for node in ordered])
    (tmp_path / "train.py").write_text("")
    source = JobFiles(tmp_path, "work", "train.py", (("train.py", DIGEST),))
    inquiry = Inquiry(Cluster("test", ordered), allocation, ("work",), source)
    job = Job("train.py", (), launcher="direct")

    def prepare(changed: Mutation) -> None:
        sessions = sessions_of((name, changed), bad_first)
        for session in sessions:
            if session.hello.exception() is not None:
                raise NodeError((cast(LostError, session.hello.exception()).failure,))
        facts = gather(inquiry, sessions, Interrupts())
        decided, planned, shipments = decide(inquiry, facts, job, cwd=tmp_path, sync=True)
        assert {path for shipment in shipments for path in shipment.paths} <= {"train.py"}
        plan = make_plan(allocation, planned, decided, cluster="test")
        decision_rows(plan.decisions, 80)

    for changed in sample(honest, variants):
        within_time(lambda changed=changed: prepare(changed))  # type: ignore[misc]


def shown(values: Iterator[Any] | list[Any]) -> None:
    """Take values as a run does, show them, and judge the end."""
    terminal = TerminalView(io.StringIO(), io.StringIO(), nodes=HOSTS)
    machine = JsonView(io.StringIO())
    for screen in (terminal, machine):
        watch = Watch(screen)
        for value in values:
            if isinstance(value, NodeEvent):
                watch.happened(read_event("bad", value, 0.0))
            elif isinstance(value, frames.Output):
                watch.output("bad", value, 0.0)
            elif isinstance(value, Reply):
                DETACHED.validate_python({"directory": "/x", "port": None})
        screen.outcome(watch.outcome(), Path("/run"))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event.get("event", "reply")))
def test_no_message_does_more_than_fail_its_node(event: dict[str, Any], variants: int) -> None:
    def receive(changed: Mutation) -> None:
        body = json.dumps(changed.value).encode()
        incoming = Incoming(RANKS)
        try:
            values = list(incoming.feed(frames.frame(frames.MESSAGE, body, 1)))
        except ProtocolError:
            return
        shown(values)

    for changed in sample(event, variants):
        within_time(lambda changed=changed: receive(changed))  # type: ignore[misc]


def test_no_record_of_a_run_does_more_than_fail_its_node(variants: int) -> None:
    def look(changed: Mutation) -> None:
        sessions = {s.host: s for s in sessions_of(("runs", changed), bad_first=False)}
        reached = ReachedNodes(sessions)
        statuses = node_runs(reached)
        assert set(reached.failures) <= {"bad"}
        # whatever the other says, the honest node's run is there, with the honest node
        assert "good" in statuses[str(RUN["run"])].nodes
        for status in statuses.values():
            assert set(status.nodes) <= set(HOSTS)
            run_row(status)
            status_page(status)
            json.dumps(status.as_data())

    for changed in sample({"value": [RUN]}, 4 * variants):
        within_time(lambda changed=changed: look(changed))  # type: ignore[misc]


def test_runs_that_name_more_nodes_than_there_can_be_are_left_out() -> None:
    """A text of 20 bytes stands for 100,000 names, and a valid message has thousands of texts."""
    texts = [f"{names},x{at}" for at in range(500) for names in ("n[1-99000]", "n[1-99999],n[1-9]")]
    forged = [{**RUN, "run": f"r{at}", "hosts": text} for at, text in enumerate(texts)]
    changed = Mutation("runs", {"value": forged})
    reached = ReachedNodes({s.host: s for s in sessions_of(("runs", changed), bad_first=True)})
    statuses = node_runs(reached)
    assert {host: failure.kind for host, failure in reached.failures.items()} == {"bad": "protocol"}
    assert len(statuses) < 20
    assert set(statuses[str(RUN["run"])].nodes) == set(HOSTS)


def test_no_answer_about_what_was_removed_does_more_than_fail_its_node(
    variants: int,
) -> None:
    for changed in sample(honest_answer("clean", None), variants):
        session = Scripted("bad", ("clean", changed))
        future = session.ask({CLEAN: {"run": None, "ended": False}})
        if future.exception() is None:
            done = cleaned(future.result())
            words("bad", done)
            json.dumps(done)
        else:
            assert isinstance(future.exception(), LostError)


def test_no_kept_output_does_more_than_fail_its_node(variants: int) -> None:
    def read(changed: Mutation) -> None:
        session = cast(Session, Scripted("bad", ("journal", changed)))
        terminal = TerminalView(io.StringIO(), io.StringIO(), nodes=HOSTS)
        with contextlib.suppress(NodeError):
            read_kept([session], "r", Watch(terminal), note_failure=ignore)

    honest = honest_answer("journal", {})
    for changed in sample(honest, variants):
        within_time(lambda changed=changed: read(changed))  # type: ignore[misc]


@pytest.mark.parametrize("size", [2**20, 2**40])
def test_kept_output_that_never_ends_is_left(size: int) -> None:
    beat = frames.pack_message({"event": "beat", "time": 1.0, "idle": 0.0})
    told = {"value": {"data": base64.b64encode(beat).decode(), "size": size}}
    session = cast(Session, Scripted("bad", ("journal", Mutation("endless", told))))
    terminal = TerminalView(io.StringIO(), io.StringIO(), nodes=HOSTS)

    def read() -> None:
        with contextlib.suppress(NodeError):
            read_kept([session], "r", Watch(terminal), note_failure=ignore)

    within_time(read)


def test_no_stack_does_more_than_fail_its_node(variants: int) -> None:
    for changed in sample({"2": [PROCESS], "3": [PROCESS]}, 4 * variants):
        try:
            told = parse(STACKS, changed.value)
        except InvalidAnswer:
            continue
        stacks.page(stacks.fold({"bad": told}), 80)
        json.dumps(told)


RECORDED: dict[str, Any] = {
    "state": "answered",
    "pid": 9,
    "told": {
        "now": 1.0,
        "initialized": True,
        "groups": [
            {"id": 0, "name": "0", "description": "default_pg", "backend": "gloo", "ranks": [2, 3],
             "enqueued": 2, "started": 1, "completed": 1},
        ],
        "entries": [
            {"group": "0", "seq": 2, "operation": "all_reduce", "backend": "gloo",
             "sizes": [[4, 2]], "tensors": 1, "dtypes": ["Float"], "entered": 1.0,
             "completed": False, "p2p": False, "timeout": 1800.0,
             "frames": [{"file": "train.py", "line": 3, "function": "step"}]},
        ],
        "times": [
            {"group": "0", "backend": "gloo", "ranks": [2, 3], "kinds": ["all_reduce [[4]]"],
             "calls": [[at, 0, 1.0 + at, None] for at in range(40)]},
        ],
        "spent": 0.1,
        "error": "none",
    },
}  # fmt: skip


def test_no_recorded_collective_does_more_than_fail_its_node(variants: int) -> None:
    for changed in sample({"2": RECORDED, "3": RECORDED}, 4 * variants):
        try:
            told = parse(COLLECTIVES, changed.value)
        except InvalidAnswer:
            continue
        within_time(lambda told=told: judge_hang(told))  # type: ignore[misc]


NCCL_REPORT = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 12
  Rank 3 has not launched any operations -- GPU 1 managed by process 7 on node 10.0.0.2

"""
KERNEL_LOG = """\
[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=7, name=python, \
Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103
"""


def test_no_recorded_hang_does_more_than_fail_its_node(variants: int) -> None:
    over = Outcome("failed", 1, EndReason(EndCode.HANG, seconds=9.0))

    def look(changed: Mutation) -> None:
        sessions = {s.host: s for s in sessions_of(("hang", changed), bad_first=False)}
        reached = ReachedNodes(sessions)
        ranks = {"good": (2,), "bad": (3,)}
        found = with_hang_verdict(over, "r", reached, ranks=ranks, events=())
        assert set(reached.failures) <= {"bad"}
        assert all(set(found.stacks[host]) <= set(map(str, ranks[host])) for host in found.stacks)
        hang_text(found.reason.hang)
        json.dumps(found.as_data())

    for changed in sample(honest_answer("hang", None), variants):
        within_time(lambda changed=changed: look(changed))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["nccl_ras", "run"])
def test_no_report_about_gpus_does_more_than_fail_its_node(name: str, variants: int) -> None:
    told = parse(COLLECTIVES, {"2": RECORDED, "3": RECORDED})
    stuck = with_collectives({"bad": {"2": [PROCESS], "3": [PROCESS]}}, records(told))
    views = rank_views(stuck, records(told), {})

    def look(changed: Mutation) -> None:
        sessions = sessions_of((name, changed), bad_first=False)
        answers = {session.host: each for session, each in ask_for_evidence(sessions).arrived()}
        found = evidence_of(answers, seconds=1e9)
        assert set(ranks_waited_for(found.nccl_reports, views)) <= set(views)
        assert {error.host for error in found.gpu_errors} <= set(HOSTS)
        hang_text(with_gpu_errors(judge(views, now=2.0), found.gpu_errors, views))

    honest = honest_answer(name, None)
    for changed in (*sample(honest, variants), *text_sample(honest, variants)):
        within_time(lambda changed=changed: look(changed))  # type: ignore[misc]


def records(told: Mapping[str, RankAnswer]) -> dict[int, RankRecord]:
    """What the ranks of the compromised node have recorded."""
    return collective_records("bad", told, offset=0.5)


def judge_hang(told: Mapping[str, RankAnswer]) -> None:
    """Do with what ranks have recorded all that a hang does with it."""
    found = records(told)
    shown = with_collectives({"bad": {"2": [PROCESS], "3": [PROCESS]}}, found)
    verdict = judge(rank_views(shown, found, {}), now=2.0)
    hang_text(verdict)
    json.dumps(verdict.as_data())
    stacks.page(stacks.fold(shown), 80)


@pytest.mark.parametrize("operation", ["broadcast", "send"])
def test_groups_that_wait_for_each_other_are_judged_in_proportion(operation: str) -> None:
    def told(rank: int, count: int) -> dict[str, Any]:
        """What one of two ranks tells: its collectives, which the other has not entered."""
        names = [f"{rank}-{at}" for at in range(count)]
        groups = [{"name": name, "ranks": [2, 3]} for name in names]
        entry = {**RECORDED["told"]["entries"][0], "operation": operation, "sizes": []}
        entries = [{**entry, "group": name} for name in names]
        return {**RECORDED, "told": {"groups": groups, "entries": entries}}

    def judging(count: int) -> Work:
        found = records(parse(COLLECTIVES, {"2": told(2, count), "3": told(3, count)}))
        views = rank_views({}, found, {})
        return lambda: hang_text(judge(views, now=2.0))

    assert not grows(judging, 100)
    assert len(str(judging(1000)())) < 2000


class Telling(Scripted):
    """A session whose ranks tell these collectives."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__("bad")
        self.told, self.clock_error = told, 0.0

    def request(self, operation: str, form: object, **message: object) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(self.told)
        return answer


def test_no_times_of_collectives_do_more_than_fail_their_node(variants: int) -> None:
    for changed in sample({"2": RECORDED, "3": RECORDED}, 4 * variants):
        try:
            told = parse(COLLECTIVES, changed.value)
        except InvalidAnswer:
            continue

        def compare(told: Any = told) -> None:
            times = CollectiveTimes()
            times.begin([Telling(told)])  # type: ignore[list-item]
            times.end()

        within_time(compare)


def test_what_is_kept_of_collectives_is_in_proportion_to_what_was_sent() -> None:
    """A name is sent once, and is that of thousands of collectives."""
    name = "\U0001f600" * MOST_NAME
    calls = [[at, 0, 1.0, None] for at in range(MOST_ENTRIES)]
    group = {"group": "0", "backend": name, "ranks": [2, 3], "kinds": [name], "calls": calls}
    sent = {"2": {**RECORDED, "told": {"times": [group]}}}
    told = parse(COLLECTIVES, sent)
    session = Telling({**told})
    times = CollectiveTimes()
    tracemalloc.start()
    times.begin([session])  # type: ignore[list-item]
    times.end()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50 * len(json.dumps(sent))


MEASURED: dict[str, Any] = {
    "monotonic": 10.0, "cpus": 4, "cpu_busy": 1.0, "cpu_total": 2.0, "load": 0.5,
    "memory_total": 8, "memory_free": 4, "network": {"eth0": [1, 2, 0]},
    "fabric": {"mlx5_0/1": [1, 2, 0]}, "disks": {"sda": [1, 2]}, "limits": {"/g": [1, 0]},
    "ranks": [{"rank": 2, "pid": 9, "cpu": 1.0, "memory": 1, "busiest": 9, "ran": 1.0,
               "waited": 0.0}],
    "output": {"2": "step 1"}, "gpu_error": "none",
    "gpus": [{"index": 0, "busy": 0.5, "memory_used": 1, "memory_total": 2, "power": 1.0,
              "temperature": 50.0, "clock": 1000, "throttled": ["thermal"]}],
}  # fmt: skip


def test_no_measurement_does_more_than_fail_its_node(variants: int) -> None:
    before = Reading(1.0, "bad", parse(COUNTERS, MEASURED))
    for changed in sample({**MEASURED, "monotonic": 20.0}, 4 * variants):
        try:
            now = Reading(2.0, "bad", parse(COUNTERS, changed.value))
        except InvalidAnswer:
            continue
        usage = usage_between(before, now)
        if usage is not None:
            assert parse_usage(usage_line(usage)) == usage
            shown = UsageSample(2.0, (usage,), ())
            within_time(lambda shown=shown: page("r", shown, (), Choice(), Size(80, 24)))  # type: ignore[misc]
            metrics_text(Measured("r", shown))


def rehearsal_records() -> dict[str, Any]:
    """What two ranks of a rehearsal may record."""
    sizes = {"parameters": 9, "trainable": 9, "types": {"float32": 9}, "devices": {"cpu": 9}}
    config = {"kind": "deepspeed-config", "path": None, "text": '{"train_batch_size": 8}'}
    records: list[dict[str, Any]] = [
        {"kind": "start", "pid": 7, "world": 2, "python": "3.11", "cpus": 2, "threads": 1,
         "cwd": "/w"},
        {"kind": "process-group", "backend": "gloo", "world": 2, "rank": 0, "method": None,
         "timeout": 60.0},
        {"kind": "wrapped", "wrapper": "DistributedDataParallel", "model": "Net", "largest": 9,
         "largest_name": "0", **sizes},
        {"kind": "optimizer", "optimizer": "Adam", "lr": [0.1], "tensors": 1, "owned": 1,
         "gradients": 1, "fingerprint": [1.0], **sizes},
        {"kind": "loader", "number": 1, "batch": 4, "workers": 2, "dataset": "D", "samples": 64,
         "batches": 8, "sampler": "S", "batch_sampler": "B", "replicas": 2, "replica": 0,
         "seed": 0, "drop_last": False},
        {"kind": "batch", "loader": 1, "index": 1, "size": 4, "digest": "a" * 16},
        {"kind": "step", "step": 1, "seconds": 0.1, "lr": [0.1], "loss": 1.0, "finite": True,
         "backwards": 1, "collectives": 2, "fingerprint": [2.0], "memory": 1, "gpus": 1,
         "gpu_memory": 1, "gpu_total": 2, "skipped": 0},
        {"kind": "saved", "by": "torch.save", "path": "/w/a.pt", "tensors": 1, "empty": 0},
        {"kind": "written", "path": "/w/log"},
        {"kind": "host", "name": "huggingface.co"},
        {"kind": "join"},
        {"kind": "same-order", "loader": 1},
        {"kind": "input", "index": 1, "digest": "0" * 16},
        {"kind": "exception", "error": "ValueError", "text": "x", "file": "a.py", "line": 1},
        config,
    ]  # fmt: skip
    return {str(rank): {"records": records, "position": 9} for rank in range(2)}


def test_no_record_of_a_rehearsal_does_more_than_fail_its_node(variants: int) -> None:
    nodes = tuple(NodePlan(host, n, (0,), n, "/w", (), ()) for n, host in enumerate(("a", "b")))
    plan = Plan("test", "torchrun", 2, Rendezvous("a", 29500), nodes)
    facts = Facts((), PortFact(None))
    outcome = Outcome("ok", 0, EndReason(EndCode.REHEARSED, steps=2))
    for changed in sample(rehearsal_records(), 4 * variants):
        try:
            told = parse(REHEARSAL, changed.value)
        except InvalidAnswer:
            continue
        records = {int(rank): new.records for rank, new in told.items()}
        rehearsed = Rehearsed(plan, facts, outcome, records, (), 1.0)
        result = judge_rehearsal(rehearsed)
        json.dumps(result.as_data(), allow_nan=False)
        assert not any("\x1b" in row for row in rehearsal_rows("train.py", result, 80))


class LargeRecords:
    """A session whose node sends large records of a rehearsal ten times, and that it is over."""

    host, ranks, over = "bad", range(1), False

    def __init__(self) -> None:
        self.position = 0

    def request(self, operation: str, form: TypeAdapter[Any], **message: object) -> Future[Any]:
        self.position = min(self.position + 1, 10)
        record = {"kind": "deepspeed-config", "path": None, "text": "x" * MOST_TEXT}
        told = {"0": {"records": [record] * 30 + [{"kind": "held"}], "position": self.position}}
        answer: Future[Any] = Future()
        answer.set_result(parse(form, told))
        return answer


def test_records_of_a_rehearsal_do_not_fill_the_memory() -> None:
    plan = Plan("test", "direct", 1, Rendezvous("node1", 29500), ())
    monitor = RehearsalMonitor(RehearsalLimits(), plan)
    session = cast(Session, LargeRecords())
    monitor.collect([session])
    texts = [record.text for record in monitor.records[0] if isinstance(record, GivenConfig)]
    assert 0 < sum(map(len, texts)) <= MOST_SIZE
    assert monitor.look([session]) == EndReason(EndCode.REHEARSED, steps=2)


def test_no_answer_about_a_signal_names_ranks_that_were_not_chosen(variants: int) -> None:
    honest = {"value": {"sent": [2], "unhandled": []}}
    for changed in sample(honest, 4 * variants):
        session = cast(Session, Scripted("bad", ("job_signal", changed)))
        try:
            signaled = send_signal([session], Order(10, (2, 3)), partial(ask_node, ["12"]))
        except DslaunchError:
            continue
        assert set(signaled.ranks) <= {2, 3}


def test_questions_of_all_kinds_are_among_those_that_are_tried() -> None:
    before_a_run = {*QUESTIONS}
    of_runs = {"runs", "clean", "journal", "unmark", "job_signal"}
    of_a_hang = {"hang", "nccl_ras", "run"}
    tried = before_a_run | of_runs | of_a_hang
    from dslaunch.protocol import queries

    named = {value.name for value in vars(queries).values() if isinstance(value, queries.Query)}
    assert named == tried
    assert JOURNAL.name in tried


def test_the_honest_answers_are_accepted() -> None:
    sessions = sessions_of(("none", Mutation("", None)), bad_first=False)
    inquiry = Inquiry(CLUSTER, ALLOCATION, ("work",), None)
    facts = gather(inquiry, sessions, Interrupts())
    assert [node.host for node in facts.nodes] == ["good", "bad"]
    for event in EVENTS:
        assert list(Incoming(RANKS).feed(frames.pack_message(event)))


GREEDY = """
from dslaunch.node import frames
from dslaunch.protocol.messages import Incoming, ProtocolError
from dslaunch.protocol.queries import RUNS, parse_answers
from dslaunch.protocol.values import InvalidAnswer
limit = 16 << 20
def bodies():
    yield b'{"reply":1,"time":1.0,"value":[' + b'{},' * (limit // 3 - 20) + b'0]}'
    yield b'{"reply":1,"time":1.0,"value":[' + b'{},' * 249_000 + b'0]}'
    yield b'{"reply":1,"time":1.0,"value":[' + b'{"a":1},' * 249_000 + b'0]}'
    yield b'{"reply":1,"time":1.0,"value":[' + b'"ab",' * 499_000 + b'0]}'
    wide = '\\U0001f600'.encode()
    yield b'{"reply":1,"time":1.0,"value":"' + wide + b'a' * (limit - 100) + b'"}'
    yield b'{"reply":1,"time":1.0,"value":[' + b'1e5,' * 499_000 + b'0]}'
    yield b'{"event":"ending","time":1.0,"error":"' + b'a' * (limit - 100) + b'"}'
for body in bodies():
    incoming = Incoming(range(4))
    whole = frames.HEADER.pack(len(body), 1, 0) + body
    try:
        for start in range(0, len(whole), 262144):
            for value in incoming.feed(whole[start:start + 262144]):
                parse_answers("bad", {RUNS: None}, {"runs": {"value": value.value}})
    except (ProtocolError, InvalidAnswer):
        pass
    del whole, body
# not ru_maxrss, which begins with that of the process that started this one
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1024)
"""


def test_no_message_takes_more_than_300_megabytes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GREEDY], capture_output=True, text=True, check=True, timeout=300
    )
    assert int(done.stdout) < 300


def test_every_field_of_a_message_is_changed_in_many_ways() -> None:
    places = {mutation.where.partition(" = ")[0] for mutation in mutations(EVENTS[3])}
    assert {"evidence.full.0", "evidence.error_file", "signal", "time", "everything"} <= places
