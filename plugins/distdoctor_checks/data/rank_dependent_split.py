"""
DD313 rank-dependent-split: each rank splits or orders the dataset differently, so the ranks' parts overlap.

What it means    Each rank drew the split into training and validation parts with a different seed or order. Each rank's two
                 parts are disjoint, but parts of different ranks are not. Or each rank listed the samples in another order (a
                 set of names, os.listdir, a shuffle with a seed of its own), and shards them by their numbers.
Why it hurts     All ranks train one model: it has trained on validation samples, so the score is too good. The training shards
                 overlap too.
How we know      Subsets are traced to the samples of the underlying dataset. The ranks' Subsets differ, no rank evaluates
                 samples that it trained on itself, but another rank trained on them. Only reported if each rank's two
                 Subsets add up to the dataset, or if shards of one common split would miss each other like that with a
                 chance below 10^-9. Orders: the lists (or tensors) in the data
                 sets of two ranks hold the same values, not in the same order, and their samplers deal out different shares by
                 number: likely. So is it where the values cannot be compared, but the data sets differ, their constructor
                 shuffles by a default generator, and nothing in the program seeds one.
What to do       Split with an identically seeded generator on all ranks, or split once and broadcast the indices. Sort lists of
                 files and names before they become a dataset.
When it is fine  Ranks that do not average their gradients (one fold each) may split as they like. A rank that evaluates its own
                 training samples does so on purpose: not reported.
Source           torch.utils.data.random_split: pass a generator for reproducible results.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import CERTAIN_DIGITS, LoaderPass, Overlap, SampleOrders, overlap
from distdoctor.diagnosis.data.splits import cut_places, same_parts, split_key
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.hash_order import HASHES
from distdoctor.diagnosis.source.own_orders import OwnOrder, is_seeded, own_order
from distdoctor.diagnosis.source.picked_samples import Cut, cut_of_data
from distdoctor.diagnosis.source.text_hashes import hash_line
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag


@dataclass(frozen=True, eq=False)
class Leak:
    """`evaluated` on one rank holds samples that were `trained` on by another: `samples` of them among the kept indices."""

    trained: LoaderPass
    evaluated: LoaderPass
    common: Overlap


@check("DD313", "rank-dependent-split", severity=ERROR, family="shares", specificity=1)
def examine(orders: SampleOrders, replicas: Replicas, sources: Sources, recording: Recording) -> Iterator[Finding]:
    for known in replicas.sets:
        leak = _first_leak(orders, known)
        if leak is not None:
            yield _finding(leak, known, cut_of_data(sources.texts, leak.trained.made_line))
        else:
            yield from _of_other_lengths(orders, known, sources, recording)
    yield from _reordered(orders, sources)


def _first_leak(orders: SampleOrders, known: ReplicaSet) -> Leak | None:
    trained = {rank: one for rank in known.ranks if (one := _latest(orders, rank, trains=True)) is not None}
    evaluated = {rank: one for rank in known.ranks if (one := _latest(orders, rank, trains=False)) is not None}
    if len({one.data.outer for one in evaluated.values()}) < 2:
        return None
    for rank, held in evaluated.items():
        own = trained.get(rank)
        if own is None or not own.data.same_content(held.data) or overlap([own, held]).shared:
            continue
        by_chance = len(held.indices) * -math.log10(1 - 1 / len(known.ranks)) < CERTAIN_DIGITS
        if by_chance and not _are_one_split(own, held):
            continue  # so few samples may miss one rank's share of the training set by chance
        for other, train in trained.items():
            if other != rank and train.data.same_content(held.data):
                common = overlap([train, held])
                if common.shared:
                    return Leak(train, held, common)
    return None


def _are_one_split(trained: LoaderPass, evaluated: LoaderPass) -> bool:
    """Whether two Subsets of a rank are the parts of one dataset: together they have its length, and they are not the same."""
    whole = trained.length + evaluated.length == trained.data.length
    return whole and min(trained.length, evaluated.length) > 0 and trained.data.outer != evaluated.data.outer


def _latest(orders: SampleOrders, rank: int, *, trains: bool) -> LoaderPass | None:
    """The latest pass over a Subset that the rank trained on, or evaluated: read to its end without a step, at least."""
    wanted = PassFlag.TRANSLATED
    for one in reversed(orders.by_rank.get(rank, ())):
        evaluates = one.evaluates or (one.read_all and not one.trains)
        if (one.trains if trains else evaluates) and one.flags & wanted and one.comparable:
            return one
    return None


def _finding(leak: Leak, known: ReplicaSet, cut: Cut) -> Finding:
    trained, evaluated = leak.trained, leak.evaluated
    return Finding(
        title=f"rank {trained.rank} trained on {leak.common.words} that rank {evaluated.rank} evaluates: "
        "the split depends on the rank",
        ranks=known.ranks,
        confidence=CERTAIN if known.proven and trained.data.pieces else LIKELY,
        place=cut.decides or evaluated.made_line or evaluated.loop_line,
        places=(
            *cut_places(cut, known.ranks),
            Place(trained.made_line, known.ranks, "the training loader is created"),
            Place(evaluated.made_line, known.ranks, "the evaluation loader is created"),
        ),
        evidence={
            "shared": leak.common.shared,
            "keep_one_in": leak.common.keep_one_in,
            "examples": list(leak.common.examples),
            "evaluated": evaluated.drawn,
            "dataset": trained.data.name,
        },
        why=f"{named((evaluated.rank,))}'s own training and evaluation samples are disjoint, but those of the ranks are not; "
        f"{known.words}",
        prescriptions=(Prescription("same-split-everywhere", change=same_parts(cut)),),
        explains=(split_key(trained.data),),
        at_ns=evaluated.started_ns,
    )


def _reordered(orders: SampleOrders, sources: Sources) -> Iterator[Finding]:
    """Data of the same values, in another order on each rank, of which samplers deal out shares by number."""
    told: set[str] = set()
    for together in orders.together():
        if not together.trains or str(together.one.made_line) in told:
            continue
        shares: dict[int, dict[int, LoaderPass]] = defaultdict(dict)
        for rank, one in together.passes.items():
            if one.sharded and one.comparable:
                shares[one.num_replicas][rank] = one
        for passes in shares.values():
            first = passes[min(passes)]
            if len({one.sampler_rank for one in passes.values()}) < len(passes):
                continue
            order = own_order(sources.texts, first.data.name)
            seen = any(one.data.reordered(first.data) for one in passes.values())
            if seen or (order is not None and _are_shuffled_apart(list(passes.values()), order, sources)):
                told.add(str(together.one.made_line))
                yield _order_finding(passes, len({one.data.digest for one in passes.values()}), order, seen)


def _are_shuffled_apart(passes: list[LoaderPass], order: OwnOrder, sources: Sources) -> bool:
    """Whether these data sets differ in what the digest has of them, and were shuffled as they were made, by no common seed."""
    alike = len({(one.data.name, one.data.length) for one in passes}) == 1 and not any(one.data.bag for one in passes)
    differ = all(one.data.pieces for one in passes) and len({one.data.digest for one in passes}) > 1
    return alike and differ and order.by_constructor and not is_seeded(sources.texts)


def _of_other_lengths(
    orders: SampleOrders, known: ReplicaSet, sources: Sources, recording: Recording
) -> Iterator[Finding]:
    """Data of another length on each rank, of which samplers deal out shares by number as if they were one."""
    for together in orders.together():
        passes = {rank: one for rank, one in together.passes.items() if one.sharded and rank in known.ranks}
        whole = {one.num_replicas for one in passes.values()} == {len(passes)} == {len(known.ranks)}
        each = len({one.sampler_rank for one in passes.values()}) == len(passes)
        lengths = {rank: one.length for rank, one in passes.items()}
        if together.trains and whole and each and min(lengths.values()) > 0 and len(set(lengths.values())) > 1:
            yield _length_finding(passes, known, sources, recording)
            return


def _length_finding(
    passes: dict[int, LoaderPass], known: ReplicaSet, sources: Sources, recording: Recording
) -> Finding:
    one = passes[min(passes)]
    hashes = len({recording.ranks[rank].environment.get(HASHES) for rank in passes}) > 1
    hashed = hash_line(sources.texts) if hashes else SourceLine()
    cut = cut_of_data(sources.texts, one.made_line) if one.subset else Cut()
    by_length: dict[int, list[int]] = defaultdict(list)
    for rank, mine in passes.items():
        by_length[mine.length].append(rank)
    lengths = ", ".join(f"{length:,} on {named(ranks)}" for length, ranks in by_length.items())
    return Finding(
        title=f"{one.data.name} has another length on each rank ({lengths}), and samplers deal it out by number as one",
        ranks=known.ranks,
        confidence=LIKELY,
        place=hashed or cut.decides or one.made_line or one.loop_line,
        places=(
            *((Place(hashed, known.ranks, "hash() gives a text another number in every process"),) if hashed else ()),
            *cut_places(cut, known.ranks),
            Place(one.made_line, known.ranks, f"the loader is created, sampler {one.sampler_name}"),
        ),
        evidence={"lengths": {rank: mine.length for rank, mine in passes.items()}, "dataset": one.data.name},
        why="each rank has put its data together in its own way, so sample number 0 of one rank may be another sample elsewhere: "
        "some samples are drawn by several ranks, others by none",
        prescriptions=(
            Prescription(
                "same-order-everywhere",
                change="take a hash that is the same everywhere (zlib.crc32, hashlib), or split on rank 0 and broadcast the parts"
                if hashed
                else "",
                effect="disjoint shards that cover the dataset",
            ),
        ),
        at_ns=one.started_ns,
    )


def _order_finding(passes: dict[int, LoaderPass], different: int, order: OwnOrder | None, seen: bool) -> Finding:
    """`seen`: the values were compared, and are the same."""
    ranks, one = tuple(sorted(passes)), passes[min(passes)]
    return Finding(
        title=f"{named(ranks)} hold the {'same ' if seen else ''}samples of {one.data.name} in {different} different orders "
        "and shard them by number: the shares overlap",
        ranks=ranks,
        severity=WARNING,
        confidence=LIKELY,
        place=order.line if order is not None else one.made_line or one.loop_line,
        places=(
            *((Place(order.line, ranks, order.words),) if order is not None else ()),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "samples": one.data.length,
            "orders": different,
            "dataset": one.data.name,
            "sampler": one.sampler,
        },
        why=(
            f"the lists in {one.data.name} hold equal values on {named(ranks)}, but not in the same order"
            if seen
            else f"what {one.data.name} holds differs on {named(ranks)}, and the program seeds no generator before it shuffles"
        )
        + ", so sample number 0 of one rank is another sample elsewhere; some samples are drawn by several ranks, others by none",
        prescriptions=(
            Prescription(
                "same-order-everywhere",
                change=_SEEDED.get(order.generator, "") if order is not None else "",
                effect="disjoint shards that cover the dataset",
            ),
        ),
        at_ns=one.started_ns,
    )


_SEEDED = {
    "random": "shuffle by a generator with one seed for all ranks: random.Random(42).shuffle(...)",
    "numpy.random": "shuffle by a generator with one seed for all ranks: numpy.random.default_rng(42).shuffle(...)",
    "torch": "torch.randperm(n, generator=torch.Generator().manual_seed(42)), one seed for all ranks",
}


def sick() -> Recording:
    return _split(evaluated={0: list(range(60, 100)), 1: list(range(40))}, outer={0: "aa", 1: "bb"})


def healthy() -> Recording:
    return _split(evaluated={0: list(range(120, 160)), 1: list(range(160, 200))}, outer={0: "aa", 1: "bb"})


def _split(evaluated: dict[int, list[int]], outer: dict[int, str]) -> Recording:
    from distdoctor.testing.samples import sampled_job

    trained = {0: list(range(60)), 1: list(range(60, 120))}
    flags = PassFlag.TRANSLATED
    job = sampled_job(ranks=2, length=200)
    job.train(orders=trained, sampler="BatchSampler>RandomSampler", dataset_length=60, flags=flags, outer=outer)
    job.evaluate(orders=evaluated, sampler="BatchSampler>RandomSampler", dataset_length=40, flags=flags, outer=outer)
    return job.recording()
