"""What a bundle tells of rows: times to one 125th of a step, the memory of the host to a quarter
of a MiB, and of a running digest the word that went into it, which for signatures is on record already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.trace.layout import GOLDEN, POINT_TO_POINT, extend
from distdoctor.recording.trace.reader import Rows

MICROSECOND = 1000  # the clocks of two hosts agree less well than that
COARSEST = 1024 * MICROSECOND
_RUNNING_DIGESTS = ("prefix", "site_prefix")
# What memory was is a matter of its step: the moment is drawn in a picture at most. That of its holders nobody looks at.
_COARSER = {"memory": 16}  # quanta of which its times are multiples
_UNTOLD = {"holders": "at_ns"}
# Bytes that the kernel counts, page by page. No check looks at less than 16 MiB of them; what tensors hold is told to the byte.
_OF_THE_HOST = {"memory": ("rss", "rss_backward", "shared", "available", "shm_free", "workers_rss")}
_HOST_BYTES = 1 << 18
_INVERSE = np.uint64(pow(GOLDEN, -1, 1 << 64))


def quantum_of(steps: Iterable[Rows]) -> int:
    """Of what number of nanoseconds the times of one host are told as multiples, from the steps of its ranks."""
    between = [float(np.median(np.diff(rows["at_ns"]))) for rows in steps if len(rows) > 2]
    quantum = MICROSECOND
    while quantum < COARSEST and 250 * quantum <= min(between, default=0.0):
        quantum *= 2
    return quantum


def told(name: str, rows: Rows, quantum_ns: int) -> Rows:
    """The rows as they travel. What has happened is never told as 0, and an order of times stays one."""
    found = rows.copy()
    times = _COARSER.get(name, 1)
    for field in times_of(rows.dtype):
        quanta = rows[field] // (quantum_ns * times)
        found[field] = times * np.where(rows[field] > 0, np.maximum(quanta, 1), quanta)
    for field in _OF_THE_HOST.get(name, ()):
        found[field] = np.where(rows[field] < _HOST_BYTES, rows[field], rows[field] // _HOST_BYTES * _HOST_BYTES)
    if name in _UNTOLD:
        found[_UNTOLD[name]] = 0
    if name == "calls":
        for field in _RUNNING_DIGESTS:
            running = _runs_on(rows, field)
            found[field][running] = _words_of(rows[running], field)
        found["prefix"] ^= rows["signature"]
    return found


def restore(name: str, rows: Rows, quantum_ns: int) -> None:
    """Put back what `told` took away, but for what is less than the quantum."""
    for field in times_of(rows.dtype):
        rows[field] *= quantum_ns
    if name == "calls":
        rows["prefix"] ^= rows["signature"]
        for field in _RUNNING_DIGESTS:
            running = _runs_on(rows, field)
            rows[field][running] = _digests_of(rows[running], field)


def times_of(dtype: np.dtype[Any]) -> list[str]:
    """The fields that hold times."""
    return [field for field in dtype.names or () if field.endswith("_ns")]


def _runs_on(rows: Rows, field: str) -> NDArray[np.bool_]:
    """Which of the calls hold a running digest there. Of sends and receives `site_prefix` is a word of their own."""
    collective: NDArray[np.bool_] = ~np.isin(rows["op"], [int(op) for op in POINT_TO_POINT])
    return collective | (field != "site_prefix")


def _words_of(rows: Rows, field: str) -> NDArray[np.uint64]:
    """What `extend` was given, row by row; each group has a digest of its own, and its first row is told from 0."""
    order = np.argsort(rows["group"], kind="stable")
    digests, groups = rows[field][order], rows["group"][order]
    before = np.where(np.diff(groups, prepend=groups[:1]) == 0, np.roll(digests, 1), np.uint64(0))
    before[:1] = 0
    words = np.empty(len(rows), np.uint64)
    words[order] = ((digests - np.uint64(1)) * _INVERSE) ^ before
    return words


def _digests_of(rows: Rows, field: str) -> list[int]:
    """The running digests of which `_words_of` tells the words."""
    latest: dict[int, int] = {}
    found = []
    for group, word in zip(rows["group"].tolist(), rows[field].tolist(), strict=True):
        latest[group] = extend(latest.get(group, 0), word)
        found.append(latest[group])
    return found
