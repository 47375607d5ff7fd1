"""
DD203 drifting-parameters: replicas started equal and have diverged.

What it means    Gradients agreed at the optimizer step, and yet a parameter is not bit-identical on every replica.
Why it hurts     Nothing makes the replicas equal again: DistributedDataParallel averages gradients and never checks weights.
                 Training continues, evaluation depends on the rank, and the model that rank 0 saves is not the one that the
                 others trained.
How we know      Digests of all bits of every parameter before and after each sampled step. The same digests show whether the
                 change happened in the step or between two steps, and on which rank. Where one condition of the source lets
                 only that rank come to a line that changes weights, or to make an object that does, both are shown. Where a
                 script steps by itself, weights are looked at before backward passes 1, 2, 4, ... 1024: likely, when gradients
                 are reduced in each pass, all weights began equal, and all of them stay different.
What to do       Check what that rank alone does between the two steps: a reloaded checkpoint, an edited or clamped weight, an
                 EMA copied back, a layer re-initialized under `if rank == 0`. Do it on every rank, or broadcast afterwards.
When it is fine  LocalSGD and other methods that synchronize weights only now and then: accept it with --ignore DD203.
Source           torch.nn.parallel.DistributedDataParallel: "Parameters are never broadcast between processes."
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.hang.wording import decision_places
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences, changed_between_steps
from distdoctor.diagnosis.replicas.gradients import OBSERVED
from distdoctor.diagnosis.replicas.stepped_by_hand import PartedByHand
from distdoctor.diagnosis.replicas.tensor_differences import BEFORE, PARAMS
from distdoctor.diagnosis.replicas.wording import evidence, loaded_where, places, sides, tie, which
from distdoctor.diagnosis.source.deciding import condition_beside, deciding_condition
from distdoctor.diagnosis.source.edited_weights import edited_on
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import TensorFlag


@check("DD203", "drifting-parameters", severity=ERROR, family="replicas")
def examine(partings: ReplicaDivergences | None, by_hand: PartedByHand | None, sources: Sources) -> Iterator[Finding]:
    if by_hand is not None and by_hand.until:
        yield _stepped_by_hand(by_hand, sources)
    if partings is None:
        return
    for parting in partings.found:
        if parting.what not in (BEFORE, PARAMS):
            continue
        changed = changed_between_steps(parting, partings.gradients)
        ranks = changed or parting.odd
        decides = _edited(changed, parting, sources) or loaded_where(parting, sources.texts)
        yield Finding(
            title=f"{_when(parting)}: {which(parting)} changed only on {named(ranks)}, outside the optimizer"
            if changed
            else f"{_when(parting)}: replicas hold different weights in {which(parting)}, {sides(parting)}",
            ranks=ranks,
            place=decides[0].site if decides else parting.loaded_at or parting.site,
            places=(*decides, *places(parting), *(_perhaps(parting, sources) if not (changed or decides) else ())),
            evidence=evidence(parting, changed_between_steps=list(changed)),
            why=_why(parting, changed),
            prescriptions=(Prescription("change-every-replica"),),
            confidence=parting.confidence,
            at_ns=parting.at_ns,
            explains=(parting.key,),
        )


def _stepped_by_hand(parted: PartedByHand, sources: Sources) -> Finding:
    """Replicas of a script without an optimizer of torch."""
    odd, others = parted.odd, [rank for rank in parted.ranks if rank not in parted.odd]
    where = parted.reduced
    decision = deciding_condition(sources.texts, where, where, odd, others) or condition_beside(sources.texts, where)
    decides = decision_places(decision, {where})
    more = f" and {len(parted.names) - 1} more" if len(parted.names) > 1 else ""
    return Finding(
        title=f"replicas hold different weights in {parted.names[0]}{more} before backward pass {parted.since} and in every "
        "later look",
        ranks=odd,
        undecided=parted.is_tie,
        confidence=LIKELY,
        place=decides[0].site if decides else where,
        places=(*decides, Place(where, parted.ranks, "reduces gradients")),
        evidence={"equal until": parted.until, "different since": parted.since, "last look": parted.last},
        why=f"all weights were equal on {named(parted.ranks)} before pass {parted.until}, gradients are reduced in every pass, "
        f"and in all looks up to pass {parted.last} they differ: the script steps by itself, by something that each rank has "
        "of its own",
        prescriptions=(Prescription("change-every-replica"),),
    )


def _edited(changed: tuple[int, ...], parting: ReplicaDivergence, sources: Sources) -> tuple[Place, ...]:
    """The condition that lets only the ranks whose weights changed come to a line that changes weights, or that makes an object
    which does, and that line."""
    others = [rank for rank in parting.peers.ranks if rank not in changed]
    found = edited_on(sources.texts, changed, others) if changed and not parting.loaded_at else None
    if found is None:
        return ()
    guard, line, by = found
    decides = Place(
        SourceLine(line.path, guard.line, guard.function or line.function), changed, f"decides: `if {guard.only_if}`"
    )
    if not by:
        return decides, Place(line, changed, "changes weights in place")
    return decides, Place(line, changed, "makes what changes weights"), Place(by, changed, "changes weights in place")


def _perhaps(parting: ReplicaDivergence, sources: Sources) -> tuple[Place, ...]:
    """The same of ranks that differ, where nobody saw when their weights changed."""
    every = parting.peers.ranks
    sides = [parting.odd] if len(parting.odd) < len(every) else [(rank,) for rank in every]
    for ranks in sides:
        found = edited_on(sources.texts, ranks, [rank for rank in every if rank not in ranks])
        if found is not None:
            role = f"perhaps: changes weights, or what becomes weights, `if {found.guard.only_if}`"
            return (Place(found.line, ranks, role),)
    return ()


def _when(parting: ReplicaDivergence) -> str:
    if parting.what != BEFORE or not parting.exact:
        return parting.when
    if parting.agreed > 0:
        return f"between steps {parting.agreed} and {parting.step}"
    carried = parting.first is not None and parting.first.tensor.flags & TensorFlag.CARRIED
    return f"before step 1 of optimizer {parting.peers.optimizer}" if carried else "before step 1"


def _why(parting: ReplicaDivergence, changed: tuple[int, ...]) -> str:
    parts = [f"{parting.share} differ, although all gradients agreed until then"]
    if parting.peers.by == OBSERVED:
        parts = [
            f"{which(parting)} started equal on {named(parting.peers.ranks)} and stayed so for {parting.agreed} steps"
        ]
    if changed:
        parts.append(f"{named(changed)} found weights other than its last step left; the others found their own")
    elif not parting.exact:
        parts.append(
            f"steps {parting.agreed + 1} to {parting.step - 1} were not sampled (`check-grads` samples every step)"
        )
    if not changed:
        parts.append(tie(parting))
    return ". ".join(part for part in parts if part)


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step(params={0: 1}, names=["body.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step().recording()
