"""
DD202 unsynchronised-gradients: the optimizer steps with different gradients on ranks that should average them.

What it means    When optimizer.step() begins, the gradient of one parameter is not bit-identical on every replica.
Why it hurts     Each rank takes its own step. From then on the replicas are different models, although every loss looks fine.
How we know      Digests of all bits of every gradient, compared between the ranks of one DistributedDataParallel, one DTensor
                 placement, one group whose gradients are reduced by hand, or of one model named by
                 `distdoctor.watch(model)`. Correct training agrees bit for bit. Or parameters began equal, part in the first
                 step and never meet again while the same ranks keep others equal, and a loop that reduces by hand skips
                 just those: likely. Where the optimizers hold the same
                 parameters in different orders, that is told, with the set whose order it is. Where the wrapper's forward
                 ran and no backward pass did, the line that takes gradients (torch.autograd.grad, which averages nothing)
                 is searched in the source.
What to do       Pass every gradient through one reduction before the step, and change gradients afterwards in the same way on
                 all ranks: no clipping by local values, no noise, no branch on the rank.
When it is fine  Local training whose weights the program brings together again (local SGD, DiLoCo): not reported, and while
                 the job runs nothing is said of the first 512 steps apart. Gradients that are the same numbers but for
                 rounding (second-order methods that deal out their inverses): a note with the size of the difference,
                 where elements of them were kept. Modules that averages by hand leave out, as heads
                 for tasks of their own: a note, and nothing where they began differently. An error all the same where the
                 loop skips them for the form of their gradients (sparse ones, those of one dimension), or for a word in
                 their names that is meant for parameters which began differently (experts). If the cause is known,
                 another code reports it: a forward that bypasses the wrapper (DD206), no_sync (DD207), parameters unknown to
                 the reducer (DD219), a single flipped bit (DD214).
Source           torch.nn.parallel.DistributedDataParallel, notes on gradient synchronisation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.diagnosis.replicas.gradients import BY_HAND, PLACEMENT, WRAPPER
from distdoctor.diagnosis.replicas.reduced_by_hand import came_before_the_last_pass, reduction_line
from distdoctor.diagnosis.replicas.rounding import rounding_error
from distdoctor.diagnosis.replicas.skipped_gradients import LeftOutOfReduction, SkippedGradients
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.wording import (
    evidence,
    in_other_orders,
    line_with,
    ordered_at,
    places,
    sides,
    tie,
    which,
)
from distdoctor.diagnosis.source.backward_hooks import hooked_at
from distdoctor.diagnosis.source.given_values import called_from
from distdoctor.diagnosis.source.local_tensors import taken_local
from distdoctor.diagnosis.source.reduced_copies import ReducedCopy, reduced_copy
from distdoctor.diagnosis.source.set_order import lists_in_set_order
from distdoctor.diagnosis.source.skipped_gradients import LAYOUT, NAME
from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import WATCHED

OF_LOCAL = (
    "a DTensor takes the gradient of what to_local() gave for its own, as it is placed: whole on every rank. Where each rank "
    "computes a part of it only, because the layer behind it is split, gradients differ like this"
)
WHOLE = "say that it is a part of a sum: to_local(grad_placements=[Partial()]), one for each dimension of the mesh that splits it"
BEHIND_THE_LAST = "reduce the gradients once for each step of the optimizer, behind its last backward pass"
OF_A_SKIP = 40  # the line that leaves gradients out explains more than that they differ
UNORDERED = (
    ". The file that reduces them makes a list in the order of a set, which may be another one in each process: if gradients are "
    "packed in that order, those of different parameters are added up"
)


@check("DD202", "unsynchronised-gradients", severity=ERROR, family="replicas")
def examine(partings: ReplicaDivergences, skipped: LeftOutOfReduction | None, sources: Sources) -> Iterator[Finding]:
    left_out = {one: _partings_of(one, partings) for one in skipped.found} if skipped is not None else {}
    for one, facts in left_out.items():
        if one.skip is not None or not facts:  # what is no more than a note is told below as well
            yield _skipped(one, facts)
    told = [parting for one, facts in left_out.items() if one.skip is not None for parting in facts]
    for parting in partings.found:
        if parting.what != GRADS or parting in told:
            continue
        rounding = rounding_error(partings.gradients, parting)
        if rounding is not None:
            yield _by_rounding(parting, rounding)
            continue
        asked = _asked_for_gradients(parting, sources)
        by_hand = _reduced_at(parting, partings, sources)
        # A wrapper reduces by an order of its own, and so do placements.
        orders = partings.gradients.other_orders(parting.peers) if parting.peers.by in (BY_HAND, WATCHED) else {}
        if orders:
            by_hand = (*ordered_at(parting, orders, sources.texts), *by_hand)
        hook = hooked_at(sources.texts, parting.site) if parting.peers.by == WRAPPER else SourceLine()
        local = _taken_local(parting, sources)
        early = _reduced_early(parting, partings, by_hand)
        copy = reduced_copy(sources.texts, by_hand[0].site) if by_hand and not orders else None
        unordered = () if orders or not by_hand else _packed_in_set_order(parting, by_hand[0].site, sources)
        shown = (
            *_taken_at(asked, parting),
            *local,
            *_copied(copy, parting),
            *(_when_reduced(by_hand, sources) if early else ()),
            *by_hand,
            *unordered,
            *_hooked(hook, parting),
        )
        yield Finding(
            title=f"{parting.when}: the gradients of {which(parting)} differ when the optimizer steps, {sides(parting)}",
            ranks=parting.odd,
            undecided=parting.is_tie and not (orders or hook),
            place=parting.site if not shown or shown[0].site == hook else shown[0].site,
            places=(*shown, *places(parting)),
            evidence=evidence(parting, synced=parting.counts("synced")),
            why=(OF_LOCAL if local else _why(parting, orders, hook, early=early))
            + _of_copy(copy)
            + (UNORDERED if unordered else ""),
            prescriptions=(
                Prescription("all-reduce-gradients", change=WHOLE)
                if local
                else Prescription("all-reduce-gradients", change=BEHIND_THE_LAST)
                if early
                else _prescription(orders or unordered, hook, copy),
            ),
            confidence=parting.confidence,
            severity=NOTE if parting.confidence == POSSIBLE else None,
            at_ns=parting.at_ns,
            explains=(parting.key,),
        )


def _partings_of(one: SkippedGradients, partings: ReplicaDivergences) -> list[ReplicaDivergence]:
    """The divergences in which only parameters differ that were left out."""
    mine = (parting for parting in partings.found if parting.peers.optimizer == one.peers.optimizer)
    return [found for found in mine if found.differences and {d.name for d in found.differences} <= one.peers.names]


def _skipped(one: SkippedGradients, facts: Sequence[ReplicaDivergence]) -> Finding:
    ranks, skip, first = one.peers.ranks, one.skip, one.tensors[0].name
    more = f" and {len(one.tensors) - 1} more" if len(one.tensors) > 1 else ""
    how = f"`{skip.text[:80]}` leaves them out" if skip is not None else "others are reduced by hand"
    sign = (
        (
            "The program broadcasts all of them before the first step"
            if one.sent
            else "Some ranks save and others do not, as of one model"
        )
        + ": forgotten, or meant to be each rank's own"
        if skip is None
        else "The other parameters whose names it fits began differently on each rank and are its own: these are not"
        if skip.form == NAME
        else f"Those that it leaves out have another {skip.form} than the others"
    )
    shown = (
        *((Place(skip.site, ranks, "decides which gradients are reduced"),) if skip is not None else ()),
        *((Place(one.reduced, ranks, "gradients are reduced"),) if one.reduced else ()),
        *((Place(one.update.site, ranks, "steps with each rank's own gradients"),) if one.update.site else ()),
    )
    return Finding(
        title=f"step {one.update.step}: the gradients of {first}{more} are not reduced over {named(ranks)}: {how}",
        ranks=ranks,
        place=shown[0].site if shown else SourceLine(),
        places=shown,
        evidence={
            "parameters": [tensor.name for tensor in one.tensors[:8]],
            "kept_equal": one.kept,
            "step": one.update.step,
        },
        why=f"{named(ranks)} keep {one.kept} other parameters equal in each step; {first}{more} began equal, differ from step "
        f"{one.update.step} on and are never the same again. {sign}",
        prescriptions=(
            Prescription(
                "all-reduce-gradients",
                change="reduce what is skipped as well (of sparse gradients a dense copy: p.grad = p.grad.to_dense())"
                if skip is not None and skip.form == LAYOUT
                else "ask for the whole name of the part that is each rank's own, and reduce what else the word fits"
                if skip is not None and skip.form == NAME
                else "",
            ),
        ),
        confidence=LIKELY if skip is not None else POSSIBLE,
        severity=None if skip is not None else NOTE,
        at_ns=one.update.at_ns,
        explains=tuple(parting.key for parting in facts),
        specificity=OF_A_SKIP,
    )


def _by_rounding(parting: ReplicaDivergence, error: float) -> Finding:
    """Other bits on each rank, but as far as was looked the same numbers, computed or sent in ways that round differently."""
    ranks = parting.peers.ranks
    return Finding(
        title=f"{parting.when}: the gradients of {which(parting)} are not the same bits on {named(ranks)}, but differ by no "
        f"more than rounding where they were looked at (relative {error:.0e})",
        ranks=ranks,
        place=parting.site,
        places=places(parting),
        evidence=evidence(parting, relative_difference=error),
        why="the norms of all and the elements that were kept of some agree so far: computations that round differently (sums in "
        "another order, a matrix that one rank holds by columns and another by rows) add such a difference in each step",
        prescriptions=(
            Prescription(
                "all-reduce-gradients",
                change="if the replicas are to stay equal bit for bit, let one rank compute what is changed after the reduction, "
                "and send it as it is stored (.contiguous())",
            ),
        ),
        confidence=max(parting.confidence, LIKELY),  # that the bits differ is certain, that it is rounding is not
        severity=NOTE,
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _without_backward(parting: ReplicaDivergence) -> bool:
    """Whether the wrapped model's forward ran on every rank, and no backward pass: then nothing was averaged."""
    forwards, backwards = parting.counts("synced"), parting.counts("backwards")
    return parting.peers.by == WRAPPER and all(forwards.values()) and not any(backwards.values())


def _asked_for_gradients(parting: ReplicaDivergence, sources: Sources) -> SourceLine:
    """Where the source takes gradients otherwise than by backward(), when it does."""
    if not _without_backward(parting):
        return SourceLine()
    found = (line_with(sources.texts, parting.site, word) for word in ("autograd.grad(", " grad("))
    return next((line for line in found if line), SourceLine())


def _taken_at(asked: SourceLine, parting: ReplicaDivergence) -> tuple[Place, ...]:
    return (Place(asked, parting.peers.ranks, "takes gradients without backward()"),) if asked else ()


def _reduced_at(parting: ReplicaDivergence, partings: ReplicaDivergences, sources: Sources) -> tuple[Place, ...]:
    """Where the program reduces gradients itself, and where it begins to, when none of those that differ was left out of it."""
    if parting.peers.by != BY_HAND or parting.confidence == POSSIBLE:
        return ()
    line, ranks = reduction_line(partings.gradients, parting.peers), parting.peers.ranks
    caller = called_from(sources.texts, line) if line else SourceLine()
    return (
        *((Place(line, ranks, "gradients are reduced"),) if line else ()),
        *((Place(caller, ranks, "begins the reduction"),) if caller else ()),
    )


def _reduced_early(parting: ReplicaDivergence, partings: ReplicaDivergences, by_hand: Sequence[Place]) -> bool:
    """Whether a step of several backward passes reduced its gradients before the last of them."""
    if not by_hand or parting.peers.by != BY_HAND:
        return False
    return came_before_the_last_pass(partings.gradients, parting.peers, parting.step, by_hand[0].site)


def _when_reduced(by_hand: Sequence[Place], sources: Sources) -> tuple[Place, ...]:
    """The condition under which the reduction is begun."""
    begun = by_hand[-1].site
    file = source_file(sources.texts, begun.path)
    around = [node for node in file.path_to(begun.line) if isinstance(node, ast.If)] if file is not None else []
    if not around:
        return ()
    line = SourceLine(begun.path, around[-1].lineno, begun.function)
    return (Place(line, by_hand[-1].ranks, f"decides when they are reduced: `{ast.unparse(around[-1].test)[:80]}`"),)


def _packed_in_set_order(parting: ReplicaDivergence, line: SourceLine, sources: Sources) -> tuple[Place, ...]:
    """Where the file that reduces makes a list in the order of a set, when every gradient is reduced and every one differs."""
    if len(parting.differences) < max(parting.compared, 2):
        return ()
    lists = lists_in_set_order(sources.texts, line.path)
    return tuple(Place(one, parting.peers.ranks, "makes a list in the order of a set") for one in lists[:2])


def _taken_local(parting: ReplicaDivergence, sources: Sources) -> tuple[Place, ...]:
    """Where the source takes out of its DTensor the parameter whose gradient is another one on each rank."""
    if parting.peers.by != PLACEMENT or parting.first is None:
        return ()
    line = taken_local(sources.texts, parting.first.name)
    return (Place(line, parting.peers.ranks, "makes it local"),) if line else ()


def _copied(copy: ReducedCopy | None, parting: ReplicaDivergence) -> tuple[Place, ...]:
    return (Place(copy.taken, parting.peers.ranks, "takes a copy, which is not written back"),) if copy else ()


def _of_copy(copy: ReducedCopy | None) -> str:
    if copy is None:
        return ""
    when = "is a copy" if copy.always else "may be a copy (where the tensor is not as it asks for already)"
    return f". What is reduced, `{copy.text[:60]}`, {when}, and nothing writes it back into the gradient"


def _hooked(hook: SourceLine, parting: ReplicaDivergence) -> tuple[Place, ...]:
    return (Place(hook, parting.peers.ranks, "has the hook called inside the backward pass"),) if hook else ()


def _prescription(orders: object, hook: SourceLine, copy: ReducedCopy | None) -> Prescription:
    if copy is not None:
        return Prescription(
            "all-reduce-gradients", change="write what was reduced back into the gradient (p.grad.copy_)"
        )
    if hook:
        return Prescription(
            "all-reduce-gradients",
            change="call the optimizer's step() after backward(), or let the hook average the gradient over the ranks first",
        )
    return Prescription("one-order-everywhere" if orders else "all-reduce-gradients")


def _why(
    parting: ReplicaDivergence, orders: Mapping[str, tuple[int, ...]], hook: SourceLine, *, early: bool = False
) -> str:
    parts = []
    if orders:
        parts.append(in_other_orders(orders))
    elif hook:
        parts.append(
            f"the optimizer steps in a hook of the backward pass, before {parting.peers.by} hands back what it averaged: "
            "the gradient there is this rank's own"
        )
    elif _without_backward(parting):
        parts.append(
            f"{parting.peers.by} averages gradients in backward() only, and none was seen: those that the optimizer steps "
            "with were computed in another way (torch.autograd.grad) and stayed each rank's own"
        )
    elif early:
        parts.append(
            f"they were reduced over {named(parting.peers.ranks)} before the last backward pass of the step: what that one added "
            "stayed each rank's own"
        )
    elif parting.confidence == POSSIBLE:
        parts.append(f"no all_reduce had the shapes of {parting.share}: forgotten, or meant to be each rank's own")
    elif parting.peers.by in (BY_HAND, WATCHED):
        parts.append(f"{parting.share} were not reduced over {named(parting.peers.ranks)}, or were changed afterwards")
    elif unprepared := _unprepared(parting):
        parts.append(unprepared)
    else:
        parts.append(
            f"{parting.peers.by} averaged the gradients, and {parting.share} were changed afterwards on some ranks only"
        )
    none = parting.first.none_on if parting.first else ()
    if none:
        parts.append(f"{named(none)} had no gradient: it did not use that parameter in this step")
    parts.append("" if orders or hook else tie(parting))
    return ". ".join(part for part in parts if part)


def _unprepared(parting: ReplicaDivergence) -> str:
    """Where more backward passes were seen than forwards through the wrapper; "" where each had one."""
    synced, unsynced = parting.counts("synced"), parting.counts("unsynced")
    passes = max(parting.counts("backwards").values(), default=0)
    forwards = max((synced[rank] + unsynced[rank] for rank in synced), default=0)
    if passes <= forwards:
        return ""
    ways = f"{forwards} forward{'' if forwards == 1 else 's'} through {parting.peers.by}"
    return (
        f"{passes} backward passes and {ways} since the previous step: what a backward pass computes that no forward has "
        f"prepared (in Lightning: no self.manual_backward()) is not averaged; or {parting.share} were changed afterwards"
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step(grads={1: 1}, params={1: 1}, names=["head.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step().recording()
