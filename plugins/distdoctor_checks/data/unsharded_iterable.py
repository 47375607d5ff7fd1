"""
DD306 unsharded-iterable: an IterableDataset yields the same stream on every rank.

What it means    No sampler shards iterable data: unless the dataset itself checks the rank, every rank gets all of it, in the
                 same order.
Why it hurts     The ranks' gradients are copies of one another: W ranks train like one.
How we know      The first samples of the batches are compared by content, batch by batch: at least 8 different ones in a row
                 are equal on ranks that average their gradients. Random augmentation hides it: nothing is reported then.
What to do       Take every world_size-th sample, starting at the rank; with workers, starting at rank * num_workers + worker
                 id.
When it is fine  Tensor-, pipeline- and context-parallel ranks must read the same data: not reported. Nor is a stream of whole
                 batches of which each rank takes its share; where only the ranks' losses differ, with no dropout, or only the
                 source cuts something by the rank: a note, possible.
Source           torch.utils.data.IterableDataset, "Multi-process data loading" (torch 2.15).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.iterable_data import SameStream, copies_in_workers, same_streams
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, NOTE, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.used_factor import losses_differ
from distdoctor.diagnosis.source.batch_shares import takes_share_of_batches
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag


@check("DD306", "unsharded-iterable", severity=ERROR, family="streams")
def examine(
    orders: SampleOrders, replicas: Replicas, sources: Sources, gradients: Gradients | None
) -> Iterator[Finding]:
    told: set[str] = set()
    for same in same_streams(orders, replicas):
        line = str(same.passes.one.made_line)
        if line not in told:
            told.add(line)
            ranks, loop = same.passes.ranks, same.passes.one.loop_line
            apart = losses_differ(gradients, ranks) if gradients is not None else None
            shares = apart is not False and takes_share_of_batches(sources.texts, loop)
            if not (shares and apart):
                yield _doubted(_finding(same), shares) if shares or apart else _finding(same)


def _doubted(finding: Finding, shares: bool) -> Finding:
    how = (
        "the source seems to take a share of each batch"
        if shares
        else "their losses differ in every step, without a dropout"
    )
    return replace(
        finding,
        why=f"{finding.why}; {how}: parts or augmentations of one batch may be meant",
        severity=NOTE,
        confidence=POSSIBLE,
    )


def _finding(same: SameStream) -> Finding:
    one, ranks = same.passes.one, same.passes.ranks
    workers = f", and so do its {one.workers} workers" if copies_in_workers(one) else ""
    return Finding(
        title=f"{named(ranks)} read the same stream: {one.data.name} yields the same samples on each{workers}",
        ranks=ranks,
        place=one.made_line or one.loop_line,
        places=(
            Place(one.made_line, ranks, f"the loader is created, dataset {one.data.name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "batches_compared": same.batches,
            "fingerprints": [f"{int(word):08x}" for word in one.first[:5]],
            "dataset": one.data.name,
            "workers": one.workers,
            "replicas": same.replicas.words,
        },
        why=f"the first samples of {same.batches:,} different batches are equal on {named(ranks)}; {same.replicas.words}",
        prescriptions=(Prescription("shard-the-stream", effect=f"each rank reads 1/{len(ranks)} of the stream"),),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    stream = list(range(1000, 1020))
    return sampled_job(ranks=2, length=-1).train(orders={0: stream, 1: stream}, sampler="", flags=_STREAM).recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    orders = {0: list(range(1000, 1020)), 1: list(range(2000, 2020))}
    return sampled_job(ranks=2, length=-1).train(orders=orders, sampler="", flags=_STREAM).recording()


_STREAM = PassFlag.ITERABLE | PassFlag.HASHED
