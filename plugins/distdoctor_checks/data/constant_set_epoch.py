"""
DD302 constant-set-epoch: set_epoch is called every epoch, but always with the same value.

What it means    DistributedSampler shuffles with seed + epoch. If it gets the same number each time (the total number of epochs
                 instead of the current one, a counter that is never incremented), it draws the same order each time.
Why it hurts     As without set_epoch, the model sees one fixed order, while the code looks right.
How we know      set_epoch was called between two training passes with the value of the previous call, and both passes drew the
                 same indices in the same order (another shuffle would do so with a chance below 10^-9). Iterable datasets that
                 have a set_epoch and declare that they shuffle are compared by the first samples of their batches: likely.
What to do       Pass the loop's epoch counter.
When it is fine  shuffle=False, or a sampler that reseeds itself: the orders then differ and nothing is reported. Nor is each
                 epoch twice, of which the number goes on.
Source           torch.utils.data.distributed.DistributedSampler, the warning on set_epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.repeated_orders import Repetition, repetitions
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.edits import words_replaced
from distdoctor.diagnosis.source.sampler_calls import epoch_variable, set_epoch_call
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording


@check("DD302", "constant-set-epoch", severity=WARNING, family="epoch", stands_alone=True)
def examine(orders: SampleOrders, sources: Sources) -> Iterator[Finding]:
    for repeated in repetitions(orders, sources.texts):
        if repeated.told_again and not repeated.goes_on:
            yield _finding(repeated, sources)


def _finding(repeated: Repetition, sources: Sources) -> Finding:
    later = repeated.later
    call = set_epoch_call(sources.texts, later.set_epoch_line)
    argument = call.argument if call is not None else ""
    told = (
        f"{argument} = {later.epoch_told}" if argument and not argument.lstrip("-").isdigit() else f"{later.epoch_told}"
    )
    whom, what = ("the data", "batches") if repeated.iterable else ("the sampler", "draws")
    return Finding(
        confidence=LIKELY if repeated.iterable else CERTAIN,
        title=f"{named(repeated.ranks)} passed {whom} the same epoch every time ({told}): "
        f"epoch {repeated.epoch} has the order of epoch {repeated.epoch - 1}",
        ranks=repeated.ranks,
        place=later.set_epoch_line,
        places=(
            Place(later.set_epoch_line, repeated.ranks, f"set_epoch({told}), {later.set_epoch_calls} times so far"),
            Place(later.loop_line, repeated.ranks, "iterates the loader"),
        ),
        evidence={
            "value": later.epoch_told,
            "argument": argument,
            "set_epoch_calls": later.set_epoch_calls,
            "draws_equal": repeated.draws,
            "first_indices": [int(index) for index in later.first[:5]],
            "chance": repeated.chance,
        },
        why=f"set_epoch was called {later.set_epoch_calls} times, the last two times with {later.epoch_told}; the first "
        f"{repeated.draws:,} {what} of epochs {repeated.epoch - 1} and {repeated.epoch} are equal",
        prescriptions=(_prescription(sources, repeated),),
        at_ns=later.started_ns,
    )


def _prescription(sources: Sources, repeated: Repetition) -> Prescription:
    line = repeated.later.set_epoch_line
    call = set_epoch_call(sources.texts, line)
    if call is None:
        return Prescription("set-epoch", change="sampler.set_epoch(epoch)  # the counter of the epoch loop")
    epoch = epoch_variable(sources.texts, line)
    known = bool(epoch) and epoch != call.argument
    new = f"{call.receiver}.set_epoch({epoch if known else 'epoch'})"
    old, text = f"{call.receiver}.set_epoch({call.argument})", sources.texts.get(line.path, "")
    return Prescription("set-epoch", new, edits=words_replaced(line.path, text, line.line, old, new) if known else ())


def sick() -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    for calls in (1, 2):
        job.train(epoch=10, epoch_told=10, set_epoch_calls=calls, set_epoch_site="train.py:29 train")
    return job.recording()


def healthy() -> Recording:
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100)
    for calls in (1, 2):
        job.train(epoch=10, epoch_told=10, set_epoch_calls=calls, set_epoch_site="train.py:29 train", shuffle=False)
    return job.recording()
