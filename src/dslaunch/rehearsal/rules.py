"""What is wrong with a job although it runs: one rule per kind of mistake. Pure.

A rule gets the rehearsal and its ranks, or with `of_ranks` its ranks alone, and yields findings.
Errors are what surely trains wrongly; a rule that may err yields warnings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.plural import byte_count, first_few
from dslaunch.protocol.rehearsal import (
    AcceleratorBuilt,
    BroadcastLoss,
    ClipsParts,
    ClipsScaled,
    Engine,
    GivenConfig,
    Host,
    JoinedRpc,
    LeftOut,
    NothingLoaded,
    OptimizerBuilt,
    ProcessGroup,
    ScaleFell,
    ScheduledFirst,
    Schedulers,
    SchedulerUse,
    Spawned,
    Started,
    Step,
    SteppedPastEngine,
    StepsDone,
    TextIsTrue,
    Untrained,
    Wrapped,
)
from dslaunch.rehearsal.checkpoints import checkpoints
from dslaunch.rehearsal.data import (
    DIFFERS,
    ROUNDING,
    apart,
    batches_differ,
    divided_twice,
    few_samples,
    parallel_inputs,
    same_data,
    same_order,
    split_by_hand,
    unread_parts,
)
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.memory import FULL, memory
from dslaunch.rehearsal.ranks import RankRecords, Ranks, ranks_by
from dslaunch.rehearsal.rendezvous import groups_differ, impossible_rendezvous
from dslaunch.run.reasons import EndCode
from dslaunch.run.rehearsal import Rehearsed

Rule = Callable[[Rehearsed, Ranks], Iterator[Finding]]
UNWRAPPED_DIFFERS = 0.001
"""Share of the change of a parameter from which on those of layers outside of the wrapped model
differ: the first steps of Adam depend on little more than the sign of a gradient."""
MOST_HOSTS = 20
"""Hosts that one finding names."""
OF_LOGS = frozenset(
    {"comet", "csv_monitor", "steps_per_print", "tensorboard", "wall_clock_breakdown", "wandb"}
)
"""Keys of a DeepSpeed config that say what is logged, which often only rank 0 does."""
HUBS = ("huggingface.co", "hf.co", "modelscope.cn", "wandb.ai", "github.com", "s3.amazonaws.com")
_BEFORE_THE_FIRST_STEP = (FindingKind.STARTS_APART, FindingKind.STARTS_DIFFERENT)


# ------------------------------------------------------------ ranks together


def not_distributed(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that train without the others."""
    wanted = rehearsed.plan.world_size
    alone: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        joined = [each for each in (rank.last(ProcessGroup), rank.last(JoinedRpc)) if each]
        world = max((each.world for each in joined), default=1)
        if rank.steps and world < wanted:
            alone[world].append(rank.rank)
    for world, several in alone.items():
        where = ranks_text(several)
        yield finding(FindingKind.NOT_DISTRIBUTED, where, world=world, ranks=wanted)


def spawns_ranks(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that train in processes that they start themselves, if at all."""
    if rehearsed.full_ranks < 2:
        return
    for rank in ranks:
        spawned = rank.last(Spawned)
        if spawned is not None and not rank.steps and not rank.spawns_share(len(ranks)):
            where = ranks_text([rank.rank])
            yield finding(FindingKind.SPAWNS_RANKS, where, processes=spawned.processes)
            return


def not_synchronized(ranks: Ranks) -> Iterator[Finding]:
    """Yield that ranks have different parameters after a step, though each has all of them."""
    world = len(ranks)
    if world < 2 or not all(_joined(rank) and _may_compare(rank, world) for rank in ranks):
        return
    if split_by_hand(ranks):
        return
    step = min(rank.steps for rank in ranks)
    before = [_first_fingerprint(rank) for rank in ranks]
    after = [_fingerprint(rank, step) for rank in ranks]
    where = ranks_text(rank.rank for rank in ranks)
    if not _moves_apart(before, after):
        if _unwrapped_move_apart(ranks, step):
            yield finding(FindingKind.UNWRAPPED_DIFFER, where, step=step)
        return
    kind = _difference(ranks, before)
    if kind in _BEFORE_THE_FIRST_STEP:
        yield finding(kind, where)
    else:
        yield finding(kind, where, step=step)


def _moves_apart(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], share: float = DIFFERS
) -> bool:
    """Return whether ranks have different parameters. `before` and `after` some steps: the
    fingerprint of each rank; `share`: see `_differ`."""
    lengths = {len(fingerprint) for fingerprint in (*before, *after)}
    return bool(after[0]) and len(lengths) == 1 and _differ(before, after, share)


def _unwrapped_move_apart(ranks: Ranks, step: int) -> bool:
    """Return whether the parameters that no wrapped model has were equal, and are no more."""
    built = [rank.last(OptimizerBuilt) for rank in ranks]
    before = [optimizer.unwrapped if optimizer is not None else () for optimizer in built]
    of_step = [next((s for s in rank.every(Step) if s.step == step), None) for rank in ranks]
    after = [each.unwrapped if each is not None else () for each in of_step]
    return not apart(before) and _moves_apart(before, after, UNWRAPPED_DIFFERS)


def past_engine(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that step the optimizer of their DeepSpeed engine, which makes no step."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        past = rank.last(SteppedPastEngine)
        if past is not None and not rank.steps:
            found[past.optimizer].append(rank.rank)
    for optimizer, several in found.items():
        yield finding(FindingKind.PAST_ENGINE, ranks_text(several), optimizer=optimizer)


def _difference(ranks: Ranks, before: Sequence[Sequence[float]]) -> FindingKind:
    """Return what it means that the parameters of ranks differ, by what the ranks have exchanged.

    `before`: the fingerprint of each rank's parameters before its first step.
    """
    steps = [step for rank in ranks for step in rank.every(Step)]
    done = [each for rank in ranks for each in rank.every(StepsDone)]
    is_wrapped = any(rank.last(Wrapped) for rank in ranks)
    has_exchanged = any((step.collectives or 0) > 0 for step in steps)
    # some methods let ranks train alone for several steps, and average the parameters then
    if not is_wrapped and not has_exchanged and any(each.averages for each in done):
        return FindingKind.AVERAGED_LATER
    if is_wrapped and apart(before):
        return FindingKind.STARTS_APART
    if has_exchanged and apart(before):
        return FindingKind.STARTS_DIFFERENT
    is_unknown = all(step.collectives is None for step in steps)
    may_exchange = is_wrapped or has_exchanged or is_unknown or any(each.reduces for each in done)
    return FindingKind.PARAMETERS_DIFFER if may_exchange else FindingKind.NOT_SYNCHRONIZED


def _joined(rank: RankRecords) -> bool:
    group = rank.last(ProcessGroup)
    return rank.steps > 0 and group is not None and group.world > 1


def _may_compare(rank: RankRecords, world: int) -> bool:
    return not rank.sharded and not rank.splits_model(world)


def _fingerprint(rank: RankRecords, number: int) -> tuple[float, ...]:
    """Return the fingerprint of a rank's parameters after a step; empty: not recorded."""
    return next((step.fingerprint for step in rank.every(Step) if step.step == number), ())


def _first_fingerprint(rank: RankRecords) -> tuple[float, ...]:
    """Return the fingerprint of a rank's parameters before its first step."""
    optimizer = rank.last(OptimizerBuilt)
    return optimizer.fingerprint if optimizer is not None else ()


def _differ(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], share: float
) -> bool:
    """Return whether ranks differ by more than rounding, compared with the change of a step: with
    that of the same parameter, of which it is a `share` at most, and of the one that changes most.
    The sum of some parameters never changes but by rounding, such as that of the last bias before a
    softmax."""
    before_by_parameter = zip(*before, strict=True)
    after_by_parameter = zip(*after, strict=True)
    differences, changes = [], []
    for old, new in zip(before_by_parameter, after_by_parameter, strict=True):
        differences.append(max(new) - min(new))
        changes.append(max(abs(n - o) for o, n in zip(old, new, strict=True)))
    rounding = ROUNDING * max(changes, default=0.0)
    return any(
        difference > share * change and difference > rounding
        for difference, change in zip(differences, changes, strict=True)
        if change > 0
    )


def models_differ(ranks: Ranks) -> Iterator[Finding]:
    """Yield that ranks have models of different sizes."""
    if split_by_hand(ranks):
        return
    sizes = {rank.rank: _model_sizes(rank) for rank in ranks if not rank.splits_model(len(ranks))}
    known = {number: several for number, several in sizes.items() if several}
    # a rank may have wrapped fewer models so far
    for together in zip(*known.values(), strict=False):
        if len(set(together)) > 1:
            text = " and ".join(str(size) for size in sorted(set(together))[:4])
            yield finding(FindingKind.MODELS_DIFFER, ranks_text(known), sizes=text)
            return


def _model_sizes(rank: RankRecords) -> Sequence[int]:
    """Return the parameters of each model that a rank has wrapped, before it was sharded; without
    any, those that it optimizes."""
    wrapped = [each.parameters for each in rank.every(Wrapped)]
    built = rank.last(OptimizerBuilt)
    if wrapped or built is None or rank.sharded:
        return wrapped
    return [built.parameters]


def configs_differ(ranks: Ranks) -> Iterator[Finding]:
    """Yield that ranks got different DeepSpeed configs, apart from what they log."""
    trained = {rank.rank: _trained_by(rank) for rank in ranks if rank.last(GivenConfig)}
    first = next(iter(trained.values()), None)
    others = [number for number, config in trained.items() if config != first]
    if others:
        yield finding(FindingKind.CONFIGS_DIFFER, ranks_text(others))


def _trained_by(rank: RankRecords) -> object:
    """Return the DeepSpeed config of a rank without what it logs, or its text if it is no JSON."""
    config = rank.config
    if config is None:
        return rank.last(GivenConfig)
    return {key: value for key, value in config.items() if key not in OF_LOGS}


# ------------------------------------------------------------ steps


def no_update(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks whose optimizer does not train the model."""
    found: dict[tuple[FindingKind, str, int, str], list[int]] = defaultdict(list)
    for rank in ranks:
        code = _without_update(rank)
        optimizer = rank.last(OptimizerBuilt)
        if code is not None and optimizer is not None:
            types = " and ".join(sorted(_types(rank, optimizer)))
            found[code, optimizer.optimizer, rank.steps, types].append(rank.rank)
    for (code, name, steps, types), several in found.items():
        yield finding(code, ranks_text(several), optimizer=name, steps=steps, types=types)


def _without_update(rank: RankRecords) -> FindingKind | None:
    """Return why the steps of a rank's optimizer do not change the model; None: they do, or that is
    not certain."""
    optimizer = rank.last(OptimizerBuilt)
    steps = rank.every(Step)
    if optimizer is None or not steps:
        return None
    last = steps[-1].fingerprint
    # the first step may be made without gradients, before the training
    if last and last != optimizer.fingerprint:
        return None
    # copies in float32, which get the gradients of the model and are copied into it, have gradients
    if optimizer.owned == 0 and optimizer.tensors and not optimizer.gradients:
        return FindingKind.OTHER_PARAMETERS
    if optimizer.gradients == 0:
        return FindingKind.NO_GRADIENTS
    if optimizer.owned == 0:
        return None  # fingerprints are of the model that was wrapped last, which another one trains
    trains = any(rate > 0 for step in steps for rate in step.lr)
    skips = any(step.skipped for step in steps)
    if not last or not trains or skips:
        return None
    if _types(rank, optimizer) <= {"float32", "float64"}:
        return FindingKind.NO_UPDATE
    # bf16 and fp16 lose small steps by rounding, as those of a warmup are
    rates = zip(steps[0].lr, steps[-1].lr, strict=False)
    warms_up = any(last > first for first, last in rates)
    if warms_up or len(steps) < 2:
        return None
    return FindingKind.ROUNDED_AWAY


def untrained(ranks: Ranks) -> Iterator[Finding]:
    """Yield the wrapped models that no optimizer trains."""

    def models(rank: RankRecords) -> Iterator[str]:
        return (name for each in rank.every(Untrained) for name in each.models)

    for model, several in ranks_by(ranks, models).items():
        yield finding(FindingKind.UNTRAINED, ranks_text(several), model=model)


def left_out(ranks: Ranks) -> Iterator[Finding]:
    """Yield the wrapped models of which some parameters are in no optimizer."""
    for each, several in ranks_by(ranks, lambda rank: rank.every(LeftOut)).items():
        yield finding(
            FindingKind.LEFT_OUT,
            ranks_text(several),
            tensors=each.tensors,
            model=each.model,
            name=each.name,
        )


def _types(rank: RankRecords, optimizer: OptimizerBuilt) -> set[str]:
    """Return the types of the parameters of an optimizer and of the model."""
    types = set(optimizer.types)
    wrapped = rank.last(Wrapped)
    if wrapped is not None:
        types.update(wrapped.types)
    return types


def schedule_unused(ranks: Ranks) -> Iterator[Finding]:
    """Yield learning rates of 0, and schedulers that make no step."""
    zero: dict[tuple[FindingKind, int], list[int]] = defaultdict(list)
    unused: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        rates = [rate for step in rank.every(Step) for rate in step.lr]
        known = rank.last(Schedulers)
        schedulers = known.schedulers if known is not None else ()
        if rank.steps > 1 and rates and not any(rates):
            zero[_zero_rate(rank, schedulers), rank.steps].append(rank.rank)
        for each in schedulers:
            if each.optimizer_steps > 1 and not each.steps:
                unused[each.scheduler].append(rank.rank)
    for (kind, steps), several in zero.items():
        yield finding(kind, ranks_text(several), steps=steps)
    for name, several in unused.items():
        steps = max(rank.steps for rank in ranks)
        where = ranks_text(several)
        yield finding(FindingKind.SCHEDULER_UNUSED, where, scheduler=name, steps=steps)


def _zero_rate(rank: RankRecords, schedulers: Sequence[SchedulerUse]) -> FindingKind:
    """Return what learning rates of 0 mean for a rank with these schedulers."""
    if schedulers and all(each.stays_zero for each in schedulers):
        return FindingKind.STAYS_ZERO
    # a warmup may begin with several steps of 0, as that of DeepSpeed does
    if schedulers or _engine_schedules(rank):
        return FindingKind.WARMS_UP
    return FindingKind.ZERO_RATE


OF_PREPARED = (FindingKind.SEVERAL_STEPS, FindingKind.STEPS_OF_ONE_RANK)
"""Of schedulers that Accelerate has prepared, which make a step for each rank."""


def schedule_steps(ranks: Ranks) -> Iterator[Finding]:
    """Yield the schedulers that make several steps in each optimizer step, and when they end."""
    known = ranks[0].last(Schedulers)
    for use in known.schedulers if known is not None else ():
        kind = _steps_too_often(use, ranks)
        if kind is None:
            continue
        each = len(ranks) if kind in OF_PREPARED else _each(use)
        yield finding(
            kind,
            ranks_text(rank.rank for rank in ranks),
            scheduler=use.scheduler,
            each=each,
            total=use.total or 0,
            end=-(-(use.total or 0) // each),
        )
        return


def _each(use: SchedulerUse) -> int:
    """Return how many steps a scheduler makes in each optimizer step, of which it has begun the
    last one."""
    return -(-use.steps // use.optimizer_steps)


def _steps_too_often(use: SchedulerUse, ranks: Ranks) -> FindingKind | None:
    """Return what it means that a scheduler makes several steps in each optimizer step; None: it
    does not, or the script may count its steps so.

    Schedulers are noted after the optimizer's last step, and before their own.
    """
    world = len(ranks)
    if ranks[0].last(AcceleratorBuilt) is not None:
        is_prepared = use.steps and use.steps == world * (use.optimizer_steps - 1)
        if not is_prepared or world == 1 or use.total is None:
            return None
        is_early = _ends_within_an_epoch(use.total, ranks[0], world)
        return FindingKind.STEPS_OF_ONE_RANK if is_early else FindingKind.SEVERAL_STEPS
    if use.optimizer_steps < 2 or use.steps <= use.optimizer_steps:
        return None
    if use.by_engine:
        return FindingKind.STEPPED_TWICE
    if use.total is None or _counts_batches(use, ranks[0]):
        return None
    return FindingKind.TOO_MANY_STEPS


def _ends_within_an_epoch(total: int, rank: RankRecords, world: int) -> bool:
    """Return whether the steps of a prepared scheduler are those of one rank's epochs, and end in
    the middle of an epoch, since it makes a step for each rank."""
    passes = max((step.backwards for step in rank.every(Step)), default=1) or 1
    epochs = {loader.batches // passes for loader in rank.trained_loaders if loader.batches}
    return any(
        updates > 1 and total % updates == 0 and total % (updates * world) for updates in epochs
    )


def _counts_batches(use: SchedulerUse, rank: RankRecords) -> bool:
    """Return whether the total of a schedule may be a number of batches: a multiple of those of an
    epoch. A gradient scaler that skips steps also makes the scheduler faster, but not in each."""
    passes = {step.backwards for step in rank.every(Step)}
    if passes != {_each(use)}:
        return True
    epochs = [loader.batches for loader in rank.trained_loaders]
    return any(use.total % batches == 0 for batches in epochs if batches and use.total)


def clipped_in_parts(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that clip divided gradients by the norm of the part that they have."""
    found = [rank.rank for rank in ranks if rank.last(ClipsParts)]
    if found:
        yield finding(FindingKind.CLIPPED_IN_PARTS, ranks_text(found))


def clipped_scaled(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that clip gradients while they are scaled."""
    found = [(rank.rank, clips) for rank in ranks if (clips := rank.last(ClipsScaled))]
    if found:
        where = ranks_text(rank for rank, _ in found)
        _, first = found[0]
        yield finding(FindingKind.CLIPPED_SCALED, where, norm=first.norm, scale=first.scale)


def steps_skipped(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks without a step whose gradient scaler is of no help against an overflow."""
    without = [rank for rank in ranks if not rank.steps]
    found = [(rank.rank, fell) for rank in without if (fell := rank.last(ScaleFell))]
    if found:
        where = ranks_text(rank for rank, _ in found)
        least = min(fell.updates for _, fell in found)
        yield finding(FindingKind.STEPS_SKIPPED, where, steps=least)


def scheduled_first(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks in which a scheduler makes a step before its optimizer."""
    found = [(rank.rank, first) for rank in ranks if (first := rank.last(ScheduledFirst))]
    if found:
        _, first = found[0]
        where = ranks_text(rank for rank, _ in found)
        yield finding(FindingKind.SCHEDULED_FIRST, where, scheduler=first.scheduler)


def broadcast_loss(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks whose loss compares each value with the targets of all samples."""
    found = [(rank.rank, loss) for rank in ranks if (loss := rank.last(BroadcastLoss))]
    if found:
        _, first = found[0]
        yield finding(
            FindingKind.BROADCAST_LOSS,
            ranks_text(rank for rank, _ in found),
            loss=first.loss,
            values=first.values,
            targets=first.targets,
        )


def nothing_loaded(ranks: Ranks) -> Iterator[Finding]:
    """Yield the state dicts of which nothing was loaded."""
    for loaded, several in ranks_by(ranks, lambda rank: rank.every(NothingLoaded)).items():
        yield finding(
            FindingKind.NOTHING_LOADED,
            ranks_text(several),
            model=loaded.model,
            tensors=loaded.tensors,
            given=loaded.given,
            wanted=loaded.wanted,
        )


def text_is_true(ranks: Ranks) -> Iterator[Finding]:
    """Yield arguments that mean False and are True."""
    for each, several in ranks_by(ranks, lambda rank: rank.every(TextIsTrue)).items():
        where = ranks_text(several)
        yield finding(FindingKind.TEXT_IS_TRUE, where, argument=each.argument, text=each.text)


def _engine_schedules(rank: RankRecords) -> bool:
    engine = rank.last(Engine)
    return engine is not None and engine.scheduler is not None


def loss_not_finite(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks whose last loss is NaN or infinite."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        steps = rank.every(Step)
        if steps and not steps[-1].finite:
            found[steps[-1].step].append(rank.rank)
    for step, several in found.items():
        yield finding(FindingKind.LOSS_NOT_FINITE, ranks_text(several), step=step)


def evaluation_mode(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks whose model is never in training mode."""
    found = [rank for rank in ranks if rank.steps and all(s.evaluates for s in rank.every(Step))]
    if found:
        where = ranks_text(rank.rank for rank in found)
        yield finding(FindingKind.EVALUATION_MODE, where, steps=found[0].steps)


def gradients_kept(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that do not reset gradients between two steps."""
    found = [rank for rank in ranks if any(step.kept for step in rank.every(Step))]
    if not found:
        return
    first = next(step.step for step in found[0].every(Step) if step.kept)
    optimizer = found[0].last(OptimizerBuilt)
    name = optimizer.optimizer if optimizer is not None else "the optimizer"
    where = ranks_text(rank.rank for rank in found)
    yield finding(FindingKind.GRADIENTS_KEPT, where, optimizer=name, step=first)


def accumulation_unused(ranks: Ranks) -> Iterator[Finding]:
    """Yield that gradient accumulation of Accelerate is configured, and steps do not accumulate."""
    for rank in ranks[:1]:
        accelerator = rank.last(AcceleratorBuilt)
        steps = rank.every(Step)
        if accelerator is None or rank.last(Engine) is not None or len(steps) < 2:
            continue
        wanted = accelerator.settings.get("gradient_accumulation_steps")
        found = max(step.backwards for step in steps)
        if isinstance(wanted, int) and 0 < found < wanted:
            where = ranks_text([rank.rank])
            yield finding(FindingKind.ACCUMULATION_UNUSED, where, wanted=wanted, found=found)


def accumulated_twice(ranks: Ranks) -> Iterator[Finding]:
    """Yield that the script calls DeepSpeed's step only every few batches, which DeepSpeed counts
    again. Several losses make more backward passes too, but not by just that factor."""
    for rank in ranks[:1]:
        engine, steps = rank.last(Engine), rank.every(Step)
        wanted = engine.accumulation if engine is not None else 1
        if wanted > 1 and steps and all(step.backwards == wanted * wanted for step in steps):
            where = ranks_text([rank.rank])
            found = steps[0].backwards
            yield finding(FindingKind.ACCUMULATED_TWICE, where, wanted=wanted, found=found)


# ------------------------------------------------------------ resources


def on_cpu(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks whose parameters are on the CPU of a node with GPUs."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        optimizer, step = rank.last(OptimizerBuilt), rank.last(Step)
        if optimizer is None or step is None or rank.sharded or not step.gpus:
            continue
        if set(optimizer.devices) == {"cpu"}:
            found[step.gpus].append(rank.rank)
    for gpus, several in found.items():
        yield finding(FindingKind.PARAMETERS_ON_CPU, ranks_text(several), gpus=gpus)


def builds(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield the kernels whose build was stopped: what is left of it stops the next one."""
    outcome = rehearsed.outcome
    was_stopped = outcome.reason.code is EndCode.REHEARSAL_LIMIT or outcome.status == "interrupted"
    if not was_stopped:
        return
    found: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        if rank.builds is not None:
            found[rank.builds].append(rank.rank)
    for name, several in found.items():
        yield finding(FindingKind.BUILDS_KERNEL, ranks_text(several), name=name)


def processors(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield nodes with more data loader workers or OpenMP threads than CPUs."""
    for node in rehearsed.plan.nodes:
        mine = [rank for rank in ranks if rank.host == node.host]
        started = next((rank.last(Started) for rank in mine), None)
        if started is None or started.cpus is None:
            continue
        count, cpus = len(mine), started.cpus
        workers = sum(max((x.workers for x in rank.trained_loaders), default=0) for rank in mine)
        if workers > max(cpus, count):
            yield finding(
                FindingKind.MANY_WORKERS, node.host, workers=workers, ranks=count, cpus=cpus
            )
        threads = started.threads or 0
        if count > 1 and threads > 1 and threads * count > cpus:
            yield finding(
                FindingKind.MANY_THREADS, node.host, threads=threads, ranks=count, cpus=cpus
            )


def gpu_memory(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks whose GPU is almost full."""
    short = []
    for rank in ranks:
        step = rank.last(Step)
        if step is None or step.gpu_memory is None or step.gpu_total is None:
            continue
        if step.gpu_memory > FULL * step.gpu_total:
            short.append((rank, step.gpu_memory, step.gpu_total))
    if short:
        rank, used, total = max(short, key=lambda each: each[1])
        yield finding(
            FindingKind.GPU_MEMORY,
            ranks_text(each.rank for each, _, _ in short),
            used=byte_count(used),
            total=byte_count(total),
            steps=rank.steps,
        )


def network(ranks: Ranks) -> Iterator[Finding]:
    """Yield the hubs and trackers that ranks connect to."""
    asked: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        for each in rank.every(Host):
            if _is_below(each.name, HUBS):
                asked[each.name].append(rank.rank)
    if asked:
        several = {rank for numbers in asked.values() for rank in numbers}
        hosts = ", ".join(first_few(sorted(asked), MOST_HOSTS))
        yield finding(FindingKind.NETWORK, ranks_text(several), hosts=hosts)


def _is_below(host: str, domains: Sequence[str]) -> bool:
    """Return whether a host is one of some domains, or in one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def of_ranks(rule: Callable[[Ranks], Iterator[Finding]]) -> Rule:
    """Return the rule for a function that needs nothing but the ranks."""
    return lambda _, ranks: rule(ranks)


RULES: tuple[Rule, ...] = (
    not_distributed,
    impossible_rendezvous,
    groups_differ,
    spawns_ranks,
    of_ranks(not_synchronized),
    of_ranks(past_engine),
    of_ranks(models_differ),
    of_ranks(configs_differ),
    of_ranks(no_update),
    of_ranks(untrained),
    of_ranks(left_out),
    of_ranks(schedule_unused),
    of_ranks(schedule_steps),
    of_ranks(scheduled_first),
    of_ranks(broadcast_loss),
    of_ranks(clipped_in_parts),
    of_ranks(clipped_scaled),
    of_ranks(steps_skipped),
    of_ranks(nothing_loaded),
    of_ranks(text_is_true),
    of_ranks(loss_not_finite),
    of_ranks(evaluation_mode),
    of_ranks(gradients_kept),
    of_ranks(accumulation_unused),
    of_ranks(accumulated_twice),
    of_ranks(same_data),
    of_ranks(parallel_inputs),
    of_ranks(same_order),
    few_samples,
    unread_parts,
    of_ranks(divided_twice),
    of_ranks(batches_differ),
    of_ranks(on_cpu),
    builds,
    processors,
    of_ranks(gpu_memory),
    memory,
    of_ranks(network),
    checkpoints,
)
"""All rules, in the order of their findings."""
