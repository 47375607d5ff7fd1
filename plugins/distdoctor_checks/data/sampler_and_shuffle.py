"""
DD312 sampler-and-shuffle: a loader is given both a sampler and shuffle=True, or training reads the dataset in order.

What it means    DataLoader(sampler=..., shuffle=True) contradicts itself: torch rejects it and the job ends. A training loader
                 that reads the same order in every epoch, from the first sample to the last, does not shuffle at all.
Why it hurts     If the data are sorted by class or by time, each batch holds one kind, and the model forgets the others.
How we know      The first case: torch's own error. The second: torch's SequentialSampler, or a DistributedSampler with
                 shuffle=False, drew the same ascending indices in two training epochs. If the evaluation loader shuffles
                 instead, the two loaders were probably swapped: a warning, otherwise a note.
What to do       Put shuffle=True into the sampler: DistributedSampler(dataset, shuffle=True), and a loader without shuffle.
When it is fine  Time series, language models and data shuffled on disk are often read in order on purpose: a note.
Source           torch.utils.data.DataLoader.__init__ (torch 2.15): "sampler option is mutually exclusive with shuffle".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders, Together
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.edits import Edit, words_replaced
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import UncaughtException
from distdoctor.recording.trace.layout import PassFlag

REFUSED = "sampler option is mutually exclusive with shuffle"
LEAST_EPOCHS = 2
LEAST_DRAWS = 32  # of a rank; fewer samples are no dataset that has to be shuffled


@check("DD312", "sampler-and-shuffle", severity=NOTE, stands_alone=True)
def examine(noted: RankEvents, orders: SampleOrders | None, sources: Sources) -> Iterator[Finding]:
    yield from _refused(noted, sources)
    if orders is not None:
        yield from _in_order(orders)


def _refused(noted: RankEvents, sources: Sources) -> Iterator[Finding]:
    """Ranks that torch's error has ended."""
    found: dict[SourceLine, list[int]] = defaultdict(list)
    at_ns = 0
    for rank, raised in noted.events(UncaughtException):
        if REFUSED in raised.words:
            found[raised.site].append(rank)
            at_ns = at_ns or raised.at_ns
    for site, ranks in found.items():
        yield Finding(
            title=f"{named(ranks)} failed: the loader is given both a sampler and shuffle=True",
            ranks=tuple(ranks),
            severity=ERROR,
            confidence=CERTAIN,
            place=site,
            places=(Place(site, tuple(ranks), "creates the loader"),),
            evidence={"error": REFUSED},
            why="the sampler decides the order, so DataLoader raises an error if shuffle=True requests another",
            prescriptions=(
                Prescription("shuffle-in-the-sampler", change=_WORDS, edits=_without_shuffle(site, sources)),
            ),
            at_ns=at_ns,
        )


_WORDS = "remove shuffle=True from the loader and pass it to the sampler"


def _without_shuffle(site: SourceLine, sources: Sources) -> tuple[Edit, ...]:
    text = sources.texts.get(site.path, "")
    found = (words_replaced(site.path, text, site.line, words, "") for words in (", shuffle=True", "shuffle=True, "))
    return next((edits for edits in found if edits), ())


def _in_order(orders: SampleOrders) -> Iterator[Finding]:
    """Training loaders whose every epoch runs from the first sample to the last."""
    loaders: dict[str, list[Together]] = defaultdict(list)
    for together in orders.together():
        if together.trains:
            loaders[str(together.one.made_line)].append(together)
    swapped = {
        str(one.made_line) for passes in orders.by_rank.values() for one in passes if one.evaluates and one.shuffles
    }
    for epochs in loaders.values():
        passes = [one for together in epochs for one in together.passes.values()]
        if len(epochs) >= LEAST_EPOCHS and all(_reads_in_order(one) for one in passes):
            yield _finding(epochs, sorted(swapped))


def _reads_in_order(one: LoaderPass) -> bool:
    stock = one.flags & (PassFlag.WHOLE | PassFlag.DISTRIBUTED_SAMPLER)
    first = one.first.astype(np.int64)
    if one.shuffles is not False or not stock or not one.comparable or one.flags & PassFlag.TRANSLATED:
        return False
    last = len(first) - len(one.padding) if one.drawn == len(first) else len(first)
    return last >= LEAST_DRAWS and bool((np.diff(first[:last]) > 0).all())


def _finding(epochs: list[Together], swapped: list[str]) -> Finding:
    one, ranks = epochs[0].one, epochs[0].ranks
    shuffled = (
        f", while the evaluation shuffles ({swapped[0]}): the two loaders were probably swapped" if swapped else ""
    )
    return Finding(
        title=f"training reads the dataset in order, from the first sample to the last, in {len(epochs)} epochs{shuffled}",
        ranks=ranks,
        severity=WARNING if swapped else NOTE,
        confidence=LIKELY if swapped else POSSIBLE,
        place=one.made_line or one.loop_line,
        places=(
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}, shuffle off"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={
            "sampler": one.sampler,
            "epochs": len(epochs),
            "first_indices": [int(index) for index in one.first[:5]],
        },
        why=f"{one.sampler_name} does not shuffle, which is right only for data already shuffled or whose order matters",
        prescriptions=(
            Prescription(
                "shuffle-in-the-sampler",
                change="" if one.flags & PassFlag.DISTRIBUTED_SAMPLER else "DataLoader(dataset, ..., shuffle=True)",
                effect="every epoch has a different order",
            ),
        ),
        at_ns=one.started_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    return job.train(shuffle=False).train(shuffle=False, epoch_told=1, set_epoch_calls=1).recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    for epoch in range(2):
        job.train(epoch=epoch, epoch_told=epoch, set_epoch_calls=epoch + 1).evaluate()
    return job.recording()
