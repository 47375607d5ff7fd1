"""Evaluations that hold what they computed for all of their batches, and so need more memory than the training around them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distdoctor.diagnosis.memory.memory import MIB, RankMemory
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.events import EvaluationGrew

LEAST_GROWTH = 64 * MIB
ABOVE_TRAINING = 1.2  # times what the training had until then
GIVEN_BACK = 0.5  # of the growth, by a later step
LEAST_SHARE = 0.4  # of the growth lies in the variable: its values may lie there twice for a while


@dataclass(frozen=True)
class KeptByEvaluation:
    """One rank's largest evaluation. Bytes: `grown` since its first batches, `held` of it in `variable`, `training` before it."""

    rank: int
    site: SourceLine
    variable: str
    library: str  # whose variable it is, "" for the user's
    held: int
    grown: int
    total: int
    training: int
    batches: int
    times: int  # evaluations at this line that grew
    at_ns: int

    @property
    def seen(self) -> bool:
        """Whether a variable accounts for it."""
        return bool(self.variable) and self.held >= LEAST_SHARE * self.grown


def kept_by_evaluation(memory: RankMemory) -> KeptByEvaluation | None:
    """What this rank's evaluations keep.

    None where one of them did not grow, or where none stands out from the training. A cache of the data stays: where no variable
    of the function that evaluates accounts for it, it has to have been given back.
    """
    noted = list(memory.log.noted(EvaluationGrew))
    flat = {event.site for event in noted if event.grown < LEAST_GROWTH and not event.label}
    grew = [event for event in noted if event.grown >= LEAST_GROWTH and event.site not in flat]
    if not grew:
        return None
    most = max(grew, key=lambda event: event.grown)
    steps = memory.rows["at_ns"].astype(np.int64)
    before = _held(memory, "rss", "rss_backward", device="peak")[steps <= most.at_ns]
    after = _held(memory, "rss", device="allocated")[steps > most.at_ns]
    if not len(before):
        return None  # nothing was trained yet
    told = [event.batches for event in grew if event.site == most.site]
    kept = KeptByEvaluation(
        memory.rank,
        most.site,
        most.label,
        most.library,
        most.held,
        most.grown,
        most.nbytes,
        int(before.max()),
        most.batches,
        1 + sum(later <= earlier for earlier, later in pairwise(told)),  # one is told anew as its batches double
        most.at_ns + memory.log.monotonic_to_wall_ns,
    )
    given_back = len(after) > 0 and int(after.min()) <= kept.total - GIVEN_BACK * kept.grown
    is_local = kept.seen and kept.variable.isidentifier()
    return kept if kept.total >= ABOVE_TRAINING * kept.training and (given_back or is_local) else None


def _held(memory: RankMemory, *columns: str, device: str) -> Any:
    """Bytes at each written step: the most of these columns without what lies in files, and on the device."""
    rows = memory.rows
    own = np.max([rows[name].astype(np.int64) for name in columns], axis=0) - rows["shared"].astype(np.int64)
    return own + (rows[device].astype(np.int64) if memory.on_device else 0)
