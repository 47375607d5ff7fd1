"""
DD218 diverging-schedule: the learning rate, weight decay or another optimizer setting differs between replicas.

What it means    Gradients agree, but the ranks take steps of different sizes: their param_groups hold different values. Or the
                 schedule has gone apart from the training: it is over, at a learning rate of zero, long before that.
Why it hurts     The replicas become different models, usually slowly, while every rank's log looks plausible.
How we know      The values in param_groups are digested at each sampled step, and parameters differ from then on. If the ranks
                 go through the same values at a different pace, one of them left a loop earlier; the condition that lets it
                 leave is searched in the source around the step; so is a condition on the rank around scheduler.step().
                 Of a schedule that is over, that the last steps (at least 10, and 15 %) left every bit of the parameters as it
                 was, although there were gradients: likely. Or that a schedule with an end was prepared by accelerate, and the
                 learning rate came down to 1 % after one P-th of the steps of P ranks, and stayed there or rose again: likely.
What to do       Call scheduler.step() on every rank, outside of any `if is_main():`. Base schedules on values that all ranks
                 share: reduce the validation loss before ReduceLROnPlateau.step(), count steps rather than local batches, load
                 the scheduler's state on every rank.
When it is fine  Ranks that train different parts of a model: only replicas are compared. Schedules that begin anew.
Source           torch.optim.lr_scheduler.ReduceLROnPlateau.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences, differing_settings
from distdoctor.diagnosis.replicas.early_ends import EarlyEnd, early_ends
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.idle_steps import IdleSteps, idle_steps
from distdoctor.diagnosis.replicas.tensor_differences import PARAMS
from distdoctor.diagnosis.replicas.wording import by_rank, evidence, line_with, sides, which
from distdoctor.diagnosis.source.given_values import Line, stored_before
from distdoctor.diagnosis.source.loop_exits import LoopExit, exits_around
from distdoctor.diagnosis.source.out_of_condition import out_of_condition
from distdoctor.diagnosis.source.prepared_schedules import prepared_in
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, Guard, guards_at
from distdoctor.diagnosis.source.rank_values import rank_local_way
from distdoctor.diagnosis.source.schedules import metric_at, schedule_names
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.source_texts import line_of

FEWEST_RATES = 3  # that all ranks went through in the same order: two may agree by chance, as 1e-3 and 1e-4 do


@check("DD218", "diverging-schedule", severity=ERROR, family="replicas", specificity=40)
def examine(gradients: Gradients, partings: ReplicaDivergences | None, recording: Recording) -> Iterator[Finding]:
    over = idle_steps(gradients)
    yield from (_over(idle, recording) for idle in over)
    for early in early_ends(gradients, recording.job.world_size):
        prepared = next(filter(None, (prepared_in(recording.sources, path) for path in recording.sources)), None)
        if prepared is not None and early.optimizer not in {idle.optimizer for idle in over}:
            yield _early(early, prepared, recording)
    for parting in partings.found if partings is not None else ():
        if parting.what != PARAMS or not differing_settings(parting):
            continue
        rates = {rank: update.value("lr") for rank, update in parting.updates.items()}
        differ = len(set(rates.values())) > 1
        line = _line(parting.site, recording)
        words = by_rank({rank: f"{rate:.6g}" for rank, rate in rates.items()})
        metric = metric_at(recording.sources, line)
        ahead = _ahead(parting, gradients) if metric is None else ()
        exits = exits_around(recording.sources, parting.site)[:2] if ahead else ()
        guard = _guard_of(line, rates, recording)
        apart = differ and not ahead and guard is None and line != parting.site
        way = rank_local_way(recording.sources, line) if apart else []
        yield Finding(
            title=f"{parting.when}: learning rate {words}"
            if differ
            else f"{parting.when}: the optimizers' settings differ between {named(parting.peers.ranks)}",
            ranks=parting.odd,
            place=line,
            places=(
                *_way(line, way, parting.peers.ranks),
                *_of_metric(metric, line, parting.peers.ranks),
                *(Place(parting.site, ranks, _role(rates, ranks)) for ranks in parting.variants[:4]),
                *(
                    Place(
                        one.site,
                        ahead,
                        f"{'skips an iteration of' if one.skips else 'leaves'} the loop if `{one.test}`",
                    )
                    for one in exits
                ),
            ),
            evidence=evidence(parting, lr=rates),
            why=f"gradients agree, but the settings in param_groups do not, so {which(parting)} differ, {sides(parting)}"
            + _pace(ahead)
            + (f"; `{_text(line, recording)}` at {at(line)} is reached only where `{guard.only_if}`" if guard else ""),
            prescriptions=(
                _out_of(guard, line, recording) if guard else _agreed(line, way, metric) or _on_every_rank(exits),
            ),
            confidence=parting.confidence,
            at_ns=parting.at_ns,
            explains=(parting.key,),
        )


def _over(idle: IdleSteps, recording: Recording) -> Finding:
    """A schedule that has ended before the training."""
    line = _line(idle.site, recording)
    schedule = stored_before(recording.sources, line, "step") if line != idle.site else []
    ranks = recording.job.world_size
    pace = ""
    if ranks > 1 and _is_prepared(recording.sources.get(line.path, "")):
        pace = f"; a schedule that accelerate has prepared moves {ranks} times in every step, once for each process"
    return Finding(
        title=f"the learning rate is 0 from step {idle.since} on: {idle.steps} steps or more changed nothing",
        ranks=idle.ranks,
        place=line,
        places=(
            *((Place(line, idle.ranks, "moves the schedule"),) if line != idle.site else ()),
            *(Place(made, idle.ranks, f"the schedule: `{text}`") for made, text in schedule[:2]),
            Place(idle.site, idle.ranks, "steps with a learning rate of 0"),
        ),
        evidence={
            "since_step": idle.since,
            "steps": idle.until,
            "optimizer": idle.optimizer,
            "compared": idle.parameters,
        },
        why=(
            f"{idle.parameters} parameters had a gradient, and no bit of them was changed"
            if idle.parameters
            else "it is 0 in every group of the optimizer's"
        )
        + pace,
        prescriptions=(Prescription("as-long-as-the-training", effect=f"{idle.steps} steps or more that train"),),
        confidence=LIKELY,
        severity=WARNING,
        at_ns=idle.at_ns,
    )


def _early(early: EarlyEnd, prepared: SourceLine, recording: Recording) -> Finding:
    """A schedule that accelerate moves for every process, and that was made for the steps of one."""
    line, ranks = _line(early.site, recording), recording.job.world_size
    since = "stays there" if early.again is None else f"rises again to {early.again:.3g}"
    return Finding(
        title=f"the learning rate has come down to {early.lowest:.3g} in step {early.at} of {early.until}, and {since}",
        ranks=early.ranks,
        place=prepared,
        places=(
            Place(prepared, early.ranks, "has the schedule prepared"),
            *((Place(line, early.ranks, "moves the schedule"),) if line != early.site else ()),
            Place(early.site, early.ranks, "steps"),
        ),
        evidence={
            "lowest_in_step": early.at,
            "steps": early.until,
            "optimizer": early.optimizer,
            "highest": early.highest,
            "lowest": early.lowest,
            "again": early.again,
        },
        why=f"a schedule that accelerate has prepared moves {ranks} times in every step, once for each process: one that is made "
        f"for {early.until} steps is over after {early.until // ranks}",
        prescriptions=(Prescription("as-long-as-the-training", effect=f"{early.until} steps under one schedule"),),
        confidence=LIKELY,
        severity=WARNING,
        at_ns=early.at_ns,
    )


def _is_prepared(text: str) -> bool:
    """Whether a file hands its schedule to accelerate, which moves it for all processes."""
    return "accelerat" in text and ".prepare(" in text


def _way(line: SourceLine, way: list[Line], ranks: tuple[int, ...]) -> Iterator[Place]:
    """The line that sets the learning rate, and where its value may become each rank's own."""
    if way:
        yield Place(line, ranks, "sets the learning rate")
    for number, (site, text) in enumerate(way, 1):
        words = "may differ between ranks" if number == len(way) else "goes into it"
        yield Place(site, ranks, f"`{text}` {words}")


def _agreed(line: SourceLine, way: list[Line], metric: list[Line] | None) -> Prescription | None:
    """One value on all ranks, where a line of the source sets the learning rate by what each of them has of its own: by its
    metric, or by what is found where the value comes from."""
    if not way:
        return None
    site, text = metric[0] if metric else way[-1]
    words = f"all_reduce or broadcast `{text}` ({at(site)}), so that {at(line)} sets one learning rate on all ranks"
    return Prescription("same-schedule", change=words)


def _of_metric(metric: list[Line] | None, line: SourceLine, ranks: tuple[int, ...]) -> Iterator[Place]:
    """Where the value comes from by which the schedule moves."""
    for site, text in metric or ():
        if (site.path, site.line) != (line.path, line.line):
            yield Place(site, ranks, f"`{text[:60]}` goes into the metric")


def _ahead(parting: ReplicaDivergence, gradients: Gradients) -> tuple[int, ...]:
    """The ranks that go through the same learning rates as the others, only earlier; none where the rates are others."""
    taken: dict[int, list[float]] = {}
    for rank, updates in gradients.updates(parting.peers).items():
        taken[rank] = [rate for rate, _ in groupby(update.value("lr") for update in updates)]
    common = min(map(len, taken.values()), default=0) - 1  # the last one may be cut short
    if common < FEWEST_RATES or len({tuple(rates[:common]) for rates in taken.values()}) > 1:
        return ()
    place = {rank: taken[rank].index(update.value("lr")) for rank, update in parting.updates.items() if rank in taken}
    lowest = min(place.values(), default=0)
    return tuple(rank for rank in sorted(place) if place[rank] > lowest)


def _pace(ahead: tuple[int, ...]) -> str:
    if not ahead:
        return ""
    who = "they" if len(ahead) > 1 else "it"
    return f"; {named(ahead)} went through the same values earlier: {who} left a loop before the others"


def _role(rates: dict[int, float], ranks: tuple[int, ...]) -> str:
    rate = rates.get(ranks[0], math.nan)
    return f"steps with learning rate {rate:.6g}"


def _guard_of(line: SourceLine, rates: dict[int, float], recording: Recording) -> Guard | None:
    """The condition on the rank around the line that moves the schedule, where it parts the ranks as their rates do."""
    for guard in guards_at(recording.sources, line) if ".step(" in _text(line, recording) else ():
        if not guard.on_rank or guard.how != ENCLOSES:
            continue
        reached: dict[float, set[bool | None]] = {}
        for rank, rate in rates.items():
            reached.setdefault(rate, set()).add(guard.lets_through(rank))
        parted = {answer for answers in reached.values() for answer in answers}
        alike = all(len(answers) == 1 for answers in reached.values())  # on ranks with one learning rate
        if len(reached) > 1 and alike and (parted == {None} or len(parted) > 1):
            return guard
    return None


def _out_of(guard: Guard, line: SourceLine, recording: Recording) -> Prescription:
    """The step of the schedule on every rank; as a patch where it takes no metric, which might be each rank's own."""
    call = _text(line, recording)
    alike = call.endswith(".step()")
    words = f"call `{call}` at {at(line)} on every rank: take it out of `{guard.test}` (line {guard.line})"
    edits = out_of_condition(recording.sources, line, guard.line) if alike else ()
    return Prescription("same-schedule", change=words + ("" if alike else ", with the same metric"), edits=edits)


def _on_every_rank(exits: Sequence[LoopExit]) -> Prescription:
    return Prescription("same-schedule", change=exits[0].cure if exits else "")


def _text(line: SourceLine, recording: Recording) -> str:
    return line_of(recording.sources, line.path, line.line).strip().partition("  #")[0].rstrip()


def _line(step: SourceLine, recording: Recording) -> SourceLine:
    """Where the schedule moves, when the source near the optimizer's step shows it."""
    schedules = ((f"{name}.step(",) for name in schedule_names(recording.sources, step.path))
    for words in (*schedules, ("scheduler.step(",), ("sched", ".step("), ('["lr"]', "="), ("['lr']", "=")):
        found = line_with(recording.sources, step, *words)
        if found:
            return found
    return step


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(3).initial().step()
    return job.step(params={2: 1}, lr={0: 1e-3, 1: 1e-3, 2: 5e-4}, hyper={0: 7, 1: 7, 2: 8}).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step(lr=5e-4, hyper=8).recording()
