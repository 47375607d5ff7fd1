"""The fact: how a run that goes on from an earlier one's save draws its samples, beside what that one had drawn until it saved.

There is no uninterrupted run to compare with, so only what two recordings prove is told: samples of the epoch under way that come
again or are passed over, and orders of earlier epochs that come again. A run that began with trained weights alone may be a fresh
start, and is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.checkpoint.restored import Continuation, Restored
from distdoctor.diagnosis.data.read_past import part_of, without_what_was_read_past
from distdoctor.diagnosis.data.resumption import in_order_of, training_epochs
from distdoctor.diagnosis.data.samples import Indices, Together, comparable_indices, repeats_within
from distdoctor.diagnosis.derived import derived
from distdoctor.recording.recording import Recording
from distdoctor.recording.resumption import Resumption

SURE_DIGITS = 6.0  # a coincidence of less than one in 10^6
EXAMPLES = 5


@dataclass(frozen=True)
class WentOn:
    """What was compared, and with which run. NotApplicable: this run goes on from none, or `check-resume` compares it."""

    streams: ClassVar[frozenset[str]] = frozenset({"samples", "checkpoints"})
    resumption: Resumption
    run: str

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.replay is not None:
            raise NotApplicable("resuming is compared step by step")
        chosen = [one for one in derived(Restored, recording).ranks.values() if _is_meant(one)]
        save = chosen[0].save if chosen else None
        earlier = recording.earlier_runs.get(save.run) if save is not None else None
        if save is None or earlier is None:
            raise NotApplicable("this run does not go on from an earlier one that was recorded")
        step = save.document.step
        whole = training_epochs(earlier)
        begun = [epoch for epoch in whole if epoch.one.first_step < step]
        if not begun:
            raise NotApplicable("the earlier run had drawn nothing when it saved")
        until = _until(begun[-1], step, _steps_in(whole, begun, earlier))
        resumed = [without_what_was_read_past(epoch, until, recording) for epoch in training_epochs(recording)]
        return cls(_account(begun, until, resumed, step), save.run)


def _is_meant(one: Continuation) -> bool:
    """Whether more than weights was brought back, or an argument speaks of resuming."""
    return bool(one.restored) or one.start.document.resumes


def _steps_in(whole: Sequence[Together], begun: Sequence[Together], earlier: Recording) -> int:
    """How many steps were made in the last of these epochs, also behind the save."""
    later = whole[len(begun) :]
    last = max((int(log.steps["step"][-1]) for log in earlier.ranks.values() if len(log.steps)), default=0)
    return (later[0].one.first_step if later else last) - begun[-1].one.first_step


def _until(epoch: Together, step: int, made: int) -> Together:
    """The part of the epoch that was drawn when this step was over. NotApplicable: its draws cannot be told apart."""
    steps = step - epoch.one.first_step
    if steps >= made:
        return epoch
    if any(one.batches % made or one.keep_one_in > 1 or one.batch_size < 1 for one in epoch.passes.values()):
        raise NotApplicable("where the earlier run had been in its epoch when it saved is not on record")
    draws = {rank: steps * (one.batches // made) * one.batch_size for rank, one in epoch.passes.items()}
    return Together({rank: part_of(one, 0, draws[rank]) for rank, one in epoch.passes.items()})


def _account(begun: Sequence[Together], until: Together, resumed: Sequence[Together], step: int) -> Resumption:
    first, last, epoch = resumed[0], begun[-1], len(begun) - 1
    place, length = first.one.made_line or first.one.loop_line, _full(begun, resumed)
    found = Resumption(
        step=step,
        epoch=epoch,
        into_epoch=_drawn(until),
        of_epoch=max(length, first.one.data.length),
        ranks=first.ranks,
        path=place.path,
        line=place.line,
        function=place.function,
        keep_one_in=max(one.keep_one_in for one in (*until.passes.values(), *first.passes.values())),
    )
    restarts = _is_sure(first, last) and in_order_of(last, None, first)
    is_whole = _drawn(until) >= length
    if (is_whole and (_is_over(last) or not restarts)) or _is_left_early_always(begun, until):
        again, found = _repeated_epoch(begun, first), replace(found, epoch=epoch + 1, into_epoch=0)
        words = f"repeats the order of epoch {again}"
        return found if again is None else replace(found, wrong_order=True, order=words)
    if restarts:
        words = f"restarts epoch {epoch} from its first sample: the position in the epoch is not restored"
        return replace(found, repeated=_drawn(until), order=words)
    if _is_sure(first, until) and _drawn(last) > _drawn(until) and in_order_of(last, until, first):
        return found
    return _compared(found, until, first)


def _drawn(epoch: Together) -> int:
    return sum(one.drawn for one in epoch.passes.values())


def _full(begun: Sequence[Together], resumed: Sequence[Together]) -> int:
    """How many draws an epoch has: as many as the longest that was seen."""
    return max(_drawn(epoch) for epoch in (*begun, *resumed))


def _is_over(epoch: Together) -> bool:
    """Whether every rank read it to its end, or drew as many as the data has."""
    one = epoch.one
    return all(mate.read_all for mate in epoch.passes.values()) or 0 <= one.data.length <= _drawn(epoch)


def _is_left_early_always(begun: Sequence[Together], until: Together) -> bool:
    """Whether an epoch is over where the save was made: the one before it was left there too."""
    return len(begun) > 1 and _drawn(begun[-2]) == _drawn(until)


def _is_sure(first: Together, other: Together) -> bool:
    """Whether as many draws as the two have in common in each rank agree by no chance."""
    pairs = [(one, other.passes.get(rank)) for rank, one in first.passes.items()]
    return all(mate and one.chance_digits(min(one.drawn, mate.drawn)) >= SURE_DIGITS for one, mate in pairs)


def _repeated_epoch(begun: Sequence[Together], first: Together) -> int | None:
    """The earlier epoch whose order comes again, of a loader whose epochs differ."""
    if all(in_order_of(begun[0], None, epoch) for epoch in begun[1:]):
        return None
    return next((n for n, one in enumerate(begun) if _is_sure(first, one) and in_order_of(one, None, first)), None)


def _compared(found: Resumption, until: Together, first: Together) -> Resumption:
    """Which samples of the epoch under way come again, and which are passed over; less than a batch on each rank is padding."""
    before, after = list(until.passes.values()), list(first.passes.values())
    every = [*before, *after]
    alike = all(one.comparable and one.data.same_content(before[0].data) for one in every)
    if not alike or before[0].data.length < 0 or any(repeats_within(one) for one in every):
        return found
    lists, keep = comparable_indices(every)
    drawn, drawn_after = _joined(lists[: len(before)]), _joined(lists[len(before) :])
    again = np.intersect1d(drawn, drawn_after)
    unread = all(one.read_all for one in after)
    lost = before[0].data.length - keep * len(np.union1d(drawn, drawn_after)) if unread else 0
    least = max(sum(max(one.batch_size, 1) for one in side) for side in (before, after))
    repeated = keep * len(again) if keep * len(again) >= least else 0
    lost = lost if lost >= least else 0
    words = f"does not continue epoch {found.epoch} where it stopped"
    examples = tuple(int(index) for index in again[:EXAMPLES]), ()
    return replace(found, repeated=repeated, lost=lost, order=words, examples=examples)


def _joined(lists: Sequence[Indices]) -> Indices:
    return np.unique(np.concatenate(lists))
