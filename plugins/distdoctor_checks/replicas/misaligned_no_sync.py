"""
DD207 misaligned-no-sync: micro-batches under no_sync are not followed by one that averages, so ranks step with local gradients.

What it means    Inside no_sync() gradients only accumulate locally. The last forward before optimizer.step() must be outside.
                 Here the last one was inside, or the ranks disagree on which one is last.
Why it hurts     Some or all gradients are never averaged. The replicas become different models without an error.
How we know      Forwards with and without synchronization are counted between steps, and gradients differ at the step. The
                 forward decides: `with model.no_sync(): loss = model(x)` stays local even if backward is outside.
What to do       Synchronize exactly on the micro-batch that ends with the optimizer step, on every rank, and keep forward and
                 backward of one micro-batch in the same context.
When it is fine  Gradient accumulation whose last micro-batch synchronizes: gradients agree, and nothing is reported. Nor is
                 local training whose weights are averaged now and then (local SGD).
Source           torch.nn.parallel.DistributedDataParallel.no_sync: "The forward pass should be included inside".
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.diagnosis.replicas.gradients import WRAPPER
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.wording import by_rank, evidence, line_with, places, sides, which
from distdoctor.diagnosis.source.given_values import deciding_test
from distdoctor.recording.recording import Recording, SourceLine

FLAG = "require_backward_grad_sync"


@check("DD207", "misaligned-no-sync", severity=ERROR, family="replicas", specificity=60)
def examine(partings: ReplicaDivergences, sources: Sources) -> Iterator[Finding]:
    for parting in partings.found:
        local = parting.what == GRADS and parting.peers.by == WRAPPER and any(parting.counts("unsynced").values())
        if not local:
            continue
        loss_line = next((u.loss_site for u in parting.updates.values() if u.loss_site), parting.site)
        line, flag = _switch(sources, loss_line)
        synced, unsynced = parting.counts("synced"), parting.counts("unsynced")
        yield Finding(
            title=f"{parting.when}: {_what(parting)}, and the optimizer steps with unaveraged gradients of {which(parting)}",
            ranks=parting.odd,
            place=line,
            places=(
                Place(line, parting.peers.ranks, _role(flag)),
                *(
                    Place(site, parting.peers.ranks, f"decides on it: `{text}`")
                    for site, text in deciding_test(sources.texts, line, "no_sync")
                ),
                *((Place(loss_line, parting.peers.ranks, "the last backward"),) if flag == FLAG else ()),
                Place(parting.site, parting.peers.ranks, "the optimizer steps"),
                *places(parting)[:2],
            ),
            evidence=evidence(parting, synchronised_forwards=synced, local_forwards=unsynced),
            why=f"forwards since the previous step: averaging {by_rank(synced)}; local {by_rank(unsynced)}. "
            f"{parting.share} differ, {sides(parting)}",
            prescriptions=(Prescription("align-no-sync", change=_change(flag, line)),),
            at_ns=parting.at_ns,
            explains=(parting.key,),
        )


def _switch(sources: Sources, loss_line: SourceLine) -> tuple[SourceLine, str]:
    """The line that decides which micro-batch averages, and by which of DistributedDataParallel's means; the backward where no
    source shows one."""
    for word in ("no_sync", FLAG):
        if line := line_with(sources.texts, loss_line, word):
            return line, word
    return loss_line, ""


def _role(flag: str) -> str:
    return {FLAG: "decides on it from the next forward on", "": "the last backward"}.get(flag, flag)


def _change(flag: str, line: SourceLine) -> str:
    if flag != FLAG:
        return ""
    return (
        f"set the flag of {line.short} before the forward of the micro-batch that it is meant for: "
        "DistributedDataParallel reads it there"
    )


def _what(parting: ReplicaDivergence) -> str:
    synced = parting.counts("synced")
    if not any(synced.values()):
        return "every forward since the previous step was inside no_sync"
    if len(set(synced.values())) > 1:
        return "the ranks disagree on which micro-batch averages"
    return "the micro-batch that averages is not the last one before the step"


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step(grads={1: 1}, params={1: 1}, backwards=2, synced=1, unsynced=1).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial()
    return job.step(backwards=4, unsynced=3, roots="div 4;NllLoss mean").step(backwards=4, unsynced=3).recording()
