"""
DD210 rank-dependent-branch: in one step some ranks used parameters that others did not, or skipped the step entirely.

What it means    A value known only to this rank (its batch, its loss, its rank) chose a branch. Some ranks have a gradient for
                 a parameter and others have none, or some ranks call optimizer.step() and others skip it.
Why it hurts     Parameters are averaged with others of the same shape, or change on some ranks only: the replicas diverge
                 without an error. With other shapes, or with DistributedDataParallel, the job hangs instead (DD103, DD121).
How we know      At the optimizer step, some of the ranks that should agree hold a gradient for a parameter and others hold
                 None. Or a rank reaches the same step after more backward passes than the others, and its gradients are those
                 of a later pass; passes are counted in every step, also between those that are sampled. Where optimizers hold
                 shards, nothing parts: there it is likely, when ranks that made all the same calls stepped unequally often,
                 and a condition on a rank's own values stands before the step.
What to do       Take the same branch on every rank (reduce the deciding value first), or let a rank that does not use a
                 parameter contribute zeros.
When it is fine  find_unused_parameters=True, which does that; zeros in place of missing gradients; a parameter that no rank
                 uses.
Source           torch.nn.parallel.DistributedDataParallel, find_unused_parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.hang.wording import decision_places
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences, uses_differ
from distdoctor.diagnosis.replicas.left_out_steps import Passes, is_read_off, left_out_step
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.uneven_steps import StepsOfLine, UnevenSteps
from distdoctor.diagnosis.replicas.wording import by_rank, evidence
from distdoctor.diagnosis.source.branches import branch_line
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording


@check("DD210", "rank-dependent-branch", severity=ERROR, family="replicas", specificity=50)
def examine(partings: ReplicaDivergences | None, uneven: UnevenSteps | None, sources: Sources) -> Iterator[Finding]:
    yield from (_uneven(line) for line in (uneven.found if uneven is not None else ()))
    if partings is None:
        return
    for parting in partings.found:
        left_out = left_out_step(parting, partings.gradients)
        if left_out is not None:
            yield _passed_over(parting, *left_out, sources)
        elif parting.what == GRADS and uses_differ(parting):
            yield _finding(parting, sources)


def _passed_over(
    parting: ReplicaDivergence, step: int, skipped: tuple[int, ...], passes: Passes, sources: Sources
) -> Finding:
    """A step that only some ranks made."""
    made = tuple(rank for rank in parting.updates if rank not in skipped)
    decision = deciding_condition(sources.texts, parting.site, parting.site, skipped, made)
    branch = (Place(decision.site, skipped, f"decides: `{decision.test}`"),) if decision is not None else ()
    return Finding(
        title=f"step {step}: {named(made)} took an optimizer step that {named(skipped)} skipped",
        ranks=skipped,
        place=parting.site,
        places=(*branch, Place(parting.site, made, "stepped"), Place(parting.site, skipped, "stepped a pass later")),
        evidence=evidence(parting, backwards_since_the_step_before=dict(passes)),
        why=f"backward passes since the previous step: {by_rank(passes)}. From here on the steps and gradients of "
        f"{named(skipped)} lag behind, and the replicas hold different weights",
        prescriptions=(Prescription("same-branch-everywhere"),),
        confidence=parting.confidence if is_read_off(parting) else LIKELY,
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _uneven(line: StepsOfLine) -> Finding:
    """Shards of one model, of which some are left out of a step."""
    decision = line.decision
    expression = decision.way[-1] if decision.way else (decision.site, decision.test)
    ranks = tuple(line.steps)
    return Finding(
        title=f"the optimizer stepped {by_rank(line.steps, ' times')}: each rank decides for itself whether to step",
        ranks=line.behind,
        place=expression[0],
        places=(
            *decision_places(decision, {expression[0]}),
            Place(line.site, ranks, "steps"),
            Place(line.reduced, ranks, "sums gradients of all ranks"),
        ),
        evidence={"steps": dict(line.steps), "decides": decision.test},
        why=f"all ranks made the same calls and sum their gradients each time; `{expression[1]}` is each rank's own, so the "
        f"parts that {named(line.behind)} hold{'s' if len(line.behind) == 1 else ''} were left out of steps that the others made",
        prescriptions=(Prescription("same-branch-everywhere"),),
        confidence=LIKELY,
        at_ns=line.at_ns,
    )


def _finding(parting: ReplicaDivergence, sources: Sources) -> Finding:
    partial = [difference for difference in parting.differences if difference.none_on]
    without = tuple(sorted({rank for difference in partial for rank in difference.none_on}))
    line = branch_line(sources.texts, [difference.name for difference in partial])
    first = partial[0]
    users = tuple(rank for rank in parting.updates if rank not in first.none_on)
    more = f" and {len(partial) - 1} more" if len(partial) > 1 else ""
    return Finding(
        title=f"{parting.when}: {named(users)} used {first.name}{more}, but {named(first.none_on)} did not",
        ranks=parting.odd,
        place=line or parting.site,
        places=(
            *((Place(line, parting.peers.ranks, "the branch"),) if line else ()),
            *(
                Place(
                    parting.site, tuple(r for r in parting.updates if r not in one.none_on), f"gradient of {one.name}"
                )
                for one in partial[:4]
            ),
        ),
        evidence=evidence(
            parting,
            used_by={one.name: [r for r in parting.updates if r not in one.none_on] for one in partial[:8]},
            none_on=list(without),
        ),
        why=f"{len(partial)} of {parting.compared} gradients are None on some of {named(parting.peers.ranks)} and not on "
        "others, so they cannot have been averaged",
        prescriptions=(Prescription("same-branch-everywhere"),),
        confidence=parting.confidence,
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step(none={1: ["head.weight"]}, params={1: 1}, synced=1).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    nobody = {0: ["head.weight"], 1: ["head.weight"]}
    return trained_job(2).initial().step(none=nobody).step(none=nobody).recording()
