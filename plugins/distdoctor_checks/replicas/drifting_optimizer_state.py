"""
DD205 drifting-optimizer-state: gradients and parameters agree, but the optimizer state does not.

What it means    Momentum or another optimizer state of one parameter is not bit-identical on every replica.
Why it hurts     The next steps use it, so the replicas are about to become different models.
How we know      Digests of all bits of the optimizer state after a step (in `check-grads` also before it), compared where every
                 replica keeps one. Certain where the parameters of a later step have become different; likely where no later step
                 was seen. Optimizers that hold the same parameters in different orders (listed from a set of names) are given
                 a state by position: that of another parameter. A note behind a Join with uneven inputs: ranks that ran out of
                 them early have made fewer steps, Join gives all the same weights again, and the first step behind it makes
                 different ones of these.
What to do       Load the same optimizer state on every rank (a resumed run that loads it on rank 0 only causes this), and
                 change it in the same way on all ranks. Behind a Join broadcast it from a rank that had the most inputs, or let
                 ZeroRedundancyOptimizer join as well, which shadows the steps of the others.
When it is fine  ZeroRedundancyOptimizer and sharded optimizers keep different parts by design: those are not compared. Nor is a
                 state that the parameters do not feel, as of optimizers that update a share on each rank and send the result.
                 Plain SGD under Join remembers nothing.
Source           torch.optim.Optimizer.load_state_dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.after_joins import LeftBehind, left_behind
from distdoctor.diagnosis.replicas.divergence import (
    ReplicaDivergence,
    ReplicaDivergences,
    changed_between_steps,
    differing_state,
)
from distdoctor.diagnosis.replicas.tensor_differences import STATE, STATE_BEFORE
from distdoctor.diagnosis.replicas.wording import by_rank, evidence, loaded_where, ordered_at, places, sides, tie, which
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording


@check("DD205", "drifting-optimizer-state", severity=ERROR, family="replicas", specificity=30)
def examine(partings: ReplicaDivergences, sources: Sources) -> Iterator[Finding]:
    for parting in partings.found:
        if parting.what not in (STATE, STATE_BEFORE) and not differing_state(parting):
            continue
        orders = partings.gradients.other_orders(parting.peers)
        if orders:
            yield _by_position(parting, orders, sources)
            continue
        changed = changed_between_steps(parting, partings.gradients)
        loaded = loaded_where(parting, sources.texts)
        parts = (
            f"parameters and gradients agree, but the optimizer state of {parting.share} does not",
            f"{named(changed)} found a state other than its own last step left" if changed else tie(parting),
        )
        yield Finding(
            title=f"{parting.when}: the optimizer state of {which(parting)} differs, {sides(parting)}",
            ranks=changed or parting.odd,
            place=loaded[0].site if loaded else parting.loaded_at or parting.site,
            places=(*loaded, *places(parting)),
            evidence=evidence(parting),
            why=". ".join(part for part in parts if part),
            prescriptions=(Prescription("same-optimizer-state"),),
            confidence=parting.confidence,
            at_ns=parting.at_ns,
            explains=(parting.key,),
        )
    for one in left_behind(partings.gradients):
        yield _behind_a_join(one)


def _by_position(parting: ReplicaDivergence, orders: Mapping[str, tuple[int, ...]], sources: Sources) -> Finding:
    """The optimizers hold the same parameters in other orders: a state goes by the position."""
    held = " and ".join(f"`{name}` on {named(ranks)}" for name, ranks in list(orders.items())[:3])
    listed = ordered_at(parting, orders, sources.texts)
    return Finding(
        title=f"{parting.when}: the optimizer state of {which(parting)} differs: the optimizers hold the same parameters in "
        "different orders",
        ranks=parting.peers.ranks,
        place=listed[0].site if listed else parting.site,
        places=(*listed, *places(parting)),
        evidence={**evidence(parting), "orders": {name: list(ranks) for name, ranks in orders.items()}},
        why=f"where there is {held}, a state that is saved or loaded by position (optimizer.load_state_dict) is that of another "
        "parameter on the other ranks",
        prescriptions=(Prescription("one-order-everywhere"),),
        confidence=parting.confidence,
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _behind_a_join(found: LeftBehind) -> Finding:
    ranks, more = found.peers.ranks, len(found.names) - 1
    update = found.updates[ranks[0]]
    most = max(found.steps.values())
    early = tuple(rank for rank in ranks if found.steps[rank] < most)
    return Finding(
        title=f"behind a Join with uneven inputs ({by_rank(found.steps, ' steps')}) the optimizers remember different steps, and "
        f"the weights part again: {found.names[0]}{f' and {more} more' if more else ''}",
        ranks=early,
        place=found.joined[ranks[0]].site,
        places=(
            Place(found.joined[ranks[0]].site, ranks, "Join, which brings the weights together and nothing else"),
            Place(update.site, ranks, "steps with equal gradients, from equal weights, to different ones"),
        ),
        evidence={"step": update.step, "steps": dict(found.steps), "parameters": list(found.names[:8])},
        why=f"in step {update.step} of {named((ranks[0],))}, the first behind the Join, weights and gradients were the same on "
        f"{named(ranks)} and the optimizer's state was not: the steps that the others made alone are missing on {named(early)}. "
        "The replicas are different models until the next Join ends",
        prescriptions=(
            Prescription(
                "same-optimizer-state",
                change="behind each Join broadcast the optimizer's state from a rank that had the most inputs, or let "
                "ZeroRedundancyOptimizer join too: Join([model, optimizer])",
            ),
        ),
        severity=NOTE,
        confidence=CERTAIN,
        at_ns=update.at_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(3).initial().step().step(state={2: 1}, names=["head.weight"])
    return job.step(state={2: 1}, params={2: 1}, names=["head.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step().recording()
