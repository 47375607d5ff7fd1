"""Parts of an epoch: up to the step at which a job saved, and without the batches that a resumed loop reads and passes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.diagnosis.data.samples import LoaderPass, Together
from distdoctor.recording.recording import Recording


def part_of(one: LoaderPass, begin: int, end: int) -> LoaderPass:
    """The draws from `begin` up to `end` as a pass of their own."""
    kept = one.indices[begin:end]
    return replace(one, indices=kept, drawn=len(kept), ended_ns=one.ended_ns if end >= one.drawn else 0, kept_set=None)


def without_what_was_read_past(epoch: Together, until: Together, recording: Recording) -> Together:
    """A loop may read batches and pass them over until it is where the earlier run had been: they were drawn before a first step
    for which other steps need fewer. A loader that is read one batch ahead (accelerate, Trainer) passes over none."""
    if epoch.one.first_step:
        return epoch
    parts = {}
    for rank, one in epoch.passes.items():
        batches = [int(row["batches"]) for row in recording.ranks[rank].rows("times")[:2]]
        past, usual = (batches[0] - batches[1], batches[1]) if len(batches) > 1 else (0, 0)
        draws, before = past * max(one.batch_size, 1), until.passes.get(rank)
        ahead = past <= usual and before is not None and draws < before.drawn
        parts[rank] = part_of(one, draws, one.drawn) if past > 0 and one.keep_one_in == 1 and not ahead else one
    return Together(parts)


def until_step(
    begun: Sequence[Together], base: Sequence[Together], whole: Recording, step: int
) -> list[Together] | None:
    """What the epochs `begun` had drawn when `step` steps were made, by the pace of the uninterrupted job `base`. None: it has no
    steady pace, or more was kept of it than that."""
    found = []
    for number, epoch in enumerate(begun):
        first = base[number].one.first_step
        later = base[number + 1].one.first_step if number + 1 < len(base) else steps_of(whole)
        made, steps = later - first, step - first
        if epoch.one.first_step != first or made <= 0:
            return None
        if steps >= made:
            found.append(epoch)
        elif steps > 0:
            cut = _up_to(epoch, base[number], steps, made)
            if cut is None:
                return None
            found.append(cut)
    return found or None


def _up_to(epoch: Together, base: Together, steps: int, made: int) -> Together | None:
    parts = {}
    for rank, one in epoch.passes.items():
        whole = base.passes.get(rank)
        if whole is None or whole.batches % made or one.keep_one_in > 1 or one.batch_size < 1:
            return None
        draws = steps * (whole.batches // made) * one.batch_size
        if draws > one.drawn:
            return None
        parts[rank] = part_of(one, 0, draws)
    return Together(parts)


def steps_of(recording: Recording) -> int:
    """How many steps the job made."""
    return max((int(log.steps["step"][-1]) for log in recording.ranks.values() if len(log.steps)), default=0)
