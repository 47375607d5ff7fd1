"""
DD212 missing-zero-grad: gradients are never zeroed and accumulate across steps.

What it means    optimizer.zero_grad() (or model.zero_grad()) is never called, so each step uses the sum of all gradients so
                 far.
Why it hurts     The sum grows from step to step and points in old directions: training diverges, or behaves as with far too
                 much momentum.
How we know      Whenever a backward begins, gradients that a step has already used are still there and nonzero, and backward
                 adds to them, step after step; no call of zero_grad was seen in between.
What to do       Call optimizer.zero_grad() once per step, before the first backward or after the step.
When it is fine  Gradients set to None or zero by hand, or faded between the steps (`p.grad.mul_(0.9)`): nothing is reported.
Source           torch.optim.Optimizer.zero_grad.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.source.statement_edits import zeroed_after_step
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import UpdateFlag

SEEN = 3  # steps; a first step that starts from left-over gradients could be meant


@check("DD212", "missing-zero-grad", severity=ERROR, stands_alone=True)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    by_optimizer: dict[int, dict[int, list[Update]]] = {}
    for rank, own in gradients.ranks.items():
        for update in own.updates:
            if 2 <= update.step <= 8:  # the first step has nothing to forget; later ones are not looked at
                by_optimizer.setdefault(update.optimizer, {}).setdefault(rank, []).append(update)
    for optimizer, by_rank in by_optimizer.items():
        piling = {rank: updates for rank, updates in by_rank.items() if _piles_up(updates)}
        if piling:
            yield _finding(optimizer, piling, sources)


def _piles_up(updates: list[Update]) -> bool:
    steps = {update.step for update in updates}
    return len(steps) >= SEEN and all(update.flags & UpdateFlag.PILED for update in updates)


def _finding(optimizer: int, piling: dict[int, list[Update]], sources: Sources) -> Finding:
    ranks = tuple(sorted(piling))
    updates = list(
        {update.step: update for update in piling[ranks[0]]}.values()
    )  # one of each step, whatever its group
    norms = [update.value("norm") for update in updates if update.digested]
    return Finding(
        title="gradients accumulate across steps: zero_grad is never called",
        ranks=ranks,
        place=updates[0].site,
        places=(
            Place(updates[0].loss_site, ranks, "backward adds to the gradients of the previous step"),
            Place(updates[0].site, ranks, "the optimizer steps"),
        ),
        evidence={"optimizer": optimizer, "steps": [update.step for update in updates][:8], "norms": norms[:8]},
        why=f"the gradients of the previous step were still there in steps {updates[0].step} to {updates[-1].step}"
        + (f"; their norm went from {norms[0]:.3g} to {norms[-1]:.3g}" if len(norms) > 1 else ""),
        prescriptions=(Prescription("zero-grad", edits=zeroed_after_step(sources.texts, updates[0].site)),),
        confidence=CERTAIN,
        at_ns=updates[0].at_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    flags, job = UpdateFlag.DIGESTED | UpdateFlag.PILED, trained_job(2).initial().step()
    return job.step(flags=flags).step(flags=flags).step(flags=flags).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().step().step().recording()
