"""
DD311 sampler-for-another-world: the sampler's num_replicas and rank do not match the ranks that train together.

What it means    The sampler's num_replicas or rank are not those of the job: some shards are drawn by no rank, or one shard by
                 two ranks. Typical causes: rank=local_rank on several nodes, or num_replicas left over from another launch.
Why it hurts     Samples of a shard without a rank are never seen; a shard with two ranks counts double.
How we know      DistributedDataParallel or FSDP show which ranks average their gradients; the samplers of those ranks use a
                 different number of shards, or the same shard twice.
What to do       Omit num_replicas and rank (the process group knows them), or pass the global rank and world size.
When it is fine  Ranks of a tensor- or pipeline-parallel group use one shard on purpose: they do not average gradients with one
                 another.
Source           torch.utils.data.distributed.DistributedSampler.__init__ (torch 2.15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import SampleOrders, Together
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Place, Prescription
from distdoctor.recording.rank_set import compress, named
from distdoctor.recording.recording import Recording


@check("DD311", "sampler-for-another-world", severity=ERROR, family="shares")
def examine(orders: SampleOrders, replicas: Replicas) -> Iterator[Finding]:
    told: set[str] = set()
    for together in orders.together():
        for known in replicas.sets:
            passes = together.among(known.ranks)
            wrong = _what_is_wrong(passes, known) if together.trains else ""
            if wrong and str(passes.one.made_line) not in told:
                told.add(str(passes.one.made_line))
                yield _finding(passes, known, wrong)


def _what_is_wrong(together: Together, known: ReplicaSet) -> str:
    """In words; "" when every replica has one share of its own, and when not all replicas were seen."""
    passes = list(together.passes.values())
    if not known.proven or len(passes) < len(known.ranks) or not all(one.sampler_rank >= 0 for one in passes):
        return ""
    shares = {one.num_replicas for one in passes}
    if shares == {1} and len(passes) > 1:
        return ""  # one share for everybody: not sharded at all, which is told elsewhere
    if len(shares) > 1:
        return f"their samplers split the data into {' and '.join(map(str, sorted(shares)))} shards"
    (count,) = shares
    doubled = [share for share, times in Counter(one.sampler_rank for one in passes).items() if times > 1]
    if doubled:
        are = "are" if len(doubled) > 1 else "is"
        return (
            f"shard{'s' if len(doubled) > 1 else ''} {compress(doubled)} of {count} {are} drawn by more than one rank"
        )
    if count > len(passes):
        left = set(range(count)) - {one.sampler_rank for one in passes}
        return f"no rank draws shard{'s' if len(left) > 1 else ''} {compress(left)} of {count}"
    return ""


def _finding(together: Together, known: ReplicaSet, wrong: str) -> Finding:
    one, ranks = together.one, together.ranks
    return Finding(
        title=f"{len(ranks)} ranks train together, but {wrong}",
        ranks=ranks,
        confidence=CERTAIN,
        place=one.made_line or one.loop_line,
        places=(Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),),
        evidence={
            "num_replicas": {rank: p.num_replicas for rank, p in list(together.passes.items())[:8]},
            "sampler_rank": {rank: p.sampler_rank for rank, p in list(together.passes.items())[:8]},
            "replicas": list(known.ranks),
        },
        why=f"{known.words}; the samplers of {named(ranks)} have num_replicas="
        f"{'/'.join(str(n) for n in sorted({p.num_replicas for p in together.passes.values()}))}, "
        f"rank={','.join(str(p.sampler_rank) for p in list(together.passes.values())[:8])}",
        prescriptions=(
            Prescription(
                "sampler-of-this-world",
                change="DistributedSampler(dataset)  # num_replicas and rank of the process group",
            ),
        ),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    """Both ranks pass their local rank, which is 0 on both nodes."""
    from distdoctor.testing.samples import sampled_job

    return sampled_job(ranks=2, length=100).train(sampler_rank={0: 0, 1: 0}).recording()


def healthy() -> Recording:
    """Two data-parallel pairs of two tensor-parallel ranks: two shares, each drawn by both ranks of a pair."""
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=4, length=100, averaged_by="").averages((0, 2)).averages((1, 3))
    return job.train(num_replicas=2, sampler_rank={0: 0, 1: 0, 2: 1, 3: 1}).recording()
