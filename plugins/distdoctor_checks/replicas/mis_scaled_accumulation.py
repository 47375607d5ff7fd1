"""
DD208 mis-scaled-accumulation: accumulated micro-batches are summed instead of averaged, averaged twice, or thrown away.

What it means    Each micro-batch adds the gradient of its own mean loss. Without division, N of them make the gradient N times
                 too large; divided twice, or zeroed before the last one of them, it is N times too small.
Why it hurts     The effective learning rate is off by that factor and changes with the number of micro-batches. Adam hides it,
                 SGD with the same settings diverges or crawls, and gradient clipping acts at the wrong threshold.
How we know      One line calls backward N times between two steps (or several lines do, each time for another batch, and all but
                 the last time within no_sync), and the operations between it and a mean loss are read from the autograd graph:
                 their product should be 1 / N. Also reported: loss scaling and synchronization agree on one number of
                 micro-batches and the optimizer steps after another; or each micro-batch's summed loss is divided by a count
                 that is another in the next one, and by nothing more; or it is multiplied by the number of ranks and divided by
                 the count of all N, which is another in the next step, and by N once more; or the first step of each pass over
                 the data uses micro-batches left over from the previous pass, neither stepped with nor zeroed; or they were
                 zeroed, and are 1% of an epoch or more (a note below 10%, or where that is done behind the loop); or a Trainer's
                 own compute_loss is given `num_items_in_batch`, never reads it, and nothing divides the sum of its terms; or
                 zero_grad is called between N micro-batches that are divided by N and of which N - 1 are not averaged (no_sync).
What to do       Divide once, before backward: loss = criterion(...) / N. Call zero_grad after the step. Step once more at the
                 end of an epoch.
When it is fine  Losses that are sums, several losses from several lines, or of several loaders that are read side by side:
                 nothing is reported. Nor where elements of the gradients show that they are divided by hand after backward; on
                 a device, where none are taken, accept that with --ignore DD208.
Source           PyTorch, Automatic Mixed Precision examples, "Gradient accumulation".
"""

from __future__ import annotations

import ast
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import LIKELY, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import OBSERVED, Gradients
from distdoctor.diagnosis.replicas.loss_scale import (
    factor_around_mean,
    factor_around_window,
    factor_of,
    reads_as_mean,
)
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.replicas.used_factor import is_close, own_factors, used_factors
from distdoctor.diagnosis.source.call_edits import node_replaced, only_call
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.loss_divisions import divisions_before
from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.diagnosis.source.trainer_models import forward_that_takes_the_count, loss_that_ignores_the_count
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import Cleared
from distdoctor.recording.trace.layout import PassFlag, UpdateFlag

BY_ACCELERATE = "div 1;"  # its backward divides by its own number of micro-steps, of which Trainer tells it 1
SEEN = 2  # steps; one could be an accident
WINDOWS = 3  # counts of items in them, all different
NEXT_TO_NOTHING, MUCH = 0.01, 0.1  # of the micro-batches of an epoch


@check("DD208", "mis-scaled-accumulation", severity=WARNING, at_most=LIKELY)
def examine(gradients: Gradients, recording: Recording) -> Iterator[Finding]:
    by_optimizer: dict[int, list[Update]] = defaultdict(list)
    for update in gradients.every_update():
        if update.step:
            by_optimizer[update.optimizer].append(update)
    for updates in by_optimizer.values():
        leaks = _leaks(updates, recording)
        if leaks and leaks[0].flags & UpdateFlag.CLEARED:
            yield from _lost(leaks, updates, gradients, recording)
            continue
        if leaks:
            yield _leaking(updates, leaks)
            continue
        told = _sum_of_means(updates, recording) or _window_divided_twice(updates, recording)
        if told is not None:
            yield told
            continue
        counts = {update.number("backwards") for update in updates}
        roots = {update.roots for update in updates}
        ignored = _ignored_count(updates, max(counts), roots, gradients, recording)
        if ignored is not None:
            yield ignored
            continue
        if len(counts) != 1 or len(roots) != 1 or min(Counter(u.rank for u in updates).values()) < SEEN:
            continue
        micro_steps, root = counts.pop(), roots.pop()
        if any(update.flags & UpdateFlag.CLEARED for update in updates):
            if _throws_away(updates, micro_steps, root, gradients):
                yield _thrown_away(updates, micro_steps, gradients)
            continue  # not accumulated: optimizers that take turns, each with a backward of its own
        one_loss = _are_of_one_line(updates) or _are_micro_batches(updates, micro_steps, recording)
        factor = factor_of(root)
        if micro_steps < 2 or not one_loss or factor is None or not reads_as_mean(root):
            continue
        error = factor * micro_steps
        known = _is_known(error, micro_steps, _multiplied_by(recording)) or _is_another_window(
            updates, factor, micro_steps
        )
        if math.isclose(error, 1.0, rel_tol=1e-3) or not known:
            continue
        if _is_undone(gradients, updates, error) or _has_a_loader_each(updates, recording, micro_steps):
            continue
        yield _finding(updates, micro_steps, factor, error, recording)


def _are_of_one_line(updates: list[Update]) -> bool:
    return all(update.flags & UpdateFlag.ONE_LINE for update in updates)


def _ignored_count(
    updates: list[Update], micro_steps: int, roots: set[str], gradients: Gradients, recording: Recording
) -> Finding | None:
    """transformers' Trainer leaves the division to a compute_loss that is given the count, which this one never reads. None where
    its loss is one mean, which is read elsewhere, or something divides it. The last window of an epoch may have fewer
    micro-batches."""
    root = min(roots)
    undivided = len(roots) == 1 and factor_of(root) == 1.0 and not reads_as_mean(root)
    undivided = undivided and root.startswith(BY_ACCELERATE)  # else it is another loop of the same program
    one_line = all(update.flags & UpdateFlag.ONE_LINE and not update.flags & UpdateFlag.CLEARED for update in updates)
    if micro_steps < 2 or not (undivided and one_line) or _is_undone(gradients, updates, micro_steps):
        return None
    ignores = loss_that_ignores_the_count(recording.sources)
    if not ignores:
        return None
    ranks = tuple(sorted({update.rank for update in updates}))
    site = next((update.loss_site for update in updates if update.loss_site), updates[0].site)
    return Finding(
        title=f"gradients are {micro_steps} times too large: nothing divides the loss of {micro_steps} micro-batches, and "
        "compute_loss never reads num_items_in_batch",
        ranks=ranks,
        place=ignores,
        places=(
            Place(ignores, ranks, "hands on a loss of this micro-batch alone"),
            Place(site, ranks, f"backward, {micro_steps} times for each step"),
        ),
        evidence={"micro_steps": micro_steps, "roots": updates[0].roots},
        why=f"{named(ranks)}: `{updates[0].roots}` is between backward and the terms of the loss; Trainer divides by "
        f"{micro_steps} only where the model takes no **kwargs",
        prescriptions=(
            Prescription(
                "divide-once",
                change="sum the loss over the items and divide by num_items_in_batch, or divide its mean by "
                "self.args.gradient_accumulation_steps",
                effect=f"gradients change by the factor {1 / micro_steps:g}",
            ),
        ),
        confidence=LIKELY,
        at_ns=min(update.at_ns for update in updates),
    )


def _throws_away(updates: list[Update], micro_steps: int, root: str, gradients: Gradients) -> bool:
    """Whether the division and the synchronisation both say that these micro-steps make one step, and zero_grad of this
    optimizer comes between."""
    ranks, number = {update.rank for update in updates}, updates[0].optimizer
    if any(number not in {event.optimizer for event in gradients.ranks[rank].events(Cleared)} for rank in ranks):
        return False
    declared = all(
        update.flags & UpdateFlag.CLEARED
        and update.flags & UpdateFlag.ONE_LINE
        and (update.number("synced"), update.number("unsynced")) == (1, micro_steps - 1)
        for update in updates
    )
    factor = factor_of(root)
    return (
        declared
        and micro_steps > 1
        and factor is not None
        and reads_as_mean(root)
        and math.isclose(factor * micro_steps, 1)
    )


def _thrown_away(updates: list[Update], micro_steps: int, gradients: Gradients) -> Finding:
    ranks = tuple(sorted({update.rank for update in updates}))
    first = min(updates, key=lambda update: update.step)
    noted = (event for rank in ranks for event in gradients.ranks[rank].events(Cleared))
    site = next((one.site for one in noted if one.site and one.optimizer == first.optimizer), SourceLine())
    return Finding(
        title=f"zero_grad comes before the last of {micro_steps} micro-batches: the gradients of those before it are thrown away",
        ranks=ranks,
        place=site or first.loss_site,
        places=(
            *((Place(site, ranks, "zeroes the gradients"),) if site else ()),
            Place(first.loss_site, ranks, f"backward, {micro_steps} times for each step"),
            Place(first.site, ranks, "the step"),
        ),
        evidence={"micro_steps": micro_steps, "roots": first.roots, "steps": len({update.step for update in updates})},
        why=f"{named(ranks)}: each loss is divided by {micro_steps}, {micro_steps - 1} of {micro_steps} backward passes are not "
        "averaged over the ranks, and gradients are zeroed between two of them",
        prescriptions=(
            Prescription(
                "divide-once",
                change="call zero_grad after the step, or before the first micro-batch of a window",
                effect=f"each step uses all {micro_steps} micro-batches",
            ),
        ),
        confidence=LIKELY,
        at_ns=first.at_ns,
    )


def _sum_of_means(updates: list[Update], recording: Recording) -> Finding | None:
    """Each micro-batch's summed loss is divided by a count of its own, and by nothing for the others. A count of the whole window
    would be the same in all its micro-batches."""
    known = [update for update in updates if factor_around_mean(update.roots) is not None]
    counts = {update.number("backwards") for update in known}
    factors = {factor_around_mean(update.roots) for update in known}
    if len(counts) != 1 or len(factors) != 1 or len({update.step for update in known}) < SEEN:
        return None
    micro_steps, factor, world_size = counts.pop(), factors.pop(), recording.job.world_size
    one_line = all(update.flags & UpdateFlag.ONE_LINE and not update.flags & UpdateFlag.CLEARED for update in known)
    if factor is None or micro_steps < 2 or not one_line:
        return None
    error = factor * micro_steps
    if not any(math.isclose(error, times, rel_tol=1e-3) for times in (micro_steps, micro_steps * world_size)):
        return None
    return _finding(known, micro_steps, factor, error, recording)


def _window_divided_twice(updates: list[Update], recording: Recording) -> Finding | None:
    """A summed loss that is divided by the count of the whole window, of all ranks, and by the number of its micro-batches too.
    That it is the window's is seen from its being one number in all of them, and another one in the next window."""
    steps: dict[int, set[int]] = defaultdict(set)
    factors: set[float] = set()
    for update in updates:
        found = factor_around_window(update.roots, recording.job.world_size)
        if found is None or update.flags & UpdateFlag.CLEARED:
            return None
        steps[update.step].add(found[0])
        factors.add(found[1])
    micro_steps = {update.number("backwards") for update in updates}
    differ = len(set[int]().union(*steps.values())) >= WINDOWS
    if not differ or any(len(counts) > 1 for counts in steps.values()) or len(micro_steps) != 1 or len(factors) != 1:
        return None
    times, factor = micro_steps.pop(), factors.pop()
    one_loss = _are_of_one_line(updates) or _are_micro_batches(updates, times, recording)
    if times < 2 or not one_loss or not math.isclose(factor * times, 1.0, rel_tol=1e-3):
        return None
    finding = _finding(updates, times, factor, factor, recording)
    return replace(
        finding,
        title=f"gradients are {times} times too small: the loss is divided by the count of all {times} micro-batches, and by "
        f"{times} once more",
        why=f"{finding.ranks_named}: `{updates[0].roots}` is between backward and the terms of the loss; the count is one number "
        "in all micro-batches of a step, and another one in other steps, so it is the whole window's",
        prescriptions=(
            Prescription(
                "divide-once",
                change=f"leave out the division by {times}: the count is that of all its micro-batches",
                effect=f"gradients change by the factor {times}",
            ),
        ),
    )


def _is_undone(gradients: Gradients, updates: list[Update], error: float) -> bool:
    """Whether the script divides the gradients themselves before the step, or reduces them within it, where nobody looks."""
    if _reduces_in_step(updates):
        return True
    optimizer = updates[0].optimizer
    over_ranks = (
        factor
        for peers in gradients.peers
        if peers.optimizer == optimizer and peers.by != OBSERVED
        for _, factor in used_factors(gradients, peers)
    )
    by_itself = (
        factor
        for rank in sorted({update.rank for update in updates})
        for _, factor in own_factors(gradients.ranks[rank], optimizer)
    )
    return any(is_close(factor * error, 1.0) for factor in (*over_ranks, *by_itself))


def _reduces_in_step(updates: list[Update]) -> bool:
    """Whether ranks come to a step with other gradients, and leave it with the same weights."""
    by_step: dict[int, list[Update]] = defaultdict(list)
    for update in updates:
        if update.digested:
            by_step[update.step].append(update)
    return any(
        len({one.number("grads") for one in found}) > 1 and len({one.number("params") for one in found}) == 1
        for found in by_step.values()
    )


def _are_micro_batches(updates: list[Update], micro_steps: int, recording: Recording) -> bool:
    """Whether each backward pass has a batch of its own, and all but the last of a step leave the ranks alone: one loss that is
    written down twice, within `no_sync` and without."""
    if any(update.number("synced") != 1 or update.number("unsynced") != micro_steps - 1 for update in updates):
        return False
    stepped: dict[int, list[int]] = defaultdict(list)
    for update in updates:
        stepped[update.rank].append(update.step)
    for rank, steps in stepped.items():
        rows = recording.ranks[rank].rows("times")
        batches = rows["batches"][np.isin(rows["step"], steps)].tolist()
        if len(batches) < SEEN or set(batches) != {micro_steps}:
            return False
    return True


def _has_a_loader_each(updates: list[Update], recording: Recording, micro_steps: int) -> bool:
    """Whether as many loaders are read side by side as there are backward passes: of several tasks a sum is meant."""
    for update in updates:
        log = recording.ranks[update.rank]
        at_ns, passes = update.at_ns - log.monotonic_to_wall_ns, log.passes
        under_way = (passes["started_ns"] <= at_ns) & ((passes["ended_ns"] == 0) | (passes["ended_ns"] >= at_ns))
        trains = (passes["flags"] & PassFlag.STEPPED) > 0
        if len({*passes["loader"][under_way & trains].tolist()}) != micro_steps:
            return False
    return True


def _multiplied_by(recording: Recording) -> int:
    """By what Trainer multiplies a loss of which it believes that the model has divided it: the number of processes."""
    return recording.job.world_size if forward_that_takes_the_count(recording.sources) else 1


def _is_known(error: float, micro_steps: int, besides: int) -> bool:
    """Undivided, also multiplied by something known, or divided twice: any other factor may be meant."""
    factors = (micro_steps, micro_steps * besides, 1 / micro_steps)
    return any(math.isclose(error, known, rel_tol=1e-3) for known in factors)


def _is_another_window(updates: list[Update], factor: float, micro_steps: int) -> bool:
    """Whether loss and synchronisation agree on another number of micro-steps than the optimizer: divided by two, averaged after
    each second one, stepped after each fourth."""
    synced = {update.number("synced") for update in updates}
    return (
        factor < 1
        and len(synced) == 1
        and 1 < (windows := synced.pop()) < micro_steps
        and math.isclose(1 / factor, micro_steps / windows, rel_tol=1e-3)
    )


def _leaks(updates: list[Update], recording: Recording) -> list[Update]:
    """The first steps of a pass over the data that follow more micro-steps than all others: with what was left over from the
    pass before, unless all of them say that it was zeroed."""
    by_rank: dict[int, list[Update]] = defaultdict(list)
    for update in updates:
        by_rank[update.rank].append(update)
    found: list[Update] = []
    for rank, own in by_rank.items():
        usual = Counter(update.number("backwards") for update in own[:1]).most_common(1)[0][0]
        more = [update for update in own if update.number("backwards") > usual]
        leaking = usual > 1 and len(more) >= SEEN and len({update.number("backwards") for update in more}) == 1
        if not leaking:
            return []
        log = recording.ranks[rank]
        begins = log.loader_passes["started_ns"].tolist()
        ends = dict(zip(log.steps["step"].tolist(), log.steps["at_ns"].tolist(), strict=True))
        if not all(_is_first(update, begins, ends) for update in more):
            return []
        if not all(update.flags & UpdateFlag.ONE_LINE for update in more):
            return []
        if any(update.number("backwards") < usual for update in own) or more[0].number("backwards") >= 2 * usual:
            return []
        found += more
    return found if len({update.flags & UpdateFlag.CLEARED for update in found}) == 1 else []


def _is_first(update: Update, begins: list[int], ends: dict[int, int]) -> bool:
    """Whether a pass over some loader began between the step before and this one."""
    before, now = ends.get(update.step - 1, 0), ends.get(update.step, 0)
    return any(before < at < now for at in begins) if before and now else False


def _leaking(updates: list[Update], leaks: list[Update]) -> Finding:
    ranks = tuple(sorted({update.rank for update in leaks}))
    first = min(leaks, key=lambda update: update.step)
    usual = min(update.number("backwards") for update in updates)
    more = first.number("backwards") - usual
    site = first.loss_site or first.site
    return Finding(
        title=f"step {first.step} uses {usual + more} micro-batches, not {usual}: {more} left over from the previous epoch",
        ranks=ranks,
        place=first.site or site,
        places=(Place(site, ranks, "backward of each micro-batch"), Place(first.site, ranks, "the step")),
        evidence={"micro_steps": usual, "left_over": more, "steps": sorted({update.step for update in leaks})[:8]},
        why=f"the first step of {len({update.step for update in leaks})} passes over the data adds to gradients of the "
        "incomplete window that ended the previous pass, which were neither stepped with nor zeroed",
        prescriptions=(Prescription("close-the-window"),),
        confidence=LIKELY,
        at_ns=first.at_ns,
    )


def _lost(leaks: list[Update], updates: list[Update], gradients: Gradients, recording: Recording) -> Iterator[Finding]:
    """The incomplete window at the end of each pass, computed and zeroed: silent where that is next to nothing of an epoch."""
    ranks = tuple(sorted({update.rank for update in leaks}))
    first, second = sorted((update for update in leaks if update.rank == ranks[0]), key=lambda update: update.step)[:2]
    lost = first.number("backwards") - min(update.number("backwards") for update in updates)
    steps = first.log.steps
    epoch = int(steps["micro_steps"][(steps["step"] > first.step) & (steps["step"] <= second.step)].sum())
    if not epoch or lost / epoch < NEXT_TO_NOTHING:
        return
    noted = (event.site for rank in ranks for event in gradients.ranks[rank].events(Cleared))
    site = next((one for one in noted if one), first.loss_site)
    yield Finding(
        title=f"{lost} of {epoch} micro-batches of each epoch {'are' if lost > 1 else 'is'} thrown away: the gradients of the "
        "window that its end cuts short are zeroed without a step",
        severity=WARNING if lost / epoch >= MUCH and _is_in_loop(site, first.log, recording) else NOTE,
        ranks=ranks,
        place=site,
        places=(
            Place(site, ranks, "zeroes what the last window of the epoch before has left"),
            Place(first.loss_site, ranks, "backward of each micro-batch"),
            Place(first.site, ranks, "the step, after complete windows alone"),
        ),
        evidence={"left_over": lost, "of_an_epoch": epoch, "steps": sorted({update.step for update in leaks})[:8]},
        why=f"{named(ranks)}: the first steps of {len({update.step for update in leaks})} passes over the data follow "
        f"{first.number('backwards')} backward passes, with gradients zeroed between them",
        prescriptions=(
            Prescription(
                "close-the-window", effect=f"each epoch uses {lost / epoch:.1%} more of the batches that it computes"
            ),
        ),
        confidence=LIKELY,
        at_ns=first.at_ns,
    )


def _is_in_loop(zeroes: SourceLine, log: RankTrace, recording: Recording) -> bool:
    """Whether a line stands in a loop over batches. Behind one, gradients are given up on purpose."""
    file = source_file(recording.sources, zeroes.path)
    loops = {log.site(int(site)) for site in set(log.loader_passes["loop_site"].tolist())}
    begins = {loop.line for loop in loops if loop.path == zeroes.path}
    return file is not None and any(
        loop.lineno in begins and loop.lineno < zeroes.line <= (loop.end_lineno or 0) for loop in file.nodes(ast.For)
    )


def _finding(updates: list[Update], micro_steps: int, factor: float, error: float, recording: Recording) -> Finding:
    ranks = tuple(sorted({update.rank for update in updates}))
    site = next((update.loss_site for update in updates if update.loss_site), updates[0].site)
    times = f"{error:g} times too large" if error > 1 else f"{1 / error:g} times too small"
    divisions = divisions_before(recording.sources, site) if error < 1 else []
    takes = forward_that_takes_the_count(recording.sources) if error > 1 else SourceLine()
    means = "the mean loss" if reads_as_mean(updates[0].roots) else "a mean over a count of its own"
    return Finding(
        title=f"gradients are {times}: {micro_steps} micro-batches, and {means} is multiplied by {factor:g} in each",
        ranks=ranks,
        place=divisions[0].site if divisions else takes or site,
        places=(
            *((Place(takes, ranks, "takes **kwargs, so Trainer leaves the division to the model"),) if takes else ()),
            *(Place(one.site, ranks, f"divides by `{one.divisor}`") for one in divisions[:3]),
            Place(site, ranks, f"backward, {micro_steps} times for each step"),
            Place(updates[0].site, ranks, "the step"),
        ),
        evidence={"micro_steps": micro_steps, "factor": factor, "error": error, "roots": updates[0].roots},
        why=f"{named(ranks)}: `{updates[0].roots}` is between backward and the loss; the factor should be 1/{micro_steps}",
        prescriptions=(
            Prescription(
                "divide-once",
                change="set `accepts_loss_kwargs = False` in the model's class, or divide its loss by num_items_in_batch"
                if takes
                else "",
                effect=f"gradients change by the factor {1 / error:g}",
                edits=_divided(recording, site, micro_steps)
                if _are_of_one_line(updates) and math.isclose(error, micro_steps)
                else (),
            ),
        ),
        confidence=LIKELY,
        at_ns=min(update.at_ns for update in updates),
    )


def _divided(recording: Recording, site: SourceLine, micro_steps: int) -> tuple[Edit, ...]:
    """`loss.backward()` -> `(loss / 4).backward()`."""
    call = only_call(recording.sources, site, "backward")
    if call is None or not isinstance(call.func, ast.Attribute):
        return ()
    loss = ast.get_source_segment(recording.sources[site.path], call.func.value)
    return (node_replaced(site.path, call.func.value, f"({loss} / {micro_steps})"),) if loss else ()


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    flags = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE
    job = trained_job(2).initial()
    return job.step(backwards=4, unsynced=3, flags=flags).step(backwards=4, unsynced=3, flags=flags).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    flags, roots, job = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE, "div 4;NllLoss mean", trained_job(2).initial()
    for _ in range(2):
        job.step(backwards=4, unsynced=3, flags=flags, roots=roots)
    return job.recording()
