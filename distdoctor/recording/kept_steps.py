"""Which steps of what is recorded step by step travel in a bundle: the same ones from every rank, as far as each has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.recording import RankTrace
from distdoctor.recording.trace.layout import UpdateFlag, ranks_of
from distdoctor.recording.trace.reader import Rows

Steps = NDArray[np.int64]
_DIGESTS = ("grads", "params", "state")


def spread_steps(rows: Rows, most: int) -> Rows:
    """The rows of the newest steps, and of as many older ones: those that 2, 4, 8, ... divide, so that ranks choose alike."""
    steps = np.unique(rows["step"]).astype(np.int64)
    older, divisor = steps[:-most], 1
    while len(older) > most:
        divisor *= 2
        older = older[older % divisor == 0]
    return rows[np.isin(rows["step"], np.concatenate([older, steps[-most:]]))]


def newest_steps(rows: Rows, steps: int, most: int) -> Rows:
    """The rows of the newest steps, whole ones, of so many rows at most; one step in any case."""
    if not len(rows):
        return rows
    begins = np.flatnonzero(np.diff(rows["step"], prepend=rows["step"][0] + 1))[-steps:]
    fitting = begins[len(rows) - begins <= most]
    return rows[int(fitting[0] if len(fitting) else begins[-1]) :]


def steps_in_common(sections: Sequence[Rows]) -> Steps:
    """The steps that are in all of these, rising."""
    steps = [np.unique(rows["step"]).astype(np.int64) for rows in sections]
    found = steps[0] if steps else np.empty(0, np.int64)
    for others in steps[1:]:
        found = np.intersect1d(found, others)
    return found


def ranks_agree(logs: Sequence[RankTrace]) -> bool:
    """Whether all ranks should hold the same bits as others, and did in all steps that two of these looked at."""
    known: dict[tuple[int, int, str, str], int] = {}
    for log in logs:
        updates = log.rows("updates")
        for row in updates[(updates["flags"] & UpdateFlag.DIGESTED) != 0]:
            agree = log.text(int(row["agree"]))
            if len(ranks_of(agree)) < 2:
                return False
            for field in _DIGESTS:
                digest, key = int(row[field]), (int(row["step"]), int(row["optimizer"]), agree, field)
                if digest and known.setdefault(key, digest) != digest:
                    return False
    return True
