"""
DD310 unseen-samples: part of the dataset is never drawn, in any epoch, on any rank.

What it means    The ranks' shards leave a gap: an off-by-one in a hand-written sampler, a stride for another world size, a
                 length that was rounded down.
Why it hurts     The model never sees those samples. The loss looks normal; whole classes can be missing if the data are sorted.
How we know      Every rank's loader reached its end in two or more epochs, and in each of them the same samples were drawn by
                 no rank, nor by any other loader over the same data. Which samples is certain; that it was unintended is
                 likely. Where the ranks' shards are Subsets, what no Subset holds may be set aside on purpose, and so may samples
                 that lie here and there in the data, without a pattern of indices: a note, possible. Of iterable data: one
                 rank alone draws from the loader for all replicas of a model, and the source of the data takes a share
                 by the number of the rank. By what the model is given, with a loader or without: one rank is given the same
                 batch in all later steps that were looked at, after others before, while the other replicas are given new
                 ones: an error, likely.
What to do       Shard the data with DistributedSampler, or use range(rank, len(dataset), world_size).
When it is fine  The last incomplete batches (drop_last), samplers with replacement or weights, one Subset on all ranks (an
                 intended split), epochs with a step limit, a curriculum whose part of the data changes: nothing is reported.
Source           torch.utils.data.distributed.DistributedSampler covers range(len(dataset)).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.read_for_all import ReadForAll, read_for_all
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, Together
from distdoctor.diagnosis.data.undrawn import UndrawnSamples, hole_of
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.stuck_batch import StuckBatch, stuck_batches
from distdoctor.diagnosis.source.swallowed_end import errors_kept_at_next
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag

LEAST_EPOCHS = 2
LEAST_SHARE = 0.01  # of the dataset; below that it may be what bucketing by size leaves over
_ON_PURPOSE = ("Weighted", "Subset", "Curriculum", "Limit")


@check("DD310", "unseen-samples", severity=WARNING, live=False, family="shares")
def examine(
    orders: SampleOrders | None,
    gradients: Gradients | None,
    recording: Recording,
    replicas: Replicas | None,
    sources: Sources,
) -> Iterator[Finding]:
    if gradients is not None and replicas is not None:
        yield from (_stuck(one, sources) for one in stuck_batches(gradients, replicas))
    if orders is None:
        return
    if replicas is not None:
        yield from map(_for_all, read_for_all(orders, replicas, recording, sources.texts))
    loaders: dict[str, list[Together]] = defaultdict(list)
    for together in orders.together():
        if together.trains and set(together.ranks) == set(range(recording.world_size)):
            loaders[str(together.one.made_line)].append(together)
    for epochs in loaders.values():
        shards = _sharded_by_subsets(epochs)
        hole = _left_by_subsets(epochs) if shards else _hole(epochs)
        if hole is not None and not _drawn_elsewhere(hole, epochs, orders):
            yield _finding(hole, epochs, shards)


def _stuck(found: StuckBatch, sources: Sources) -> Finding:
    """One rank whose source of data brings nothing new any more."""
    kept = errors_kept_at_next(sources.texts)
    trains = found.since.loss_site or found.since.site
    return Finding(
        title=f"is given one and the same batch from step {found.since.step} on, while the others are given new ones",
        ranks=(found.rank,),
        severity=ERROR,
        confidence=LIKELY,
        place=kept or trains,
        places=(
            *((Place(kept, (), "keeps errors of the source to itself, and its end"),) if kept else ()),
            Place(trains, (found.rank,), "trains on it"),
        ),
        evidence={"since": found.since.step, "last": found.last.step, "steps looked at": found.looks},
        why=f"the model on rank {found.rank} got equal inputs in all {found.looks} steps that were looked at from step "
        f"{found.since.step} to {found.last.step}; {named(found.others)} went on. The rest of its data is not seen",
        prescriptions=(
            Prescription(
                "distributed-sampler",
                change="find out where its source of data ended or failed, and let that error out"
                + (f" ({kept.short} keeps it to itself)" if kept else ""),
            ),
        ),
        at_ns=found.since.at_ns,
    )


def _for_all(found: ReadForAll) -> Finding:
    one, share = found.one, found.share
    others = tuple(rank for rank in found.ranks if rank != one.rank)
    return Finding(
        title=f"rank {one.rank} reads {one.data.name} for {named(found.ranks)}, and takes its own rank's share of it only: the "
        f"{'share' if len(others) == 1 else 'shares'} of {named(others)} {'is' if len(others) == 1 else 'are'} never read",
        ranks=found.ranks,
        confidence=LIKELY,
        place=share.dealt,
        places=(
            Place(share.dealt, (one.rank,), "takes a share by the number of the rank"),
            *((Place(one.made_line, found.ranks, "the loader is created"),) if one.made_line else ()),
            *((Place(one.loop_line, (one.rank,), "iterates it for training"),) if one.loop_line else ()),
        ),
        evidence={"reads": one.rank, "drawn": {rank: one.drawn if rank == one.rank else 0 for rank in found.ranks[:8]}},
        why=f"{named(found.ranks)} train one model, and only rank {one.rank} draws from the loader: its batches are dealt out to "
        "all ranks (accelerate and the HF Trainer do so with iterable data), after the data have been dealt out already",
        prescriptions=(
            Prescription(
                "share-out-once",
                change="yield all samples and leave the dealing to the library, or let every rank read its share "
                "(dispatch_batches=False in accelerate's DataLoaderConfiguration, accelerator_config of TrainingArguments)",
            ),
        ),
        at_ns=one.started_ns,
    )


def _sharded_by_subsets(epochs: list[Together]) -> bool:
    """Whether each rank read a Subset of its own in every epoch, all of them of the same data."""
    return all(
        len({one.subset for one in together.passes.values()} - {""}) == len(together.passes)
        and all(one.data.same_content(together.one.data) for one in together.passes.values())
        for together in epochs
    )


def _left_by_subsets(epochs: list[Together]) -> UndrawnSamples | None:
    """What the ranks' Subsets leave out, the same in every epoch, however they are shuffled."""
    passes = [one for together in epochs for one in together.passes.values()]
    length = passes[0].data.length
    usable = all(
        one.exhausted and one.comparable and (one.whole or one.drawn_set is not None)
        and not one.flags & PassFlag.REPLACEMENT and one.data.length == length
        for one in passes
    )  # fmt: skip
    if len(epochs) < LEAST_EPOCHS or length < 1 or not usable:
        return None
    hole, changing = hole_of(epochs, length)
    return hole if not changing and hole.count > LEAST_SHARE * length else None


def _hole(epochs: list[Together]) -> UndrawnSamples | None:
    """What nobody drew in any epoch, when that is more than the ends of the epochs."""
    passes = [one for together in epochs for one in together.passes.values()]
    first = passes[0]
    if len(epochs) < LEAST_EPOCHS or first.length < 1 or not all(_usable(one, first) for one in passes):
        return None
    hole, changing = hole_of(epochs, first.length)
    ends = sum(max(1, one.batch_size) for one in epochs[0].passes.values()) + len(epochs[0].passes)
    return hole if hole.count > max(ends, LEAST_SHARE * first.length) and changing <= ends else None


def _usable(one: LoaderPass, first: LoaderPass) -> bool:
    odd = PassFlag.REPLACEMENT | PassFlag.TRANSLATED
    return (
        one.exhausted
        and (one.whole or one.drawn_set is not None)
        and one.comparable
        and not one.flags & odd
        and one.length == first.length
        and one.data.same_content(first.data)
        and not any(word in one.sampler for word in _ON_PURPOSE)
    )


def _drawn_elsewhere(hole: UndrawnSamples, epochs: list[Together], orders: SampleOrders) -> bool:
    """Whether another loader over the same data, in training or evaluation, draws some of it: then the hole is a split."""
    first = epochs[0].one
    own = {(rank, one.seq) for together in epochs for rank, one in together.passes.items()}
    for rank, passes in orders.by_rank.items():
        for one in passes:
            other = (rank, one.seq) not in own and one.data.same_content(first.data) and one.drawn > 0
            if other and (not one.comparable or hole.meets(one)):
                return True
    return False


def _finding(hole: UndrawnSamples, epochs: list[Together], shards: bool) -> Finding:
    one, ranks = epochs[0].one, epochs[0].ranks
    count, about = hole.count, "about " if hole.keep_one_in > 1 else ""
    length = one.data.length if shards else one.length
    skipped = (
        "no rank's Subset holds these samples" if shards else f"{one.sampler_name} skips the same samples each time"
    )
    chosen = not shards and not hole.is_regular
    if chosen:
        skipped += ", here and there in the data: they may be left out for what they are (too long, broken)"
    return Finding(
        title=f"{about}{count:,} of {length:,} samples are never drawn in {len(epochs)} epochs: {hole.words}",
        ranks=ranks,
        confidence=POSSIBLE if shards or chosen else LIKELY,
        severity=NOTE if shards or chosen else WARNING,
        place=one.made_line or one.loop_line,
        places=(
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "unseen": count,
            "samples": length,
            "examples": list(hole.examples),
            "epochs": len(epochs),
            "drawn": {rank: p.drawn for rank, p in list(epochs[0].passes.items())[:8]},
            "sampler": one.sampler,
        },
        why=f"{named(ranks)} finished every epoch and drew {sum(p.drawn for p in epochs[0].passes.values()):,} samples "
        f"together; {skipped}",
        prescriptions=(Prescription("distributed-sampler", effect=f"training uses {count:,} more samples"),),
        at_ns=one.started_ns,
    )


def _job(orders: dict[int, list[int]], epochs: int = 2) -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    for _ in range(epochs):
        job.train(orders=orders, sampler="BatchSampler>OwnSampler")
    return job.recording()


def sick() -> Recording:
    """Each rank takes a third of the data, and there are two ranks."""
    return _job({0: list(range(33)), 1: list(range(33, 66))})


def healthy() -> Recording:
    """Batches of 4 on 2 ranks drop a few samples at the end of each epoch."""
    return _job({0: list(range(48)), 1: list(range(48, 96))})
