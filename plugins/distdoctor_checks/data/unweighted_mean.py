"""
DD314 unweighted-mean: an evaluation averages over the ranks what each of them has averaged over its own number of samples.

What it means    Every rank divides by how many samples it has seen, and the quotients are averaged over the ranks. Where one
                 rank has many samples and another one has few, those of the second count for more.
Why it hurts     The score is not that of the data. What it decides (the best checkpoint, an early stop, a schedule) goes by it.
How we know      The ranks evaluated different numbers of samples, side by side (recorded), one of them at least 5 % more than
                 another: as their loaders drew them, or as rows that the model was called with between eval() and train(). Where
                 they evaluated as many samples and the divisor counts elements (tokens that are no padding): a quarter more
                 elements, as sequences of other lengths have.
                 In the source a quotient, or a mean, of what is counted in that loop goes into a collective, which was
                 called before the next step, and whose result is divided by the number of ranks: likely, possible by elements.
What to do       all_reduce the sum and the count, and divide once.
When it is fine  Every rank stands for a domain, and the mean over the domains is what is asked for: accept it with
                 --ignore DD314. Shares of equal length: not reported.
Source           torchmetrics, "Metrics in distributed data parallel": states are summed, not results averaged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.averaged_means import AveragedMean, averaged_means
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import RowsEvaluated

LEAST = 1.05  # times as many samples on one rank as on another: less does not visibly move a score
LEAST_ELEMENTS = 1.25  # with their padding, which is another one in other batches


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of several ranks. `counts`: how many samples, or `elements`, each had; `steps`: the last one of each before;
    `loop`: where it goes through them, or calls the model. `of_loop`: that is a loop over a loader."""

    counts: Mapping[int, int]
    steps: Mapping[int, int]
    loop: SourceLine
    at_ns: int
    of_loop: bool
    elements: bool = False

    @property
    def differs(self) -> bool:
        least = LEAST_ELEMENTS if self.elements else LEAST
        return 0 < least * min(self.counts.values()) <= max(self.counts.values())


@check("DD314", "unweighted-mean", severity=WARNING, family="shares", at_most=LIKELY)
def examine(orders: SampleOrders, recording: Recording, sources: Sources) -> Iterator[Finding]:
    means = averaged_means(sources.texts)
    told: set[AveragedMean] = set()
    for one in (*_drawn(orders), *_called_with(recording)) if means else ():
        for mean in means if one.differs else ():
            if one.elements and not mean.of_elements:
                continue
            is_its = mean.is_of_loop(one.loop) if one.of_loop else mean.is_of(one.loop)
            if mean not in told and is_its and _is_called(one, recording, mean):
                told.add(mean)
                yield _finding(one, mean)


def _drawn(orders: SampleOrders) -> Iterator[Evaluation]:
    """Evaluations by what loaders drew."""
    for together in orders.together():
        if together.evaluates:
            counts = {rank: one.drawn for rank, one in together.passes.items()}
            steps = {rank: one.first_step for rank, one in together.passes.items()}
            yield Evaluation(counts, steps, together.one.loop_line, together.one.started_ns, of_loop=True)


def _called_with(recording: Recording) -> Iterator[Evaluation]:
    """Evaluations by the rows that a model was called with."""
    found: dict[tuple[SourceLine, int], dict[int, RowsEvaluated]] = defaultdict(dict)
    for rank, log in recording.ranks.items():
        for event in log.noted(RowsEvaluated):
            found[event.site, event.step].setdefault(rank, event)
    for (site, step), events in sorted(found.items(), key=lambda one: one[0][1]):
        if len(events) == len(recording.ranks) > 1:
            at_ns = min(event.at_ns + recording.ranks[rank].monotonic_to_wall_ns for rank, event in events.items())
            counts = {rank: event.rows for rank, event in sorted(events.items())}
            elements = {rank: event.elements for rank, event in sorted(events.items())}
            yield Evaluation(counts, dict.fromkeys(counts, step), site, at_ns, of_loop=False)
            if len(set(counts.values())) == 1:
                yield Evaluation(elements, dict.fromkeys(counts, step), site, at_ns, of_loop=False, elements=True)


def _is_called(one: Evaluation, recording: Recording, mean: AveragedMean) -> bool:
    """Whether every rank called that collective behind this evaluation, before its next step."""
    return all(_calls(recording.ranks[rank], step, mean) for rank, step in one.steps.items())


def _calls(log: RankTrace, step: int, mean: AveragedMean) -> bool:
    sites = {int(site) for site in log.calls["site"][log.calls["step"] == step]}
    return any((site.path, site.line) == (mean.reduced.path, mean.reduced.line) for site in map(log.site, sites))


def _finding(one: Evaluation, mean: AveragedMean) -> Finding:
    ranks, counts, what = tuple(one.counts), one.counts, "element" if one.elements else "sample"
    each = ", ".join(f"{count:,} on rank {rank}" for rank, count in list(counts.items())[:8])
    total = sum(counts.values())
    few = min(counts, key=lambda rank: counts[rank])
    weight = total / len(counts) / counts[few]
    return Finding(
        title=f"`{mean.quotient[:80]}` is averaged over {named(ranks)}, which evaluate different numbers of {what}s ({each})",
        ranks=ranks,
        # Of elements the divisor may count others than those that the model was given.
        confidence=POSSIBLE if one.elements else LIKELY,
        place=mean.made,
        places=(
            Place(mean.made, ranks, "each rank averages its own"),
            *((Place(mean.reduced, ranks, "the averages are averaged"),) if mean.reduced != mean.made else ()),
            Place(one.loop, ranks, "evaluates"),
        ),
        evidence={f"{what}s": dict(counts), "quotient": mean.quotient[:200], "weight_of_the_fewest": round(weight, 2)},
        why=f"each {what} of rank {few} counts {weight:.1f} times as much as it would in a mean over all {total:,}",
        prescriptions=(Prescription("sum-then-divide"),),
        at_ns=one.at_ns,
    )


_SOURCE = """\
def evaluate(model, loader):
    right = count = 0
    for inputs, labels in loader:
        right += (model(inputs).argmax(1) == labels).sum().item()
        count += len(labels)
    score = torch.tensor(right / count)
    dist.all_reduce(score)
    score /= world_size
    return score
"""


def _job(counts: dict[int, int]) -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    job.train(orders={0: list(range(50)), 1: list(range(50, 100))})
    orders = {rank: list(range(count)) for rank, count in counts.items()}
    job.evaluate(orders=orders, sampler="BatchSampler>SequentialSampler", loop_site="train.py:3 evaluate")
    for log in job.logs:
        log.call("all_reduce", [1], site="train.py:7 evaluate")
    return job.recording(sources={"/job/train.py": _SOURCE})


def sick() -> Recording:
    return _job({0: 80, 1: 10})


def healthy() -> Recording:
    return _job({0: 45, 1: 45})
