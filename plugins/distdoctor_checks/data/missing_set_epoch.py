"""
DD301 missing-set-epoch: set_epoch is never called, so every epoch repeats the order of the first.

What it means    DistributedSampler shuffles with seed + epoch. Without set_epoch(epoch) every epoch repeats epoch 0.
Why it hurts     The model sees one fixed order; validation looks fine, and generalization quietly suffers.
How we know      A training pass starts with the same indices in the same order as the previous one, although the sampler has
                 shuffle=True. It is reported as soon as another shuffle would do so with a chance below 10^-9, over all ranks:
                 9 draws from 60,000 samples, but never fewer than 32 or a whole pass. A pass that was left early counts only if
                 three in a row start alike: a learning-rate finder starts over on purpose. Iterable datasets that have a
                 set_epoch are compared by the first samples of their batches, and only if an attribute declares that they
                 shuffle (`shuffle`, or how Hugging Face builds them), or a `seed` whose epoch was never set: likely. With
                 persistent workers, set_epoch reaches only the rank's own object, not the copies that the workers hold, of the
                 data or of what lies in them and is told by itself. This is certain if it changed an attribute after the
                 workers had begun and the order was the same again; not if the source shows that the order does not depend on
                 that attribute, and a note, possible, if that hangs on an option of the data, or is all that is known. Where
                 samples change with the epoch and their order need not (an augmentation, a curriculum of map-style data) the
                 source has to show that: likely. A batch sampler with its own set_epoch that repeats its order and looks
                 shuffled: likely. So is a loader that was read once, before any step, into a list that the source goes through
                 in every epoch, when the ranks made two rounds or more.
What to do       Call sampler.set_epoch(epoch) at the top of the epoch loop, before iterating the loader, and iterate the
                 loader itself, not a list of its batches.
When it is fine  shuffle=False, a single epoch, a sampler that reseeds itself, an epoch that lies in shared memory: nothing is
                 reported then. If set_epoch is called repeatedly with one value, DD302 reports it instead.
Source           torch.utils.data.distributed.DistributedSampler, the warning on set_epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.kept_batches import KeptBatches, kept_batches
from distdoctor.diagnosis.data.outdated_copies import OutdatedCopies, outdated_copies
from distdoctor.diagnosis.data.repeated_orders import Repetition, repetitions
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import (
    CERTAIN,
    LIKELY,
    NOTE,
    POSSIBLE,
    WARNING,
    Confidence,
    Finding,
    Place,
    Prescription,
)
from distdoctor.diagnosis.source.call_edits import calls_at, method_around, only_method_called
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.epoch_use import epoch_use, handed_on, shuffles_by_epoch
from distdoctor.diagnosis.source.given_values import given_at
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, guards_at
from distdoctor.diagnosis.source.sampler_calls import (
    dataset_name,
    epoch_told_above,
    epoch_variable,
    sampler_name,
    told_as,
)
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag

_NOT_KEPT = "DataLoader(..., persistent_workers=False)  # or keep the epoch in shared memory"


@check("DD301", "missing-set-epoch", severity=WARNING, family="epoch", stands_alone=True)
def examine(orders: SampleOrders, sources: Sources, recording: Recording) -> Iterator[Finding]:
    told: set[str] = set()
    for repeated in repetitions(orders, sources.texts):
        confidence = None if repeated.told_again else _confidence(repeated, sources)
        if repeated.outdated or confidence is not None:
            told.add(str(repeated.later.made_line))
        if confidence is not None:
            yield _finding(repeated, confidence, sources, _meant_to_tell(repeated, orders, sources))
    for copies in outdated_copies(orders, told):
        yield from _copies_finding(copies, sources)
    for kept in kept_batches(orders, recording, sources.texts):
        yield _kept_finding(kept)


def _kept_finding(found: KeptBatches) -> Finding:
    one, ranks = found.kept, found.ranks
    return Finding(
        title=f"{named(ranks)} read the loader once into a list and went through it {found.rounds:.0f} times: "
        "every epoch has the batches and the order of the first",
        confidence=LIKELY,
        ranks=ranks,
        place=one.loop_line,
        places=(
            Place(one.loop_line, ranks, "reads all batches of the loader into a list"),
            Place(found.loop, ranks, "goes through the list in every epoch"),
            Place(one.made_line, ranks, f"the loader is created, sampler {one.sampler_name}"),
        ),
        evidence={"batches": one.batches, "rounds": round(found.rounds, 2), "sampler": one.sampler, "draws": one.drawn},
        why=f"{one.sampler_name} was asked for its {one.batches:,} batches once, before the first step; a later set_epoch does "
        "not reach batches that were drawn before, and all of them stay in memory",
        prescriptions=(
            Prescription("set-epoch", change="iterate the loader in the epoch loop instead of the list of its batches"),
        ),
        at_ns=one.started_ns,
    )


def _meant_to_tell(repeated: Repetition, orders: SampleOrders, sources: Sources) -> tuple[Place, ...]:
    """The lines by which the epoch does not reach the data: workers that persist, or a set_epoch around the loop that told
    nobody, with the condition around it."""
    later, ranks = repeated.later, repeated.ranks
    if repeated.told_in_vain and later.workers:
        return _keeping(later, ranks, sources)
    texts = sources.texts
    called = SourceLine()
    if not later.set_epoch_calls:
        called = method_around(texts, later.loop_line, "set_epoch") or only_method_called(texts, "set_epoch")
    if not called or any(
        one.set_epoch_line.line == called.line for passes in orders.by_rank.values() for one in passes
    ):
        return ()
    guards = [guard for guard in guards_at(sources.texts, called)[:1] if guard.how == ENCLOSES]
    own = handed_on(sources.texts)
    return (
        *((Place(own, ranks, "hands the epoch on, but not to this sampler"),) if own and own != called else ()),
        *(Place(replace(called, line=one.line), ranks, f"tells the epoch only if `{one.only_if}`") for one in guards),
        Place(called, ranks, "tells the epoch, but not this sampler"),
    )


def _keeping(one: LoaderPass, ranks: tuple[int, ...], sources: Sources) -> tuple[Place, ...]:
    kept = given_at(sources.texts, one.made_line, "persistent_workers")[:1]
    return tuple(
        Place(line, ranks, f"keeps the workers over the epochs: persistent_workers={text}") for line, text in kept
    )


def _copies_finding(found: OutdatedCopies, sources: Sources) -> Iterator[Finding]:
    one, ranks = found.first, found.ranks
    use = epoch_use(sources.texts, one.data.name, one.data.held.split(">"))
    if use is None or not use.read:
        return
    keeping = _keeping(one, ranks, sources)
    sure = use.always and not one.flags & PassFlag.ITERABLE  # a stream may draw another order by itself
    yield Finding(
        title=f"set_epoch changes {one.data.name} on {named(ranks)}, not the copies that their persistent workers hold: "
        f"{found.epochs} epoch{'s' if found.epochs > 1 else ''} had samples of an earlier one",
        confidence=LIKELY if sure else POSSIBLE,
        severity=WARNING if sure else NOTE,
        ranks=ranks,
        place=keeping[0].site if keeping else one.made_line or one.loop_line,
        places=(
            *keeping,
            Place(use.read, ranks, f"makes samples with self.{use.attribute}, which set_epoch changes"),
            Place(one.made_line, ranks, f"the loader is created, {one.workers} workers, data {one.data.name}"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={"epochs": found.epochs, "workers": one.workers, "dataset": one.data.name},
        why="set_epoch bound an attribute of the data anew after the workers had begun, and each worker reads the copy that it "
        "began with",
        prescriptions=(Prescription("set-epoch", change=_NOT_KEPT, effect="samples of each epoch's own"),),
        at_ns=one.started_ns,
    )


def _finding(repeated: Repetition, confidence: Confidence, sources: Sources, telling: tuple[Place, ...]) -> Finding:
    later = repeated.later
    told, name = _told_object(repeated, sources)
    epoch = epoch_variable(sources.texts, later.loop_line) or "epoch"
    kind = later.data.name if repeated.iterable else later.sampler_name
    return Finding(
        title=f"{named(repeated.ranks)} drew epoch {repeated.epoch} in the order of epoch {repeated.epoch - 1}: "
        f"{kind} shuffles by epoch, and {_told(repeated)}",
        confidence=confidence,
        severity=NOTE if confidence is POSSIBLE else WARNING,
        ranks=repeated.ranks,
        place=telling[0].site if telling else later.loop_line,
        places=(
            *telling,
            Place(
                later.loop_line,
                repeated.ranks,
                f"iterates the loader, the same order in epochs {repeated.epoch - 1} and {repeated.epoch}",
            ),
            Place(later.made_line, repeated.ranks, f"the loader is created, {told} {kind}"),
        ),
        evidence={
            "draws_compared": repeated.draws,
            "draws_equal": repeated.draws,
            "first_indices": [int(index) for index in later.first[:5]],
            "chance": repeated.chance,
            "set_epoch_calls": later.set_epoch_calls,
            "sampler": later.sampler,
        },
        why=f"the first {repeated.draws:,} {'batches' if repeated.iterable else 'draws'} of both epochs are equal on "
        f"{named(repeated.ranks)}{', by their first samples' if repeated.iterable else ''}; "
        f"two shuffles agree like that with a chance {repeated.chance}",
        prescriptions=(
            Prescription(
                "set-epoch",
                change=_change(repeated, f"{name}.set_epoch({epoch})", sources),
                edits=_edits(repeated, sources),
                effect=f"each epoch draws its {later.length:,} samples in a different order"
                if later.length > 0
                else "",
            ),
        ),
        at_ns=later.started_ns,
    )


def _confidence(repeated: Repetition, sources: Sources) -> Confidence | None:
    """None: the data have been told the epoch, and do not shuffle by it."""
    data, texts, shuffles = repeated.later.data, sources.texts, repeated.later.shuffles
    if repeated.outdated:
        use = None if shuffles else epoch_use(texts, data.name, data.held.split(">"))
        if use is None:
            return CERTAIN if shuffles else LIKELY
        return (CERTAIN if use.always else POSSIBLE) if use.read else None
    if repeated.told_in_vain and shuffles is None:
        return POSSIBLE if shuffles_by_epoch(texts, data.name) else None
    return LIKELY if repeated.iterable or not repeated.sharded else CERTAIN


def _told_object(repeated: Repetition, sources: Sources) -> tuple[str, str]:
    """What has to be told the epoch, in a word, and what the source calls it."""
    if repeated.iterable:
        return "data", dataset_name(sources.texts, repeated.later.made_line) or "dataset"
    return "sampler", sampler_name(sources.texts, repeated.later.made_line) or "sampler"


def _change(repeated: Repetition, statement: str, sources: Sources) -> str:
    if repeated.told_in_vain and repeated.later.workers:
        return _NOT_KEPT
    drawn_singly = calls_at(sources.texts, repeated.later.loop_line, "next")
    return f"{statement}  # before {'the loader is iterated anew' if drawn_singly else 'the loop over the batches'}"


def _edits(repeated: Repetition, sources: Sources) -> tuple[Edit, ...]:
    later = repeated.later
    if repeated.told_in_vain or (repeated.iterable and later.workers):  # a worker that persists keeps its copy
        return ()
    what = "dataset" if repeated.iterable else told_as(sources.texts, later.made_line)
    return epoch_told_above(sources.texts, later.loop_line, later.made_line, what)


def _told(repeated: Repetition) -> str:
    calls, line = repeated.later.set_epoch_calls, repeated.later.set_epoch_line
    if not calls:
        return "set_epoch was never called"
    if repeated.told_in_vain:
        workers = ""
        if repeated.outdated:
            workers = ": it changed the rank's own object, not the copies that its persistent workers hold"
        elif repeated.later.workers:
            workers = ": persistent workers keep the copy of the data that they started with"
        return f"set_epoch({repeated.later.epoch_told}) had no effect{workers} ({line})"
    if calls > repeated.earlier.set_epoch_calls:
        return f"set_epoch({repeated.later.epoch_told}) came only after the previous epoch had been drawn ({line})"
    return f"set_epoch was last called before epoch {repeated.epoch - 1} was drawn ({line})"


def sick() -> Recording:
    from distdoctor.testing.samples import SOURCE, sampled_job

    source = {"/job/train.py": SOURCE.replace("        sampler.set_epoch(epochs)\n", "\n")}
    return sampled_job(ranks=2, length=100).train(epoch=0).train(epoch=0).recording(sources=source)


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    for epoch in range(2):
        job.train(epoch=epoch, epoch_told=epoch, set_epoch_calls=epoch + 1, set_epoch_site="train.py:29 train")
    return job.recording()
