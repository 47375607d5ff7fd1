"""What no rank drew in any epoch: exactly where all draws are known, else among the indices that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from distdoctor.diagnosis.data.samples import Indices, LoaderPass, Together, drawn_sets, unseen
from distdoctor.recording.trace.sample_bitmap import SampleBitmap, in_common, last, missing, pieces, samples

_FEW = 256  # samples of a hole that are looked at for a pattern


@dataclass(frozen=True, eq=False)
class UndrawnSamples:
    """`count` samples, an estimate where `keep_one_in` is above 1; in so many `runs` from `first` to `last`."""

    count: int
    keep_one_in: int
    examples: tuple[int, ...]
    first: int
    last: int
    runs: int
    _held: Indices | SampleBitmap

    @property
    def words(self) -> str:
        """`samples 75-99`, or where they begin and end."""
        if self.runs <= 1:
            return f"samples {self.first}-{self.last}"
        return f"between sample {self.first} and {self.last}, in {self.runs:,} pieces"

    @property
    def is_regular(self) -> bool:
        """Whether it looks like an arithmetic slip: the end of the data, or a share in a stride. Samples that were left out for
        what they are lie anywhere."""
        if self.keep_one_in > 1:
            return True  # the pattern is not on record
        held = samples(0, self._held.bits, _FEW) if isinstance(self._held, SampleBitmap) else self._held[:_FEW]
        steps = np.unique(np.diff(np.asarray(held, dtype=np.int64)))
        return self.runs <= 2 or len(steps) <= 2

    def meets(self, one: LoaderPass) -> bool:
        """Whether this pass draws some of it."""
        if isinstance(self._held, SampleBitmap):
            drawn = one.drawn_set
            if drawn is not None:
                return in_common([self._held, drawn], examples=0).shared > 0
            return bool(self._held.holds(one.indices).any())
        return len(np.intersect1d(self._held, one.indices)) > 0


def hole_of(epochs: Sequence[Together], length: int) -> tuple[UndrawnSamples, int]:
    """The hole that all epochs leave in `range(length)`, and how many samples more an epoch leaves at most."""
    passes = [one for together in epochs for one in together.passes.values()]
    if any(one.keep_one_in > 1 for one in passes) and drawn_sets(passes) is not None:
        return _exactly([list(together.passes.values()) for together in epochs])
    keep = max(one.keep_one_in for one in passes)
    per_epoch = [unseen(list(together.passes.values()), length) for together in epochs]
    hole = reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), per_epoch)
    runs = 1 + int(np.count_nonzero(np.diff(hole.astype(np.int64)) > 1))
    ends = (int(hole[0]), int(hole[-1])) if len(hole) else (0, -1)
    found = UndrawnSamples(len(hole) * keep, keep, tuple(map(int, hole[:5])), *ends, runs, hole)
    return found, keep * (max(len(other) for other in per_epoch) - len(hole))


def _exactly(epochs: Sequence[Sequence[LoaderPass]]) -> tuple[UndrawnSamples, int]:
    hole, most = None, 0
    for passes in epochs:
        sets = [one.with_more(p.padding) for one, p in zip(drawn_sets(passes) or [], passes, strict=True)]
        left = missing(sets)
        most = max(most, len(left))
        hole = left if hole is None else SampleBitmap(left.length, hole.bits & left.bits)
    assert hole is not None
    count, where = len(hole), np.flatnonzero(hole.bits)[:5]
    examples = tuple(map(int, samples(0, hole.bits[: where[-1] + 1], 5))) if len(where) else ()
    found = UndrawnSamples(count, 1, examples, examples[0] if examples else 0, last(hole), pieces(hole), hole)
    return found, most - count
