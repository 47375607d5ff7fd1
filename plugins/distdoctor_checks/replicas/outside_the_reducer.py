"""
DD219 outside-the-reducer: some parameters are trained, and are not among those that are reduced or averaged.

What it means    DistributedDataParallel registers the parameters when it is constructed. Parameters that were frozen then and
                 are trained now, that were added or replaced later, or that lost their hooks because the model was moved or
                 cast, are never averaged. Nor is a module beside the one that was wrapped, or what is around sharded blocks.
                 So it is where weights are averaged by hand now and then, from a list that was made before more of them
                 were unfrozen.
Why it hurts     These parameters train on each rank's own data alone; the rest of the model is averaged, and nothing fails.
How we know      Their gradients differ at the step. The wrapped module holds them but the wrapper did not register them; or the
                 module was moved or cast after wrapping, which gives parameters new gradient accumulators. Averaged by hand:
                 other parameters differ after a step and are the same before the next one, again and again; these were equal when
                 they were first trained, after the first such average, and are never the same again (likely). In no
                 wrapper at all, beside others in one: they began equal, part in the first step and never meet, on ranks that
                 deal one dataset out among them, or shard the others, and send nothing else (likely), or of which one saves
                 for all (possible).
What to do       Unfreeze, add, move and cast first, and wrap last; or wrap again after the change and rebuild the optimizer.
When it is fine  Parameters that DistributedDataParallel was told to ignore are not compared, but where the program itself
                 reduces some of these in each step and never the others. A part that is each rank's own from the first step
                 on is one on purpose.
Source           torch.nn.parallel.DistributedDataParallel: "No parameters should be added nor removed later."
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import (
    ReplicaDivergence,
    ReplicaDivergences,
    is_outside_the_reducer,
    was_converted,
)
from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients
from distdoctor.diagnosis.replicas.left_out_averages import LeftOut, left_out
from distdoctor.diagnosis.replicas.left_unwrapped import SAVED, LeftUnwrapped, PartsLeftUnwrapped
from distdoctor.diagnosis.replicas.tensor_differences import GRADS, INITIAL
from distdoctor.diagnosis.replicas.wording import event_site, evidence, line_with, places, sides, which
from distdoctor.diagnosis.source.lists_of_trained import list_of_trained
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Converted, ParameterAdded, Wrapped
from distdoctor.recording.trace.layout import TensorFlag

OF_A_HINT = 15  # that a module was moved after wrapping explains less than what the gradients themselves show
_UNFREEZES = re.compile(r"\.requires_grad_\((True)?\)|\.requires_grad\s*=\s*True")


@check("DD219", "outside-the-reducer", severity=ERROR, family="replicas", specificity=70)
def examine(
    gradients: Gradients, partings: ReplicaDivergences | None, unwrapped: PartsLeftUnwrapped | None, sources: Sources
) -> Iterator[Finding]:
    yield from (_never_averaged(found, sources) for found in left_out(gradients))
    for part in unwrapped.found if unwrapped is not None else ():
        yield _never_wrapped(part, gradients, sources)
    for parting in partings.found if partings is not None else ():
        outside = parting.what in (GRADS, INITIAL) and is_outside_the_reducer(parting)
        converted = parting.what == GRADS and parting.peers.by == WRAPPER and was_converted(parting, gradients)
        if not outside and not converted:
            continue
        wrapped = event_site(gradients, Wrapped, parting.peers.ranks)
        line, how = _origin(parting, gradients, sources, wrapped)
        yield Finding(
            title=f"{parting.when}: DistributedDataParallel does not average the gradients of {which(parting)}: {how}",
            ranks=parting.odd,
            place=line,
            places=(
                *(
                    (Place(wrapped, parting.peers.ranks, "DistributedDataParallel registers the parameters"),)
                    if wrapped
                    else ()
                ),
                *((Place(line, parting.peers.ranks, how),) if line != wrapped else ()),
                *places(parting)[:2],
            ),
            evidence=evidence(parting, how=how),
            why=f"{parting.share} differ {'before the first' if parting.what == INITIAL else 'at the'} step, {sides(parting)}, "
            "and the wrapper averages none of them",
            prescriptions=(Prescription("wrap-last"),),
            at_ns=parting.at_ns,
            explains=(parting.key,),
            specificity=None if outside else OF_A_HINT,
        )


def _never_averaged(found: LeftOut, sources: Sources) -> Finding:
    first, more = found.names[0], len(found.names) - 1
    made = list_of_trained(sources.texts, found.averages)
    return Finding(
        title=f"{first}{f' and {more} more' if more else ''} are trained and never averaged, as {found.met} others are that were "
        "trained before",
        ranks=found.ranks,
        place=made or found.averages or found.site,
        places=(
            *((Place(made, found.ranks, "takes what is trained at that moment"),) if made else ()),
            *((Place(found.averages, found.ranks, "averages it"),) if found.averages else ()),
            Place(found.site, found.ranks, "the optimizer steps"),
        ),
        evidence={"parameters": list(found.names[:8]), "optimizer": found.optimizer, "since_step": found.since,
                  "averages": found.meetings},
        why=f"{found.met} parameters differ on {named(found.ranks)} after some steps and are the same before the next ones; "
        f"these were equal until step {found.since} of optimizer {found.optimizer}, and at {found.meetings} such averages they "
        "differed",
        prescriptions=(
            Prescription("wrap-last", change="make the list of what is averaged anew whenever parameters are unfrozen"),
        ),
        severity=WARNING,
        confidence=LIKELY,
        at_ns=found.at_ns,
    )  # fmt: skip


def _never_wrapped(part: LeftUnwrapped, gradients: Gradients, sources: Sources) -> Finding:
    ranks, step = part.ranks, part.update.site
    first, more = part.tensors[0].name, len(part.tensors) - 1
    if part.beside:
        return _ignored(part, gradients, sources)
    wraps = (
        event_site(gradients, Wrapped, ranks) if part.by == WRAPPER else line_with(sources.texts, step, "fully_shard(")
    )
    return Finding(
        title=f"{first}{f' and {more} more' if more else ''} are trained on {named(ranks)} and never averaged: {part.by} holds "
        f"{part.inside} other parameters, and not these",
        ranks=ranks,
        place=wraps or step,
        places=(
            *((Place(wraps, ranks, "wraps a part of what is trained"),) if wraps else ()),
            *((Place(step, ranks, "the optimizer steps"),) if step else ()),
        ),
        evidence={
            "parameters": [tensor.name for tensor in part.tensors[:8]],
            "wrapped": part.inside,
            "step": part.update.step,
        },
        why=f"they began equal, differ after step {part.update.step} and are never the same again, on ranks that "
        f"{part.together} and send each other nothing else in their steps",
        prescriptions=(
            Prescription(
                "wrap-last",
                change="wrap that as well, or the module that holds all of it: DistributedDataParallel(model)"
                if part.by == WRAPPER
                else "shard the root as well, behind its blocks: fully_shard(model)",
            ),
        ),
        confidence=POSSIBLE if part.together == SAVED else LIKELY,
        severity=WARNING if part.together == SAVED else None,
        at_ns=part.update.at_ns,
    )


def _ignored(part: LeftUnwrapped, gradients: Gradients, sources: Sources) -> Finding:
    """Of what a wrapper was told to ignore, that which the program then forgets to reduce."""
    first, more = part.tensors[0].name, len(part.tensors) - 1
    wraps = event_site(gradients, Wrapped, part.ranks)
    told = line_with(sources.texts, wraps, "_ignore")
    return Finding(
        title=f"{first}{f' and {more} more' if more else ''} are trained on {named(part.ranks)} and never averaged: "
        f"DistributedDataParallel was told to ignore them, and the program reduces only {part.beside} others that it ignores",
        ranks=part.ranks,
        place=told or wraps or part.update.site,
        places=(
            *((Place(told, part.ranks, "names what is ignored"),) if told else ()),
            *((Place(wraps, part.ranks, "wraps the rest"),) if wraps else ()),
            Place(part.update.site, part.ranks, "the optimizer steps"),
        ),
        evidence={
            "parameters": [tensor.name for tensor in part.tensors[:8]],
            "reduced by the program": part.beside,
            "step": part.update.step,
        },
        why=f"they began equal, differ after step {part.update.step} and are never the same again, on ranks that "
        f"{part.together}; no all_reduce that the program makes in most of its steps has their shapes",
        prescriptions=(
            Prescription(
                "wrap-last", change=f"let DistributedDataParallel ignore only what the program reduces, and not {first}"
            ),
        ),
        confidence=POSSIBLE if part.together == SAVED else LIKELY,
        severity=WARNING if part.together == SAVED else None,
        at_ns=part.update.at_ns,
    )


def _origin(
    parting: ReplicaDivergence, gradients: Gradients, sources: Sources, wrapped: SourceLine
) -> tuple[SourceLine, str]:
    ranks = parting.peers.ranks
    outside = any(d.tensor.flags & TensorFlag.OUTSIDE for d in parting.differences)
    if not outside:
        return event_site(gradients, Converted, ranks) or wrapped, "moved or cast after wrapping"
    parts = {part for difference in parting.differences for part in difference.name.split(".")}
    added = event_site(gradients, ParameterAdded, ranks, among=parts)
    if added:
        return added, "added after wrapping"
    return _unfrozen(sources, wrapped) or wrapped or parting.site, "frozen when the model was wrapped, trained now"


def _unfrozen(sources: Sources, wrapped: SourceLine) -> SourceLine:
    """The line that unfreezes: in the function that wraps, or the only one of the file."""
    here = line_with(sources.texts, wrapped, "requires_grad", "True", within=True)
    lines = enumerate(sources.texts.get(wrapped.path, "").splitlines(), 1)
    every = [number for number, line in lines if _UNFREEZES.search(line.partition("#")[0])]
    return here or (SourceLine(wrapped.path, every[0]) if len(every) == 1 else SourceLine())


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2, flags={"head.weight": int(TensorFlag.OUTSIDE)})
    return job.initial().step(grads={1: 1}, params={1: 1}, names=["head.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().recording()
