"""
DD307 duplicated-by-workers: an IterableDataset yields the same stream in every DataLoader worker.

What it means    Each worker holds a copy of the dataset and iterates all of it, unless the dataset checks get_worker_info().
Why it hurts     Every sample arrives once per worker: an epoch with W workers is really W epochs, with the copies back to back.
How we know      Workers deliver their batches in turn. By content, each batch's first sample arrives once from every worker
                 before the next one arrives: for at least 4 different batches, without exception. Or the stream was read to its
                 end, and four fifths of the samples of one worker, 32 or more, came once from every other one too, each in an
                 order of its own, and none of them twice from one worker: likely.
What to do       Let each worker take its part: every num_workers-th sample, starting at its id.
When it is fine  Random augmentation makes the copies differ: nothing is reported then.
Source           torch.utils.data.IterableDataset, "Multi-process data loading" (torch 2.15).
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.iterable_data import copies_in_workers, same_streams, samples_of_every_worker
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.source.stream_shares import stream_share
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag


@check("DD307", "duplicated-by-workers", severity=ERROR, family="streams")
def examine(orders: SampleOrders, replicas: Replicas, sources: Sources) -> Iterator[Finding]:
    known = {str(same.passes.one.made_line) for same in same_streams(orders, replicas)}  # told with its workers already
    copied: dict[str, list[LoaderPass]] = {}
    for passes in orders.by_rank.values():
        for one in passes:
            line = str(one.made_line)
            if line in known or any(one.rank == p.rank for p in copied.get(line, ())):
                continue
            if copies_in_workers(one) or (one.trains and samples_of_every_worker(one)):
                copied.setdefault(line, []).append(one)
    for found in copied.values():
        yield _finding(found, sources)


def _finding(found: list[LoaderPass], sources: Sources) -> Finding:
    one, ranks = found[0], tuple(p.rank for p in found)
    share = stream_share(sources.texts, one.data.name, one.made_line)
    dealt = (Place(share.dealt, ranks, "takes each rank's share of the stream"),) if share is not None else ()
    batches, samples = copies_in_workers(one), samples_of_every_worker(one)
    stream = "stream" if batches else "samples, in another order,"
    return Finding(
        title=f"{named(ranks)} got every sample {one.workers} times: {one.data.name} yields the same {stream} in each worker",
        ranks=ranks,
        confidence=CERTAIN if batches else LIKELY,
        place=dealt[0].site if dealt else one.made_line or one.loop_line,
        places=(
            *dealt,
            Place(one.made_line, ranks, f"the loader is created, {one.workers} workers, dataset {one.data.name}"),
        ),
        evidence={
            "workers": one.workers,
            "batches_compared": batches,
            "samples_of_every_worker": samples,
            "dataset": one.data.name,
        },
        why=f"each of {batches:,} different batches arrived {one.workers} times in a row, once from every worker"
        if batches
        else f"each of {samples:,} different samples arrived once from every worker, and none of them twice from one",
        prescriptions=(
            Prescription("shard-the-stream", effect=f"each worker reads 1/{one.workers} of its rank's stream"),
        ),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    orders = {rank: [1000 * rank + batch // 2 for batch in range(20)] for rank in (1, 2)}
    job = sampled_job(ranks=2, length=-1)
    return job.train(orders={0: orders[1], 1: orders[2]}, sampler="", workers=2, flags=_STREAM).recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    orders = {rank: [1000 * rank + batch for batch in range(20)] for rank in (1, 2)}
    job = sampled_job(ranks=2, length=-1)
    return job.train(orders={0: orders[1], 1: orders[2]}, sampler="", workers=2, flags=_STREAM).recording()


_STREAM = PassFlag.ITERABLE | PassFlag.HASHED
