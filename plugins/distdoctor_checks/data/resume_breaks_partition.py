"""
DD704 resume-breaks-partition: after a resume, samples of the current epoch repeat or are lost.

What it means    The checkpoint holds the model but not the position in the data: the epoch number, the position in the epoch,
                 the sampler's seed. The resumed job restarts the epoch, skips its rest, or shuffles differently.
Why it hurts     A job that is interrupted often sees the beginnings of its epochs again and again, and their ends hardly ever.
                 The loss jumps after each resume, and no two runs are comparable.
How we know      `distdoctor check-data --resume` runs the job uninterrupted, up to a step, and resumed from there, and counts
                 each sample in each epoch over all ranks: the samples drawn more or less often than without the interruption.
                 For a killed job (`--kill-at`), draws after the point from which the job resumes do not count. `distdoctor run`
                 compares with the recording of the earlier run that this one resumed, if it is in the same folder: with the
                 samples that it had drawn in the current epoch until it saved (likely). A training that goes on within one
                 process (an optimizer's state was loaded, into a new one) in the order of an epoch that it has had, with a
                 sampler that was told no epoch: likely as well, as one that goes on from the step of the last save with samples
                 of the epoch that it has had; and so is one that reads a stream from its beginning. So is a run that loaded a
                 checkpoint and leaves out the same batches in every epoch, by `if i < done: continue` or
                 `islice(loader, done, None)`, whose bound no epoch changes.
                 Where no loader draws the samples: this run goes on from a save of another number of ranks, and its source works
                 out how many samples were seen from the saved steps and its own number of ranks (possible).
What to do       Save the epoch and the steps done in it; on resume call set_epoch(epoch) and skip the samples already drawn, in
                 the sampler rather than by reading them, or save a StatefulDataLoader's state_dict.
When it is fine  Checkpoints at epoch ends with the epoch restored. A different order in which every sample still comes once.
Source           torchdata StatefulDataLoader; torchtitan saves its loader's state with each checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from distdoctor.diagnosis.check import NotApplicable, NotSeen, check
from distdoctor.diagnosis.checkpoint.restored import Restored
from distdoctor.diagnosis.data.resumed_here import (
    BegunAnew,
    DrawnAgain,
    ResumedHere,
    begun_anew,
    drawn_again,
    resumed_here,
)
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.data.skipped_anew import SkippedAnew, skipped_anew
from distdoctor.diagnosis.data.went_on import WentOn
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE, WARNING, Confidence, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.source.resumed_counts import resumed_count
from distdoctor.diagnosis.source.stream_shares import dealt_by
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.resumption import Resumption


@check("DD704", "resume-breaks-partition", severity=WARNING, live=False, stands_alone=True)
def examine(
    recording: Recording,
    went_on: WentOn | None,
    restored: Restored | None,
    sources: Sources,
    orders: SampleOrders | None,
    gradients: Gradients | None,
) -> Iterator[Finding]:
    found = recording.resumption
    if orders is not None and gradients is not None and found is None:
        anew = list(skipped_anew(orders, gradients, recording, sources.texts))
        if anew:
            yield from map(_left_out, anew)
            return
    here = list(resumed_here(orders, recording)) if orders is not None and found is None else []
    again = list(drawn_again(orders, recording)) if orders is not None and found is None else []
    anew_read = list(begun_anew(orders, recording)) if orders is not None and found is None else []
    if here or again or anew_read:
        yield from map(_from_the_beginning, anew_read)
        yield from map(_within, here)
        yield from (_repeated(one, sources) for one in again)
        return
    if found is None and went_on is None:
        counted_anew = _counted_anew(restored, sources) if restored is not None else None
        if counted_anew is not None:
            yield counted_anew
            return
        raise NotApplicable("no resume was compared (`distdoctor check-data --resume` does)")
    if found is not None and found.trouble:
        unread = orders is None  # a job without a loader resumes well if its state does, see DD706
        raise (NotApplicable if unread else NotSeen)(f"the data of the resumed job were not compared: {found.trouble}")
    if found is not None and not found.healthy:
        counted = "every sample was counted in each epoch, uninterrupted and resumed"
        yield _finding(found, CERTAIN, counted, _begun(orders))
    elif found is None and went_on is not None and not went_on.resumption.healthy:
        beside = f"the samples that run {went_on.run} drew until it saved are compared with this run's first samples"
        yield _finding(went_on.resumption, LIKELY, beside, _begun(orders))


def _begun(orders: SampleOrders | None) -> int:
    """When the resumed job began to read: what it does wrong later may follow from where it began."""
    passes = (one for own in orders.by_rank.values() for one in own) if orders is not None else ()
    return min((one.started_ns for one in passes if one.trains), default=0)


def _finding(found: Resumption, confidence: Confidence, how: str, at_ns: int) -> Finding:
    about = "about " if found.keep_one_in > 1 else ""
    numbers = [
        f"{about}{n:,} samples {verb}" for n, verb in ((found.repeated, "repeat"), (found.lost, "are lost")) if n
    ]
    what = " and ".join(numbers) or f"the order of an earlier epoch repeats in epoch {found.epoch}"
    site = SourceLine(found.path, found.line, found.function)
    return Finding(
        title=f"{what} after the resume at step {found.step}: the resumed job {found.order}",
        ranks=found.ranks,
        confidence=confidence,
        place=site,
        places=(Place(site, found.ranks, "the training loader is created, in the resumed job"),),
        evidence={
            name: value for name, value in asdict(found).items() if name not in ("path", "line", "function", "trouble")
        },
        why=f"the job ended {found.into_epoch:,} samples into epoch {found.epoch}, which has {found.of_epoch:,}; {how}",
        prescriptions=(
            Prescription("restore-the-position", effect="every sample of the epoch still comes once after a resume"),
        ),
        at_ns=at_ns,
    )


def _from_the_beginning(found: BegunAnew) -> Finding:
    """A stream that a training which goes on in the same process reads from its beginning."""
    cut, resumed, ranks = found.cut, found.resumed, found.ranks
    repeated = min(cut.drawn, resumed.drawn)
    workers = resumed.workers > 0
    return Finding(
        title=f"the stream begins anew after the resume: {named(ranks)} {'reads' if len(ranks) == 1 else 'read'} again what "
        f"{'it' if len(ranks) == 1 else 'they'} had read from step {cut.first_step} on, {repeated:,} batches each",
        ranks=ranks,
        confidence=LIKELY,
        place=resumed.made_line,
        places=(
            Place(resumed.made_line, ranks, "the training loader is created, anew"),
            Place(resumed.loop_line, ranks, "reads from the beginning"),
        ),
        evidence={"repeated_batches": repeated, "resumed_at_step": resumed.first_step, "workers": resumed.workers},
        why=f"the first pass was left within the stream; the training goes on from its save at step {resumed.first_step}, with "
        "the same samples in the same order to the bit, so what comes behind them is never read",
        prescriptions=(
            Prescription(
                "restore-the-position",
                change="a worker reads its own copy of the data set, whose position never comes back to the rank: take the state "
                "from there (torchdata's StatefulDataLoader), or count what was handed over"
                if workers
                else "save the position in the stream with the model, and give it to the new data set before its first batch",
                effect="every sample of the stream still comes once after a resume",
            ),
        ),
        at_ns=resumed.started_ns,
    )


def _within(found: ResumedHere) -> Finding:
    """A training that goes on in the same process."""
    resumed, under_way, had = found.resumed, found.cut.epoch_told, max(found.like.epoch_told, 0)
    line = found.cut.set_epoch_line
    told = (Place(line, found.ranks, f"told epoch {under_way} before"),) if line else ()
    return Finding(
        title=f"epoch {under_way} goes on in the order of epoch {had} after the resume: the new {resumed.sampler_name} was told "
        "no epoch",
        ranks=found.ranks,
        confidence=LIKELY,
        place=resumed.loop_line,
        places=(
            Place(resumed.loop_line, found.ranks, f"goes on in the order of epoch {had}"),
            Place(resumed.made_line, found.ranks, "the training loader is created, anew"),
            *told,
        ),
        evidence={
            "epoch": under_way,
            "order_of": had,
            "drawn_before": found.cut.drawn,
            "set_epoch_calls": resumed.set_epoch_calls,
        },
        why=f"the job had drawn {found.cut.drawn:,} samples of epoch {under_way} on each rank; what it draws since is in "
        "another order, so samples of the epoch repeat and others are lost",
        prescriptions=(
            Prescription(
                "restore-the-position",
                change=f"call set_epoch({under_way}) on the new sampler before its first batch, in a half epoch too",
                effect="every sample of the epoch still comes once after a resume",
            ),
        ),
        at_ns=resumed.started_ns,
    )


def _repeated(found: DrawnAgain, sources: Sources) -> Finding:
    """Samples of the epoch under way that come again, where a training goes on in the same process."""
    resumed, epoch = found.resumed, found.cut.epoch_told
    other = resumed.epoch_told != epoch and resumed.set_epoch_line
    told = (Place(resumed.set_epoch_line, found.ranks, f"was told epoch {resumed.epoch_told}"),) if other else ()
    about = "about " if found.keep_one_in > 1 else ""
    dealt = next(filter(None, (dealt_by(sources.texts, name) for name in resumed.sampler.split(">"))), SourceLine())
    shares = (
        (Place(dealt, found.ranks, "the sampler takes the rank's share of what it has not skipped"),) if dealt else ()
    )
    decides = told or shares
    return Finding(
        title=f"{about}{found.repeated:,} samples of epoch {epoch} repeat after the resume: {found.before:,} were drawn of it "
        f"before, and {found.since:,} since",
        ranks=found.ranks,
        confidence=LIKELY,
        place=decides[0].site if decides else resumed.loop_line,
        places=(
            *decides,
            Place(resumed.loop_line, found.ranks, f"goes on in epoch {epoch}"),
            Place(resumed.made_line, found.ranks, "the training loader is created, anew"),
        ),
        evidence={"epoch": epoch, "repeated": found.repeated, "before": found.before, "since": found.since},
        why=f"the training goes on from the step in which {resumed.sampler_name} was left, within epoch {epoch}; "
        + (
            f"the new one draws what is left in the order of epoch {max(resumed.epoch_told, 0)}"
            if resumed.epoch_told != epoch
            else "it skips some of its samples, but not all that were drawn"
        ),
        prescriptions=(
            Prescription(
                "restore-the-position",
                change=f"tell the new sampler epoch {epoch} before its first batch"
                if resumed.epoch_told != epoch
                else "skip what all ranks have drawn together before the shares are dealt out, or what this rank has drawn "
                "behind that",
                effect="every sample of the epoch still comes once after a resume",
            ),
        ),
        at_ns=resumed.started_ns,
    )


def _left_out(found: SkippedAnew) -> Finding:
    """Batches that are left out in every epoch, and not only in the one that was interrupted."""
    missing = found.batches - found.trained
    return Finding(
        title=f"each of {found.epochs} epochs leaves out {missing} of its {found.batches} batches: what was done before the "
        "resume is skipped in every epoch",
        ranks=found.ranks,
        confidence=LIKELY,
        place=found.line,
        places=(
            Place(found.line, found.ranks, f"leaves batches out by `{found.test}`"),
            Place(found.one.loop_line, found.ranks, "draws all batches of the epoch"),
        ),
        evidence={"epochs": found.epochs, "batches": found.batches, "trained_on": found.trained, "test": found.test},
        why=f"this run loaded a checkpoint and makes steps with {found.trained} of {found.batches} batches in one epoch after "
        f"the other; nothing in the loop over the epochs changes `{found.bound}`",
        prescriptions=(
            Prescription(
                "restore-the-position",
                change=f"set {found.bound} to 0 after the first epoch",
                effect=f"every later epoch trains on all {found.batches} batches",
            ),
        ),
        at_ns=found.one.started_ns,
    )


def _counted_anew(restored: Restored, sources: Sources) -> Finding | None:
    """The count of samples of a run that goes on with another number of ranks, worked out as if that had made the save."""
    first = next(iter(restored.ranks.values()), None)
    if first is None or first.save.document.world_size == first.start.document.world_size:
        return None
    count = resumed_count(sources.texts)
    if count is None:
        return None
    then, now, ranks = first.save.document.world_size, first.start.document.world_size, tuple(sorted(restored.ranks))
    return Finding(
        title=f"the resumed job takes {count.name} for {count.text}, with {now} ranks; the run that saved had {then}: samples "
        f"{'are lost' if now > then else 'repeat'}",
        ranks=ranks,
        confidence=POSSIBLE,
        place=count.line,
        places=(
            Place(count.line, ranks, "works out how many samples were seen"),
            Place(first.save.site, (first.save.rank,), f"saved here, at step {first.save.document.step}"),
        ),
        evidence={"count": count.name, "worked_out": count.text, "ranks_then": then, "ranks_now": now},
        why=f"{first.save.document.step:,} steps of {then} ranks are not as many samples as those of {now}, unless the batch of "
        "a rank was changed to make up for it",
        prescriptions=(
            Prescription(
                "restore-the-position",
                change=f"save {count.name} itself, and read it back",
                effect="every sample of the epoch still comes once after a resume",
            ),
        ),
    )


def _job(found: Resumption) -> Recording:
    from distdoctor.testing.samples import sampled_job

    return replace(sampled_job(ranks=2, length=100).train().recording(), resumption=found)


_AT = Resumption(
    step=10, epoch=0, into_epoch=40, of_epoch=100, ranks=(0, 1), path="/job/train.py", line=12, function="main"
)


def sick() -> Recording:
    """The epoch begins again from its first sample."""
    return _job(replace(_AT, repeated=40, order="restarts epoch 0 from its first sample"))


def healthy() -> Recording:
    """It goes on where it had stopped."""
    return _job(replace(_AT, order="continues where it stopped"))
