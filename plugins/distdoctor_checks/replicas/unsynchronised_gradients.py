"""
DD202 unsynchronised-gradients: the optimizer steps with different gradients on ranks that should average them.

What it means    When optimizer.step() begins, the gradient of one parameter is not bit-identical on every replica.
Why it hurts     Each rank takes its own step. From then on the replicas are different models, although every loss looks fine.
How we know      Digests of all bits of every gradient, compared between the ranks of one DistributedDataParallel, one DTensor
                 placement, one group whose gradients are reduced by hand, or of one model named by
                 `distdoctor.watch(model)`. Correct training agrees bit for bit.
What to do       Pass every gradient through one reduction before the step, and change gradients afterwards in the same way on
                 all ranks: no clipping by local values, no noise, no branch on the rank.
When it is fine  Never for replicas. If the cause is known, another code reports it: a forward that bypasses the wrapper
                 (DD206), no_sync (DD207), parameters unknown to the reducer (DD219), a single flipped bit (DD214).
Source           torch.nn.parallel.DistributedDataParallel, notes on gradient synchronisation.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription
from distdoctor.diagnosis.replicas.divergence import (
    GRADS,
    ReplicaDivergence,
    ReplicaDivergences,
)
from distdoctor.diagnosis.replicas.gradients import BY_HAND
from distdoctor.diagnosis.replicas.wording import evidence, places, sides, tie, which
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import WATCHED


@check("DD202", "unsynchronised-gradients", severity=ERROR, family="replicas")
def examine(partings: ReplicaDivergences) -> Iterator[Finding]:
    for parting in partings.found:
        if parting.what != GRADS:
            continue
        yield Finding(
            title=f"{parting.when}: the gradients of {which(parting)} differ when the optimizer steps, {sides(parting)}",
            ranks=parting.odd,
            undecided=parting.is_tie,
            place=parting.site,
            places=places(parting),
            evidence=evidence(parting, synced=parting.counts("synced")),
            why=_why(parting),
            prescriptions=(Prescription("all-reduce-gradients"),),
            confidence=parting.confidence,
            at_ns=parting.at_ns,
            explains=(parting.key,),
        )


def _why(parting: ReplicaDivergence) -> str:
    parts = []
    if parting.peers.by in (BY_HAND, WATCHED):
        parts.append(f"{parting.share} were not reduced over {named(parting.peers.ranks)}, or were changed afterwards")
    else:
        parts.append(
            f"{parting.peers.by} averaged the gradients, and {parting.share} were changed afterwards on some ranks only"
        )
    none = parting.first.none_on if parting.first else ()
    if none:
        parts.append(f"{named(none)} had no gradient: it did not use that parameter in this step")
    parts.append(tie(parting))
    return ". ".join(part for part in parts if part)


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step(grads={1: 1}, params={1: 1}, names=["head.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step().recording()
