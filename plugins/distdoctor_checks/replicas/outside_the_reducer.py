"""
DD219 outside-the-reducer: DistributedDataParallel does not reduce some of the parameters that train inside it.

What it means    DistributedDataParallel registers the parameters when it is constructed. Parameters that were frozen then and
                 are trained now, that were added or replaced later, or that lost their hooks because the model was moved or
                 cast, are never averaged.
Why it hurts     These parameters train on each rank's own data alone; the rest of the model is averaged, and nothing fails.
How we know      Their gradients differ at the step. The wrapped module holds them but the wrapper did not register them; or the
                 module was moved or cast after wrapping, which gives parameters new gradient accumulators.
What to do       Unfreeze, add, move and cast first, and wrap last; or wrap again after the change and rebuild the optimizer.
When it is fine  Parameters that DistributedDataParallel was told to ignore are not compared.
Source           torch.nn.parallel.DistributedDataParallel: "No parameters should be added nor removed later."
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import (
    ReplicaDivergence,
    ReplicaDivergences,
    is_outside_the_reducer,
    was_converted,
)
from distdoctor.diagnosis.replicas.gradients import WRAPPER
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.wording import event_site, evidence, line_with, places, sides, which
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Converted, ParameterAdded, Wrapped
from distdoctor.recording.trace.layout import TensorFlag

OF_A_HINT = 15  # that a module was moved after wrapping explains less than what the gradients themselves show
_UNFREEZES = re.compile(r"\.requires_grad_\((True)?\)|\.requires_grad\s*=\s*True")


@check("DD219", "outside-the-reducer", severity=ERROR, family="replicas", specificity=70)
def examine(partings: ReplicaDivergences, sources: Sources) -> Iterator[Finding]:
    for parting in partings.found:
        outside = parting.what == GRADS and is_outside_the_reducer(parting)
        converted = parting.what == GRADS and parting.peers.by == WRAPPER and was_converted(parting, partings.gradients)
        if not outside and not converted:
            continue
        wrapped = event_site(partings.gradients, Wrapped, parting.peers.ranks)
        line, how = _origin(parting, partings, sources, wrapped)
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
            why=f"{parting.share} differ at the step, {sides(parting)}, and the wrapper averages none of them",
            prescriptions=(Prescription("wrap-last"),),
            at_ns=parting.at_ns,
            explains=(parting.key,),
            specificity=None if outside else OF_A_HINT,
        )


def _origin(
    parting: ReplicaDivergence, partings: ReplicaDivergences, sources: Sources, wrapped: SourceLine
) -> tuple[SourceLine, str]:
    gradients, ranks = partings.gradients, parting.peers.ranks
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
