"""The judge of rehearsals: what the records of ranks mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from dslaunch.cluster.model import Allocation, Node
from dslaunch.launch.facts import Directory, Facts, NodeFacts, PortFact
from dslaunch.launch.plan import NodePlan, Plan, Rendezvous
from dslaunch.lint import Remark
from dslaunch.protocol.rehearsal import REHEARSAL, Record
from dslaunch.protocol.values import parse
from dslaunch.rehearsal.checkpoints import EACH_NODE, WEIGHTS_ONCE
from dslaunch.rehearsal.findings import Finding, FindingKind
from dslaunch.rehearsal.judge import Gap, Rehearsal, judge_rehearsal
from dslaunch.rehearsal.rehearse import recorded_rehearsal
from dslaunch.report.rehearsal import rehearsal_rows
from dslaunch.run.events import Event
from dslaunch.run.hang_verdict import HangCode, HangVerdict, Place
from dslaunch.run.outcome import Outcome
from dslaunch.run.reasons import EndCode, EndReason
from dslaunch.run.rehearsal import RehearsalLimits, Rehearsed
from dslaunch.run.rehearsal_result import RESULT, Verdict

Sent = dict[str, object]
CWD = "/data/work"
SIZES: Sent = {
    "parameters": 100,
    "trainable": 100,
    "types": {"float32": 100},
    "devices": {"cpu": 100},
}
START: Sent = {
    "kind": "start",
    "pid": 7,
    "world": 2,
    "python": "3.11.7",
    "cpus": 8,
    "threads": 1,
    "cwd": CWD,
}
TORCH: Sent = {"kind": "torch", "version": "2.9.0", "cuda": False}
DDP: Sent = {
    "kind": "wrapped",
    "wrapper": "DistributedDataParallel",
    "model": "Net",
    "largest": 60,
    "largest_name": "0",
    **SIZES,
}
OPTIMIZER: Sent = {
    "kind": "optimizer",
    "optimizer": "AdamW",
    "lr": [0.1],
    "tensors": 2,
    "owned": 2,
    "gradients": 2,
    "fingerprint": [1.0, 2.0],
    **SIZES,
}
ENGINE: Sent = {
    "kind": "engine",
    "stage": 1,
    "data_parallel": 2,
    "train_batch": 8,
    "micro_batch": 4,
    "accumulation": 1,
    "pipeline": False,
    "model_parallel": False,
    "optimizer": "AdamW",
    "scheduler": None,
}
HELD: Sent = {"kind": "held"}
ENDED: Sent = {"kind": "ended", "steps": 2}
REHEARSED = Outcome("ok", 0, EndReason(EndCode.REHEARSED, steps=2))
SUCCEEDED = Outcome("ok", 0, EndReason(EndCode.SUCCEEDED))


def group(rank: int, world: int = 2) -> Sent:
    return {
        "kind": "process-group",
        "backend": "gloo",
        "world": world,
        "rank": rank,
        "method": None,
        "timeout": None,
    }


def step(number: int, **other: object) -> Sent:
    return {
        "kind": "step",
        "step": number,
        "seconds": 0.5,
        "lr": [0.1],
        "loss": 2.0,
        "finite": True,
        "backwards": 1,
        "collectives": 3,
        "fingerprint": [1.0 + number, 2.0 + number],
        "memory": 1000,
        "gpus": 0,
        **other,
    }


def loader(**other: object) -> Sent:
    return {
        "kind": "loader",
        "number": 1,
        "batch": 4,
        "workers": 0,
        "dataset": "Data",
        "samples": 64,
        "batches": 8,
        "sampler": "DistributedSampler",
        "batch_sampler": "BatchSampler",
        "replicas": 2,
        "replica": 0,
        "seed": 0,
        "drop_last": False,
        **other,
    }


def batches(*letters: str) -> list[Sent]:
    return [
        {"kind": "batch", "loader": 1, "index": at, "size": 4, "digest": letter * 16}
        for at, letter in enumerate(letters, 1)
    ]


def saved(by: str, path: str, **other: object) -> Sent:
    return {"kind": "saved", "by": by, "path": path, **other}


def sound(rank: int) -> list[Sent]:
    """The records of a rank of a sound training."""
    return [START, TORCH, group(rank), DDP, OPTIMIZER, step(1), step(2), HELD]


def without(records: Sequence[Sent], *kinds: str) -> list[Sent]:
    return [each for each in records if each["kind"] not in kinds]


def judged(
    *ranks: list[Sent],
    outcome: Outcome = REHEARSED,
    shared: bool | None = None,
    errors: tuple[Remark, ...] = (),
    full: Allocation | None = None,
) -> Rehearsal:
    """Judge a rehearsal with one rank on each node."""
    sent = {str(n): {"records": each, "position": 1} for n, each in enumerate(ranks)}
    records: dict[int, tuple[Record, ...]] = {
        int(rank): new.records for rank, new in parse(REHEARSAL, sent).items()
    }
    hosts = [f"n{number}" for number in range(len(ranks))]
    nodes = tuple(NodePlan(host, n, (0,), n, CWD, (), ()) for n, host in enumerate(hosts))
    plan = Plan("test", "torchrun", len(hosts), Rendezvous("n0", 29500), nodes)
    facts = Facts(tuple(_facts(host, hosts, shared) for host in hosts), PortFact(29500))
    limits = RehearsalLimits(full=full)
    rehearsed = Rehearsed(plan, facts, outcome, records, errors, 9.0, limits)
    return judge_rehearsal(rehearsed)


def _facts(host: str, hosts: list[str], shared: bool | None) -> NodeFacts:
    first = hosts[0] if shared else host
    directories = () if shared is None else (Directory("work", CWD, first=first),)
    return NodeFacts(host, host, "/root", directories=directories)


def codes(result: Rehearsal) -> set[tuple[str, str]]:
    return {(each.level, each.code) for each in result.findings}


def only(result: Rehearsal) -> Finding:
    (found,) = result.findings
    return found


# ------------------------------------------------------------ verdicts


def test_a_sound_training_would_run() -> None:
    result = judged(sound(0), sound(1))
    assert (result.verdict, result.exit_code, result.findings) == (Verdict.WOULD_RUN, 0, ())
    assert result.measured.step_seconds == 0.5
    assert (result.measured.steps, result.measured.world) == (2, 2)
    assert Gap.NO_CHECKPOINT in result.not_rehearsed


def test_a_failure_is_at_the_line_of_the_script_with_the_known_ending() -> None:
    raised: Sent = {
        "kind": "exception",
        "error": "RuntimeError",
        "text": "mat1 and mat2",
        "file": "train.py",
        "line": 8,
    }
    cause = Event(1.0, "exit", "n1", 1, code=1)
    reason = EndReason(EndCode.RANK_FAILED, "n1", 1, exit_code=1)
    outcome = Outcome(
        "failed", 1, reason, cause, what="shapes", ending="shape-mismatch", hint="change them"
    )
    result = judged([START], [START, raised], outcome=outcome)
    found = only(result)
    assert (found.level, found.code, found.where) == ("error", "shape-mismatch", "train.py:8")
    assert (found.evidence, found.hint) == ("RuntimeError: mat1 and mat2", "change them")
    assert (result.verdict, result.exit_code) == (Verdict.WOULD_FAIL, 1)


@pytest.mark.parametrize(("timeout", "code"), [(3.0, "rehearsal.timeout"), (60.0, "gloo-timeout")])
def test_a_short_timeout_of_the_script_is_the_reason_of_a_wait_that_fails(
    timeout: float, code: str
) -> None:
    cause = Event(1.0, "exit", "n1", 1, code=1)
    reason = EndReason(EndCode.RANK_FAILED, "n1", 1, exit_code=1)
    outcome = Outcome("failed", 1, reason, cause, what="timed out", ending="gloo-timeout")
    ranks = [[START, TORCH, {**group(rank), "timeout": timeout}] for rank in range(2)]
    assert only(judged(*ranks, outcome=outcome)).code == code


def test_a_script_without_a_step_is_not_rehearsed() -> None:
    ended = [START, TORCH, {**ENDED, "steps": 0}]
    result = judged(ended, ended, outcome=SUCCEEDED)
    assert codes(result) == {("warning", "rehearsal.no-steps")}
    assert (result.verdict, result.exit_code) == (Verdict.NOT_REHEARSED, 1)


def test_backward_passes_without_a_step_are_named() -> None:
    ended = [START, TORCH, {**ENDED, "steps": 0, "backwards": 16}]
    result = judged(ended, ended, outcome=SUCCEEDED)
    assert (only(result).code, only(result).values) == ("rehearsal.no-steps", {"backwards": 16})
    assert result.verdict is Verdict.NOT_REHEARSED


def test_ranks_without_records_are_not_rehearsed() -> None:
    result = judged([], [], outcome=SUCCEEDED)
    assert result.verdict is Verdict.NOT_REHEARSED
    assert result.not_rehearsed == (Gap.NO_HOOK,)


def test_a_time_limit_without_any_step_is_not_rehearsed() -> None:
    outcome = Outcome("failed", 1, EndReason(EndCode.REHEARSAL_LIMIT, seconds=9.0, steps=2))
    result = judged([START, TORCH], sound(1), outcome=outcome)
    assert result.verdict is Verdict.NOT_REHEARSED
    assert ("warning", "rehearsal.too-slow") in codes(result)


def test_a_kernel_that_is_built_is_no_slow_script() -> None:
    outcome = Outcome("failed", 1, EndReason(EndCode.REHEARSAL_LIMIT, seconds=9.0, steps=2))
    building: list[Sent] = [START, TORCH, {"kind": "build-begins", "name": "cpu_adam"}]
    result = judged(building, building, outcome=outcome)
    assert codes(result) == {("warning", "rehearsal.builds-kernel")}
    assert (only(result).where, only(result).values) == ("ranks 0-1", {"name": "cpu_adam"})
    assert result.verdict is Verdict.NOT_REHEARSED


def test_a_kernel_that_was_built_is_no_reason_of_a_slow_script() -> None:
    outcome = Outcome("failed", 1, EndReason(EndCode.REHEARSAL_LIMIT, seconds=9.0, steps=2))
    begun: Sent = {"kind": "build-begins", "name": "cpu_adam"}
    built = [START, TORCH, begun, {"kind": "build-ends"}]
    assert codes(judged(built, built, outcome=outcome)) == {("warning", "rehearsal.too-slow")}


def test_a_rank_that_another_program_has_replaced_is_not_rehearsed() -> None:
    replaced: list[Sent] = [START, TORCH, {"kind": "replaced", "program": "/usr/bin/python3"}]
    for outcome in (SUCCEEDED, Outcome("failed", 1, EndReason(EndCode.REHEARSAL_LIMIT))):
        result = judged(replaced, replaced, outcome=outcome)
        assert (result.verdict, result.findings) == (Verdict.NOT_REHEARSED, ())
        assert result.not_rehearsed == (Gap.REPLACED,)


def test_a_program_that_could_not_be_started_replaces_no_rank() -> None:
    failed: Sent = {"kind": "replaced", "program": "/missing"}
    result = judged([START, failed, *sound(0)[1:]], [START, failed, *sound(1)[1:]])
    assert (result.verdict, result.findings) == (Verdict.WOULD_RUN, ())


def test_an_interrupted_rehearsal_has_its_own_exit_code() -> None:
    outcome = Outcome("interrupted", 130, EndReason(EndCode.INTERRUPTED))
    result = judged([START], [START], outcome=outcome)
    assert result.exit_code == 130
    assert result.not_rehearsed == (Gap.INTERRUPTED,)


def test_an_error_of_a_config_file_is_a_finding() -> None:
    remark = Remark("batch-sizes", "error", "ds.json", 2, 3, "train_batch_size", "wrong", "set 8")
    found = only(judged(sound(0), sound(1), errors=(remark,)))
    assert (found.code, found.where, found.hint) == ("batch-sizes", "ds.json:2:3", "set 8")


def test_the_config_that_deepspeed_got_is_linted_at_its_place() -> None:
    text = '{"train_batch_size": 2,\n "zero_optimisation": {}}'
    given: Sent = {"kind": "deepspeed-config", "path": "ds.json", "text": text}
    result = judged([*sound(0), given], [*sound(1), given])
    assert codes(result) == {("error", "ignored-key")}
    assert only(result).where == "ds.json:2:2"


def test_the_config_that_a_framework_got_is_linted_if_the_run_failed() -> None:
    text = json.dumps({"train_batch_size": "auto", "gradient_accumulation_steps": "8"})
    given: Sent = {"kind": "unfilled-config", "path": "ds.json", "text": text}
    ranks = [START, TORCH, given], [START, TORCH, given]
    failed = Outcome("failed", 1, EndReason(EndCode.RANK_FAILED, host="n0", rank=0))
    assert ("error", "wrong-batch") in codes(judged(*ranks, outcome=failed))
    assert ("error", "wrong-batch") not in codes(judged(*ranks, outcome=SUCCEEDED))


def test_a_config_in_code_may_have_infinity() -> None:
    text = '{"train_batch_size": 2, "steps_per_print": Infinity}'
    given: Sent = {"kind": "deepspeed-config", "path": None, "text": text}
    assert judged([*sound(0), given], [*sound(1), given]).findings == ()


# ------------------------------------------------------------ ranks together


def test_ranks_without_a_process_group_train_alone() -> None:
    alone = [without(sound(rank), "process-group", "wrapped") for rank in range(2)]
    result = judged(*alone)
    assert codes(result) == {("error", "rehearsal.not-distributed")}
    assert only(result).where == "ranks 0-1"


def test_ranks_that_call_functions_of_each_other_need_no_process_group() -> None:
    """One has the parameters and steps, and the others send it their gradients."""
    joined: Sent = {"kind": "joined-rpc", "world": 2}
    server = [START, TORCH, joined, OPTIMIZER, step(1), step(2), HELD]
    assert judged(server, [START, TORCH, joined]).verdict is Verdict.WOULD_RUN


def test_a_process_group_of_one_rank_is_not_distributed() -> None:
    alone = [[group(0, world=1) if r["kind"] == "process-group" else r for r in sound(0)]] * 2
    assert ("error", "rehearsal.not-distributed") in codes(judged(*alone))


def _trained_apart(*, wrapped: bool, collectives: int) -> Rehearsal:
    own = [group(1), OPTIMIZER, step(1, collectives=collectives)]
    apart = step(2, fingerprint=[3.5, 4.0], collectives=collectives)
    ranks = [
        [START, TORCH, *own, step(2, collectives=collectives), HELD],
        [START, TORCH, *own, apart, HELD],
    ]
    return judged(*[[*each, DDP] if wrapped else each for each in ranks])


def test_parameters_that_differ_without_any_collective_are_an_error() -> None:
    result = _trained_apart(wrapped=False, collectives=0)
    assert codes(result) == {("error", "rehearsal.not-synchronized")}


def test_parameters_that_differ_in_spite_of_collectives_are_a_warning() -> None:
    result = _trained_apart(wrapped=True, collectives=3)
    assert codes(result) == {("warning", "rehearsal.parameters-differ")}
    assert result.verdict is Verdict.WOULD_RUN


@pytest.mark.parametrize(("wrapped", "level"), [(True, "error"), (False, "warning")])
def test_parameters_that_differ_before_the_first_step_stay_different(
    wrapped: bool, level: str
) -> None:
    def rank(number: int) -> list[Sent]:
        at = float(number)
        own = {**OPTIMIZER, "fingerprint": [1.0 + at, 2.0]}
        steps = [step(n, fingerprint=[1.5 + at + n, 2.0 + n], collectives=1) for n in (1, 2)]
        return [START, TORCH, group(number), *([DDP] if wrapped else []), own, *steps, HELD]

    found = only(judged(rank(0), rank(1)))
    assert (found.level, found.code) == (level, "rehearsal.parameters-differ")
    assert found.values == {}  # no step made them differ


@pytest.mark.parametrize(
    ("begins", "ends", "found"),
    [
        ([3.0, 3.0], [3.1, 3.2], {("warning", "rehearsal.parameters-differ")}),
        ([3.0, 3.0], [3.1, 3.1], set()),
        # ranks have layers for themselves
        ([3.0, 5.0], [3.1, 5.2], set()),
    ],
)
def test_layers_outside_of_the_wrapped_model_are_compared(
    begins: list[float], ends: list[float], found: set[tuple[str, str]]
) -> None:
    ranks = []
    for rank in range(2):
        optimizer = {**OPTIMIZER, "unwrapped": [begins[rank]]}
        last = step(2, unwrapped=[ends[rank]])
        ranks.append([START, TORCH, group(rank), DDP, optimizer, step(1), last, HELD])
    assert codes(judged(*ranks)) == found


def test_parameters_that_a_later_step_may_average_are_a_warning() -> None:
    done: Sent = {"kind": "steps-done", "step": 2, "reduces": True}
    own = [START, TORCH, group(0), OPTIMIZER, step(1, collectives=0), done, HELD]
    apart = step(2, fingerprint=[3.5, 4.0], collectives=0)
    result = judged([*own, step(2, collectives=0)], [*own, apart])
    assert codes(result) == {("warning", "rehearsal.parameters-differ")}


def test_parameters_that_the_script_averages_in_a_later_step_are_no_warning() -> None:
    done: Sent = {"kind": "steps-done", "step": 2, "reduces": True, "averages": True}
    own = [START, TORCH, group(0), OPTIMIZER, step(1, collectives=0), done, HELD]
    apart = step(2, fingerprint=[3.5, 4.0], collectives=0)
    result = judged([*own, step(2, collectives=0)], [*own, apart])
    assert codes(result) == {("info", "rehearsal.parameters-differ")}
    wrapped = judged([DDP, *own, step(2, collectives=0)], [DDP, *own, apart])
    assert codes(wrapped) == {("warning", "rehearsal.parameters-differ")}


def test_parameters_that_differ_by_rounding_are_equal() -> None:
    rounded = [*without(sound(1), "step"), step(1), step(2, fingerprint=[3.0, 4.000001])]
    assert judged(sound(0), rounded).findings == ()


def test_a_parameter_whose_sum_changes_by_rounding_only_is_equal() -> None:
    def rank(number: int) -> list[Sent]:
        steps = [step(at, fingerprint=[1.0 + at, 2.0 + number * 1e-9]) for at in (1, 2)]
        return [*without(sound(number), "step"), *steps]

    assert judged(rank(1), rank(2)).findings == ()


def test_parameters_of_tensor_parallel_ranks_are_not_compared() -> None:
    apart = [*without(sound(1), "step"), step(1), step(2, fingerprint=[9.0, 4.0])]
    parallel: Sent = {"kind": "group", "size": 2}
    four = [[*each, parallel] for each in (sound(0), apart, sound(0), sound(0))]
    assert ("warning", "rehearsal.parameters-differ") not in codes(judged(*four))


def test_models_and_configs_that_differ_are_errors() -> None:
    other = [*without(sound(1), "wrapped"), {**DDP, "parameters": 200}]
    config: Sent = {"kind": "deepspeed-config", "path": None, "text": "{}"}
    clipping: Sent = {**config, "text": '{"gradient_clipping": 1.0}'}
    result = judged([*sound(0), config], [*other, clipping])
    assert {"rehearsal.model-differs", "rehearsal.config-differs"} <= {
        code for _, code in codes(result)
    }


def test_configs_may_differ_in_what_is_logged() -> None:
    config: Sent = {"kind": "deepspeed-config", "path": None, "text": "{}"}
    logging: Sent = {**config, "text": '{"steps_per_print": 1, "tensorboard": {"enabled": true}}'}
    result = judged([*sound(0), config], [*sound(1), logging])
    assert "rehearsal.config-differs" not in {code for _, code in codes(result)}


def test_models_that_differ_before_they_are_sharded_are_an_error() -> None:
    layers = [{**DDP, "wrapper": "FullyShardedDataParallel", "parameters": size} for size in (8, 2)]
    same = [START, TORCH, *layers]
    other = [START, TORCH, {**layers[0], "parameters": 9}, layers[1]]
    assert judged(same, same).findings == ()
    assert codes(judged(same, other)) == {("error", "rehearsal.model-differs")}


def test_a_rank_that_ends_before_the_others_has_fewer_steps() -> None:
    result = judged(sound(0), [*without(sound(1), "held"), ENDED])
    assert codes(result) == {("error", "rehearsal.uneven-steps")}
    assert only(result).where == "rank 1"


LOST = Outcome("failed", 1, EndReason(EndCode.RANK_FAILED), ending="gloo-closed")
OTHER_SIZES = replace(LOST, ending="collective-sizes")
OTHER_MODELS = replace(LOST, ending="models-differ")


def begun(*calls: tuple[str, int, int]) -> list[Sent]:
    """Collectives that a rank has begun: operation, line of the script, line of a library."""
    return [
        {
            "kind": "collective-begins",
            "number": number,
            "operation": operation,
            "file": "train.py",
            "line": line,
            "caller": "transformers/trainer.py",
            "caller_line": caller_line,
        }
        for number, (operation, line, caller_line) in enumerate(calls, 1)
    ]


def test_a_rank_that_has_ended_is_why_another_one_lost_it() -> None:
    ended = [*without(sound(0), "held"), ENDED]
    lost: Sent = {"kind": "exception", "error": "RuntimeError", "text": "", "file": None}
    loses = [*without(sound(1), "held"), {**lost, "line": None}, ENDED]
    assert codes(judged(ended, loses, outcome=LOST)) == {("error", "rehearsal.uneven-steps")}
    assert codes(judged(loses, loses, outcome=LOST)) == {("error", "gloo-closed")}


@pytest.mark.parametrize("outcome", [LOST, OTHER_SIZES])
def test_ranks_that_were_in_different_collectives_are_named_with_their_lines(
    outcome: Outcome,
) -> None:
    trains = begun(("all_reduce", 9, 1), ("backward pass", 12, 1), ("backward pass", 12, 1))
    evaluates = begun(("all_reduce", 9, 1), ("barrier", 20, 1))
    found = only(judged(evaluates, trains, outcome=outcome))
    assert (found.code, found.where) == ("hang.mismatch", "train.py:20")
    assert "backward pass (train.py:12)" in found.text


def test_ranks_that_called_a_library_once_are_told_apart_by_lines_in_it() -> None:
    stops = begun(("all_gather", 22, 100), ("all_gather", 22, 290))
    goes_on = begun(("all_gather", 22, 100), ("all_gather", 22, 100), ("backward pass", 22, 7))
    found = only(judged(stops, goes_on, outcome=OTHER_SIZES))
    assert (found.code, found.where) == ("hang.mismatch", "transformers/trainer.py:290")


def test_ranks_that_called_the_same_collectives_had_other_sizes() -> None:
    calls = begun(("all_gather", 22, 100))
    # the root of a collective may call it from a line of its own, which worked
    result = judged(
        [*begun(("broadcast", 4, 1)), calls[0] | {"number": 2}],
        [*begun(("broadcast", 6, 1)), calls[0] | {"number": 2}],
        outcome=OTHER_SIZES,
    )
    assert codes(result) == {("error", "collective-sizes")}


def test_ranks_that_wrap_their_models_in_different_lines_have_different_models() -> None:
    wraps = [begun(("DistributedDataParallel()", line, 1)) for line in (4, 6)]
    assert codes(judged(*wraps, outcome=OTHER_MODELS)) == {("error", "models-differ")}
    evaluates = begun(("all_gather", 9, 1))
    assert only(judged(evaluates, wraps[1], outcome=OTHER_MODELS)).code == "hang.mismatch"


HANG = HangVerdict(
    HangCode.BUSY,
    ranks=(("n1", 1),),
    place=Place("train.py", 9, "tokenize"),
    waiting=(0,),
    operation="all_reduce",
    waiting_place=Place("train.py", 14, "main"),
)


def hung(verdict: HangVerdict | None) -> Outcome:
    return Outcome("failed", 1, EndReason(EndCode.HANG, seconds=20.0, hang=verdict))


def test_a_hang_has_the_code_and_the_place_of_its_verdict() -> None:
    result = judged([START, TORCH], [START, TORCH], outcome=hung(HANG))
    found = only(result)
    assert (found.level, found.code, found.where) == ("error", "hang.busy", "train.py:9")
    assert result.verdict is Verdict.WOULD_FAIL


def test_a_hang_without_a_place_is_at_its_ranks() -> None:
    result = judged([START, TORCH], [START, TORCH], outcome=hung(replace(HANG, place=None)))
    assert only(result).where == "rank 1"


@pytest.mark.parametrize("code", HangCode)
def test_every_hang_is_an_error_unless_ranks_may_only_be_slow(code: HangCode) -> None:
    result = judged([START, TORCH], [START, TORCH], outcome=hung(HangVerdict(code)))
    mild = code in (HangCode.SLOW, HangCode.UNKNOWN)
    assert codes(result) == {("warning" if mild else "error", f"hang.{code}")}
    assert result.verdict is (Verdict.NOT_REHEARSED if mild else Verdict.WOULD_FAIL)


def test_a_hang_without_a_verdict_is_a_failure() -> None:
    result = judged([START, TORCH], [START, TORCH], outcome=hung(None))
    assert codes(result) == {("error", "rehearsal.failed")}


def test_a_rank_that_only_evaluates_may_wait_for_held_ranks() -> None:
    waits = HangVerdict(HangCode.NOT_ENTERED, (("n0", 0),), waiting=(2,), operation="broadcast")
    outcome = replace(REHEARSED, reason=replace(REHEARSED.reason, hang=waits))
    joined = [START, TORCH, group(0, world=3)]
    trains = [*joined, DDP, OPTIMIZER, step(1), step(2), HELD]
    result = judged(trains, trains, joined, outcome=outcome)
    assert "rehearsal.uneven-steps" not in {each.code for each in result.findings}
    assert result.verdict is Verdict.WOULD_RUN


def test_an_optimizer_of_copies_that_have_gradients_trains_the_model() -> None:
    copies = {**OPTIMIZER, "owned": 0, "gradients": 2}
    ranks = [[copies if r is OPTIMIZER else r for r in sound(rank)] for rank in range(2)]
    assert codes(judged(*ranks)) == set()


def test_ranks_with_different_losses_train_on_parts_of_the_batches_that_they_all_read() -> None:
    read = [loader(), *batches("a", "b")]
    ranks = [
        [*without(sound(rank), "wrapped", "step"), *read, step(1, loss=2.0 + rank), step(2)]
        for rank in (0, 1)
    ]
    assert ("error", "rehearsal.same-data") not in codes(judged(*ranks))


@pytest.mark.parametrize("other", [{"parameters": 200, "fingerprint": [1.0]}, {}], ids=str)
def test_ranks_whose_own_code_divides_the_model_may_read_the_same_samples(other: Sent) -> None:
    plain = [loader(replicas=None, replica=None, seed=None, sampler="SequentialSampler")]
    same = [*plain, *batches("a", "b")]

    def rank(number: int, collectives: int, **more: object) -> list[Sent]:
        built = {**OPTIMIZER, "owned": None, "fingerprint": [float(number), 2.0], **more}
        steps = [step(1, fingerprint=[], collectives=0), step(2, collectives=collectives)]
        return [START, TORCH, group(number), built, *steps, *same, HELD]

    assert judged(rank(0, 4), rank(1, 4, **other)).verdict is Verdict.WOULD_RUN
    assert judged(rank(0, 0), rank(1, 0, **other)).verdict is Verdict.WOULD_FAIL


@pytest.mark.parametrize("passes", [True, False])
def test_parameters_of_ranks_that_pass_activations_may_differ(passes: bool) -> None:
    """As those of experts, which each rank has for itself, beside a router that all have."""
    done: Sent = {"kind": "steps-done", "step": 2, "passes": passes}

    def rank(number: int) -> list[Sent]:
        steps = [step(at, fingerprint=[1.0 + at * (1 + number), 2.0 + at]) for at in (1, 2)]
        return [START, TORCH, group(number), OPTIMIZER, *steps, done, HELD]

    warned = ("warning", "rehearsal.parameters-differ")
    assert (warned in codes(judged(rank(0), rank(1)))) is not passes


def test_replicas_that_begin_apart_are_named_though_they_pass_something() -> None:
    """Each step changes them alike, so that they have exchanged gradients."""
    done: Sent = {"kind": "steps-done", "step": 2, "passes": True}

    def rank(number: int) -> list[Sent]:
        built = {**OPTIMIZER, "fingerprint": [float(number), 2.0]}
        steps = [step(at, fingerprint=[number + at * 0.5, 2.0 + at]) for at in (1, 2)]
        return [START, TORCH, group(number), built, *steps, done, HELD]

    warned = ("warning", "rehearsal.parameters-differ")
    assert codes(judged(rank(0), rank(1))) == {warned}


def test_ranks_that_split_the_model_may_read_the_same_samples() -> None:
    split: Sent = {"kind": "splits-model"}
    ranks = [[*sound(rank), loader(), *batches("a", "b")] for rank in (0, 1)]
    assert ("error", "rehearsal.same-data") in codes(judged(*ranks))
    result = judged(*([*rank, split] for rank in ranks))
    assert "rehearsal.same-data" not in {each.code for each in result.findings}


def rendezvous(rank: int, world: int = 2, address: str = "n0", **other: object) -> Sent:
    return {"kind": "rendezvous", "world": world, "address": address, "rank": rank, **other}


@pytest.mark.parametrize(
    ("begun", "named"),
    [
        ([rendezvous(0, world=8), rendezvous(1, world=8)], "rehearsal.world-size"),
        ([rendezvous(0, address="::1"), rendezvous(1, address="::1")], "rehearsal.master-loopback"),
        (
            [rendezvous(rank, address="gpu17.old", resolves=False) for rank in range(2)],
            "rehearsal.master-unknown",
        ),
        ([rendezvous(0), rendezvous(0)], "rehearsal.same-rank"),
        ([rendezvous(0, world=1), rendezvous(0, world=1)], "hang.rendezvous"),
        (
            [rendezvous(rank, port=2001, served=2000) for rank in range(2)],
            "rehearsal.master-port",
        ),
        ([rendezvous(rank, port=2000, served=2000) for rank in range(2)], "hang.rendezvous"),
        ([rendezvous(0, port=2001), rendezvous(1, port=2002)], "rehearsal.ports-differ"),
        (
            [rendezvous(rank, file=f"{CWD}/meet") for rank in range(2)],
            "rehearsal.file-not-shared",
        ),
        ([rendezvous(0, port=2001), rendezvous(1, port=2001)], "hang.rendezvous"),
    ],
)
def test_what_a_rendezvous_waits_for_in_vain_is_named(begun: list[Sent], named: str) -> None:
    hang = HangVerdict(HangCode.RENDEZVOUS)
    outcome = Outcome("failed", 1, EndReason(EndCode.HANG, seconds=10, hang=hang))
    ranks = [[START, TORCH, each] for each in begun]
    assert codes(judged(*ranks, outcome=outcome, shared=False)) == {("error", named)}


def test_a_rank_that_waits_for_held_ranks_has_made_uneven_steps() -> None:
    awaited = replace(HANG, code=HangCode.NOT_ENTERED, place=None)
    outcome = Outcome("ok", 0, EndReason(EndCode.REHEARSED, steps=2, hang=awaited))
    result = judged(without(sound(0), "held"), sound(1), outcome=outcome)
    assert codes(result) == {("error", "rehearsal.uneven-steps")}
    assert only(result).where == "train.py:14"
    assert result.verdict is Verdict.WOULD_FAIL


# ------------------------------------------------------------ steps


UNCHANGED: Sent = {**OPTIMIZER, "fingerprint": [3.0, 4.0]}
"""As the parameters are after the second step."""


@pytest.mark.parametrize(
    "optimizer",
    [
        {**UNCHANGED, "owned": 0, "gradients": 0},
        {**UNCHANGED, "gradients": 0},
        UNCHANGED,
    ],
    ids=["other-parameters", "no-gradients", "unchanged"],
)
def test_an_optimizer_that_trains_nothing_is_an_error(optimizer: Sent) -> None:
    ranks = [[optimizer if r is OPTIMIZER else r for r in sound(rank)] for rank in range(2)]
    assert codes(judged(*ranks)) == {("error", "rehearsal.no-update")}


def test_a_first_step_without_gradients_is_no_error_if_the_next_one_trains() -> None:
    prepared = {**OPTIMIZER, "gradients": 0}
    ranks = [[prepared if r is OPTIMIZER else r for r in sound(rank)] for rank in range(2)]
    assert judged(*ranks).findings == ()


def test_steps_of_another_model_than_the_last_wrapped_one_do_not_change_it() -> None:
    critic = {**OPTIMIZER, "owned": 0, "fingerprint": [1.0, 2.0]}
    steps = [step(number, fingerprint=[1.0, 2.0]) for number in (1, 2)]
    rank = [*without(sound(0), "optimizer", "step"), critic, *steps]
    assert judged(rank, rank).findings == ()


def test_steps_that_deepspeed_skipped_change_no_parameters() -> None:
    optimizer = {**OPTIMIZER, "fingerprint": [3.0, 4.0]}
    ranks = [
        [*without(sound(rank), "step", "optimizer"), optimizer, step(1), step(2, skipped=2)]
        for rank in range(2)
    ]
    assert judged(*ranks).findings == ()


def test_a_learning_rate_of_zero_is_an_error_unless_it_warms_up() -> None:
    zero = [[*without(sound(r), "step"), step(1, lr=[0.0]), step(2, lr=[0.0])] for r in range(2)]
    warm = [[*without(sound(r), "step"), step(1, lr=[0.0]), step(2, lr=[0.1])] for r in range(2)]
    assert codes(judged(*zero)) == {("error", "rehearsal.schedule-unused")}
    assert judged(*warm).findings == ()


def test_a_schedule_that_begins_with_steps_of_zero_is_a_note() -> None:
    schedule: Sent = {"scheduler": "WarmupLR", "steps": 2, "optimizer_steps": 2}
    schedulers: Sent = {"kind": "schedulers", "schedulers": [schedule]}
    zero = [*without(sound(0), "step"), step(1, lr=[0.0]), step(2, lr=[0.0]), schedulers]
    assert codes(judged(zero, zero)) == {("info", "rehearsal.schedule-unused")}


@pytest.mark.parametrize(("stays_zero", "level"), [(True, "error"), (False, "info")])
def test_a_schedule_that_stays_at_zero_is_an_error(stays_zero: bool, level: str) -> None:
    schedule: Sent = {"scheduler": "LambdaLR", "steps": 1, "optimizer_steps": 2}
    schedulers: Sent = {
        "kind": "schedulers",
        "schedulers": [{**schedule, "stays_zero": stays_zero}],
    }
    zero = [*without(sound(0), "step"), step(1, lr=[0.0]), step(2, lr=[0.0]), schedulers]
    assert codes(judged(zero, zero)) == {(level, "rehearsal.schedule-unused")}


def test_a_loss_that_is_not_finite_at_the_last_step_is_an_error() -> None:
    nan = [[*without(sound(r), "step"), step(1), step(2, loss=None, finite=False)] for r in (0, 1)]
    assert codes(judged(*nan)) == {("error", "rehearsal.loss-not-finite")}


def test_accumulation_that_no_step_uses_is_a_warning() -> None:
    settings: Sent = {"gradient_accumulation_steps": 4}
    built: Sent = {"kind": "accelerator", "settings": settings}
    result = judged([*sound(0), built], [*sound(1), built])
    assert codes(result) == {("warning", "rehearsal.accumulation-unused")}
    used = [*without(sound(0), "step"), built, step(1, backwards=4), step(2, backwards=4)]
    assert judged(used, used).findings == ()


# ------------------------------------------------------------ data


def test_ranks_that_read_the_same_batches_are_an_error() -> None:
    plain = loader(sampler="SequentialSampler", replicas=None, replica=None, seed=None)
    same = [plain, *batches("a", "b", "c")]
    result = judged([*sound(0), *same], [*sound(1), *same])
    assert codes(result) == {("error", "rehearsal.same-data")}


def test_batches_that_were_read_before_the_training_may_be_the_same() -> None:
    before = [loader(replicas=None, sampler="SequentialSampler"), *batches("a", "b")]
    trained = [{**each, "loader": 2} for each in batches("c", "d")]

    def rank(number: int, *reading: int) -> list[Sent]:
        own = [{**each, "digest": f"{number}{each['index']}" * 8} for each in trained]
        steps = [step(at, loaders=list(reading)) for at in (1, 2)]
        used = [*before, loader(number=2, replica=number), *own]
        return [*without(sound(number), "step", "held"), *used, *steps, HELD]

    plain = ("warning", "rehearsal.plain-sampler")
    assert codes(judged(rank(0, 2), rank(1, 2))) == set()
    assert plain in codes(judged(rank(0), rank(1)))  # batches in a list tell no loader


def test_batches_that_are_all_equal_say_nothing_of_the_sampler() -> None:
    constant = [loader(), *batches("a", "a", "a")]
    assert judged([*sound(0), *constant], [*sound(1), *constant]).findings == ()


def test_a_plain_sampler_with_other_data_in_each_rank_is_a_warning() -> None:
    plain = loader(sampler="RandomSampler", replicas=None, replica=None, seed=None)
    result = judged(
        [*sound(0), plain, *batches("a", "b", "c")], [*sound(1), plain, *batches("d", "e", "f")]
    )
    assert codes(result) == {("warning", "rehearsal.plain-sampler")}


def test_a_script_that_starts_its_own_ranks_is_an_error() -> None:
    ranks = [[START, TORCH, {"kind": "spawn", "processes": 8}, ENDED] for _ in range(2)]
    assert ("error", "rehearsal.spawns-ranks") in codes(judged(*ranks))
    # workers of another kind: the rank trains itself
    trained = [[*sound(rank), {"kind": "spawn", "processes": 8}] for rank in range(2)]
    assert judged(*trained).findings == ()


def test_a_script_that_starts_its_share_of_the_ranks_is_not_rehearsed() -> None:
    outcome = Outcome("failed", 1, EndReason(EndCode.REHEARSAL_SPAWNS))

    def spawning(world: int) -> list[Sent]:
        joins: Sent = {"kind": "spawned-joins", "world": world}
        return [START, TORCH, {"kind": "spawn", "processes": 8}, joins]

    share = judged(spawning(16), spawning(16), outcome=outcome)
    assert (share.verdict, share.findings) == (Verdict.NOT_REHEARSED, ())
    assert share.not_rehearsed == (Gap.SPAWNED,)
    apart = judged(spawning(8), spawning(8), outcome=outcome)
    assert codes(apart) == {("error", "rehearsal.spawns-ranks")}


def test_some_ranks_that_read_the_same_batches_are_an_error() -> None:
    first, second = [loader(), *batches("a", "b")], [loader(replica=1), *batches("c", "d")]
    parts = (first, second, first, second)
    result = judged(*([*sound(r), *part] for r, part in enumerate(parts)))
    assert ("error", "rehearsal.same-data") in codes(result)


def test_a_data_set_that_each_rank_splits_in_another_way_is_an_error() -> None:
    result = judged(
        [*sound(0), loader(subset="0" * 16), *batches("a", "b")],
        [*sound(1), loader(subset="1" * 16), *batches("c", "d")],
    )
    assert codes(result) == {("error", "rehearsal.same-data")}


def test_ranks_may_choose_their_own_parts_without_a_distributed_sampler() -> None:
    own = {"replicas": None, "replica": None, "seed": None, "sampler": "Own"}
    result = judged(
        [*sound(0), loader(subset="0" * 16, **own), *batches("a", "b")],
        [*sound(1), loader(subset="1" * 16, **own), *batches("c", "d")],
    )
    assert result.findings == ()


def test_samplers_with_different_seeds_overlap() -> None:
    result = judged(
        [*sound(0), loader(seed=0), *batches("a", "b")],
        [*sound(1), loader(seed=1), *batches("c", "d")],
    )
    assert codes(result) == {("error", "rehearsal.same-data")}


def test_samplers_of_one_rank_may_have_different_seeds() -> None:
    second = [loader(number=2, seed=7), *[{**each, "loader": 2} for each in batches("e", "f")]]
    begun = [*sound(0), loader(seed=0), *batches("a", "b")]
    behind = [*sound(1), loader(seed=0), *batches("c", "d")]
    assert judged([*begun, *second], behind).findings == ()


def test_a_plain_sampler_of_one_rank_reads_for_all() -> None:
    plain = loader(sampler="RandomSampler", replicas=None, replica=None, seed=None)
    assert judged([*sound(0), plain, *batches("a", "b")], sound(1)).findings == ()


def test_workers_that_return_each_batch_again_are_an_error() -> None:
    stream = loader(workers=2, samples=None, batches=None, replicas=None, seed=None, sampler="X")
    result = judged(
        [*sound(0), stream, *batches("a", "a", "b")], [*sound(1), stream, *batches("c", "c", "d")]
    )
    assert codes(result) == {("error", "rehearsal.same-data")}


@pytest.mark.parametrize(
    ("backwards", "level"), [(16, "warning"), (4, None), (8, None)], ids=["twice", "once", "losses"]
)
def test_steps_of_deepspeed_that_the_script_accumulates_again_are_a_warning(
    backwards: int, level: str | None
) -> None:
    engine = {**ENGINE, "accumulation": 4}
    steps = [step(number, backwards=backwards) for number in (1, 2)]
    ranks = [[*without(sound(rank), "step"), engine, *steps] for rank in range(2)]
    found = {each.level for each in judged(*ranks).findings if "accumulated" in each.code}
    assert found == ({level} if level else set())


def test_a_batch_size_other_than_that_of_the_config_is_a_warning() -> None:
    ranks = [
        [*sound(0), ENGINE, loader(batch=8), *batches("a", "b")],
        [*sound(1), ENGINE, loader(batch=8), *batches("c", "d")],
    ]
    assert codes(judged(*ranks)) == {("warning", "rehearsal.batch-differs")}


def test_lengths_that_differ_are_a_warning() -> None:
    ranks = [
        [*sound(0), loader(batches=8), *batches("a", "b")],
        [*sound(1), loader(batches=9), *batches("c", "d")],
    ]
    assert codes(judged(*ranks)) == {("warning", "rehearsal.lengths-differ")}


# ------------------------------------------------------------ resources


def test_parameters_on_the_cpu_of_a_node_with_gpus_are_a_warning() -> None:
    ranks = [[*without(sound(r), "step"), step(1, gpus=8), step(2, gpus=8)] for r in range(2)]
    assert codes(judged(*ranks)) == {("warning", "rehearsal.parameters-on-cpu")}


def test_more_workers_than_cpus_are_a_warning() -> None:
    many = loader(workers=32)
    result = judged([*sound(0), many, *batches("a")], [*sound(1), many, *batches("b")])
    assert codes(result) == {("warning", "rehearsal.many-workers")}


def test_a_gpu_that_is_almost_full_is_a_warning() -> None:
    full = step(2, gpus=1, gpu_memory=97, gpu_total=100)
    on_gpu = {**OPTIMIZER, "devices": {"cuda": 100}}
    ranks = [[*without(sound(r), "optimizer"), on_gpu, full] for r in range(2)]
    assert codes(judged(*ranks)) == {("warning", "rehearsal.gpu-memory")}


def test_a_hub_is_a_note_and_other_hosts_are_only_measured() -> None:
    names = ("huggingface.co", "n9", "cdn-lfs.hf.co", "mygithub.com")
    hosts: list[Sent] = [{"kind": "host", "name": name} for name in names]
    result = judged([*sound(0), *hosts], sound(1))
    assert codes(result) == {("info", "rehearsal.network")}
    (found,) = result.findings
    assert found.values["hosts"] == "cdn-lfs.hf.co, huggingface.co"
    assert set(result.measured.hosts) == set(names)
    assert result.verdict is Verdict.WOULD_RUN


# ------------------------------------------------------------ checkpoints


def test_a_file_that_two_nodes_write_to_shared_storage_is_overwritten() -> None:
    file = saved("torch.save", f"{CWD}/model.pt")
    ranks = [[*sound(0), file], [*sound(1), file]]
    assert codes(judged(*ranks, shared=True)) == {("warning", "rehearsal.checkpoint-overwritten")}
    assert judged(*ranks, shared=False).findings == ()
    assert judged(*ranks, shared=None).findings == ()


def test_a_file_of_rank_0_on_storage_that_is_not_shared_is_a_warning_of_the_trainer_only() -> None:
    file = saved("torch.save", f"{CWD}/model.pt")
    ranks = [[*sound(0), file], sound(1)]
    assert codes(judged(*ranks, shared=False)) == {("info", "rehearsal.checkpoint-incomplete")}
    assert judged(*ranks, shared=True).findings == ()
    trainer: Sent = {"kind": "trainer", "arguments": {"output_dir": CWD}}
    result = judged(*[[*records, trainer] for records in ranks], shared=False)
    assert codes(result) == {("warning", "rehearsal.checkpoint-incomplete")}


def test_parts_of_deepspeed_need_node_local_storage_where_storage_is_not_shared() -> None:
    directory = saved("save_checkpoint", f"{CWD}/checkpoints")
    local: Sent = {
        "kind": "deepspeed-config",
        "path": None,
        "text": '{"train_batch_size": 8, "checkpoint": {"use_node_local_storage": true}}',
    }
    plain = {**local, "text": '{"train_batch_size": 8}'}
    lacking = judged(*[[*sound(r), plain, ENGINE, directory] for r in range(2)], shared=False)
    fitting = judged(*[[*sound(r), local, ENGINE, directory] for r in range(2)], shared=False)
    assert ("warning", "rehearsal.checkpoint-incomplete") in codes(lacking)
    assert ("warning", "rehearsal.checkpoint-incomplete") not in codes(fitting)


def test_what_the_trainer_will_save_is_judged_before_it_is_written() -> None:
    arguments = {"output_dir": "out", "save_strategy": "steps", "save_on_each_node": False}
    trainer: Sent = {"kind": "trainer", "arguments": arguments}
    ranks = [[*sound(0), trainer], [*sound(1), trainer]]
    assert codes(judged(*ranks, shared=False)) == {("warning", "rehearsal.checkpoint-incomplete")}
    assert judged(*ranks, shared=True).findings == ()


@pytest.mark.parametrize(("deepspeed", "advice"), [(True, EACH_NODE), (False, WEIGHTS_ONCE)])
def test_weights_of_the_trainer_are_on_each_node_only_with_deepspeed(
    deepspeed: bool, advice: str
) -> None:
    trainer: Sent = {"kind": "trainer", "arguments": {"output_dir": "o", "deepspeed": deepspeed}}
    judgment = judged([*sound(0), trainer], [*sound(1), trainer], shared=False)
    (found,) = [each for each in judgment.findings if each.code.endswith("checkpoint-incomplete")]
    assert found.hint == advice


def test_a_state_dict_of_partitioned_parameters_is_empty() -> None:
    stage3 = {**ENGINE, "stage": 3}
    file = saved("torch.save", f"{CWD}/model.pt", tensors=10, empty=9)
    result = judged([*sound(0), stage3, file], [*sound(1), stage3])
    assert ("error", "rehearsal.checkpoint-incomplete") in codes(result)


def test_a_checkpoint_in_tmp_is_temporary_unless_the_job_runs_there() -> None:
    outside = judged([*sound(0), saved("torch.save", "/tmp/model.pt")], sound(1))
    assert codes(outside) == {("warning", "rehearsal.checkpoint-temporary")}
    below: list[Sent] = [{**START, "cwd": "/tmp/job"}, *sound(0)[1:]]
    inside = judged([*below, saved("torch.save", "/tmp/job/model.pt")], sound(1))
    assert inside.findings == ()


# ------------------------------------------------------------ records and texts


def test_a_record_that_is_invalid_is_noted_and_the_others_count() -> None:
    result = judged([*sound(0), {"kind": "step", "step": "x"}, {"kind": "other"}], sound(1))
    assert result.verdict is Verdict.WOULD_RUN
    assert Gap.NOT_RECORDED in result.not_rehearsed


def test_the_page_fits_its_width() -> None:
    result = judged(*[without(sound(rank), "process-group") for rank in range(2)])
    rows = list(rehearsal_rows("train.py", result, 60))
    assert max(map(len, rows)) <= 60
    assert rows[0].startswith("train.py: would fail")


def test_the_page_has_no_control_characters_of_ranks() -> None:
    optimizer = {**OPTIMIZER, "optimizer": "Adam\x1b[31m\n"}
    result = judged([*without(sound(0), "optimizer"), optimizer], sound(1))
    assert "\x1b" not in "".join(rehearsal_rows("train.py", result, None))


def test_every_kind_of_finding_has_a_text_and_a_hint() -> None:
    assert all(kind.code.startswith("rehearsal.") and kind.text for kind in FindingKind)
    assert all(kind.hint for kind in FindingKind)


def test_json_has_the_codes() -> None:
    data = judged(sound(0), sound(1)).as_data()
    assert data["verdict"] == "would-run"
    assert data["not_rehearsed"][0] == {"code": "later-steps", "text": Gap.LATER_STEPS.text}


def test_a_recorded_result_gives_the_same_page(tmp_path: Path) -> None:
    result = judged(*[without(sound(rank), "process-group") for rank in range(2)])
    file = tmp_path / RESULT
    file.write_text(json.dumps(result.as_data()))
    file.chmod(0o600)
    recorded = recorded_rehearsal(tmp_path)
    assert recorded is not None
    pages = [list(rehearsal_rows("train.py", each, 80)) for each in (recorded, result)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"verdict": "x"}', "[" * 100_000])
def test_a_recorded_result_that_is_invalid_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULT).write_text(text)
    (tmp_path / RESULT).chmod(0o600)
    assert recorded_rehearsal(tmp_path) is None


# ------------------------------------------------------------ uneven inputs


def test_a_rank_that_ends_early_within_join_makes_no_uneven_steps() -> None:
    join: Sent = {"kind": "join"}
    stall = HangVerdict(HangCode.NOT_ENTERED, ranks=(("n0", 0),), waiting=(1,))
    held = replace(REHEARSED, reason=replace(REHEARSED.reason, hang=stall))
    early = [join, *without(sound(1), "held"), ENDED]
    result = judged([join, *sound(0)], early, outcome=held)
    assert (result.verdict, result.findings) == (Verdict.WOULD_RUN, ())


# ------------------------------------------------------------ memory

GIB = 1 << 30
ON_GPU: Sent = {"devices": {"cuda": 7_000_000_000}, "gpu_total": 40 * GIB}
SEVEN_BILLION: Sent = {
    "parameters": 7_000_000_000,
    "trainable": 7_000_000_000,
    "types": {"bfloat16": 7_000_000_000},
    **ON_GPU,
}
BF16_CONFIG: Sent = {
    "kind": "deepspeed-config",
    "path": None,
    "text": '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}',
}
ENGINE_WRAPPED: Sent = {**DDP, "wrapper": "DeepSpeedEngine", **SEVEN_BILLION}
GPU_FULL = Outcome(
    "failed",
    1,
    EndReason(EndCode.RANK_FAILED, "n0", 0, exit_code=1),
    Event(1.0, "exit", "n0", 0, code=1),
    ending="gpu-memory",
    what="CUDA out of memory",
)


def nodes_of(count: int, slots: int = 1) -> Allocation:
    indexes = tuple(range(slots))
    return Allocation.of([(Node(f"n{number}", indexes), indexes) for number in range(count)])


def failed_without_memory(stage: int = 1, full: Allocation | None = None) -> Rehearsal:
    engine = {**ENGINE, "stage": stage}
    ranks = [[START, TORCH, group(rank), BF16_CONFIG, ENGINE_WRAPPED, engine] for rank in range(2)]
    return judged(*ranks, outcome=GPU_FULL, full=full)


def test_model_states_that_are_larger_than_a_gpu_explain_a_failure() -> None:
    result = failed_without_memory()
    assert codes(result) == {("error", "gpu-memory"), ("error", "rehearsal.memory")}
    (found,) = (each for each in result.findings if each.code == "rehearsal.memory")
    # in GB: parameters 14, half of the states 42, half of the gradients twice, and in fp32 14
    assert found.values["ranks"] == 2


def test_model_states_that_fit_into_the_gpus_of_the_real_run_are_no_error() -> None:
    result = failed_without_memory(full=nodes_of(64, slots=8))
    assert codes(result) == {("warning", "gpu-memory")}
    assert result.verdict is Verdict.NOT_REHEARSED


def test_steps_that_were_made_refute_the_estimate() -> None:
    used = step(2, gpus=8, gpu_memory=39 * GIB, gpu_total=40 * GIB)
    rank = [START, TORCH, group(0), BF16_CONFIG, ENGINE_WRAPPED, ENGINE, OPTIMIZER, used, HELD]
    assert "rehearsal.memory" not in {code for _, code in codes(judged(rank, rank))}


@pytest.mark.parametrize(
    ("used", "level"), [(5 * GIB, "warning"), (40 * GIB, None), (78 * GIB, "info")]
)
def test_memory_far_from_the_estimate_is_told(used: int, level: str | None) -> None:
    billion: Sent = {**SEVEN_BILLION, "parameters": 10**9, "trainable": 10**9}
    wrapped: Sent = {**DDP, **billion, "types": {"float32": 10**9}}
    last = step(2, gpus=8, gpu_memory=used, gpu_total=82 * GIB)
    rank = [START, TORCH, group(0), wrapped, OPTIMIZER, step(1), last, HELD]
    result = judged(rank, rank)
    found = {each.level for each in result.findings if each.code == "rehearsal.memory-estimate"}
    assert found == ({level} if level else set())
    assert result.measured.model_states == 16 * 10**9


BILLION = 10**9
WRAPPED: Sent = {
    **DDP,
    **SEVEN_BILLION,
    "parameters": BILLION,
    "trainable": BILLION,
    "types": {"float32": BILLION},
}
ON_RANK: Sent = {**OPTIMIZER, **ON_GPU}


def estimated(*records: Sent, full: Allocation | None = None) -> int | None:
    """Return the estimated model states of a rank that has recorded this."""
    rank = [START, TORCH, group(0), *records, HELD]
    return judged(rank, rank, full=full).measured.model_states


@pytest.mark.parametrize(
    ("optimizer", "states", "kept"),
    [
        ("SGD", {}, 0),
        ("SGD", {"cuda": 4 * BILLION}, 4),
        ("Adafactor", {"cuda": 10**6}, 0.001),
        ("AdamW8bit", {"cuda": 2 * BILLION}, 2),
        ("PagedAdamW8bit", {"cpu": 2 * BILLION}, 0),
        ("Shampoo", {"cuda": 12 * BILLION}, 12),
        # before the first step, by the name
        ("SGD", None, 0),
        ("AdamW8bit", None, 2),
        ("Lion", None, 4),
        ("Muon", None, 4),
        ("AdamW", None, 8),
    ],
)
def test_what_the_optimizer_keeps_counts_as_measured(
    optimizer: str, states: dict[str, int] | None, kept: float
) -> None:
    steps = [] if states is None else [step(1, gpus=8, states=states)]
    found = estimated(WRAPPED, {**ON_RANK, "optimizer": optimizer}, *steps)
    assert found == 8 * BILLION + int(kept * BILLION)


def test_an_optimizer_that_is_not_known_is_estimated_after_its_first_step_only() -> None:
    assert estimated(WRAPPED, {**ON_RANK, "optimizer": "Shampoo"}) is None


def test_weights_in_half_precision_have_moments_in_half_precision() -> None:
    half = {**WRAPPED, "types": {"bfloat16": BILLION}}
    assert estimated(half, {**ON_RANK, "optimizer": "AdamW"}) == 8 * BILLION


FSDP_MODEL: Sent = {**WRAPPED, "wrapper": "FullyShardedDataParallel"}
FSDP_LAYER: Sent = {**FSDP_MODEL, "parameters": BILLION // 10, "trainable": BILLION // 10}
HALF_OF_IT: Sent = {**ON_RANK, "optimizer": "AdamW", "own_bytes": 2 * BILLION}


def test_fsdp_divides_the_states_among_all_ranks_and_gathers_a_layer() -> None:
    layers = [FSDP_LAYER] * 10
    used = step(1, gpus=8, states={"cuda": 4 * BILLION})
    gathered = 3 * 4 * BILLION // 10
    assert estimated(FSDP_MODEL, *layers, HALF_OF_IT, used) == 8 * BILLION + gathered
    # the real run has 8 ranks
    full = nodes_of(8)
    found = estimated(FSDP_MODEL, *layers, HALF_OF_IT, used, full=full)
    assert found == 2 * BILLION + gathered


def test_fsdp_of_a_part_of_the_ranks_is_not_estimated() -> None:
    all_of_it = {**HALF_OF_IT, "own_bytes": 4 * BILLION}
    assert estimated(FSDP_MODEL, all_of_it, step(1, states={"cuda": 8 * BILLION})) is None


def test_the_moments_of_a_deepspeed_run_are_those_that_its_optimizer_keeps() -> None:
    wrapped = {**WRAPPED, "wrapper": "DeepSpeedEngine"}
    adam = estimated(wrapped, BF16_CONFIG, ENGINE, ON_RANK)
    lion = estimated(
        wrapped, BF16_CONFIG, ENGINE, ON_RANK, step(1, gpus=8, states={"cuda": 2 * BILLION})
    )
    assert adam is not None
    assert lion is not None
    # each of two ranks has half of them: 4 bytes less for each of its parameters
    assert adam - lion == 4 * BILLION // 2


def test_a_node_whose_memory_is_almost_full_is_named() -> None:
    start: Sent = {**START, "node_memory": 1000}
    result = judged([start, *sound(0)[1:]], sound(1))
    assert codes(result) == {("warning", "rehearsal.node-memory")}
    assert only(result).where == "n0"


# ------------------------------------------------------------ fewer nodes than the real run


def test_a_config_file_is_judged_for_the_ranks_of_the_real_run() -> None:
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}
    text = json.dumps({**sizes, "gradient_accumulation_steps": 1})
    given: Sent = {"kind": "deepspeed-config", "path": "ds.json", "text": text, "simulated": 8}
    ranks = [[*sound(0), given], [*sound(1), given]]
    assert judged(*ranks, full=nodes_of(16)).findings == ()
    assert codes(judged(*ranks, full=nodes_of(64))) == {("error", "batch")}


def test_stages_of_a_pipeline_share_the_batch_of_one_data_parallel_rank() -> None:
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}
    text = json.dumps({**sizes, "gradient_accumulation_steps": 2})
    given: Sent = {"kind": "deepspeed-config", "path": None, "text": text}
    two_stages: Sent = {**ENGINE, "stage": 0, "pipeline": True, "data_parallel": 1}
    assert judged(*[[*sound(rank), given, two_stages] for rank in range(2)]).findings == ()
    two_copies: Sent = {**ENGINE, "stage": 0}
    result = judged(*[[*sound(rank), given, two_copies] for rank in range(2)])
    assert codes(result) == {("error", "batch")}


def test_a_batch_that_a_script_computed_is_judged_for_the_ranks_that_it_found() -> None:
    text = '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}'
    given: Sent = {"kind": "deepspeed-config", "path": None, "text": text}
    ranks = [[*sound(0), given], [*sound(1), given]]
    assert judged(*ranks, full=nodes_of(16)).findings == ()


def test_parts_of_the_data_that_no_rank_reads_are_named() -> None:
    def reading(*parts: int) -> list[Sent]:
        loaders = [loader(number=1, replicas=4, replica=part) for part in parts]
        return [*sound(0), *loaders, *batches(*"abcd"[parts[0] : parts[0] + 2])]

    result = judged(reading(0), reading(1))
    assert codes(result) == {("warning", "rehearsal.unread-data")}
    assert only(result).values["read"] == 2
    # each rank has a loader for each of its parts, or the real run has more ranks
    assert judged(reading(0, 2), reading(1, 3)).findings == ()
    assert judged(reading(0), reading(1), full=nodes_of(4)).findings == ()


@pytest.mark.parametrize(("drop_last", "level"), [(False, "warning"), (True, "error")])
def test_a_data_set_that_is_too_small_for_all_ranks_is_named(drop_last: bool, level: str) -> None:
    data = [loader(drop_last=drop_last), *batches("a", "b")]
    other = [loader(drop_last=drop_last, replica=1), *batches("c", "d")]
    ranks = [*sound(0), *data], [*sound(1), *other]
    assert judged(*ranks, full=nodes_of(16)).findings == ()
    assert codes(judged(*ranks, full=nodes_of(64))) == {(level, "rehearsal.few-samples")}


def test_a_failure_that_fewer_ranks_may_have_caused_is_not_called_one_of_the_real_run() -> None:
    mesh = replace(GPU_FULL, ending="mesh-size", what="the mesh needs 8 ranks")
    assert codes(judged([START, TORCH], [START, TORCH], outcome=mesh)) == {("error", "mesh-size")}
    result = judged([START, TORCH], [START, TORCH], outcome=mesh, full=nodes_of(8))
    assert codes(result) == {("warning", "mesh-size")}
    assert result.verdict is Verdict.NOT_REHEARSED
    assert Gap.OTHER_NODES in result.not_rehearsed


# ------------------------------------------------------------ the model and its gradients


def test_a_model_in_evaluation_mode_is_named_unless_it_trains_later() -> None:
    always = [*without(sound(0), "step"), step(1, evaluates=True), step(2, evaluates=True)]
    once = [*without(sound(0), "step"), step(1, evaluates=True), step(2)]
    assert codes(judged(always, always)) == {("warning", "rehearsal.evaluation-mode")}
    assert judged(once, once).findings == ()


def test_gradients_that_are_added_to_those_of_the_step_before_are_named() -> None:
    kept = [*without(sound(0), "step"), step(1), step(2, kept=True)]
    assert codes(judged(kept, kept)) == {("warning", "rehearsal.gradients-kept")}


def test_an_epoch_in_the_order_of_the_one_before_is_named_if_it_is_trained_on() -> None:
    again: Sent = {"kind": "same-order", "loader": 1}
    train = [[*sound(r), loader(replica=r), *batches(*s), again] for r, s in ((0, "ab"), (1, "cd"))]
    assert codes(judged(*train)) == {("warning", "rehearsal.same-order")}
    evaluate = [[*sound(0), loader(), again], [*sound(1), loader(replica=1), again]]
    assert judged(*evaluate).findings == ()


def test_the_same_samples_are_no_error_if_the_inputs_of_the_models_differ() -> None:
    def inputs(*letters: str, size: int) -> list[Sent]:
        return [
            {"kind": "input", "index": at, "digest": letter * 16, "size": size}
            for at, letter in enumerate(letters, 1)
        ]

    plain = loader(replicas=None, replica=None, seed=None, sampler="RandomSampler")
    ranks = [[*sound(r), plain, *batches("a", "b")] for r in range(2)]
    assert codes(judged(*ranks)) == {("error", "rehearsal.same-data")}
    augmented = [[*ranks[0], *inputs("c", "d", size=4)], [*ranks[1], *inputs("e", "f", size=4)]]
    assert codes(judged(*augmented)) == {("warning", "rehearsal.same-data")}
    parts = [[*ranks[0], *inputs("c", "d", size=2)], [*ranks[1], *inputs("e", "f", size=2)]]
    assert judged(*parts).findings == ()


# ------------------------------------------------------------ groups and directories


def made(*members: int, by_members: bool = False) -> Sent:
    size, several = len(members), list(members)
    return {"kind": "group", "size": size, "members": several, "by_members": by_members}


def hanging(code: HangCode) -> Outcome:
    verdict = HangVerdict(code, waiting=(0, 1))
    return Outcome("failed", 1, EndReason(EndCode.HANG, hang=verdict))


def test_ranks_that_make_different_groups_are_named_instead_of_the_network() -> None:
    ranks = [[START, group(0), made(0, 3)], [START, group(1), made(1, 2)]]
    result = judged(*ranks, outcome=hanging(HangCode.NETWORK))
    assert codes(result) == {("error", "rehearsal.groups-differ")}
    assert only(result).values == {"own": "ranks 1-2", "other": "ranks 0,3"}
    assert only(result).where == "rank 1"


def test_groups_that_only_their_members_make_may_differ() -> None:
    own = (made(0, 3, by_members=True), made(1, 2, by_members=True))
    ranks = [[START, group(rank), each] for rank, each in enumerate(own)]
    result = judged(*ranks, outcome=hanging(HangCode.NETWORK))
    assert codes(result) == {("error", "hang.network")}


def test_parts_of_one_checkpoint_in_different_directories_are_an_error() -> None:
    paths = (f"{CWD}/out/12-31-07", f"{CWD}/out/12-31-08")
    ranks = [
        [*sound(rank), saved("distributed.checkpoint", path)] for rank, path in enumerate(paths)
    ]
    result = judged(*ranks, shared=True)
    assert codes(result) == {("error", "rehearsal.checkpoint-incomplete")}
    assert only(result).values == {"paths": ", ".join(paths)}
    on_own_disks = judged(*ranks, shared=False)
    assert ("error", "rehearsal.checkpoint-incomplete") not in codes(on_own_disks)


def test_output_directories_of_the_trainer_that_differ_are_a_warning() -> None:
    def trainer(directory: str) -> Sent:
        return {
            "kind": "trainer",
            "arguments": {"output_dir": directory, "save_strategy": "no"},
        }

    ranks = [[*sound(rank), trainer(f"out-{rank}")] for rank in range(2)]
    assert codes(judged(*ranks)) == {("warning", "rehearsal.output-differs")}
    same = [[*sound(rank), trainer("out")] for rank in range(2)]
    assert judged(*same).findings == ()


def test_the_same_inputs_without_a_data_loader_are_a_warning() -> None:
    def inputs(*letters: str) -> list[Sent]:
        return [
            {"kind": "input", "index": at, "digest": letter * 16, "size": 4}
            for at, letter in enumerate(letters, 1)
        ]

    same = [[*sound(rank), *inputs("a", "b")] for rank in range(2)]
    assert codes(judged(*same)) == {("warning", "rehearsal.same-data")}
    constant = [[*sound(rank), *inputs("a", "a")] for rank in range(2)]
    assert judged(*constant).findings == ()
    own = [[*sound(0), *inputs("a", "b")], [*sound(1), *inputs("c", "d")]]
    assert judged(*own).findings == ()


def prepared(rank: int, **other: object) -> Sent:
    """A data loader of 64 samples that Accelerate divides among two ranks."""
    return {
        "kind": "prepared-loader",
        "source": "Own",
        "part": rank,
        "parts": 2,
        "samples": 64,
        "drawn": 64,
        "numbers": {"seed": 7},
        "chosen": None,
        **other,
    }


@pytest.mark.parametrize(
    ("divided", "other"),
    [
        (True, [{"numbers": {"rank": rank, "size": 2}} for rank in (0, 1)]),
        (True, [{"drawn": 32, "chosen": digit * 16} for digit in "ab"]),
        (False, [{}, {}]),
        (False, [{"numbers": {"rank": rank}} for rank in (0, 1)]),
        (False, [{"drawn": 32, "chosen": "a" * 16}] * 2),
        (False, [{"drawn": 48, "chosen": digit * 16} for digit in "ab"]),
    ],
    ids=str,
)
def test_samples_that_are_divided_already_are_not_to_be_divided_again(
    divided: bool, other: list[Sent]
) -> None:
    ranks = [[*sound(rank), prepared(rank, **other[rank])] for rank in (0, 1)]
    assert (("warning", "rehearsal.unread-data") in codes(judged(*ranks))) is divided


def test_a_wrapped_model_that_no_optimizer_has_is_a_warning() -> None:
    left: Sent = {"kind": "untrained", "models": ["Generator"]}
    found = only(judged([*sound(0), left], [*sound(1), left]))
    assert (found.level, found.code) == ("warning", "rehearsal.no-update")
    assert found.values == {"model": "Generator"}


def test_a_script_that_steps_past_the_engine_is_an_error() -> None:
    past: Sent = {"kind": "stepped-past-engine", "optimizer": "AdamW"}

    def rank(number: int, *steps: Sent) -> list[Sent]:
        return [START, TORCH, group(number), ENGINE, past, *steps, ENDED]

    error = ("error", "rehearsal.not-synchronized")
    assert error in codes(judged(rank(0), rank(1), outcome=SUCCEEDED))
    assert error not in codes(judged(rank(0, step(1)), rank(1, step(1)), outcome=SUCCEEDED))


def test_updates_that_bf16_rounds_away_are_a_warning_unless_the_rate_rises() -> None:
    types: Sent = {"types": {"bfloat16": 100}}

    def trained(*rates: float) -> list[Sent]:
        steps = [
            step(number, lr=[rate], fingerprint=[1.0, 2.0]) for number, rate in enumerate(rates, 1)
        ]
        return [START, TORCH, group(0), {**DDP, **types}, {**OPTIMIZER, **types}, *steps, HELD]

    assert codes(judged(*[trained(1e-5, 1e-5)] * 2)) == {("warning", "rehearsal.no-update")}
    assert judged(*[trained(1e-7, 2e-7)] * 2).findings == ()


def test_a_schedule_that_accelerate_prepared_has_its_end_in_optimizer_steps() -> None:
    accelerator: Sent = {"kind": "accelerator", "settings": {"num_processes": 2}}

    def use(steps: int, total: int | None) -> Sent:
        one = {"scheduler": "LinearLR", "steps": steps, "optimizer_steps": 2, "total": total}
        return {"kind": "schedulers", "schedulers": [one]}

    result = judged(*[[*sound(rank), accelerator, use(2, 16)] for rank in range(2)])
    assert codes(result) == {("info", "rehearsal.schedule-steps")}
    assert only(result).values == {"scheduler": "LinearLR", "each": 2, "total": 16, "end": 8}
    # three epochs of 8 batches of one rank: the schedule ends after one and a half
    read = [[loader(replica=rank), *batches(*letters)] for rank, letters in enumerate(["ab", "cd"])]
    of_one_rank = [[*sound(rank), *read[rank], accelerator, use(2, 24)] for rank in range(2)]
    assert codes(judged(*of_one_rank)) == {("warning", "rehearsal.schedule-steps")}
    for ordinary in (use(1, 8), use(2, None)):
        ranks = [[*sound(rank), accelerator, ordinary] for rank in range(2)]
        assert judged(*ranks).findings == ()


@pytest.mark.parametrize(
    ("use", "passes", "found"),
    [
        ({"steps": 7, "total": 24}, (4, 4), {("warning", "rehearsal.schedule-steps")}),
        # the total is a number of batches: three epochs of 8
        ({"steps": 7, "total": 24, "batches": 8}, (4, 4), set()),
        # a gradient scaler has skipped the steps after the first passes
        ({"steps": 4, "total": 25}, (3, 1), set()),
        ({"steps": 2, "total": 25}, (1, 1), set()),
        ({"steps": 3, "by_engine": True}, (1, 1), {("warning", "rehearsal.schedule-steps")}),
    ],
)
def test_a_schedule_that_is_stepped_too_often_is_named(
    use: Sent, passes: tuple[int, int], found: set[tuple[str, str]]
) -> None:
    batches_of_epoch = use.get("batches", 7)
    one = {"scheduler": "CosineAnnealingLR", "optimizer_steps": 2, **use}
    one.pop("batches", None)
    steps = [step(number, backwards=each) for number, each in enumerate(passes, 1)]
    used: list[Sent] = [
        START,
        TORCH,
        group(0),
        DDP,
        OPTIMIZER,
        loader(batches=batches_of_epoch),
        *steps,
        {"kind": "schedulers", "schedulers": [one]},
        HELD,
    ]
    ranks = [[*used, *batches(*letters)] for letters in ("ab", "cd")]
    assert codes(judged(*ranks)) == found


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((range(8), range(4, 12)), {("warning", "rehearsal.same-data")}),
        ((range(8), range(8, 16)), set()),
        # one sample is there twice, so that the parts are equally large
        ((range(8), range(7, 15)), set()),
        ((range(8), range(8)), {("warning", "rehearsal.plain-sampler")}),
    ],
)
def test_parts_of_a_data_set_that_overlap_are_named(
    parts: tuple[range, range], found: set[tuple[str, str]]
) -> None:
    plain = {"sampler": "SequentialSampler", "replicas": None, "replica": None}
    ranks = []
    for rank, letters in enumerate(("ab", "cd")):
        part = loader(**plain, chosen=list(parts[rank]))
        ranks.append([*without(sound(rank), "held"), part, *batches(*letters), HELD])
    assert codes(judged(*ranks)) == found


def test_gradients_that_are_clipped_by_the_norm_of_a_part_are_named() -> None:
    clips: Sent = {"kind": "clips-parts"}
    result = judged(*[[*sound(rank), clips] for rank in range(2)])
    assert codes(result) == {("warning", "rehearsal.clipped-in-parts")}


@pytest.mark.parametrize(
    ("orders", "replicas", "found"),
    [
        ("ab", 2, {("error", "rehearsal.same-data")}),
        ("aa", 2, set()),
        # each rank draws from all samples itself
        ("ab", None, set()),
    ],
)
def test_samples_that_ranks_list_in_different_orders_are_named(
    orders: str, replicas: int | None, found: set[tuple[str, str]]
) -> None:
    ranks = []
    for rank, letters in enumerate(("ab", "cd")):
        names = {"listed": "e" * 16, "order": orders[rank] * 16}
        listing = loader(replicas=replicas, sampler="OwnSampler", **names)
        ranks.append([*without(sound(rank), "held"), listing, *batches(*letters), HELD])
    assert codes(judged(*ranks)) == found


def test_a_gradient_scaler_that_skips_all_steps_is_named_once() -> None:
    fell: Sent = {"kind": "scale-fell", "updates": 18}
    ended = [START, TORCH, fell, {**ENDED, "steps": 0, "backwards": 32}]
    result = judged(ended, ended, outcome=SUCCEEDED)
    assert (only(result).code, only(result).values) == ("rehearsal.steps-skipped", {"steps": 18})
    assert result.verdict is Verdict.WOULD_FAIL
    # a step was made at last
    assert judged(*[[*sound(rank), fell] for rank in range(2)]).findings == ()


def test_gradients_that_are_clipped_while_they_are_scaled_are_named() -> None:
    clips: Sent = {"kind": "clips-scaled", "scale": 65536.0, "norm": 1.0}
    result = judged(*[[*sound(rank), clips] for rank in range(2)])
    found = only(result)
    assert (found.level, found.code) == ("error", "rehearsal.clipped-scaled")
    assert found.values == {"scale": 65536.0, "norm": 1.0}


def test_parameters_that_no_optimizer_has_are_named() -> None:
    missed: Sent = {"model": "Net", "tensors": 2, "name": "head.weight"}
    found = only(judged(*[[*sound(rank), {"kind": "left-out", **missed}] for rank in range(2)]))
    assert (found.level, found.code) == ("warning", "rehearsal.no-update")
    assert found.values == missed


def test_a_scheduler_that_begins_before_its_optimizer_is_named() -> None:
    first: Sent = {"kind": "scheduled-first", "scheduler": "StepLR"}
    found = only(judged(*[[*sound(rank), first] for rank in range(2)]))
    assert (found.level, found.code) == ("warning", "rehearsal.schedule-steps")
    assert found.values == {"scheduler": "StepLR"}


def test_a_loss_of_other_shapes_is_named() -> None:
    shapes: Sent = {"loss": "mse_loss", "values": "(4, 1)", "targets": "(4,)"}
    found = only(
        judged(*[[*sound(rank), {"kind": "broadcast-loss", **shapes}] for rank in range(2)])
    )
    assert (found.level, found.code) == ("error", "rehearsal.broadcast-loss")
    assert found.values == shapes


@pytest.mark.parametrize(
    ("written", "is_another"),
    [(f"{CWD}/cache/rows.pt", True), (f"{CWD}/cache", False), (f"{CWD}/cache/rows.pt/0", True)],
)
def test_a_file_that_another_rank_writes_is_missed_for_want_of_a_barrier(
    written: str, is_another: bool
) -> None:
    reason = EndReason(EndCode.RANK_FAILED, "n1", 1, exit_code=1)
    outcome = Outcome(
        "failed",
        1,
        reason,
        Event(1.0, "exit", "n1", 1, code=1),
        what="it does not exist",
        ending="file-missing",
        ending_values=("cache/rows.pt",),
        hint="use another path",
    )
    found = only(judged([START, saved("torch.save", written)], [START], outcome=outcome))
    assert found.code == "file-missing"
    assert ("barrier" in (found.hint or "")) is is_another


def test_a_state_dict_of_another_model_is_named_once() -> None:
    names: Sent = {"model": "Net", "tensors": 4, "given": "model.0.weight", "wanted": "0.weight"}
    loaded: Sent = {"kind": "nothing-loaded", **names}
    found = only(judged(*[[*sound(rank), loaded, loaded] for rank in range(2)]))
    assert (found.level, found.code) == ("error", "rehearsal.nothing-loaded")
    assert (found.where, found.values) == ("ranks 0-1", names)


def test_an_argument_that_means_false_and_is_true_is_named() -> None:
    given: Sent = {"kind": "text-is-true", "argument": "--amp", "text": "False"}
    found = only(judged(*[[*sound(rank), given] for rank in range(2)]))
    assert (found.level, found.code) == ("error", "rehearsal.text-is-true")
    assert found.values == {"argument": "--amp", "text": "False"}


@pytest.mark.parametrize(
    ("letters", "found"),
    [
        (("ab", "cd", "ef", "gh"), {("error", "rehearsal.parallel-inputs-differ")}),
        # the first two ranks have the same part of the data, and so have the others
        (("ab", "ab", "cd", "cd"), set()),
        (("ab", "ab", "ab", "ab"), set()),
        # some batches are the same, as of a loader that evaluates
        (("ab", "cb", "cd", "cd"), set()),
    ],
)
def test_ranks_that_divide_tensors_need_the_same_batches(
    letters: tuple[str, ...], found: set[tuple[str, str]]
) -> None:
    ranks = []
    for rank, own in enumerate(letters):
        members = [0, 1] if rank < 2 else [2, 3]
        split: list[Sent] = [{"kind": "splits-model"}]
        split += [{"kind": "tensor-parallel", "members": members}]
        ranks.append([START, TORCH, group(rank, 4), *split, OPTIMIZER, loader(), *batches(*own)])
        ranks[-1] += [step(1, loaders=[1]), step(2, loaders=[1]), HELD]
    assert codes(judged(*ranks)) == found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Argument ``gather_list`` must NOT be specified on", "collective-argument"),
        ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer", "child-failed"),
        ("something unknown", "rehearsal.failed"),
    ],
)
def test_the_exception_of_a_rank_tells_more_than_its_launcher(text: str, code: str) -> None:
    raised: Sent = {"kind": "exception", "error": "ValueError", "text": text}
    raised |= {"file": "train.py", "line": 8}
    reason = EndReason(EndCode.RANK_FAILED, "n1", exit_code=1)
    cause = Event(1.0, "exit", "n1", code=1)
    outcome = Outcome("failed", 1, reason, cause, what="a rank failed", ending="child-failed")
    assert only(judged([START], [START, raised], outcome=outcome)).code == code
