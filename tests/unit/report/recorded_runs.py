"""Runs of many nodes, made by code: events, progress, usage and records as a real run has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from dslaunch.cluster.nodeset import expand
from dslaunch.run.events import Event
from dslaunch.run.outcome import Outcome, SecondaryFailure
from dslaunch.run.progress_history import ProgressHistory, ProgressPoint, RankPace
from dslaunch.run.reasons import EndCode, EndReason, Restart
from dslaunch.run.recorded_run import (
    PlannedCommand,
    PlannedDecision,
    PlannedNode,
    PlannedProcess,
    RecordedPlan,
    RecordedRun,
)
from dslaunch.run.run_details import RunDetails
from dslaunch.run.run_inputs import RecordedConfig, RecordedFinding, RecordedVersions, RunInputs
from dslaunch.run.run_record import RunRecord
from dslaunch.run.run_state import State
from dslaunch.run.status import RunStatus
from dslaunch.run.usage import GpuUsage, NodeUsage
from dslaunch.run.usage_history import UsageHistory

START = 1_795_000_000.0
LENGTH = 5400.0
"""Seconds from the start to the end."""
SLOTS = 8


def hosts_of(count: int) -> tuple[str, ...]:
    """Return the names of nodes."""
    return tuple(expand(f"node[{1:03}-{count:03}]"))


def record(hosts: tuple[str, ...]) -> RunRecord:
    """Return the record of a run."""
    return RunRecord(
        program="train.py",
        cluster="pod-a",
        launcher="torchrun",
        hosts=hosts,
        world_size=len(hosts) * SLOTS,
        detached=False,
        agents="1123-100000-train-0001",
        started=START + 3,
        machine="login1",
    )


def events_of(hosts: tuple[str, ...], failing: str = "") -> Iterator[Event]:
    """Yield the events of a run with one restart; on `failing` rank 3 of the node fails."""
    for number, host in enumerate(hosts):
        late = 0.002 * number
        yield Event(START + late, "connected", host)
        for slot in range(SLOTS):
            yield Event(START + 4 + late, "started", host, rank=number * SLOTS + slot)
        yield Event(START + 40 + late, "joined", host)
    reason = EndReason(EndCode.NODE_LOST, hosts[-1], failure="lost", error="no answer")
    yield Event(START + 900, "lost", hosts[-1], failure="lost", error="no answer")
    yield Event(START + 930, "restarting", restart=Restart(1, 2, reason))
    for number, host in enumerate(hosts):
        yield Event(START + 935, "connected", host)
        yield Event(START + 936, "shipped", host)
        for slot in range(SLOTS):
            yield Event(START + 937, "started", host, rank=number * SLOTS + slot)
        yield Event(START + 960, "joined", host)
    for number, host in enumerate(hosts):
        for slot in range(SLOTS):
            is_first = host == failing and slot == 3
            code: int | None = 1 if is_first else 0
            at = START + LENGTH - (10 if is_first else 1)
            if failing and not is_first:
                code = None
            yield Event(
                at,
                "exit",
                host,
                rank=number * SLOTS + slot,
                code=code,
                signal=15 if code is None else None,
                asked=code is None,
            )
        yield Event(START + LENGTH, "ended", host)


def usage_of(hosts: tuple[str, ...], samples: int = 20) -> Iterator[NodeUsage]:
    """Yield what nodes use; the last one is slower than the others."""
    for at in range(samples):
        for number, host in enumerate(hosts):
            busy = 0.55 if number == len(hosts) - 1 else 0.9 + 0.05 * (at % 2)
            gpu = GpuUsage(0, busy=busy, memory_used=60 << 30, memory_total=80 << 30, power=600.0)
            yield NodeUsage(
                time=START + LENGTH * at / samples,
                host=host,
                cpu=0.2 + 0.001 * (number % 500),
                load=12.0,
                memory_used=200 << 30,
                memory_total=1024 << 30,
                received=1.2e9,
                sent=1.1e9,
                gpus=(gpu,),
            )


def progress_of(hosts: tuple[str, ...]) -> ProgressHistory:
    """Return a loss that falls over 1,000 steps, and the paces of all ranks."""
    points = tuple(
        ProgressPoint(START + 60 + 5 * step, step, 0.2 + 10 / (step + 4)) for step in range(1000)
    )
    paces = [
        RankPace(rank, hosts[rank // SLOTS], 7.0 if rank == 11 else 5.0, 999)
        for rank in range(len(hosts) * SLOTS)
    ]
    paces.sort(key=lambda pace: -pace.seconds_per_step)
    return ProgressHistory(points, 0, tuple(paces))


def plan_of(hosts: tuple[str, ...]) -> RecordedPlan:
    """Return a plan in which the interface of one node differs."""
    nodes = tuple(
        PlannedNode(
            host=host,
            slots=tuple(range(SLOTS)),
            first_rank=number * SLOTS,
            cwd="/work",
            env=(
                ("NCCL_SOCKET_IFNAME", "=bond0" if number == 1 else "=eth0"),
                ("WANDB_API_KEY", "0123456789abcdef"),
            ),
            processes=(
                PlannedProcess(command=PlannedCommand(argv=("torchrun", "train.py", "--lr", "1"))),
            ),
        )
        for number, host in enumerate(hosts)
    )
    master = PlannedDecision(
        code="master-reached",
        values={"port_origin": "free"},
        what="master",
        value="10.0.0.1:29512",
        why="eth0 of node001, reached by all other nodes",
    )
    warning = PlannedDecision(
        code="check-warning", what="warning", value="node002: 9 GB free", why="fs.free: free space"
    )
    return RecordedPlan(nodes=nodes, decisions=(master, warning))


def inputs_of(hosts: tuple[str, ...]) -> RunInputs:
    """Return what a run was started from."""
    return RunInputs(
        kind="script",
        program="train.py",
        args=("--lr", "1e-4", "--hf-token", "hf_secret"),
        launcher="torchrun",
        directory="/home/me/project",
        env=(("WANDB_API_KEY", "0123456789abcdef"),),
        secrets=(("DB_PASSWORD", ""),),
        code="/home/me/project",
        files=(("train.py", "aa" * 32), ("data/loader.py", "bb" * 32)),
        configs=(
            RecordedConfig(
                path="ds.json",
                given='{"train_batch_size": 64}',
                used='{"train_batch_size": 64, "checkpoint": {"use_node_local_storage": true}}',
            ),
        ),
        checked=True,
        passed=11,
        findings=(
            RecordedFinding(level="warn", check="fs.free", hosts=hosts[1:2], found="9 GB free"),
        ),
        versions=(RecordedVersions(hosts=hosts, versions={"python": "3.11.7", "torch": "2.6.0"}),),
    )


def failing_host(hosts: tuple[str, ...]) -> str:
    """Return the node on which a rank fails: the second, if there are two."""
    return hosts[:2][-1]


def failed_outcome(hosts: tuple[str, ...]) -> Outcome:
    """Return the outcome of a run whose rank 11 failed, or rank 3 of a single node."""
    host = failing_host(hosts)
    rank = hosts.index(host) * SLOTS + 3
    reason = EndReason(EndCode.RANK_FAILED, host, rank, exit_code=1)
    cause = Event(START + LENGTH - 10, "exit", host, rank=rank, code=1, asked=False)
    return Outcome(
        status="failed",
        exit_code=1,
        reason=reason,
        cause=cause,
        what="GPU out of memory",
        hint="use a smaller micro batch",
        last_lines=("step 1079 loss 0.21", "RuntimeError: CUDA out of memory"),
        secondary=tuple(SecondaryFailure(hosts[0], rank, code=1) for rank in range(8)),
    )


@cache
def details_of(count: int, *, fails: bool = True) -> RunDetails:
    """Return all about a run of `count` nodes."""
    hosts = hosts_of(count)
    outcome = failed_outcome(hosts) if fails else Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
    state = State.FAILED if fails else State.SUCCEEDED
    run = record(hosts)
    status = RunStatus("1123-100000-train-0001", state, run, result=outcome)
    events = sorted(
        events_of(hosts, failing_host(hosts) if fails else ""), key=lambda event: event.time
    )
    return RunDetails(
        status=status,
        recorded=RecordedRun(
            run=status.run,
            record=run,
            outcome=outcome,
            inputs=inputs_of(hosts),
            plan=plan_of(hosts),
            cluster={"name": "pod-a", "ssh": {"fanout": 64}, "nodes": [{"host": h} for h in hosts]},
        ),
        time=START + LENGTH + 60,
        events=tuple(events),
        progress=progress_of(hosts),
        last_lines={(failing_host(hosts), 11): ("RuntimeError: CUDA out of memory",)},
        usage=UsageHistory.of(usage_of(hosts), START, START + LENGTH).curves(),
    )
