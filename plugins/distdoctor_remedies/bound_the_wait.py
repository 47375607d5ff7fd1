"""Bound a wait, so that it ends with an error that names the line."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

BOUND_THE_WAIT = Remedy(
    slug="bound-the-wait",
    what="Give the wait a timeout, or take it out of the path between two collectives.",
    how="if not lock.acquire(timeout=60):\n    raise TimeoutError('who holds the lock?')",
    effect="the rank fails with the line that waited, instead of holding up every other rank until the collective's timeout",
    safety="changes no result",
    source="https://docs.python.org/3/library/threading.html#threading.Lock.acquire",
)
