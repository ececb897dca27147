"""The texts of a run's end and of its events, compared whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from pathlib import Path

from msgspec.structs import replace

from dslaunch.errors import ErrorCode
from dslaunch.launch.decisions import DecisionCode, decision
from dslaunch.launch.replacement import Replacement
from dslaunch.report.decision_rows import decision_rows
from dslaunch.report.event_text import event_text
from dslaunch.report.outcome_rows import RunExtent, outcome_rows
from dslaunch.run.endings import BY_EVIDENCE
from dslaunch.run.events import Event
from dslaunch.run.hang_text import hang_hint
from dslaunch.run.hang_verdict import GpuError, HangCode, HangVerdict, Place, Side
from dslaunch.run.known_endings import built_in
from dslaunch.run.outcome import Outcome, SecondaryFailure
from dslaunch.run.outcome_text import message, stop_text
from dslaunch.run.reasons import EndCode, EndReason, Restart
from dslaunch.run.waits import FileLock, WaitKind

STEP, SAVE = Place("train.py", 30, "step"), Place("train.py", 41, "save")
WAITING = HangVerdict(
    HangCode.NOT_ENTERED,
    ranks=(("n4", 7),),
    place=SAVE,
    waiting=(0, 1, 2, 3, 4, 5, 6),
    operation="all_reduce",
    group="default_pg",
    number=12,
    waiting_place=STEP,
)
ODD = Side((7,), "all_reduce", "default_pg", sizes=((8,),), dtypes=("Float",), place=SAVE)
MOST = Side((0, 1, 2), "all_reduce", "default_pg", sizes=((8, 2),), dtypes=("Float",), place=STEP)
ROOTS = (replace(ODD, operation="gather", root=7), replace(MOST, operation="gather", root=0))
GROUPS = (
    replace(ODD, operation="new_group", members=(4, 5, 6, 7)),
    replace(MOST, operation="new_group", members=(0, 1, 2, 3)),
)
LOCK = FileLock("/home/me/.cache/torch_extensions/lock", pid=4711, command="python train.py")
PAIRS = (("n1", "n4"), ("n2", "n4"))
VERDICTS = (
    WAITING,
    replace(WAITING, wait=WaitKind.NETWORK),
    replace(WAITING, wait=WaitKind.CHILD_PROCESS),
    replace(WAITING, code=HangCode.LOCK, wait=WaitKind.QUEUE),
    replace(WAITING, code=HangCode.DEAD, exit_code=0, place=None),
    replace(WAITING, code=HangCode.DEAD, signal=9, place=None),
    replace(WAITING, code=HangCode.EXITING, place=None),
    replace(WAITING, code=HangCode.STOPPED),
    replace(WAITING, code=HangCode.FILESYSTEM, on="/data/x", ranks=(("n3", 6), ("n4", 7))),
    replace(WAITING, code=HangCode.LOCK),
    replace(WAITING, code=HangCode.LOCK, lock=LOCK),
    replace(WAITING, code=HangCode.LOCK, lock=replace(LOCK, rank=0)),
    replace(WAITING, code=HangCode.LOCK, lock=FileLock(LOCK.file)),
    replace(WAITING, code=HangCode.DATALOADER, workers=2),
    replace(WAITING, code=HangCode.BUSY),
    replace(WAITING, code=HangCode.GPU_BUSY),
    replace(WAITING, code=HangCode.MISMATCH, sides=(ODD, MOST)),
    replace(WAITING, code=HangCode.MISMATCH, sides=(replace(ODD, operation="barrier"), MOST)),
    replace(WAITING, code=HangCode.MISMATCH, sides=(replace(ODD, group="pair"), MOST)),
    replace(
        WAITING,
        code=HangCode.MISMATCH,
        sides=(
            replace(ODD, operation="send", group="", peer=3),
            replace(ODD, ranks=(5,), operation="recv", group="", peer=7),
            MOST,
        ),
    ),
    replace(WAITING, code=HangCode.MISMATCH, sides=ROOTS),
    replace(WAITING, code=HangCode.MISMATCH, operation="new_group", sides=GROUPS),
    replace(
        WAITING, code=HangCode.MISMATCH, sides=(replace(ODD, operation="recv", group=""), MOST)
    ),
    replace(WAITING, code=HangCode.NETWORK, ranks=(), unreachable=PAIRS),
    replace(
        WAITING,
        code=HangCode.NETWORK,
        ranks=(),
        sides=(replace(ODD, operation="new_group", group=""), MOST),
        unreachable=PAIRS,
    ),
    replace(WAITING, code=HangCode.UNKNOWN, ranks=()),
    replace(WAITING, code=HangCode.RENDEZVOUS, ranks=(), operation="init_process_group"),
    HangVerdict(HangCode.SLOW, ranks=(("n1", 0), ("n2", 1)), place=STEP),
    HangVerdict(HangCode.FILESYSTEM, ranks=(("n1", 0), ("n2", 1)), place=SAVE),
    HangVerdict(
        HangCode.GPU,
        ranks=(("n2", 3),),
        place=STEP,
        waiting=(0, 1, 2),
        operation="all_reduce",
        waiting_place=STEP,
        gpus=(GpuError("n2", 79, "0000:9b:00", 77), GpuError("n2", 31, "0000:9b:00")),
    ),
    HangVerdict(HangCode.NETWORK, waiting=(1, 2), operation="broadcast", waiting_place=STEP),
    HangVerdict(HangCode.ONE_WAY, waiting=(0, 1), operation="send", waiting_place=STEP),
    HangVerdict(HangCode.UNKNOWN),
)
FAILED = EndReason(EndCode.RANK_FAILED, "n1", 3, exit_code=1)
REASONS = (
    EndReason(EndCode.SUCCEEDED),
    EndReason(EndCode.ENOUGH_SUCCEEDED, nodes=3),
    EndReason(EndCode.RUNNING),
    EndReason(
        EndCode.NOT_STARTED,
        problem=ErrorCode.SCRIPT_MISSING,
        error="script 'train.py' is neither here nor on n1",
    ),
    EndReason(EndCode.INTERRUPTED),
    EndReason(EndCode.INTERRUPTED_TWICE),
    EndReason(EndCode.OUTPUT_CLOSED),
    EndReason(EndCode.STOPPED, by="me@login"),
    EndReason(EndCode.START_FAILED, "n1", 3, error="train: No such file or directory"),
    EndReason(EndCode.START_FAILED, "n1", error="no such directory: /work"),
    FAILED,
    EndReason(EndCode.RANK_FAILED, "n1", 3, exit_code=137),
    EndReason(EndCode.RANK_FAILED, "n1", 3, signal=9),
    EndReason(EndCode.RANK_FAILED, "n1", 3, signal=9, oom=True),
    EndReason(EndCode.RANK_FAILED, "n1", 3, signal=7),
    EndReason(EndCode.RANK_FAILED, "n1", 3, signal=11),
    EndReason(EndCode.RANK_FAILED, "n1", 3, signal=6),
    EndReason(EndCode.RANK_FAILED, "n1", 3, signal=40),
    EndReason(EndCode.RANK_FAILED, "n1", 3),
    EndReason(EndCode.RANK_FAILED, "n1", 3, exit_code=1, ranks=(("n1", 1), ("n2", 5))),
    EndReason(EndCode.RANK_FAILED, "n1", 3, exit_code=1, exited=(("n2", 5),)),
    EndReason(EndCode.RANK_FAILED, "n1", 3, exit_code=1, not_restarted="1 nodes are left"),
    EndReason(EndCode.RANK_FAILED, "n1", 3, exit_code=1, job="job 12 failed"),
    EndReason(EndCode.LAUNCHER_FAILED, "n1", exit_code=2),
    EndReason(EndCode.NODE_LOST, "n1", failure="lost", error="no answer in time"),
    EndReason(EndCode.PROCESS_KILLED, "n1", process="guardian"),
    EndReason(EndCode.PROCESS_KILLED, "n1", process="agent", signal=9),
    EndReason(EndCode.PROCESS_FAILED, "n1", process="agent", error="OSError: no space"),
    EndReason(EndCode.NODE_ENDED, "n1", error="the launcher left"),
    EndReason(EndCode.NODE_ENDED, error="the launcher left"),
    EndReason(EndCode.EXIT_TIMEOUT, seconds=300.0, ranks=(("n1", 1), ("n1", 2))),
    EndReason(EndCode.EXIT_TIMEOUT, seconds=0.5),
    EndReason(EndCode.HANG, seconds=61.4),
    *(EndReason(EndCode.HANG, seconds=61.4, hang=verdict) for verdict in VERDICTS),
    EndReason(EndCode.REHEARSED, steps=2),
    EndReason(EndCode.REHEARSAL_LIMIT, steps=2, seconds=600.0),
    EndReason(EndCode.REHEARSAL_SPAWNS),
    EndReason(EndCode.SLURM_JOB, job="job 12 reached its time limit"),
)
INTERRUPTED = EndReason(EndCode.INTERRUPTED)
INTERRUPTED_TWICE = EndReason(EndCode.INTERRUPTED_TWICE)
EVENTS = (
    Event(1.0, "away", "n1", failure="lost", error="the connection is gone"),
    Event(1.0, "back", "n1", seconds=2.6),
    Event(1.0, "noticed", signal=10),
    Event(1.0, "noticed", signal=10, sent=6, unhandled=(0, 1)),
    Event(1.0, "noticed", signal=12, sent=0, unhandled=(0, 1, 2, 7)),
    Event(1.0, "stalled", seconds=61.4, hang=WAITING),
    Event(1.0, "continued", seconds=75.0),
    Event(1.0, "stopping", reason=FAILED),
    Event(1.0, "stopping", reason=FAILED, seconds=10.0, ranks=7, nodes=2),
    Event(1.0, "stopping", reason=INTERRUPTED, seconds=10.0, ranks=8, nodes=2),
    Event(1.0, "stopping", reason=INTERRUPTED_TWICE, seconds=0.0, ranks=1, nodes=1),
    Event(1.0, "restarting", restart=Restart(1, 2, FAILED)),
    Event(
        1.0,
        "restarting",
        restart=Restart(2, 2, FAILED, (Replacement("n1", "spare1"), Replacement("n2"))),
    ),
)
FAILURE = Outcome(
    "failed",
    1,
    FAILED,
    Event(752.0, "exit", "n1", 3, code=1, pid=4711),
    what="the GPU has too little memory",
    ending="gpu-memory",
    hint="use a smaller micro batch",
    last_lines=("Traceback (most recent call last):", "OutOfMemoryError"),
    secondary=(
        SecondaryFailure("n2", 4, ending="gloo-closed", what="gloo lost its connection"),
        SecondaryFailure("n2", 5, signal=6),
        SecondaryFailure("n2", 7, ending="gloo-closed", what="gloo lost its connection"),
    ),
    unconfirmed=("n2",),
    left=("n1: 4711",),
    alike=(("n1", 1), ("n1", 2), ("n2", 6)),
)


CHANGE = "checkpoint.use_node_local_storage: true"
DECISIONS = (
    decision(
        DecisionCode.MASTER_REACHED,
        address="10.0.0.1",
        port=29500,
        interface="eth0",
        host="n1",
        others=3,
        port_origin="free",
    ),
    decision(
        DecisionCode.MASTER_ON_ONE_MACHINE,
        address="127.0.0.1",
        port=29500,
        interface="lo",
        host="n1",
        others=1,
        port_origin="file",
    ),
    *(
        decision(
            code,
            assumed=True,
            address="a",
            port=29500,
            host="n1",
            means_itself=means_itself,
            port_origin="default",
        )
        for code in (
            DecisionCode.MASTER_BY_ADDRESS,
            DecisionCode.MASTER_BY_NAME,
            DecisionCode.MASTER_LOCAL,
        )
        for means_itself in (False, True)
    ),
    decision(DecisionCode.MASTER_GIVEN, address="a", port=1),
    decision(DecisionCode.INTERFACE_OF_ROUTE, interfaces=("eth0", "ib0")),
    decision(DecisionCode.INTERFACE_GIVEN, assumed=True, interface="eth0"),
    decision(DecisionCode.WORKDIR_GIVEN, assumed=True, path="/work"),
    decision(DecisionCode.WORKDIR_HERE, assumed=True, path="/work"),
    decision(DecisionCode.WORKDIR_MADE, path="/work", hosts=("n1", "n2")),
    decision(DecisionCode.STORAGE_SHARED, path="/work"),
    decision(DecisionCode.STORAGE_NOT_SHARED, path="/work"),
    decision(DecisionCode.STORAGE_PARTLY_SHARED, path="/work"),
    decision(
        DecisionCode.STORAGE_NOT_TESTED, assumed=True, path="/w", error="n1: /w: Permission denied"
    ),
    decision(
        DecisionCode.DEVICES_FOUND, devices=("8 AMD GPUs",), sources=("device files on each node",)
    ),
    decision(DecisionCode.DEVICES_CPU),
    decision(DecisionCode.THREADS_LIMITED),
    decision(DecisionCode.TRANSPORT_CHOSEN, transport="openssh", reason="Match exec (n1)"),
    decision(
        DecisionCode.TREE_DETOUR, hosts=("n2", "n3"), parents=("n1",), kind="host-key-unknown"
    ),
    decision(DecisionCode.CODE_ON_NODES, path="train.py"),
    decision(DecisionCode.CODE_SAME, path="work", files="3 files", nodes="2 nodes"),
    decision(
        DecisionCode.CODE_SHIPPED,
        files="2 files",
        size="4 kB",
        nodes=("n1", "n2"),
        path="work",
        examples="a.py, b.py",
    ),
    decision(DecisionCode.CONFIG_FITS, path="ds.json"),
    decision(DecisionCode.CONFIG_COPIED, path="ds.json", change=CHANGE, shared=False),
    decision(DecisionCode.CONFIG_COPIED, path="ds.json", change=CHANGE, shared=True),
    decision(DecisionCode.CONFIG_SHIPPED, path="ds.json", place="train.py:3", change=CHANGE),
    decision(DecisionCode.CONFIG_NOT_HERE, path="ds.json"),
    decision(
        DecisionCode.CONFIG_NOT_SHIPPED,
        path="ds.json",
        place="train.py:3",
        by="deepspeed.initialize",
    ),
    decision(DecisionCode.CONFIG_IN_CODE, place="train.py:3", by="deepspeed.initialize"),
    decision(DecisionCode.CONFIG_OF_PROGRAM, place="train.py:3", by="deepspeed.initialize"),
    decision(
        DecisionCode.CONFIG_UNCHANGED,
        path="ds.json",
        place="train.py:3",
        by="deepspeed.initialize",
        change=CHANGE,
    ),
    decision(DecisionCode.CONFIG_OWN_COPY, path="ds.json", nodes=("n1", "n2")),
    decision(
        DecisionCode.CONFIG_ERROR,
        file="ds.json",
        line=1,
        path="zero",
        message="unknown key",
        fix="did you mean zero_optimization?",
    ),
    decision(
        DecisionCode.CHECK_WARNING,
        hosts=("n1", "n2"),
        found="5 GB free",
        check="fs.free",
        fix="free space",
    ),
    decision(DecisionCode.CHECKPOINT_RESUMABLE, checkpoint="step5"),
    decision(DecisionCode.CHECKPOINT_HANDED_OUT, checkpoint="step5", nodes=("n2",)),
    decision(DecisionCode.CHECKPOINT_NOT_RESUMABLE, checkpoint="step5", problem="n2 lacks shard 3"),
    decision(DecisionCode.CHECKPOINTS_UNKNOWN, assumed=True, path="/w", error="n1: /w: no answer"),
    decision(DecisionCode.TRAINER_ADVICE),
    decision(DecisionCode.TRAINER_WITHOUT_CPU),
    decision(DecisionCode.ACCELERATE_ON_CPU, variable="ACCELERATE_USE_CPU"),
    decision(DecisionCode.ACCELERATE_PLUGIN),
    decision(DecisionCode.ACCELERATE_NOT_SET, variable="ACCELERATE_USE_CPU"),
)


def test_every_decision_has_its_text(golden: Callable[[str, str], None]) -> None:
    assert {each.code for each in DECISIONS} == set(DecisionCode)
    golden("run/decisions.txt", _lines(decision_rows(DECISIONS)))


def test_every_reason_has_its_texts(golden: Callable[[str, str], None]) -> None:
    assert {reason.code for reason in REASONS} == set(EndCode)
    golden("run/reasons.txt", _lines(_told()))


def _lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _told() -> Iterator[str]:
    for reason in REASONS:
        yield f"{reason.code}"
        yield f"  at the end: {message(reason)}"
        if stop_text(reason) not in ("", message(reason)):
            yield f"  before:     {stop_text(reason)}"


def test_every_known_ending_says_what_it_is_and_what_to_do(
    golden: Callable[[str, str], None],
) -> None:
    known = sorted((*BY_EVIDENCE, *built_in().values()), key=lambda each: each.code)
    assert all(each.what and each.advice for each in known)
    golden("run/endings.txt", _lines(f"{k.code}\n  {k.what}\n  {k.advice}" for k in known))


def test_every_event_that_is_said_at_once_has_its_text(
    golden: Callable[[str, str], None],
) -> None:
    golden("run/events.txt", _lines(f"{e.kind}: {event_text(e)}" for e in EVENTS))


def test_a_failed_run_is_shown_whole(golden: Callable[[str, str], None]) -> None:
    extent = RunExtent(ranks=8, nodes=2, started=1.0, ended=800.0)
    shown = outcome_rows(FAILURE, Path("/runs/1"), brief=False, extent=extent, zone=UTC)
    golden("run/outcome.txt", _lines(shown))


def test_a_run_that_succeeded_is_one_line(golden: Callable[[str, str], None]) -> None:
    extent = RunExtent(ranks=64, nodes=8, started=1.0, ended=752.0)
    well = Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))
    golden(
        "run/success.txt", _lines(outcome_rows(well, Path("/runs/1"), brief=False, extent=extent))
    )


def test_every_hang_has_a_text_and_a_hint(golden: Callable[[str, str], None]) -> None:
    assert {verdict.code for verdict in VERDICTS} == set(HangCode)
    verdicts = {str(code): HangVerdict(code) for code in HangCode}
    for kind in (WaitKind.NETWORK, WaitKind.CHILD_PROCESS):
        verdicts[f"not-entered, {kind}"] = HangVerdict(HangCode.NOT_ENTERED, wait=kind)
    verdicts["lock, queue"] = HangVerdict(HangCode.LOCK, wait=WaitKind.QUEUE)
    hints = (f"{name}: {hang_hint(verdict)}" for name, verdict in verdicts.items())
    golden("run/hang-hints.txt", _lines(hints))
