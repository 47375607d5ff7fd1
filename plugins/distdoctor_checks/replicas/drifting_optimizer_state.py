"""
DD205 drifting-optimizer-state: gradients and parameters agree, but the optimizer state does not.

What it means    Momentum or another optimizer state of one parameter is not bit-identical on every replica.
Why it hurts     The next steps use it, so the replicas are about to become different models.
How we know      Digests of all bits of the optimizer state after a step (in `check-grads` also before it), compared where every
                 replica keeps one. Certain where the parameters of a later step have become different; likely where no later step
                 was seen.
What to do       Load the same optimizer state on every rank (a resumed run that loads it on rank 0 only causes this), and
                 change it in the same way on all ranks.
When it is fine  ZeroRedundancyOptimizer and sharded optimizers keep different parts by design: those are not compared. Nor is a
                 state that the parameters do not feel, as of optimizers that update a share on each rank and send the result.
Source           torch.optim.Optimizer.load_state_dict.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergences, changed_between_steps, differing_state
from distdoctor.diagnosis.replicas.tensor_differences import STATE, STATE_BEFORE
from distdoctor.diagnosis.replicas.wording import evidence, loaded_where, places, sides, tie, which
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording


@check("DD205", "drifting-optimizer-state", severity=ERROR, family="replicas", specificity=30)
def examine(partings: ReplicaDivergences, sources: Sources) -> Iterator[Finding]:
    for parting in partings.found:
        if parting.what not in (STATE, STATE_BEFORE) and not differing_state(parting):
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


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(3).initial().step().step(state={2: 1}, names=["head.weight"])
    return job.step(state={2: 1}, params={2: 1}, names=["head.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step().recording()
