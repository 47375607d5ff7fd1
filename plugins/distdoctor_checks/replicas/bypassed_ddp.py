"""
DD206 bypassed-ddp: the forward bypasses DistributedDataParallel, or the model was never wrapped: gradients are never averaged.

What it means    model.module(x) (or a method of the inner module) computes the loss, or there is no wrapper at all. Backward
                 then never reduces, and each rank steps with its own gradients.
Why it hurts     No error, no hang: N models each train on 1/N of the data, and one of them is saved.
How we know      Gradients differ between ranks at the optimizer step, and no forward went through their wrapper since the
                 previous step (of several wrappers each is counted by itself). Without any wrapper: the ranks hold the same
                 parameters and share the data or their metrics, and no collective ever carried anything as large as the
                 gradients. Where no rank of a job has called any collective, and each trains the same model with the same
                 settings: a warning, likely, and possible where the source speaks of ranks.
What to do       Call the wrapper itself: model(x). Wrap the model before its first step, or average gradients by hand.
When it is fine  Evaluation through model.module; independent trials that exchange nothing are not reported.
Source           torch.nn.parallel.DistributedDataParallel.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients
from distdoctor.diagnosis.replicas.never_wrapped import NeverMet, Unwrapped, UnwrappedReplicas
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.wording import event_site, evidence, line_with, places, sides, which
from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.edits import Edit, words_replaced
from distdoctor.diagnosis.source.given_values import made_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Bypassed, Kind, Wrapped


@check("DD206", "bypassed-ddp", severity=ERROR, family="replicas", specificity=65)
def examine(unwrapped: UnwrappedReplicas, partings: ReplicaDivergences | None, sources: Sources) -> Iterator[Finding]:
    for parting in partings.found if partings is not None else ():
        if parting.what == GRADS and parting.peers.by == WRAPPER and _went_past(parting, unwrapped.gradients):
            yield _bypassed(parting, unwrapped.gradients, sources)
    for one in unwrapped.found:
        yield _never_wrapped(one)
    if unwrapped.never_met is not None:
        yield _by_themselves(unwrapped.never_met)


def _went_past(parting: ReplicaDivergence, gradients: Gradients) -> bool:
    """Whether there were backward passes, and no forward, averaging or not, through the wrappers of what differs."""
    forwards = (*parting.counts("synced").values(), *parting.counts("unsynced").values())
    gone_past = not any(forwards) or _of_wrappers_gone_past(parting, gradients)
    return gone_past and any(parting.counts("backwards").values())


def _of_wrappers_gone_past(parting: ReplicaDivergence, gradients: Gradients) -> bool:
    """Whether all that differs is reduced by wrappers that no forward went through in that step, beside others."""
    names = {name for event in _gone_past(parting, gradients) for name in event.parameters}
    return bool(parting.differences) and {difference.name for difference in parting.differences} <= names


def _gone_past(parting: ReplicaDivergence, gradients: Gradients) -> list[Bypassed]:
    """What is on record of the wrapper of what differs first, or of any, in the steps since the ranks agreed."""
    events = [one for one in _events(Bypassed, parting, gradients) if parting.agreed < one.step <= parting.step]
    first = parting.first.name if parting.first is not None else ""
    return sorted(events, key=lambda one: first not in one.parameters)


def _events(kind: type[Kind], parting: ReplicaDivergence, gradients: Gradients) -> Iterator[Kind]:
    for rank in parting.peers.ranks:
        if rank in gradients.ranks:
            yield from gradients.ranks[rank].events(kind)


def _bypassed(parting: ReplicaDivergence, gradients: Gradients, sources: Sources) -> Finding:
    past = _gone_past(parting, gradients)
    seen = next((one.site for one in past if one.site), None) or event_site(gradients, Bypassed, parting.peers.ranks)
    loss_line = next((u.loss_site for u in parting.updates.values() if u.loss_site), parting.site)
    forward = seen or line_with(sources.texts, loss_line, ".module(") or loss_line
    taken = _taken_out(sources, forward)
    line = taken or forward
    made = list(_events(Wrapped, parting, gradients))  # those of the first rank that knows come first
    number = max(past[0].wrapper, 1) if past else 1
    wrapped = made[number - 1].site if number <= len(made) else SourceLine()
    backwards = max(parting.counts("backwards").values())
    return Finding(
        title=f"{parting.when}: the forward pass bypassed DistributedDataParallel, so the gradients of "
        f"{which(parting)} were never averaged",
        ranks=parting.odd,
        place=line,
        places=(
            *((Place(taken, parting.peers.ranks, "takes the module out of the wrapper"),) if taken else ()),
            Place(forward, parting.peers.ranks, "forward without the wrapper"),
            *((Place(wrapped, parting.peers.ranks, "the model is wrapped"),) if wrapped else ()),
            *places(parting)[:2],
        ),
        evidence=evidence(parting, forwards_through_wrapper=0, backwards=backwards),
        why=f"{backwards} backward {'pass' if backwards == 1 else 'passes'} and no forward through their wrapper since "
        f"the previous step; {parting.share} differ, {sides(parting)}",
        prescriptions=(Prescription("call-the-wrapper", edits=_edits(sources, line)),),
        confidence=CERTAIN,
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _taken_out(sources: Sources, forward: SourceLine) -> SourceLine:
    """Where what is called in a line was taken out of the wrapper, where that is another line: `net = model.module`."""
    for call in calls_at(sources.texts, forward):
        if isinstance(call.func, ast.Name):
            for line, text in made_of(sources.texts, call.func):
                if re.search(r"\.module\b", text) and line.line != forward.line:
                    return line
    return SourceLine()


def _edits(sources: Sources, line: SourceLine) -> tuple[Edit, ...]:
    """`model.module(inputs)` -> `model(inputs)`."""
    return words_replaced(line.path, sources.texts.get(line.path, ""), line.line, ".module(", "(")


def _never_wrapped(one: Unwrapped) -> Finding:
    return Finding(
        title=f"the gradients of {named(one.ranks)} are never averaged: no DistributedDataParallel, no collective of their size",
        ranks=one.ranks,
        place=one.site,
        places=(Place(one.site, one.ranks, "steps with its own gradients"),),
        evidence={
            "parameters": one.parameters,
            "parameter_bytes": one.nbytes,
            "largest_collective_bytes": one.largest,
            "step": one.step,
            "together_because": one.together,
        },
        why=f"these ranks {one.together} and start from the same weights, but their gradients differ in step {one.step} and the "
        f"largest collective carried {one.largest:,} of {one.nbytes:,} bytes",
        prescriptions=(
            Prescription(
                "all-reduce-gradients", change="model = DistributedDataParallel(model)  # before the first step"
            ),
        ),
        confidence=LIKELY,
        at_ns=one.at_ns,
    )


def _by_themselves(one: NeverMet) -> Finding:
    return Finding(
        title=f"{named(one.ranks)} train the same model each for itself: no collective was called"
        + ("" if one.joined else ", and no process group made"),
        ranks=one.ranks,
        place=one.site,
        places=(Place(one.site, one.ranks, "steps with its own gradients"),),
        evidence={"steps": one.steps, "world_size": len(one.ranks)},
        why=f"they were started as one job of {len(one.ranks)} ranks, and made {one.steps} steps or more with the same settings"
        + ("; the source knows of ranks, so that separate trainings may be meant" if one.asks_for_rank else ""),
        prescriptions=(
            Prescription(
                "all-reduce-gradients",
                change="torch.distributed.init_process_group() and DistributedDataParallel, or start it as its library wants it "
                "(accelerate launch); one process where one training is meant",
            ),
        ),
        severity=WARNING,
        confidence=POSSIBLE if one.asks_for_rank else LIKELY,
        at_ns=one.at_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial()
    job.note(Bypassed("Net", 1), site="train.py:30 train")
    return job.step(grads={1: 1}, params={1: 1}, synced=0).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().recording()
