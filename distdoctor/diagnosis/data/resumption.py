"""Three recordings of one job, uninterrupted, interrupted and resumed: which samples repeat, which are lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.checkpoint.restored import Restored
from distdoctor.diagnosis.data.read_past import steps_of, until_step, without_what_was_read_past
from distdoctor.diagnosis.data.sample_account import everything
from distdoctor.diagnosis.data.samples import (
    Indices,
    LoaderPass,
    SampleOrders,
    Together,
    comparable_indices,
    drawn_sets,
    repeats_within,
    thinned,
)
from distdoctor.diagnosis.derived import derived
from distdoctor.recording.recording import Recording
from distdoctor.recording.resumption import Resumption
from distdoctor.recording.trace.sample_bitmap import parts

EXAMPLES = 5
_UNKNOWN = (
    "the killed job resumed in an order that the uninterrupted one never had, or its epochs are too long to be told "
    "apart; use --stop-args instead of --kill-at"
)
_UNSTABLE = (
    "the interrupted job drew other samples than the uninterrupted one before it was interrupted: without a seed that is the "
    "same in every run (of the split, of the sampler), what the resume changes cannot be told from it"
)
_AGAIN = "again "
LEAST_DRAWS = 8  # that agree, of one rank, to call two orders the same


def compare(whole: Recording, before: Recording, after: Recording, *, killed: bool = False) -> Resumption:
    """The account. `before` ended at a checkpoint from which `after` goes on; `whole` is the same job in one piece.

    `killed`: it ended somewhere behind its last checkpoint. Where the save is known with whose weights `after` begins, what was
    drawn until then counts. Else what it drew from where `after` goes on in the same order is left out of the account: the steps
    made with it were lost with the job.
    """
    try:
        base, begun, resumed = (training_epochs(recording) for recording in (whole, before, after))
    except NotSeen as reason:
        return Resumption(trouble=str(reason))
    if len(begun) > len(base):
        return Resumption(trouble=f"the interrupted job ran {len(begun)} epochs, the uninterrupted one {len(base)}")
    if not all(_draws_alike(whole_epoch, one) for whole_epoch, one in zip(base, begun, strict=False)):
        return Resumption(trouble=_UNSTABLE)
    step = steps_of(before)
    saved = _saved_step(after) if killed else 0
    until = until_step(begun, base, whole, saved) if saved else None
    if until is not None:
        begun, step, killed = until, saved, False  # what was drawn behind the save is lost with the job
        resumed = [without_what_was_read_past(resumed[0], begun[-1], after), *resumed[1:]]
    back = _goes_back(base, begun, resumed[0]) if killed else None
    undone = 0
    if back is not None:
        at_kill = sum(map(_drawn, begun))
        begun = [*begun[: back[0]], *([_cut(begun[back[0]], back[1])] if any(back[1].values()) else [])]
        undone = at_kill - sum(map(_drawn, begun))
    last = len(begun) - 1
    if last < 0:  # it begins anew, and nothing was kept of what was drawn
        begun, last = [_cut(base[0], dict.fromkeys(base[0].passes, 0))], 0
    drawn, of_epoch = _drawn(begun[last]), _drawn(base[last])
    partial = drawn < of_epoch
    epoch = last if partial else last + 1
    follows = _follows(base, begun, resumed[0], epoch)
    if killed and back is None and follows == "other":
        return Resumption(trouble=_UNKNOWN)  # samples that come again may have been drawn behind the last checkpoint
    # The resumed job's first epoch belongs to the one under way, unless it begins with the order of the next.
    at = epoch + 1 if follows == "next" else epoch
    later: list[Together | None] = [*[None] * at, *resumed]
    joined = [[part for part in (_at(begun, e), _at(later, e)) if part is not None] for e in range(len(base))]
    (repeated, more), (lost, fewer), keep = _difference(base, joined)
    place = resumed[0].one.made_line or resumed[0].one.loop_line
    return Resumption(
        step=step,
        epoch=epoch,
        into_epoch=drawn if partial else 0,
        of_epoch=of_epoch,
        repeated=repeated,
        lost=lost,
        order=_words_of_killed(epoch, undone, anew=not (drawn and partial)) if undone else _words(follows, epoch),
        wrong_order=(follows == "first" and epoch > 0) or follows.startswith(_AGAIN),
        examples=(more, fewer),
        ranks=resumed[0].ranks,
        path=place.path,
        line=place.line,
        function=place.function,
        keep_one_in=keep,
    )


def _saved_step(after: Recording) -> int:
    """The step of the save with whose weights the resumed job begins; 0 where that is not known."""
    try:
        restored = Restored.of(after)
    except NotSeen:
        return 0
    steps = {one.save.document.step for one in restored.ranks.values()}
    return steps.pop() if len(steps) == 1 else 0


def _goes_back(
    base: Sequence[Together], begun: Sequence[Together], resumed: Together
) -> tuple[int, dict[int, int]] | None:
    """The epoch, and the draw of each rank in it, from which the resumed job goes on in the order of the uninterrupted one; None
    when that is nowhere in what the killed job had drawn."""
    for epoch in reversed(range(min(len(base), len(begun)))):
        places: dict[int, int] = {}
        for rank, one in resumed.passes.items():
            whole, earlier = base[epoch].passes.get(rank), begun[epoch].passes.get(rank)
            if whole is None or earlier is None or not len(one.indices):
                break
            found = np.flatnonzero(whole.indices == one.indices[0])[:1]
            if not len(found) or found[0] > len(earlier.indices):
                break
            if not _from(whole, int(found[0]), one):
                break
            places[rank] = int(found[0])
        if len(places) == len(resumed.passes) and not any(one.keep_one_in > 1 for one in base[epoch].passes.values()):
            return epoch, places
    return None


def _cut(epoch: Together, places: Mapping[int, int]) -> Together:
    """The epoch up to these draws."""
    return Together(
        {
            rank: replace(one, indices=one.indices[: places[rank]], drawn=places[rank], ended_ns=0)
            for rank, one in epoch.passes.items()
            if rank in places
        }
    )


def _at(epochs: Sequence[Together | None], number: int) -> Together | None:
    return epochs[number] if number < len(epochs) else None


def training_epochs(recording: Recording) -> list[Together]:
    """The epochs of the loader that was trained on most, and of others around its sampler (which skip batches), in order."""
    loaders: dict[str, list[Together]] = defaultdict(list)
    for together in everything(derived(SampleOrders, recording)):
        if together.trains:
            loaders[str(together.one.made_line)].append(together)
    if not loaders:
        raise NotSeen("no optimizer stepped while a loader was read")
    most = max(loaders.values(), key=lambda one: sum(_drawn(together) for together in one))
    around = [
        one for epochs in loaders.values() for one in epochs if one.one.sampler.endswith(f">{most[0].one.sampler}")
    ]
    epochs = sorted([*most, *around], key=lambda one: one.one.started_ns)
    if not all(one.whole for together in epochs for one in together.passes.values()):
        raise NotSeen("the recording no longer holds every epoch")
    return [Together({rank: _with_padding(one) for rank, one in together.passes.items()}) for together in epochs]


def _with_padding(one: LoaderPass) -> LoaderPass:
    """The pass with its padding among its draws: in the rest of an epoch it cannot be told apart."""
    if not len(one.padding):
        return one
    padding = thinned(one.padding, one.keep_one_in)
    kept_set = one.kept_set.with_more(one.padding) if one.kept_set is not None else None
    return replace(one, indices=np.concatenate([one.indices, padding]), padding=one.padding[:0], kept_set=kept_set)


def _drawn(together: Together) -> int:
    return sum(one.drawn for one in together.passes.values())


def _follows(base: Sequence[Together], begun: Sequence[Together], resumed: Together, epoch: int) -> str:
    """What the first epoch of the resumed job is: `rest` of the one under way, its `start`, the `next` one, the `first`, another
    earlier one (`again 3`), or another order (`other`)."""
    partial = epoch < len(begun)
    expected = begun[epoch] if partial else None
    if epoch < len(base) and in_order_of(base[epoch], expected, resumed):
        return "rest"
    if epoch < len(base) and partial and in_order_of(base[epoch], None, resumed):
        return "start"
    if epoch + 1 < len(base) and in_order_of(base[epoch + 1], None, resumed):
        return "next"
    if epoch > 0 and (in_order_of(base[0], None, resumed) or in_order_of(base[0], expected, resumed)):
        return "first"
    earlier = next((one for one in reversed(range(1, epoch)) if in_order_of(base[one], None, resumed)), 0)
    return f"{_AGAIN}{earlier}" if earlier else "other"


def _draws_alike(whole: Together, begun: Together) -> bool:
    """Whether every rank drew what it drew in the uninterrupted job, as far as it came."""
    for rank, one in begun.passes.items():
        other = whole.passes.get(rank)
        if other is None or other.keep_one_in != one.keep_one_in:
            continue
        n = min(len(one.indices), len(other.indices))
        if not np.array_equal(other.indices[:n], one.indices[:n]):
            return False
    return True


def in_order_of(base: Together, begun: Together | None, resumed: Together) -> bool:
    """Whether every rank draws on where it had stopped in this order (at the start of it without `begun`)."""
    for rank, one in resumed.passes.items():
        whole, earlier = base.passes.get(rank), begun.passes.get(rank) if begun is not None else None
        if whole is None or (begun is not None and earlier is None):
            return False
        if not _from(whole, len(earlier.indices) if earlier is not None else 0, one):
            return False
    return True


def _from(whole: LoaderPass, at: int, one: LoaderPass) -> bool:
    order, found = whole.indices[at:], one.indices
    n = min(len(order), len(found))
    return n >= min(LEAST_DRAWS, len(order)) and bool(np.array_equal(order[:n], found[:n]))


Counted = tuple[int, tuple[int, ...]]
"""How many draws, and some of their samples."""


def _difference(base: Sequence[Together], joined: Sequence[Sequence[Together]]) -> tuple[Counted, Counted, int]:
    """What is drawn too often, and what too rarely, over all epochs; one index in how many was looked at."""
    epochs = [
        (list(whole.passes.values()), [one for part in parts for one in part.passes.values()])
        for whole, parts in zip(base, joined, strict=True)
    ]
    partly = any(one.keep_one_in > 1 for whole, pieces in epochs for one in (*whole, *pieces))
    exact = [_exactly(whole, pieces) for whole, pieces in epochs] if partly else []
    if exact and all(one is not None for one in exact):
        found = [one for one in exact if one is not None]
        return _sum([more for more, _ in found]), _sum([fewer for _, fewer in found]), 1
    repeated: dict[int, int] = defaultdict(int)
    lost: dict[int, int] = defaultdict(int)
    keep = 1
    for whole, pieces in epochs:
        lists, keep = comparable_indices([*whole, *pieces])
        values, expected, counted = _counts(lists[: len(whole)], lists[len(whole) :])
        for value, one, other in zip(values, expected, counted, strict=True):
            if other > one:
                repeated[int(value)] += int(other - one)
            elif one > other:
                lost[int(value)] += int(one - other)
    more, fewer = ((keep * sum(one.values()), tuple(sorted(one)[:EXAMPLES])) for one in (repeated, lost))
    return more, fewer, keep


def _sum(counted: Sequence[Counted]) -> Counted:
    examples = sorted({sample for _, some in counted for sample in some})
    return sum(number for number, _ in counted), tuple(examples[:EXAMPLES])


def _exactly(whole: Sequence[LoaderPass], pieces: Sequence[LoaderPass]) -> tuple[Counted, Counted] | None:
    """The same of one epoch from the sets of all samples; None where they are not known, or say too little: how often a sample
    was drawn is not in a set."""
    sets = drawn_sets([*whole, *pieces])
    if sets is None or any(repeats_within(one) for one in (*whole, *pieces)):
        return None
    totals, examples = [0, 0], [np.empty(0, np.uint32), np.empty(0, np.uint32)]
    for start, chunks in parts(sets):
        bits = [np.unpackbits(chunk, bitorder="little").astype(np.int16) for chunk in chunks]
        difference = sum(bits[len(whole) :], start=np.zeros_like(bits[0])) - sum(bits[: len(whole)])
        for side, sign in enumerate((1, -1)):
            off = sign * difference
            totals[side] += int(off[off > 0].sum())
            where = np.flatnonzero(off > 0)[: EXAMPLES - len(examples[side])]
            examples[side] = np.concatenate([examples[side], (where + 8 * start).astype(np.uint32)])
    more, fewer = ((total, tuple(map(int, some))) for total, some in zip(totals, examples, strict=True))
    return more, fewer


def _counts(one: Sequence[Indices], other: Sequence[Indices]) -> tuple[Indices, NDArray[np.int64], NDArray[np.int64]]:
    """Every value, how often it is in the one, and how often in the other."""
    none = np.empty(0, np.uint32)
    first, second = np.concatenate([*one, none]), np.concatenate([*other, none])
    values = np.union1d(first, second)
    counts = [np.bincount(np.searchsorted(values, part), minlength=len(values)) for part in (first, second)]
    different = counts[0] != counts[1]
    return values[different], counts[0][different], counts[1][different]


def _words_of_killed(epoch: int, undone: int, *, anew: bool) -> str:
    behind = f"{undone:,} samples were drawn after it"
    if anew:
        return f"restarts epoch {epoch} from its first sample: right if the last checkpoint was saved there; {behind}"
    return f"continues from its last checkpoint; {behind}"


def _words(follows: str, epoch: int) -> str:
    if follows.startswith(_AGAIN):
        again = follows.removeprefix(_AGAIN)
        return f"draws epoch {again} again instead of epoch {epoch}: the number of the epoch is not restored"
    return {
        "rest": "continues where it stopped",
        "start": f"restarts epoch {epoch} from its first sample: the position in the epoch is not restored",
        "next": f"starts epoch {epoch + 1}: the rest of epoch {epoch} is skipped",
        "first": f"draws in the order of epoch 0 instead of epoch {epoch}: the sampler does not get the epoch",
        "other": f"draws epoch {epoch} in a different order: the seed or the RNG state is not restored",
    }[follows]
