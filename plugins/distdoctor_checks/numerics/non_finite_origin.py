"""
DD801 non-finite-origin: the first NaN or infinity, with its rank, step, layer, and whether it arose in forward or backward.

What it means    A loss, an activation or a gradient is not finite. Averaging carries it to every rank within one step, and the
                 optimizer into every weight.
Why it hurts     From then on everything is NaN everywhere, and nothing shows any longer where it began.
How we know      The loss is read on each rank when backward begins, before averaging. Once it is not finite, the values that
                 autograd has kept for backward are read in their order, unless checkpointing or offloading has put hooks before
                 them. What arises in backward arrives at the first layers, whose gradients are read before they are averaged
                 (on the CPU, where no shard). A loss that had grown a thousandfold by then says that training had diverged.
                 `check-grads` checks each module's output and every local gradient.
What to do       Check that rank's batch of that step first, then the layer: log or division of zero, too large a learning rate,
                 fp16 without a scaler, an empty mask in a softmax.
When it is fine  Overflows that GradScaler skips are not reported. If the job itself skips such a step, and every rank steps
                 with finite gradients and losses afterwards, it is a note; so it is where the optimizer itself leaves it out, and
                 of one of several trainings of a process (a search over learning rates) of which four, or the last two,
                 stayed finite.
Source           torch.amp.GradScaler; torch.autograd.detect_anomaly names the operation at 20-160 % cost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import NonFinite
from distdoctor.recording.trace.layout import DigestFlag

# Trainings of one process that stayed finite, by which another one is of a search: behind it, and in all (a training in stages
# has two or three).
LATER, TRAININGS = 2, 4
# What is noted besides the loss: how the title says it, and why it is the first.
_WHERE = {
    "output": ("the first non-finite value came out of", "everything before that layer was finite"),
    "input": (
        "the first non-finite value was already in the input of",
        "the batch or its preprocessing produced a NaN or an infinity",
    ),
    "nan": (
        "the first NaN that autograd kept arose in",
        "all that autograd kept for backward from before was a number; an operation there made the NaN, or was given it",
    ),
    "infinity": (
        "the first infinity that autograd kept arose in",
        "all that autograd kept for backward from before was finite",
    ),
    "outside": (
        "the first NaN that autograd kept was given to",
        "no operation that is differentiated made it: it is of the batch, or was computed without gradients",
    ),
    "weight": (
        "before that forward pass there was a NaN or an infinity in",
        "an earlier step or a loaded state put it there",
    ),
}


TIMES = 1000.0  # by which a loss has grown when training has diverged
FEWEST, MOST_LOSSES = 4, 64  # steps before that are looked at


@check("DD801", "non-finite-origin", severity=ERROR, family="non-finite")
def examine(gradients: Gradients) -> Iterator[Finding]:
    seen = [(rank, one) for rank, own in gradients.ranks.items() for one in own.events(NonFinite)]
    if not seen:
        yield from _from_updates(gradients)
        return
    when = min((one.step, one.backward) for _, one in seen)
    first = [(rank, one) for rank, one in seen if (one.step, one.backward) == when]
    after = _steps_after(first, gradients)
    if gradients.recording.job.running and not any(after.values()):
        return  # the next step tells whether the optimizer took it
    broken = [one for own in after.values() for one in own if one.number("non_finite")]
    spared = all(after[rank] for rank, _ in first) and (not broken or _is_over(gradients, broken))
    spared = spared and not any(_loss_is_gone(own.updates, after[rank]) for rank, own in gradients.ranks.items())
    found = _from_events(first, gradients)
    if spared:
        yield _left_out(found)
    elif broken and all(_is_one_of_many(rank, gradients, broken) for rank, _ in first):
        yield replace(
            found, severity=NOTE, title=f"{found.title}; it was one of several trainings, and others were finite"
        )
    else:
        yield _after_divergence(found, gradients, when[0])


def _steps_after(first: list[tuple[int, NonFinite]], gradients: Gradients) -> dict[int, list[Update]]:
    """Of each rank the steps whose gradients were looked at, from the one on to which the value belongs. On the rank that noted
    it these are all that came later: a second optimizer counts steps of its own."""
    step, at_ns = first[0][1].step, min(one.at_ns for _, one in first)
    noted = {rank for rank, _ in first}
    return {
        rank: [one for one in own.updates if one.digested and (rank in noted or one.step >= step) and one.at_ns > at_ns]
        for rank, own in gradients.ranks.items()
    }


def _loss_is_gone(own: Sequence[Update], after: Sequence[Update]) -> bool:
    """Whether a loss that was a number is none in any later step: the weights hold the NaN, though gradients that do not depend
    on them are finite."""
    are_gone = bool(after) and not any(math.isfinite(one.value("loss")) for one in after)
    return are_gone and any(math.isfinite(one.value("loss")) for one in own)


def _is_one_of_many(rank: int, gradients: Gradients, broken: Sequence[Update]) -> bool:
    """Whether what a rank lost were some of several trainings, as of a search over learning rates: since their last step two
    more optimizers at least have stepped, or so many in all before and after, of which nothing is NaN or infinite."""
    own, lost = gradients.ranks[rank].updates, {one.optimizer for one in broken if one.rank == rank}
    times = [one.at_ns for one in own if one.optimizer in lost]
    trainings: dict[int, list[Update]] = defaultdict(list)
    for one in own:
        if one.digested and one.optimizer not in lost:
            trainings[one.optimizer].append(one)
    kept = [steps for steps in trainings.values() if not any(one.number("non_finite") for one in steps)]
    kept = [steps for steps in kept if all(math.isfinite(one.value("loss")) for one in steps if one.step)]
    after = [steps for steps in kept if times and steps[0].at_ns > max(times)]
    before = [steps for steps in kept if times and steps[-1].at_ns < min(times)]
    return len(after) >= LATER or len(before) + len(after) >= TRAININGS


def _left_out(finding: Finding) -> Finding:
    """The same of a pass whose gradients no optimizer has used: an overflow that the job deals with."""
    title = f"{finding.title}; no optimizer used it, and later steps were finite on every rank"
    return replace(finding, title=title, severity=NOTE)


def _after_divergence(finding: Finding, gradients: Gradients, step: int) -> Finding:
    """The same where the loss had grown out of all bounds before: then the value is the end of it, and of no batch."""
    for rank in finding.ranks:
        before = [one for one in gradients.ranks[rank].updates if one.digested and one.step < step]
        losses = [abs(loss) for one in before if math.isfinite(loss := one.value("loss"))][-MOST_LOSSES:]
        if len(losses) >= FEWEST and losses[-1] >= TIMES * min(losses) and all(a < b for a, b in pairwise(losses[-3:])):
            return replace(
                finding,
                why=f"the training had diverged: the loss of rank {rank} had grown from {min(losses):.3g} to {losses[-1]:.3g} in "
                "the steps before",
                prescriptions=(
                    Prescription(
                        "find-the-first-nan",
                        change="look for what made the loss grow: too large a learning rate, gradients that are summed where "
                        "they should be averaged (over micro-steps, tokens or ranks), or no clipping",
                    ),
                ),
                evidence={**finding.evidence, "losses_before": [float(f"{loss:.4g}") for loss in losses[-8:]]},
            )
    return finding


def _from_events(by_rank: list[tuple[int, NonFinite]], gradients: Gradients) -> Finding:
    first = [one for _, one in by_rank]
    when = first[0].step, first[0].backward
    ranks = tuple(sorted({rank for rank, _ in by_rank}))
    layer = next((one for one in first if one.what in _WHERE), None)
    gradient = next((one for one in first if one.what == "gradient"), None)
    loss = next((one for one in first if one.what == "loss"), None)
    before = next((one for one in first if one.what == "last finite"), None)
    place = next((one.site for one in first if one.site), SourceLine())
    others = tuple(rank for rank in gradients.ranks if rank not in ranks)
    return Finding(
        title=f"step {when[0]}: {_what(loss, layer, gradient)} on {named(ranks)}"
        + (f", while the values on {named(others)} were finite" if others else ""),
        ranks=ranks,
        place=place,
        places=tuple(Place(one.site, (rank,), f"{one.what}: {one.name}") for rank, one in by_rank[:6]),
        evidence={
            "step": when[0],
            "backward": when[1],
            "seen": [f"rank {rank} {one.what} {one.name}" for rank, one in by_rank[:8]],
            "layer": layer.name if layer else gradient.name if gradient else "",
            "where": "forward" if loss else "gradient",
        },
        why=_why(loss, layer, gradient, before),
        prescriptions=(Prescription("find-the-first-nan", change=_change(loss, layer, gradient, ranks, before)),),
        confidence=CERTAIN,
        at_ns=min(one.at_ns for one in first),
    )


def _what(loss: NonFinite | None, layer: NonFinite | None, gradient: NonFinite | None) -> str:
    if layer is not None:
        return f"the loss is {loss.name if loss else 'not finite'}: {_WHERE[layer.what][0]} {layer.name}"
    if loss is not None:
        return f"the loss is {loss.name} when backward begins"
    return f"a finite loss gives {gradient.name if gradient else 'a parameter'} a gradient that is not finite"


def _why(loss: NonFinite | None, layer: NonFinite | None, gradient: NonFinite | None, before: NonFinite | None) -> str:
    if layer is not None and before is not None:
        return (
            f"{before.name} ran before it and put out finite values: it was made between them, or came with the batch"
        )
    if layer is not None:
        return _WHERE[layer.what][1]
    if loss is not None:
        return "it arose in the forward pass or in the loss"
    return "the forward pass was finite: it arose in backward, in this layer or between it and the loss"


def _change(
    loss: NonFinite | None,
    layer: NonFinite | None,
    gradient: NonFinite | None,
    ranks: tuple[int, ...],
    before: NonFinite | None,
) -> str:
    """What to look at next, as far as it is known where the first value arose."""
    if layer is not None and layer.what == "weight":
        first = f"look for what first made {layer.name} non-finite on {named(ranks)}"
        return (
            f"{first}: the gradients of earlier steps, or a loaded state. `distdoctor check-grads` in the place of `run` looks "
            "at the gradients of each rank in every step, before they are averaged, and names rank, step and layer"
        )
    if layer is not None and before is not None:
        batch = f"the batch of {named(ranks)} in step {layer.step}"
        return f"look at what is computed between {before.name} and {layer.name}, and at {batch}"
    if layer is not None and layer.what in ("input", "outside"):
        return f"look at the batch of {named(ranks)} in step {layer.step}: how it is read and normalized"
    named_one = layer or (gradient if loss is None else None)
    if named_one is not None:
        batch = f"the batch of {named(ranks)} in step {named_one.step}"
        return f"look at what {named_one.name} makes of {batch}; torch.autograd.detect_anomaly() names the operation"
    return f"run `distdoctor check-grads`, which names the layer, and look at that step's batch of {named(ranks)}"


def _from_updates(gradients: Gradients) -> Iterator[Finding]:
    """Gradients that were seen only when the optimizer stepped, after averaging."""
    broken = [update for update in gradients.every_update() if update.number("non_finite")]
    if not broken:
        return
    step = min(update.step for update in broken)
    first = [update for update in broken if update.step == step]
    ranks = tuple(sorted({update.rank for update in first}))
    names = _broken_names(gradients, ranks[0], step, first[0].optimizer)
    found = Finding(
        title=f"step {step}: the optimizer steps with gradients that are not finite, first {names[0] if names else 'unknown'}",
        ranks=ranks,
        place=first[0].site,
        places=(Place(first[0].site, ranks, "steps with NaN or infinity"),),
        evidence={"step": step, "parameters": names[:8], "tensors": max(u.number("non_finite") for u in first)},
        why=f"{max(u.number('non_finite') for u in first)} of {first[0].number('tensors')} gradients hold a NaN or an infinity, "
        "but no rank's loss did; averaging spreads it, and `distdoctor check-grads` names the rank and layer",
        prescriptions=(Prescription("find-the-first-nan"),),
        confidence=LIKELY,
        at_ns=min(update.at_ns for update in first),
    )
    yield (
        replace(found, severity=NOTE, title=f"{found.title}; later steps were finite")
        if _is_over(gradients, broken)
        else found
    )


def _is_over(gradients: Gradients, broken: list[Update]) -> bool:
    """Whether every optimizer that was given such gradients has stepped with finite ones since, on each rank: its weights are
    finite, so it left those out itself, or put numbers in their places."""
    last: dict[tuple[int, int], int] = {}
    for update in broken:
        key = update.rank, update.optimizer
        last[key] = max(update.step, last.get(key, 0))
    return all(
        any(one.digested and one.optimizer == optimizer and one.step > step for one in gradients.ranks[rank].updates)
        for (rank, optimizer), step in last.items()
    )


def _broken_names(gradients: Gradients, rank: int, step: int, optimizer: int) -> list[str]:
    rows = gradients.ranks[rank].digests(step, optimizer)
    return [name for name, row in rows.items() if int(row["flags"]) & DigestFlag.NON_FINITE]


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().step()
    job.note(NonFinite("loss", "nan", step=2, backward=2), site="train.py:31 train", only=[1])
    return job.note(NonFinite("loss", "nan", step=3, backward=3), site="train.py:31 train", only=[0]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().recording()
