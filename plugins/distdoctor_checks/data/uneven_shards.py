"""
DD305 uneven-shards: some ranks get more batches than others in one epoch.

What it means    The ranks' shards differ in size. Ranks that run out first stop calling collectives.
Why it hurts     Without `join` the others wait forever at the end of the epoch. With it, or with their own all_reduce, the last
                 steps average over fewer ranks, and samples of small shards weigh more.
How we know      The passes of one epoch have ended on all ranks that average their gradients, and the numbers of delivered
                 batches differ.
What to do       Shard the data with DistributedSampler (it pads or drops), use drop_last in each shard, or wrap the loop in
                 join.
When it is fine  Ranks of which only the last batch is smaller; a loop inside join. Passes ended by `break` are not counted. Where
                 ranks without a batch step all the same, as many times as the others: a note. So is it where each begins anew
                 at once when its share is through, and all make as many steps to the end.
Source           torch.distributed.algorithms.Join; DistributedDataParallel.join.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import SampleOrders, Together
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.finding import CERTAIN, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Joined


@check("DD305", "uneven-shards", severity=WARNING)
def examine(orders: SampleOrders, replicas: Replicas, recording: Recording) -> Iterator[Finding]:
    if any(log.has_noted(Joined) for log in recording.ranks.values()):
        return
    told: set[str] = set()
    for together in orders.together():
        for known in replicas.sets:
            passes = together.among(known.ranks)
            over = all(one.exhausted and one.trains for one in passes.passes.values())
            batches = {one.batches for one in passes.passes.values()}
            if over and len(batches) > 1 and str(passes.one.made_line) not in told:
                if (begun_anew := _begins_anew(orders, passes)) and recording.job.running:
                    continue  # whether they come to the end together shows there
                told.add(str(passes.one.made_line))
                found = _finding(passes)
                together_to_the_end = begun_anew and _as_many_steps(recording, passes)
                yield replace(found, severity=NOTE) if together_to_the_end or _steps_on(orders, passes) else found


def _steps_on(orders: SampleOrders, together: Together) -> bool:
    """Whether all ranks made one step for each batch of the largest share, those without a batch as well: the loop deals with it.

    Seen where a later pass over the loader began at the same step everywhere.
    """
    passes = together.passes
    most, began = max(one.batches for one in passes.values()), together.one.first_step
    later = [
        next((one.first_step for one in orders.by_loader(rank).get(mine.loader, ()) if one.seq > mine.seq), -1)
        for rank, mine in passes.items()
    ]
    return len(set(later)) == 1 and later[0] - began >= most


def _begins_anew(orders: SampleOrders, together: Together) -> bool:
    """Whether every rank went on with a new pass in the step after its last batch, as loops of a number of steps do."""
    for rank, mine in together.passes.items():
        later = [one for one in orders.by_loader(rank).get(mine.loader, ()) if one.seq > mine.seq]
        if not later or later[0].first_step != mine.first_step + mine.batches:
            return False
    return True


def _as_many_steps(recording: Recording, together: Together) -> bool:
    """Whether these ranks made the same number of steps in all, so that none was left waiting."""
    steps = {tuple(recording.ranks[rank].steps["step"][-1:].tolist()) for rank in together.passes}
    return len(steps) == 1


def _finding(together: Together) -> Finding:
    passes = together.passes
    most = max(one.batches for one in passes.values())
    fewest = min(one.batches for one in passes.values())
    short = tuple(rank for rank, one in passes.items() if one.batches < most)
    one = together.one
    return Finding(
        title=f"{named(short)} got fewer batches than the others in one epoch ({fewest:,} instead of {most:,})",
        ranks=short,
        confidence=CERTAIN,
        place=one.made_line or one.loop_line,
        places=(
            Place(one.made_line, together.ranks, f"the loader is created, sampler {one.sampler_name}"),
            Place(one.loop_line, together.ranks, "iterates it for training"),
        ),
        evidence={
            "batches": {rank: p.batches for rank, p in list(passes.items())[:16]},
            "samples": {rank: p.drawn for rank, p in list(passes.items())[:16]},
        },
        why=f"batches by rank: {', '.join(f'{rank}: {p.batches:,}' for rank, p in list(passes.items())[:8])}",
        prescriptions=(Prescription("even-shards", effect=f"{fewest:,} or {most:,} batches on every rank"),),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    orders = {0: list(range(60)), 1: list(range(60, 100))}
    return sampled_job(ranks=2, length=100).train(orders=orders, sampler="BatchSampler>SequentialSampler").recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    orders = {0: list(range(0, 99, 2)), 1: list(range(1, 99, 2))}
    return sampled_job(ranks=2, length=99).train(orders=orders, sampler="BatchSampler>SequentialSampler").recording()
