"""
DD218 diverging-schedule: learning rate, weight decay or another setting of the optimizer is not the same on all replicas.

What it means    Gradients agree, but the ranks take steps of different size: param_groups hold different numbers.
Why it hurts     The replicas become different models, usually slowly, while every rank's log looks plausible.
How we know      The numbers in param_groups are digested at each step that is looked at; parameters differ from then on.
What to do       Decide schedules from values that all ranks share: reduce the validation loss before ReduceLROnPlateau.step(),
                 count steps and not local batches, load the scheduler's state on every rank.
When it is fine  Ranks that train different parts of a model: only replicas are compared.
Source           torch.optim.lr_scheduler.ReduceLROnPlateau.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Cure, Finding, Place
from distdoctor.diagnosis.partings import Parting, Partings, cause_of
from distdoctor.diagnosis.replica_words import by_rank, evidence, line_with, sides, which
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, Site


@check("DD218", "diverging-schedule", severity=ERROR, family="replicas")
def examine(partings: Partings, recording: Recording) -> Iterator[Finding]:
    for parting in partings.found:
        if cause_of(parting, partings.gradients) != "DD218":
            continue
        rates = {rank: update.value("lr") for rank, update in parting.updates.items()}
        differ = len(set(rates.values())) > 1
        line = _line(parting, recording)
        words = by_rank({rank: f"{rate:.6g}" for rank, rate in rates.items()})
        yield Finding(
            title=f"{parting.when}: learning rate {words}"
            if differ
            else f"{parting.when}: the optimizers' settings differ between {named(parting.peers.ranks)}",
            ranks=parting.odd,
            place=line,
            places=tuple(Place(parting.site, ranks, _role(rates, ranks)) for ranks in parting.variants[:4]),
            evidence=evidence(parting, lr=rates),
            why=f"gradients agree, the settings in param_groups do not, and with them {which(parting)} differ, {sides(parting)}",
            cures=(Cure("same-schedule"),),
            confidence=CERTAIN,
            at_ns=parting.at_ns,
        )


def _role(rates: dict[int, float], ranks: tuple[int, ...]) -> str:
    rate = rates.get(ranks[0], math.nan)
    return f"steps with learning rate {rate:.6g}"


def _line(parting: Parting, recording: Recording) -> Site:
    """Where the schedule moves, when the source near the step shows it."""
    for words in (("scheduler.step(",), ("sched", ".step("), ('["lr"]', "="), ("['lr']", "=")):
        found = line_with(recording.sources, parting.site, *words)
        if found:
            return found
    return parting.site


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(3).initial().step()
    return job.step(params={2: 1}, lr={0: 1e-3, 1: 1e-3, 2: 5e-4}, hyper={0: 7, 1: 7, 2: 8}).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step(lr=5e-4, hyper=8).recording()
