"""What is wrong with the data that the ranks of a rehearsal train on. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from dslaunch.cluster.nodeset import ranks_text
from dslaunch.protocol.rehearsal import (
    Engine,
    Input,
    Loader,
    OptimizerBuilt,
    PreparedLoader,
    SameOrder,
    Step,
    StepsDone,
    TensorParallel,
    Wrapped,
)
from dslaunch.rehearsal.findings import Finding, FindingKind, finding
from dslaunch.rehearsal.ranks import RankRecords, Ranks
from dslaunch.run.rehearsal import Rehearsed

MANY_IN_COMMON = 4
"""Two parts of a data set overlap if more than one of so many samples is in both."""
DIFFERS = 0.01
"""Share of a parameter, or of its change, from which on two ranks differ; rounding is far below."""
ROUNDING = 1e-5
"""Share of the largest change of a parameter up to which a difference may be rounding."""
LOSS_DIFFERS = 0.001
"""Share of the largest loss from which on ranks have different ones: of the same inputs and weights
they differ by rounding alone, and the parts of a long sequence have similar ones."""


def split_by_hand(ranks: Ranks) -> bool:
    """Return whether ranks have parts of a model that their own code has divided: nothing wraps it,
    steps exchange something and change each part in another way, and the code passes activations on
    or all read the same samples, with other parameters from the start."""
    # what the first step has exchanged before it began is not known
    exchanged = all(any(step.collectives for step in rank.every(Step)) for rank in ranks)
    if not exchanged or any(rank.last(Wrapped) or rank.last(Engine) for rank in ranks):
        return False
    built = [rank.last(OptimizerBuilt) for rank in ranks]
    parts = [each.fingerprint if each is not None else () for each in built]
    if _change_alike(ranks, parts):
        return False
    if any(done.passes for rank in ranks for done in rank.every(StepsDone)):
        return True
    return _all_equal(_common_digests(ranks)) and apart(parts)


def _change_alike(ranks: Ranks, before: Sequence[Sequence[float]]) -> bool:
    """Return whether the first step changes the parameters of all ranks in the same way, as it does
    where they exchange their gradients."""
    after = [next((step.fingerprint for step in rank.every(Step)), ()) for rank in ranks]
    if len({len(each) for each in (*before, *after)}) > 1 or not after[0]:
        return False
    by_rank = [
        [new - old for old, new in zip(*both, strict=True)]
        for both in zip(before, after, strict=True)
    ]
    rounding = ROUNDING * max(abs(change) for changes in by_rank for change in changes)
    by_parameter = zip(*by_rank, strict=True)
    return all(
        max(changes) - min(changes) <= max(DIFFERS * max(map(abs, changes)), rounding)
        for changes in by_parameter
    )


def apart(fingerprints: Sequence[Sequence[float]]) -> bool:
    """Return whether ranks have other parameters, or parameters that differ by more than
    rounding."""
    if len({len(each) for each in fingerprints}) > 1:
        return True
    values = zip(*fingerprints, strict=True)
    return any(max(each) - min(each) > DIFFERS * max(map(abs, each)) for each in values)


def same_data(ranks: Ranks) -> Iterator[Finding]:
    """Yield that ranks, or the workers of one, read the same samples."""
    world = len(ranks)
    divided = any(rank.splits_model(world) for rank in ranks) or split_by_hand(ranks)
    if world > 1 and not divided:
        yield from _same_in_ranks(ranks)
    for rank in ranks:
        yield from _same_in_workers(rank)


def _same_in_ranks(ranks: Ranks) -> Iterator[Finding]:
    where = ranks_text(rank.rank for rank in ranks)
    digests = _common_digests(ranks)
    if _all_equal(digests):
        split = _divide_batches(ranks)
        if not (split and _take_parts(ranks)):
            yield finding(FindingKind.SAME_DATA_LOADED if split else FindingKind.SAME_DATA, where)
        return
    if not any(rank.trained_batches for rank in ranks) and _get_equal_inputs(ranks):
        yield finding(FindingKind.SAME_INPUTS, where)
        return
    equal = _with_equal_batches(ranks, digests)
    if equal:
        yield finding(FindingKind.SAME_DATA_IN_SOME, ranks_text(rank.rank for rank in equal))
        return
    differ = _divide_differently(ranks)
    if differ is not None:
        yield finding(differ, where)
        return
    plain = [next(filter(_draws_from_all, rank.trained_loaders), None) for rank in ranks]
    parts = [frozenset(each.chosen) if each is not None else frozenset() for each in plain]
    if _overlap(parts):
        yield finding(FindingKind.SPLITS_OVERLAP, where)
        return
    if all(parts) and len(set(parts)) > 1:
        return  # each rank has its own part
    first = plain[0]
    samples = {each.samples if each is not None else None for each in plain}
    if first is not None and len(samples) == 1:
        yield finding(
            FindingKind.PLAIN_SAMPLER, where, sampler=first.sampler, samples=first.samples or 0
        )


def _divide_differently(ranks: Ranks) -> FindingKind | None:
    """Return why the parts that samplers give the ranks overlap; None: they do not, or that is
    not certain."""
    if _split_differently(ranks):
        return FindingKind.SPLITS_DIFFER
    if _list_differently(ranks):
        return FindingKind.ORDERS_DIFFER
    return FindingKind.SEEDS_DIFFER if _shuffle_differently(ranks) else None


def _split_differently(ranks: Ranks) -> bool:
    """Return whether ranks have chosen different samples, which a sampler divides among them."""
    loaders = [loader for rank in ranks for loader in rank.trained_loaders]
    divided = {each.number: each.subset for each in loaders if each.replicas == len(ranks)}
    return any(each.subset != divided.get(each.number, each.subset) for each in loaders)


def _overlap(parts: Sequence[frozenset[int]]) -> bool:
    """Return whether ranks have chosen parts of a data set that have many samples in common, and
    are not the same. A few may be there twice, to make the parts equally large."""
    different = [(one, other) for one, other in pairwise(parts) if one != other]
    return any(
        len(one & other) * MANY_IN_COMMON > min(len(one), len(other)) for one, other in different
    )


def _draws_from_all(loader: Loader) -> bool:
    """Return whether a loader reads all samples of its data set in each epoch."""
    plain = loader.replicas is None and loader.sampler in ("RandomSampler", "SequentialSampler")
    return plain and loader.batch_sampler == "BatchSampler" and bool(loader.samples)


def _common_digests(ranks: Ranks) -> list[list[str]]:
    """Return the digests of the batches of each rank, of those batches that all have read."""
    common = set.intersection(*(set(rank.batch_digests) for rank in ranks))
    in_order = sorted(common)
    return [[rank.batch_digests[key] for key in in_order] for rank in ranks]


def _all_equal(digests: Sequence[Sequence[str]]) -> bool:
    """Return whether all ranks have the same batches. Samples that are all the same tell
    nothing."""
    varied = len(set(digests[0])) > 1
    return varied and all(each == digests[0] for each in digests)


def _list_differently(ranks: Ranks) -> bool:
    """Return whether ranks have the same samples in different orders in a loader whose sampler
    gives each rank its part of their numbers."""
    orders: defaultdict[tuple[int, str], set[str | None]] = defaultdict(set)
    for rank in ranks:
        for loader in rank.trained_loaders:
            if loader.replicas == len(ranks) and loader.listed is not None:
                orders[loader.number, loader.listed].add(loader.order)
    return any(len(each) > 1 for each in orders.values())


def _shuffle_differently(ranks: Ranks) -> bool:
    """Return whether the samplers of ranks have no seed in common. Those of one rank may have
    several, and a rank may have begun fewer of its loaders than another one."""
    seeds = [
        {loader.seed for loader in rank.trained_loaders if loader.replicas is not None}
        for rank in ranks
    ]
    return all(seeds) and not set.intersection(*seeds)


def _with_equal_batches(ranks: Ranks, digests: list[list[str]]) -> Ranks:
    """Return the first ranks of which each has the same batches, at least two that differ."""
    alike: defaultdict[tuple[str, ...], list[RankRecords]] = defaultdict(list)
    for rank, each in zip(ranks, digests, strict=True):
        if len(set(each)) > 1:
            alike[tuple(each)].append(rank)
    several = [found for found in alike.values() if len(found) > 1]
    if not several or _divide_batches(tuple(several[0])):
        return ()
    return tuple(several[0])


def _divide_batches(ranks: Ranks) -> bool:
    """Return whether ranks train on parts of the batches that they all read."""
    if any(rank.every(Input) for rank in ranks):
        return _inputs_differ(ranks)
    return _losses_differ(ranks)


def _get_equal_inputs(ranks: Ranks) -> bool:
    """Return whether the wrapped models of all ranks got the same inputs, of which some differ."""
    inputs = [tuple(each.digest for each in rank.every(Input)) for rank in ranks]
    shortest = min(map(len, inputs))
    first = {several[:shortest] for several in inputs}
    return len(first) == 1 and len(set(*first)) > 1


def _take_parts(ranks: Ranks) -> bool:
    """Return whether the inputs of the models are so small that a batch has one for each rank. What
    is augmented at random differs too, and is as large as the batch."""
    inputs = [each.size for rank in ranks for each in rank.every(Input)]
    batches = [each.size for rank in ranks for each in rank.trained_batches]
    sizes = [size for size in inputs if size is not None]
    if not sizes or len(sizes) < len(inputs) or not batches:
        return False
    return max(sizes) * len(ranks) <= max(batches)


def _losses_differ(ranks: Ranks) -> bool:
    """Return whether ranks have different losses in their first step. The inputs of a model that
    is not wrapped are unknown; of equal ones, the losses are equal."""
    first = [steps[0].loss for rank in ranks if (steps := rank.every(Step))]
    losses = [loss for loss in first if loss is not None]
    if len(losses) < len(ranks):
        return False
    return max(losses) - min(losses) > LOSS_DIFFERS * max(map(abs, losses))


def _inputs_differ(ranks: Ranks) -> bool:
    """Return whether the wrapped models got different inputs in each of the first steps."""
    inputs = [{each.index: each.digest for each in rank.every(Input)} for rank in ranks]
    common = set.intersection(*(set(each) for each in inputs))
    return bool(common) and all(len({each[key] for each in inputs}) > 1 for key in common)


def parallel_inputs(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that divide tensors among them, and never read the same batch."""
    by_number = {rank.rank: rank for rank in ranks}
    together = {each.members for rank in ranks for each in rank.every(TensorParallel)}
    for members in sorted(together):
        several = tuple(by_number[number] for number in members if number in by_number)
        if len(several) < 2 or not all(rank.trained_batches for rank in several):
            continue
        by_batch = list(zip(*_common_digests(several), strict=True))
        if by_batch and all(len(set(digests)) == len(several) for digests in by_batch):
            yield finding(FindingKind.PARALLEL_INPUTS_DIFFER, ranks_text(members))


def same_order(ranks: Ranks) -> Iterator[Finding]:
    """Yield the ranks that train on the same order in each epoch."""
    found = []
    for rank in ranks:
        trained = {loader.number for loader in rank.trained_loaders}
        if any(each.loader in trained for each in rank.every(SameOrder)):
            found.append(rank.rank)
    if found:
        yield finding(FindingKind.SAME_ORDER, ranks_text(found))


def few_samples(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield data sets that are too small for all ranks of the real run."""
    if not rehearsed.is_smaller:
        return
    full = rehearsed.full_ranks
    for loader in ranks[0].trained_loaders:
        distributed = loader.replicas == len(ranks)
        if not distributed or loader.samples is None or not loader.batch:
            continue
        each = -(-loader.samples // full)
        if each < loader.batch:
            kind = FindingKind.NO_BATCH if loader.drop_last else FindingKind.FEW_SAMPLES
            where = ranks_text(rank.rank for rank in ranks)
            samples, batch = loader.samples, loader.batch
            yield finding(kind, where, samples=samples, each=each, ranks=full, batch=batch)
            return


def unread_parts(rehearsed: Rehearsed, ranks: Ranks) -> Iterator[Finding]:
    """Yield a sampler that divides the data among more ranks than there are, so that none reads
    some of its parts. Data that ranks share by intent is divided among fewer ranks."""
    full = rehearsed.full_ranks
    # a rank may have a loader for each of several parts
    read_of: defaultdict[tuple[int | None, int | None], set[int | None]] = defaultdict(set)
    for rank in ranks:
        for loader in rank.every(Loader):
            read_of[loader.replicas, loader.samples].add(loader.replica)
    for trained in ranks[0].trained_loaders:
        parts = trained.replicas
        if parts is None or parts <= full:
            continue
        read = len(read_of[parts, trained.samples]) * full // len(ranks)
        if read < parts:
            where = ranks_text(rank.rank for rank in ranks)
            yield finding(
                FindingKind.UNREAD_PARTS,
                where,
                sampler=trained.sampler,
                parts=parts,
                ranks=full,
                read=read,
            )
            return


def divided_twice(ranks: Ranks) -> Iterator[Finding]:
    """Yield a data loader whose samples are divided by rank already, and that Accelerate divides
    again."""
    prepared = [rank.every(PreparedLoader) for rank in ranks]
    for together in zip(*prepared, strict=False):
        is_divided = _knows_its_part(together) or _has_chosen_parts(together)
        if together[0].parts > 1 and is_divided:
            where = ranks_text(rank.rank for rank in ranks)
            yield finding(FindingKind.DIVIDED_TWICE, where, source=together[0].source)
            return


def _knows_its_part(loaders: Sequence[PreparedLoader]) -> bool:
    """Return whether an attribute has the number of each rank's part, and another one that of all
    parts."""
    names = set.intersection(*(set(each.numbers) for each in loaders))
    part = any(all(each.numbers[name] == each.part for each in loaders) for name in names)
    parts = any(all(each.numbers[name] == each.parts for each in loaders) for name in names)
    return part and parts


def _has_chosen_parts(loaders: Sequence[PreparedLoader]) -> bool:
    """Return whether the samplers of the ranks have chosen other samples each, and together as many
    as there are."""
    chosen = {each.chosen for each in loaders}
    if None in chosen or len(chosen) < len(loaders):
        return False
    return all(
        each.drawn is not None
        and each.samples is not None
        and abs(each.drawn * each.parts - each.samples) < each.parts
        for each in loaders
    )


def _same_in_workers(rank: RankRecords) -> Iterator[Finding]:
    """Yield that the workers of a loader return each batch again: a, a, b."""
    digests_of: defaultdict[int, list[str]] = defaultdict(list)
    for batch in rank.trained_batches:
        digests_of[batch.loader].append(batch.digest)
    for loader in rank.trained_loaders:
        digests = digests_of[loader.number]
        if loader.workers < 2 or len(digests) <= loader.workers:
            continue
        first = set(digests[: loader.workers])
        if len(first) == 1 and digests[loader.workers] not in first:
            where = ranks_text([rank.rank])
            yield finding(FindingKind.SAME_DATA_IN_WORKERS, where, workers=loader.workers)


def batches_differ(ranks: Ranks) -> Iterator[Finding]:
    """Yield batch sizes and lengths that differ between ranks, or from the DeepSpeed config."""
    where = ranks_text(rank.rank for rank in ranks)
    first = [rank.trained_loaders[:1] for rank in ranks]
    loaders = [loader for several in first for loader in several]
    sizes = {loader.batch for loader in loaders if loader.batch is not None}
    lengths = {loader.batches for loader in loaders if loader.batches is not None}
    if len(sizes) > 1:
        yield finding(FindingKind.BATCHES_DIFFER, where, sizes=_joined_numbers(sizes))
    if len(lengths) > 1:
        yield finding(FindingKind.LENGTHS_DIFFER, where, lengths=_joined_numbers(lengths))
    engine = next((rank.last(Engine) for rank in ranks), None)
    if engine is None or len(sizes) != 1 or engine.pipeline:
        return
    size = next(iter(sizes))
    if size != engine.micro_batch:
        yield finding(FindingKind.BATCH_DIFFERS, where, loader=size, micro=engine.micro_batch)


def _joined_numbers(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(numbers)[:4]))
