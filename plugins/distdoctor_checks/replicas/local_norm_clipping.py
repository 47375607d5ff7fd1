"""
DD215 local-norm-clipping: each rank clips by its own local norm, so gradients are scaled differently on every rank.

What it means    Gradients are clipped before they are averaged (after each micro-batch under no_sync, say), or a rank that holds
                 a shard clips by the norm of that shard alone. Each rank multiplies its part by a different factor.
Why it hurts     The step changes direction, not only length: shards, or ranks with large gradients, are scaled down more than
                 others. The limit has a different meaning at every world size.
How we know      clip_grad_norm_ (or clip_grads_with_norm_) used different norms in the same step on ranks that train one model
                 together: before averaging (their gradients agree at the optimizer step), or over shards.
What to do       Clip once, after averaging, before the step. Over shards, use a norm that covers all of them: clip_grad_norm_
                 takes the right one of DTensor parameters (fully_shard), FSDP1 has model.clip_grad_norm_.
When it is fine  Clipping after DistributedDataParallel's backward: the norms are equal. Private training, which clips the
                 gradient of each sample and zeroes it before the next: not reported. Other clipping per rank that is intended:
                 accept it with --ignore DD215. A call that only measures (max_norm=inf) is no clipping.
Source           torch.nn.utils.clip_grad_norm_; torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Averaging, ClipNorm
from distdoctor.recording.trace.layout import TensorFlag, UpdateFlag

APART = 1e-4  # relative; equal gradients have norms that are equal to the last bit
SEEN = 2  # steps
_SHARDING = ("FullyShardedDataParallel", "fully_shard")


@dataclass(frozen=True)
class Clipping:
    """One clipping of one step: the norm of each rank."""

    site: SourceLine
    step: int
    norms: Mapping[int, float]
    unaveraged: bool  # on all of these ranks
    at_ns: int

    @property
    def differs(self) -> bool:
        return max(self.norms.values()) - min(self.norms.values()) > APART * max(self.norms.values())


@check("DD215", "local-norm-clipping", severity=ERROR)
def examine(replicas: Replicas, gradients: Gradients) -> Iterator[Finding]:
    for replica_set in replicas.sets:
        sharded = replica_set.by in _SHARDING
        by_site: dict[SourceLine, list[Clipping]] = defaultdict(list)
        for clipping in _clippings(gradients, replica_set.ranks):
            if _is_of_samples(gradients, replica_set.ranks, clipping.step):
                continue
            if sharded or _agree_at_the_step(gradients, replica_set.ranks, clipping.step):
                by_site[clipping.site].append(clipping)
        for clippings in by_site.values():
            apart = [one for one in clippings if one.differs]
            # Behind a micro-batch under no_sync it is known what is clipped. Otherwise any other model may go through this line.
            accumulated = [one for one in apart if one.unaveraged]
            seen = apart if len(apart) == len(clippings) else accumulated
            if len({one.step for one in seen}) >= SEEN:
                yield _finding(replica_set, seen, sharded=sharded, partial=bool(accumulated))


def _clippings(gradients: Gradients, ranks: tuple[int, ...]) -> Iterator[Clipping]:
    """The clippings by a norm of the rank's own that all these ranks made on the same line in the same step, in order."""
    found: dict[tuple[int, int, SourceLine], dict[int, ClipNorm]] = defaultdict(dict)
    for rank in ranks:
        own, seen = gradients.ranks.get(rank), Counter[tuple[int, SourceLine]]()
        for clipped in own.events(ClipNorm) if own is not None else ():
            if not clipped.whole:
                seen[clipped.step, clipped.site] += 1
                found[clipped.step, seen[clipped.step, clipped.site], clipped.site][rank] = clipped
    for (step, _, site), own_ones in sorted(found.items(), key=lambda item: item[0][:2]):
        if len(own_ones) == len(ranks):
            norms = {rank: clipped.norm for rank, clipped in own_ones.items()}
            unaveraged = all(clipped.unaveraged for clipped in own_ones.values())
            yield Clipping(site, step, norms, unaveraged, min(one.at_ns for one in own_ones.values()))


def _is_of_samples(gradients: Gradients, ranks: tuple[int, ...], step: int) -> bool:
    """Whether gradients were zeroed between the backward passes of that step: each is clipped for itself, and put aside."""
    own = (update for rank in ranks for update in gradients.ranks[rank].updates if update.step == step)
    return any(update.flags & UpdateFlag.CLEARED for update in own)


def _agree_at_the_step(gradients: Gradients, ranks: tuple[int, ...], step: int) -> bool:
    """Whether every gradient is the same on these ranks when the optimizer steps: then whatever they do apart came before."""
    if any((t.agree and t.agree != ranks) or t.flags & TensorFlag.OUTSIDE for t in gradients.tensors_of(ranks)):
        return False  # something is this rank's own, and its norm with it
    looks = [[u for u in gradients.ranks[r].updates if u.step == step and u.digested] for r in ranks]
    return all(looks) and len({tuple(update.number("grads") for update in own) for own in looks}) == 1


def _finding(replica_set: ReplicaSet, clippings: list[Clipping], *, sharded: bool, partial: bool) -> Finding:
    first = clippings[0]
    norms = ", ".join(f"{norm:.4g} on rank {rank}" for rank, norm in list(first.norms.items())[:4])
    how = "by the norm of its own shard" if sharded else "by its own norm, before averaging"
    what = "what its micro-batches have accumulated so far" if partial and not sharded else "its gradients"
    steps = len({clipping.step for clipping in clippings})
    return Finding(
        title=f"step {first.step}: each of {named(replica_set.ranks)} clips {what} {how}",
        ranks=replica_set.ranks,
        place=first.site,
        places=tuple(Place(first.site, (rank,), f"norm {norm:.6g}") for rank, norm in list(first.norms.items())[:4]),
        evidence={
            "step": first.step,
            "norms": dict(list(first.norms.items())[:8]),
            "steps_seen": steps,
            "replicas_by": replica_set.by,
        },
        why=f"clip_grad_norm_ saw {norms}, and norms that differ in {steps} of {steps} steps; {replica_set.words}",
        prescriptions=(Prescription("clip-the-whole-gradient"),),
        confidence=CERTAIN,
        at_ns=first.at_ns,
    )


def _job(*clipped: tuple[float, float], under_no_sync: int = 0) -> Recording:
    """`clipped`: the norms on the two ranks, for each time in a step; the first `under_no_sync` of them before averaging."""
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2)
    job.note(Averaging((0, 1), "DistributedDataParallel")).initial()
    for step in (1, 2):
        for number, norms in enumerate(clipped):
            for rank, norm in enumerate(norms):
                event = ClipNorm(whole=False, step=step, norm=norm, unaveraged=number < under_no_sync)
                job.note(event, site="train.py:32 train", only=[rank])
        job.step(backwards=under_no_sync + 1, synced=1, unsynced=under_no_sync)
    return job.recording()


def sick() -> Recording:
    return _job((2.5, 1.5))


def sick_in_each_micro_batch() -> Recording:
    """Under no_sync, and at last after averaging."""
    return _job((2.5, 1.5), (3.5, 3.0), (2.0, 2.0), under_no_sync=2)


def healthy() -> Recording:
    """Averaged first."""
    return _job((2.5, 2.5))
