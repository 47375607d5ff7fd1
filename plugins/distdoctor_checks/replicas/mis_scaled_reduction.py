"""
DD209 mis-scaled-reduction: gradients are summed over the ranks and never divided, or averaged twice.

What it means    The gradient that the optimizer uses is the mean of all ranks' gradients multiplied or divided by the number of
                 ranks: an all_reduce(SUM) without division, or a division of gradients that are already averaged.
Why it hurts     The effective learning rate depends on the number of ranks: settings tuned on one machine diverge, or crawl, on
                 eight.
How we know      A few elements of two gradients are sampled on each rank before the reduction and again at the optimizer step;
                 their ratio is the same everywhere and equals the number of ranks or its inverse. Or the autograd graph shows
                 that each rank divides its loss by a number that all ranks have counted together, and the wrapper averages
                 again; or that a mean loss is scaled by the number of ranks, which the source names there (likely). A note,
                 possible: each rank divides its summed loss by a count of its own, and the counts are far apart; a warning,
                 likely, where the same rank has the fewest again and again, which no average over steps makes up for.
                 Possible: the source divides terms of the loss by a count that a collective has summed over the ranks. Or the
                 first steps use the mean, and all later ones the sum, while the loss is made in one way (likely: a
                 communication hook that changes its way). Or experts, to which the ranks send rows, use what backward has
                 left (a sum over all ranks' losses), or its mean over their replicas alone, while the other gradients are
                 averaged (likely; a note with an optimizer that divides by their size). Or replicas sum rows, all_reduce the
                 sum and divide it by the number of rows of one rank, as the source shows (likely). Looked at are eight of the
                 first steps, and three from each power of two on.
What to do       Divide by the number of ranks exactly once: op=ReduceOp.AVG (NCCL), or a division after SUM; no division after
                 DistributedDataParallel or fully_shard.
When it is fine  A loss that is a sum, or that the script itself divides by the number of ranks: then a sum is right, and
                 nothing is reported. Nor where all ranks compute one loss together, each a part of its gradient.
Source           torch.nn.parallel.DistributedDataParallel: gradients are averaged across processes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import BY_HAND, OBSERVED, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.loss_scale import factor_of, reads_as_mean
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.replicas.reduced_by_hand import reduction_line
from distdoctor.diagnosis.replicas.undivided_experts import UndividedExperts, told_apart, undivided_experts
from distdoctor.diagnosis.replicas.used_factor import computes_one_loss, is_close, used_factors
from distdoctor.diagnosis.source.local_divisors import LocalDivisor, local_divisors
from distdoctor.diagnosis.source.loss_divisions import Division, divisions_before, dropped_division, term_over_all
from distdoctor.diagnosis.source.loss_scaling import scaling_line
from distdoctor.diagnosis.source.statement_edits import averaged_below
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import CallFlag, Op

SEEN = 2  # different counts; a constant may be anything
FEWEST = 3  # steps in which counts are far apart
FAR, APART = 1.5, 1.25  # times as much on one rank as on another: in those steps, and in most
# Steps, and the part of them, in which one rank has the fewest: by chance it is one of two in 8 of 8 in 0.8 % of jobs.
MANY, NEARLY = 8, 0.92
NUMBER_BYTES = 64  # of each rank: a count, or a few
EXCHANGES = [int(op) for op in (Op.ALL_REDUCE, Op.ALL_GATHER, Op.ALL_GATHER_INTO_TENSOR)]


@check("DD209", "mis-scaled-reduction", severity=ERROR)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    yield from _by_local_counts(gradients, sources.texts)
    for peers in gradients.peers:
        experts = undivided_experts(gradients, peers, sources.texts)
        if experts is not None:
            yield _undivided(experts, gradients, sources.texts)
            continue
        if peers.by == OBSERVED:
            continue
        by_step = list(used_factors(gradients, peers))
        divisors = _common_divisors(gradients, peers) if peers.by == WRAPPER else {}
        summed = any(is_close(factor, len(peers.ranks)) for _, factor in by_step)  # by a hook, or multiplied afterwards
        if len(set(divisors.values())) >= SEEN and not summed and _are_counted_together(gradients, peers, divisors):
            yield _divided_by_all(gradients, peers, divisors, sources.texts)
            continue
        own_counts = _own_divisors(gradients, peers) if peers.by == WRAPPER and not summed else {}
        if own_counts:
            yield _divided_alone(gradients, peers, own_counts, sources.texts)
            continue
        by_world = _scaled_by_ranks(gradients, peers, sources.texts) if not summed else None
        if by_world is not None:
            yield by_world
            continue
        term = _term_over_all(gradients, peers, sources.texts) if peers.by == WRAPPER and not summed else None
        if term is not None:
            yield term
            continue
        turned = _turning_point(by_step, len(peers.ranks))
        if (
            turned is not None
            and len({u.roots for own in gradients.updates(peers).values() for u in own if u.step}) == 1
        ):
            yield _turned(gradients, peers, turned, by_step)
            continue
        if not by_step:
            continue
        step, factor = by_step[0]
        wrong = next((known for known in (len(peers.ranks), 1 / len(peers.ranks)) if is_close(factor, known)), None)
        if wrong is None or not all(is_close(other, wrong) for _, other in by_step):
            continue
        if not _is_known_where_from(gradients, peers) or computes_one_loss(gradients, peers):
            continue
        scale = _loss_scale(gradients, peers)
        if scale is None and factor > 1:
            continue  # a sum, or divided by something that only the script knows: then a sum over the ranks may be right
        if scale is None or not is_close(factor * scale, 1.0):
            yield _finding(gradients, peers, step, factor, len(by_step), sources.texts)


def _turning_point(by_step: Sequence[tuple[int, float]], ranks: int) -> int | None:
    """Where the first steps use the mean, and all later ones the sum, or the mean divided by the number of ranks: how many use
    the mean. None: not so."""
    first = next((n for n, (_, factor) in enumerate(by_step) if not is_close(factor, 1.0)), 0)
    later = [factor for _, factor in by_step[first:]]
    same = any(all(is_close(factor, known) for factor in later) for known in (ranks, 1 / ranks))
    return first if first >= SEEN and len(later) >= FEWEST and same else None


def _turned(gradients: Gradients, peers: ReplicaGroup, first: int, by_step: Sequence[tuple[int, float]]) -> Finding:
    (before, _), (step, factor) = by_step[first - 1], by_step[first]
    update = next((u for updates in gradients.updates(peers, step).values() for u in updates), None)
    new = _first_called_in(gradients.ranks[peers.ranks[0]].log, before, step)
    site = new or (update.site if update else SourceLine())
    since = f"from step {step} on" if step == before + 1 else f"from some step after {before} on, by step {step},"
    what = "summed over the ranks and no more divided" if factor > 1 else "divided by the number of ranks once more"
    return Finding(
        title=f"{since} gradients are {what}: {factor:.4g} times the mean of {named(peers.ranks)}",
        ranks=peers.ranks,
        place=site,
        places=(
            *((Place(new, peers.ranks, f"reduces {since}".rstrip(",")),) if new else ()),
            *((Place(update.site, peers.ranks, "the optimizer steps"),) if update else ()),
        ),
        evidence={"factor": factor, "ranks": len(peers.ranks), "step": step, "steps_compared": len(by_step)},
        why=f"elements of the gradients before and after the reduction were compared in {len(by_step)} steps: the first {first} "
        f"use their mean, the others {factor:.4g} times that, over {len(peers.ranks)} ranks",
        prescriptions=(
            Prescription("divide-by-ranks-once", effect=f"gradients change by the factor {1 / factor:.4g}"),
        ),
        confidence=LIKELY,
        at_ns=update.at_ns if update else 0,
    )


def _first_called_in(log: RankTrace, before: int, step: int) -> SourceLine:
    """The one line of the user's that reduces in this step or later, and in none up to `before`; else no line. A call counts the
    steps that were done before it."""
    calls = log.calls[(log.calls["op"] == Op.ALL_REDUCE) & ((log.calls["flags"] & CallFlag.NATIVE) == 0)]
    known, now = (
        {int(one) for one in calls["site"][mask]} for mask in (calls["step"] < before, calls["step"] >= step - 1)
    )
    new = [log.site(one) for one in now - known]
    return new[0] if len(new) == 1 else SourceLine()


def _is_known_where_from(gradients: Gradients, peers: ReplicaGroup) -> bool:
    """Whether losses were seen that backward starts from: schedules of a pipeline scale gradients themselves after it."""
    roots = [u.roots for updates in gradients.updates(peers).values() for u in updates if u.step]
    return bool(roots) and all(one and one != "pipeline" for one in roots)


def _loss_scale(gradients: Gradients, peers: ReplicaGroup) -> float | None:
    """What the script multiplies mean losses by, over all micro-steps of one step: 1 / ranks goes with a sum over the ranks.

    None: not known, or no mean.
    """
    updates = [u for updates in gradients.updates(peers).values() for u in updates if u.step]
    if not updates or len({(u.roots, u.number("backwards")) for u in updates}) > 1:
        return None
    factor = factor_of(updates[0].roots)
    if factor is None or not reads_as_mean(updates[0].roots):
        return None
    return factor * max(1, updates[0].number("backwards"))


def _own_divisors(gradients: Gradients, peers: ReplicaGroup) -> dict[int, dict[int, float]]:
    """step -> rank -> the whole number by which it divides its summed loss, where every rank does and some have far more than
    others. {} where they are not apart in most steps. Of a step of several micro-batches it is the last one's."""
    by_step: dict[int, dict[int, float | None]] = defaultdict(dict)
    passes: dict[int, set[int]] = defaultdict(set)
    for rank, updates in gradients.updates(peers).items():
        for update in updates:
            if update.step and update.digested:
                by_step[update.step][rank] = _divisor(update.roots, len(peers.ranks))
                passes[update.step].add(update.number("backwards"))
    whole = {
        tuple(sorted(found.items())): step
        for step, found in by_step.items()
        if set(found) == set(peers.ranks) and len(passes[step]) == 1
    }
    counted: dict[int, dict[int, float]] = {}
    apart = []
    for (
        found,
        step,
    ) in whole.items():  # each once: between the steps in which the graph is read, the last reading stands
        counts = {rank: value for rank, value in found if value is not None}
        if len(counts) == len(peers.ranks):
            apart.append(max(counts.values()) / min(counts.values()))
            if apart[-1] >= FAR:
                counted[step] = counts
    most = sum(times >= APART for times in apart) > len(whole) / 2
    return counted if len(counted) >= FEWEST and most else {}


def _has_always_fewer(counts: Mapping[int, Mapping[int, float]]) -> int | None:
    """The rank that divides by the smallest count in nearly all steps, all of them together far smaller than another's."""
    totals: dict[int, float] = defaultdict(float)
    for step in counts.values():
        for rank, count in step.items():
            totals[rank] += count
    least = min(totals, key=lambda rank: totals[rank])
    fewest = sum(step[least] == min(step.values()) for step in counts.values())
    always = len(counts) >= MANY and fewest >= NEARLY * len(counts)
    return least if always and max(totals.values()) >= FAR * totals[least] else None


def _common_divisors(gradients: Gradients, peers: ReplicaGroup) -> dict[int, float]:
    """step -> the whole number by which every rank divides its summed loss, where it is the same on all and no rank multiplies
    by the number of ranks. {} where that is not so in every step that is known of all ranks: one may end before its last ones
    are written."""
    by_step: dict[int, set[float | None]] = defaultdict(set)
    ranks_of_step: dict[int, set[int]] = defaultdict(set)
    for rank, updates in gradients.updates(peers).items():
        for update in updates:
            if update.step and update.digested:
                by_step[update.step].add(_divisor(update.roots, len(peers.ranks)))
                ranks_of_step[update.step].add(rank)
    whole = {step: by_step[step] for step, ranks in ranks_of_step.items() if ranks == set(peers.ranks)}
    common = {step: next(iter(found)) for step, found in whole.items() if len(found) == 1}
    if len(common) < len(whole) or None in common.values():
        return {}
    return {step: value for step, value in common.items() if value is not None}


def _are_counted_together(gradients: Gradients, peers: ReplicaGroup, divisors: Mapping[int, float]) -> bool:
    """Whether every rank exchanges a number in each of these steps before its gradients are reduced.

    Without that, counts that are equal on all ranks are each rank's own: their batches are of one size.
    """
    known = [rank for rank in peers.ranks if rank in gradients.ranks]
    return len(known) == len(peers.ranks) and all(
        _exchanges_a_number(gradients.ranks[rank].log.calls, _windows(updates, divisors), len(known))
        for rank, updates in gradients.updates(peers).items()
    )


def _windows(updates: Sequence[Update], steps: Container[int]) -> Iterator[tuple[int, int]]:
    """From when to when (monotonic), of each of these steps: other optimizers may have counted steps of their own before."""
    since = 0
    for update in (one for one in updates if one.step):
        now = update.at_ns - update.log.monotonic_to_wall_ns
        if update.step in steps and since:
            yield since, now
        since = now


def _exchanges_a_number(calls: NDArray[Any], windows: Iterable[tuple[int, int]], ranks: int) -> bool:
    if not len(calls):
        return False
    users = calls["flags"] & (CallFlag.NATIVE | CallFlag.OBJECT) == 0
    numbers = users & (calls["nbytes"] <= NUMBER_BYTES * ranks) & np.isin(calls["op"], EXCHANGES)
    buckets = (calls["flags"] & CallFlag.NATIVE != 0) & (calls["op"] == Op.ALL_REDUCE)
    for since, until in windows:
        if since < int(calls["entered_ns"][0]):  # not all of its calls are kept
            continue
        now = (calls["entered_ns"] > since) & (calls["entered_ns"] < until)
        exchanged, reduced = np.flatnonzero(now & numbers), np.flatnonzero(now & buckets)
        if not len(exchanged) or (len(reduced) and exchanged[0] > reduced[0]):
            return False
    return True


def _divisor(roots: str, ranks: int) -> float | None:
    """`div 137;NllLoss sum` is 137, as is `div 4;div 137;mul 4;NllLoss sum`, whose other factors cancel out.

    None where the loss is a mean or is scaled otherwise, or the divisor is not whole.
    """
    *operations, last = roots.split(";")
    for number, operation in enumerate(operations):
        word, _, value = operation.removesuffix(" own").partition(" ")
        others = factor_of(";".join([*operations[:number], *operations[number + 1 :], last]))
        divisor = _number(value) if word == "div" and others is not None and math.isclose(others, 1.0) else 0.0
        if divisor > ranks and divisor.is_integer() and not reads_as_mean(roots):
            return divisor
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # a tensor on a device


def _division(sources: Mapping[str, str], backward: SourceLine, *, agreed: bool) -> Division | None:
    """The one division of the loss by what a collective has made the same on all ranks (`agreed`), or by what none has."""
    every = divisions_before(sources, backward)
    found = [one for one in every if one.agreed is agreed] or (every if agreed else [])
    return found[0] if len(found) == 1 else None


def _places(division: Division | None, backward: SourceLine, ranks: tuple[int, ...]) -> tuple[Place, ...]:
    divides = [Place(division.site, ranks, f"divides by `{division.divisor}`")] if division is not None else []
    return (*divides, Place(backward, ranks, "backward of the loss"))


def _divided_alone(
    gradients: Gradients, peers: ReplicaGroup, counts: dict[int, dict[int, float]], sources: Mapping[str, str]
) -> Finding:
    step = max(counts, key=lambda number: max(counts[number].values()) / min(counts[number].values()))
    update = next(u for updates in gradients.updates(peers, step).values() for u in updates)
    least, most = min(counts[step].values()), max(counts[step].values())
    shown = ", ".join(f"{value:g} on rank {rank}" for rank, value in list(counts[step].items())[:4])
    line = update.loss_site or update.site
    division = _division(sources, line, agreed=False)
    fewer = _has_always_fewer(counts)
    always = f"; rank {fewer} has the fewest in nearly all of {len(counts)} steps" if fewer is not None else ""
    return Finding(
        title=f"{named(peers.ranks)} divide their summed losses by counts of their own, up to {most / least:.2g} times apart",
        ranks=peers.ranks,
        place=division.site if division is not None else line,
        places=_places(division, line, peers.ranks),
        evidence={"step": step, "counts": counts[step], "steps": len(counts), "replicas_by": peers.by},
        why=f"in step {step} by {shown}; {peers.by} gives each rank the same weight, so what a rank with few of them counted "
        f"weighs up to {most / least:.2g} times as much as on another{always}",
        prescriptions=(
            Prescription(
                "divide-by-ranks-once",
                change="all_reduce the count, and divide loss.sum() * ranks by it",
                effect="every token or sample weighs the same",
            ),
        ),
        confidence=POSSIBLE if fewer is None else LIKELY,
        severity=NOTE if fewer is None else WARNING,
        at_ns=update.at_ns,
    )


def _divided_by_all(
    gradients: Gradients, peers: ReplicaGroup, divisors: dict[int, float], sources: Mapping[str, str]
) -> Finding:
    step = min(divisors)
    update = next(u for updates in gradients.updates(peers, step).values() for u in updates)
    ranks = len(peers.ranks)
    line = update.loss_site or update.site
    division = _division(sources, line, agreed=True)
    shown = ", ".join(f"{value:g} in step {number}" for number, value in sorted(divisors.items())[:3])
    return Finding(
        title=f"gradients are {ranks} times too small: the loss is divided by a count over all ranks, then averaged",
        ranks=peers.ranks,
        place=division.site if division is not None else line,
        places=(
            *_places(division, line, peers.ranks),
            Place(update.site, peers.ranks, "the optimizer steps"),
        ),
        evidence={
            "step": step,
            "divisors": dict(sorted(divisors.items())[:8]),
            "ranks": ranks,
            "replicas_by": peers.by,
        },
        why=f"every rank divides its summed loss by the same number, which changes from step to step ({shown}): a count over "
        f"all ranks. {peers.by} divides by {ranks} again",
        prescriptions=(
            Prescription(
                "divide-by-ranks-once",
                change=f"loss = loss * {ranks}  # before backward",
                effect=f"gradients change by the factor {ranks}",
            ),
        ),
        confidence=LIKELY,
        severity=WARNING,
        at_ns=update.at_ns,
    )


def _term_over_all(gradients: Gradients, peers: ReplicaGroup, sources: Mapping[str, str]) -> Finding | None:
    """Terms of a loss that the source divides by a count over all ranks, where the wrapper averages again."""
    update = next((u for own in gradients.updates(peers).values() for u in own if u.step and u.loss_site), None)
    division = term_over_all(sources, update.loss_site) if update is not None else None
    if update is None or division is None or computes_one_loss(gradients, peers):
        return None
    ranks = len(peers.ranks)
    return Finding(
        title=f"what is divided by `{division.divisor}` is {ranks} times too small in the gradients: a count over all ranks, "
        "and then the average over them",
        ranks=peers.ranks,
        place=division.summed_at,
        places=(
            Place(division.summed_at, peers.ranks, f"sums `{division.divisor}` over the ranks"),
            *_places(division, update.loss_site, peers.ranks),
        ),
        evidence={"divisor": division.divisor, "ranks": ranks, "replicas_by": peers.by},
        why=f"a collective sums `{division.divisor}` over the ranks before it divides, as the source shows, and {peers.by} "
        f"divides by {ranks} again; a loss of one process, or another term that is a mean, weighs {ranks} times as much",
        prescriptions=(
            Prescription(
                "divide-by-ranks-once",
                change=f"divide `{division.divisor}` by the number of ranks after the all_reduce",
                effect=f"these terms change by the factor {ranks}",
            ),
        ),
        confidence=POSSIBLE,
        severity=WARNING,
        at_ns=update.at_ns,
    )


def _scaled_by_ranks(gradients: Gradients, peers: ReplicaGroup, sources: Mapping[str, str]) -> Finding | None:
    """A mean loss that is multiplied or divided by the number of ranks before backward, where the wrapper averages already. A
    factor may be anything: the source has to name the number of ranks beside it."""
    ranks, scale = len(peers.ranks), _loss_scale(gradients, peers)
    error = next((known for known in (ranks, 1 / ranks) if scale is not None and is_close(scale, known)), None)
    update = next((u for own in gradients.updates(peers).values() for u in own if u.step and u.loss_site), None)
    if peers.by != WRAPPER or error is None or update is None:
        return None
    line = scaling_line(sources, update.loss_site, divides=error < 1)
    if not line or (error > 1 and computes_one_loss(gradients, peers)):  # whose parts the mean makes too small
        return None
    times = f"{ranks} times too {'large' if error > 1 else 'small'}"
    return Finding(
        title=f"gradients are {times}: the loss is {'multiplied' if error > 1 else 'divided'} by the number of ranks, but "
        f"{peers.by} already averages",
        ranks=peers.ranks,
        place=line,
        places=(
            Place(line, peers.ranks, "the loss is scaled"),
            Place(update.loss_site, peers.ranks, "backward of the loss"),
        ),
        evidence={"factor": error, "ranks": ranks, "roots": update.roots, "replicas_by": peers.by},
        why=f"`{update.roots}` is between backward and a mean loss, a factor of {error:g}, and the source names the ranks there",
        prescriptions=(Prescription("divide-by-ranks-once", effect=f"gradients change by the factor {1 / error:g}"),),
        confidence=LIKELY,
        severity=WARNING,
        at_ns=update.at_ns,
    )


def _by_local_counts(gradients: Gradients, sources: Mapping[str, str]) -> Iterator[Finding]:
    """Sums over replicas that each divides by how many rows it has itself."""
    for one in local_divisors(sources):
        for peers in gradients.peers:
            logs = [gradients.ranks[rank].log for rank in peers.ranks if rank in gradients.ranks]
            if peers.by != OBSERVED and len(logs) > 1 and all(_calls(log, one.reduced) for log in logs):
                yield _divided_by_own(one, peers)
                break


def _calls(log: RankTrace, line: SourceLine) -> bool:
    calls = log.calls[log.calls["op"] == Op.ALL_REDUCE]
    known = (log.site(int(site)) for site in np.unique(calls["site"]))
    return any((one.path, one.line) == (line.path, line.line) for one in known)


def _divided_by_own(one: LocalDivisor, peers: ReplicaGroup) -> Finding:
    ranks = len(peers.ranks)
    return Finding(
        title=f"what is summed over {named(peers.ranks)} is divided by `{one.divisor}`, which one of them has: about {ranks} "
        "times too large",
        ranks=peers.ranks,
        place=one.divided,
        places=(
            Place(one.reduced, peers.ranks, f"sums over the ranks what each has summed over `{one.rows}`"),
            Place(one.divided, peers.ranks, "divides by the count of one rank"),
        ),
        evidence={"divisor": one.divisor, "ranks": ranks},
        why=f"the source sums `{one.rows}` on each rank, then over {named(peers.ranks)}, whose rows are their own, and divides "
        "by the number of its own rows; nothing there mentions the number of ranks",
        prescriptions=(
            Prescription(
                "divide-by-ranks-once",
                change=f"all_reduce the count too, and divide by that (or by `{one.divisor} * dist.get_world_size()` where all "
                "ranks have as many)",
                effect=f"it changes by about the factor {1 / ranks:.4g}",
            ),
        ),
        severity=WARNING,
        confidence=LIKELY,
    )


def _undivided(experts: UndividedExperts, gradients: Gradients, sources: Mapping[str, str]) -> Finding:
    peers, ranks, times = experts.peers, len(experts.peers.ranks), experts.times
    over = named(experts.averaged_over) if experts.averaged_over else ""
    used = (
        f"the optimizer used the mean over {over} and their like" if over else "the optimizer used what backward left"
    )
    reduced = reduction_line(gradients, peers)
    line = told_apart(sources, reduced) or reduced
    update = next(u for own in gradients.updates(peers).values() for u in own if u.step)
    return Finding(
        title=f"gradients of experts are {times} times too large beside all others: {experts.parameter.name} sums over the rows "
        + (
            f"of {times} ranks, and is averaged over {over} alone"
            if over
            else f"of {named(peers.ranks)}, and nothing divides it"
        ),
        ranks=peers.ranks,
        place=line or update.site,
        places=(
            *((Place(line, peers.ranks, "treats experts in another way"),) if line and line != reduced else ()),
            *((Place(reduced, peers.ranks, "averages the other gradients"),) if reduced else ()),
            Place(update.site, peers.ranks, "the optimizer steps"),
        ),
        evidence={"parameter": experts.parameter.name, "ranks": times, "steps_compared": experts.steps},
        why=f"each rank's loss is that of its own rows. The other gradients are the mean over {ranks} ranks; rows that come to "
        f"an expert bring it those of {times} losses, and in {experts.steps} steps {used}"
        + (
            "; an optimizer that divides by the gradients' size hardly sees it, clipping does"
            if experts.scale_free
            else ""
        ),
        prescriptions=(
            Prescription(
                "divide-by-ranks-once",
                change=f"divide the gradients of experts by {times} too (the number of ranks that trade rows)",
                effect=f"gradients of experts change by the factor {1 / times:.4g}",
            ),
        ),
        severity=NOTE if experts.scale_free else WARNING,
        confidence=LIKELY,
        at_ns=update.at_ns,
    )


def _finding(
    gradients: Gradients, peers: ReplicaGroup, step: int, factor: float, steps: int, sources: Mapping[str, str]
) -> Finding:
    ranks = len(peers.ranks)
    update = next((u for updates in gradients.updates(peers, step).values() for u in updates), None)
    line = reduction_line(gradients, peers) if peers.by == BY_HAND else SourceLine()
    summed = factor > 1
    dropped = dropped_division(sources, line) if summed and line else SourceLine()
    site = line or (update.site if update else SourceLine())
    what = "summed over the ranks and never divided" if summed else "divided by the number of ranks once too often"
    return Finding(
        title=f"gradients are {what}: {factor:.4g} times the mean of {named(peers.ranks)}",
        ranks=peers.ranks,
        place=dropped or site,
        places=(
            *((Place(dropped, peers.ranks, "divides, and nobody uses the result"),) if dropped else ()),
            Place(site, peers.ranks, "gradients are reduced" if line else "the optimizer steps"),
        ),
        evidence={"factor": factor, "ranks": ranks, "step": step, "steps_compared": steps, "replicas_by": peers.by},
        why=f"elements of the gradients before and after the reduction were compared in {steps} "
        f"{'step' if steps == 1 else 'steps'}: the optimizer uses {factor:.4g} times their mean, over {ranks} ranks",
        prescriptions=(
            Prescription(
                "divide-by-ranks-once",
                effect=f"gradients change by the factor {1 / factor:.4g}",
                edits=averaged_below(sources, line) if summed and line else (),
            ),
        ),
        confidence=CERTAIN,
        at_ns=update.at_ns if update else 0,
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().step()
    return job.spot(1, own={0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, 0.0]}, used=[4.0, 4.0, 4.0, 4.0]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial().step()
    return job.spot(1, own={0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, 0.0]}, used=[2.0, 2.0, 2.0, 2.0]).recording()
